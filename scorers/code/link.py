"""link.py -- a solution in one process, its tests in another.

The tests see functions, classes and objects of the solution as stand-ins, whose uses become messages. Plain data (numbers, texts,
containers, dates ..) crosses by value, so that what a test compares is the test's own: an object of the solution that claims to equal
everything, or to be less than anything, never meets the value that it is compared with. Exceptions:
 - two objects of the solution are compared by the solution;
 - objects of a class that the test itself calls by a Capitalized name (Vector(1, 2) * 3) have their operators.
What a call changes in lists, dictionaries and sets that it was given is changed in the tests' ones after it. Functions and objects of
the tests that a solution gets are stand-ins there; it can call them, and read names without a leading underscore of objects of
classes that the tests define.

A message is a line of JSON, at most LONGEST bytes. Values are tagged lists; both sides read them as data, and nothing in them
is evaluated. A message that is not as expected ends the process that gets it.
"""
import asyncio
import collections
import datetime
import decimal
import fractions
import inspect
import io
import pathlib

LONGEST = 64 << 20
SCALARS = (type(None), bool, int, float, str)
OPERATORS = {n: "__%s__" % n for n in ("add sub mul truediv floordiv mod pow matmul and or xor lshift rshift lt le gt ge eq ne").split()}
REFLECTED = {"__r%s__" % n: n for n in "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift".split()}
UNARY = {"__neg__": lambda x: -x, "__pos__": lambda x: +x, "__abs__": abs, "__invert__": lambda x: ~x, "__len__": len, "__bool__": bool,
         "__str__": str, "__repr__": repr, "__hash__": hash, "__int__": int, "__float__": float, "__complex__": complex,
         "__index__": lambda x: x.__index__(), "__next__": next, "__iter__": iter, "__reversed__": reversed,
         "__enter__": lambda x: x.__enter__(), "__round__": round, "__bytes__": bytes, "__dir__": dir}
RECORDS = {"datetime": datetime.datetime, "date": datetime.date, "time": datetime.time, "timedelta": datetime.timedelta,
           "Decimal": decimal.Decimal, "Fraction": fractions.Fraction}
CONTAINERS = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "deque": collections.deque}
MAPPINGS = {"dict": dict, "OrderedDict": collections.OrderedDict, "Counter": collections.Counter}


class LinkError(BaseException):
    pass


def record_arguments(v):
    if type(v) is datetime.timedelta:
        return [v.days, v.seconds, v.microseconds]
    if type(v) is decimal.Decimal:
        return [str(v)]
    if type(v) is fractions.Fraction:
        return [v.numerator, v.denominator]
    names = "year month day".split() if not isinstance(v, datetime.time) else []
    if not type(v) is datetime.date:
        names += "hour minute second microsecond".split()
    return [getattr(v, n) for n in names]


class Link:
    """What both sides have in common. Objects that the other side holds are kept by number."""

    def __init__(self, sock):
        self.file = sock.makefile("rwb")
        self.kept, self.numbers = {}, {}

    # ---- values ----

    def keep(self, value):
        number = self.numbers.get(id(value))
        if number is None:
            number = self.numbers[id(value)] = len(self.kept) + 1
            self.kept[number] = value
        return number

    def write(self, v):
        kind = type(v)
        if kind in SCALARS:
            return v
        if kind in CONTAINERS.values():
            return [kind.__name__] + [self.write(x) for x in v]
        if kind in MAPPINGS.values():
            return [kind.__name__] + [[self.write(k), self.write(x)] for k, x in v.items()]
        if kind is collections.defaultdict:
            return ["dict"] + [[self.write(k), self.write(x)] for k, x in v.items()]
        if kind in (bytes, bytearray):
            return [kind.__name__, v.hex()]
        if kind is complex:
            return ["complex", v.real, v.imag]
        if kind is range:
            return ["range", v.start, v.stop, v.step]
        if kind is slice:
            return ["slice", self.write(v.start), self.write(v.stop), self.write(v.step)]
        if kind in RECORDS.values() and getattr(v, "tzinfo", None) is None:
            return ["record", kind.__name__] + record_arguments(v)
        if isinstance(v, pathlib.PurePath):
            return ["path", str(v)]
        if v is NotImplemented or v is Ellipsis:
            return ["constant", str(v)]
        if kind.__module__ == "numpy" and hasattr(v, "tolist"):
            return self.write(v.tolist()) if not v.shape else ["array", str(v.dtype), self.write(v.tolist())]
        if isinstance(v, type) and getattr(builtins, v.__name__, None) is v:
            return ["builtin", v.__name__]
        if isinstance(v, types.ModuleType):
            return ["module", v.__name__]
        for base in (bool, int, float, str, bytes):
            if isinstance(v, base) and not hasattr(v, "_value_"):
                return self.write(base(v) if base is not str else str.__str__(v))
        if isinstance(v, tuple) and hasattr(v, "_fields"):
            return ["named", kind.__name__, list(v._fields)] + [self.write(x) for x in v]
        return self.write_object(v)

    def read(self, v):
        if not isinstance(v, list):
            return v
        tag, rest = v[0], v[1:]
        if tag in CONTAINERS:
            return CONTAINERS[tag]([self.read(x) for x in rest])
        if tag in MAPPINGS:
            return MAPPINGS[tag]({self.read(k): self.read(x) for k, x in rest})
        if tag in ("bytes", "bytearray"):
            return (bytes if tag == "bytes" else bytearray).fromhex(rest[0])
        if tag == "complex":
            return complex(float(rest[0]), float(rest[1]))
        if tag == "range":
            return range(*map(int, rest))
        if tag == "slice":
            return slice(*[self.read(x) for x in rest])
        if tag == "record":
            return RECORDS[rest[0]](*rest[1:])
        if tag == "path":
            return pathlib.Path(rest[0])
        if tag == "constant":
            return NotImplemented if rest[0] == "NotImplemented" else Ellipsis
        if tag == "array":
            return importlib.import_module("numpy").array(self.read(rest[1]), dtype=rest[0] if rest[0] != "object" else None)
        if tag == "builtin":
            kind = getattr(builtins, rest[0])
            return kind if isinstance(kind, type) else None
        if tag == "module":
            return importlib.import_module(rest[0])
        if tag == "named":
            return collections.namedtuple(rest[0], rest[1])(*[self.read(x) for x in rest[2:]])
        if tag == "yours":
            return self.kept[rest[0]]
        return self.read_object(tag, rest)

    # ---- messages ----

    def send(self, message):
        self.file.write(json.dumps(message).encode() + b"\n")
        self.file.flush()

    def receive(self):
        line = self.file.readline(LONGEST)
        if not line.endswith(b"\n"):
            raise LinkError("the process of the solution has ended" if not line else "a message is too long")
        return json.loads(line)

    def ask(self, *message):
        """Send a request; the other side may ask back before it answers."""
        self.send(["ask"] + list(message))
        while True:
            kind, *rest = self.receive()
            if kind != "ask":
                return self.take_answer(kind, rest)
            self.answer(rest)


def changed(before, values, link):
    """Which of the containers that a call got it has changed."""
    return [[i, link.write(v)] for i, v in enumerate(values) if before[i] is not None and link.write(v) != before[i]]


class SolutionLink(Link):
    """The side of the solution."""

    def __init__(self, sock, module):
        super().__init__(sock)
        self.module = module
        self.text = io.StringIO()

    def write_object(self, v):
        if isinstance(v, Foreign):
            return ["yours", vars(v)["number"]]
        kind = v if isinstance(v, type) else type(v)
        if isinstance(v, type):
            names = [b.__name__ for b in kind.__mro__[1:] if getattr(builtins, b.__name__, None) is b and issubclass(b, BaseException)]
            bases = [self.write(b) for b in kind.__bases__ if getattr(builtins, b.__name__, None) is not b and b.__module__ == "solution"]
            return ["class", self.keep(v), v.__name__, names[:1], bases]
        return ["object", self.keep(v), self.write(kind) if kind.__module__ == "solution" else ["builtin", "object"],
                any(isinstance(v, k) for k in (list, tuple, dict, set, frozenset, collections.deque)), inspect.isawaitable(v)]

    def read_object(self, tag, rest):
        return Foreign(self, rest[0])

    def take_answer(self, kind, rest):
        if kind == "value":
            return self.read(rest[0])
        raise getattr(builtins, rest[0])(*self.read(rest[1]))

    def do(self, what, target, rest):
        if what == "call":
            return target(*rest[0], **rest[1])
        if what == "get":
            return getattr(target, rest[0])
        if what == "set":
            return setattr(target, rest[0], rest[1])
        if what == "delete":
            return delattr(target, rest[0])
        if what == "unary":
            return UNARY[rest[0]](target)
        if what == "operator":
            a, b = (rest[1], target) if rest[2] else (target, rest[1])
            return getattr(operator_module, OPERATORS[rest[0]])(a, b)
        if what == "item":
            return target[rest[0]]
        if what == "set item":
            target[rest[0]] = rest[1]
            return None
        if what == "delete item":
            del target[rest[0]]
            return None
        if what == "in":
            return rest[0] in target
        if what == "exit":
            return target.__exit__(*rest[0])
        if what == "format":
            return format(target, rest[0])
        if what == "await":
            return asyncio.run(target) if inspect.iscoroutine(target) else asyncio.run(awaited(target))
        base = next(k for k in (list, tuple, dict, set, frozenset, collections.deque) if isinstance(target, k))
        return base(target)  # "plain"

    def answer(self, message):
        """Do what the tests ask for; what it changes and prints goes with the answer."""
        try:
            what, target, *rest = message
            target = self.read(target)
            rest = [self.read(x) for x in rest]
            given = list(rest[0]) + list(rest[1].values()) if what == "call" else []
            before = [self.write(v) if type(v) in (list, dict, set, bytearray, collections.deque) else None for v in given]
            value = self.write(self.do(what, target, rest))
            answer = ["value", value, changed(before, given, self)]
        except LinkError:
            raise
        except BaseException as e:
            kind = next(k for k in type(e).__mro__ if getattr(builtins, k.__name__, None) is k)
            try:
                shown = str(e)
            except BaseException:
                shown = ""
            answer = ["raise", kind.__name__, self.write(type(e)) if type(e) is not kind else None, shown[:10000],
                      self.keep(e), self.arguments_of(e)]
        text = self.text.getvalue()
        self.text.seek(0)
        self.text.truncate()
        self.send(answer + [text])

    def arguments_of(self, e):
        try:
            return self.write(e.args)
        except BaseException:
            return ["tuple"]


async def awaited(x):
    return await x


class Foreign:
    """An object of the tests, in the solution."""

    def __init__(self, link, number):
        vars(self).update(link=link, number=number)

    def __call__(self, *args, **kwargs):
        v = vars(self)
        return v["link"].ask("call", ["yours", v["number"]], v["link"].write(args), v["link"].write(kwargs))

    def __getattr__(self, name):
        v = vars(self)
        return v["link"].ask("get", ["yours", v["number"]], name)

    def __iter__(self):
        v = vars(self)
        return v["link"].ask("iter", ["yours", v["number"]])

    def __next__(self):
        v = vars(self)
        return v["link"].ask("next", ["yours", v["number"]])


class Input:
    """stdin of a solution that is tested."""

    def __init__(self, link):
        self.link = link

    def readline(self, *args):
        return self.link.ask("readline", None)

    def read(self, *args):
        return self.link.ask("read", None)

    def readlines(self):
        return self.read().splitlines(True)

    def __iter__(self):
        return iter(self.readline, "")


def serve_solution(job, sock):
    module = module_of("solution", job["code"])
    sys.modules["solution"] = sys.modules["__main__"] = module
    link = SolutionLink(sock, module)
    sys.stdout, sys.stdin = link.text, Input(link)
    builtins.input = lambda *prompt: link.ask("input", None, *map(str, prompt))
    try:
        run_module(module, job["code"])
    except BaseException as e:
        link.send(["failed", last_line(e)])
        return
    names = {}
    for name, value in list(vars(module).items()):
        if name in prelude and prelude[name] is value or name.startswith("__"):
            continue
        try:
            names[name] = link.write(value)
            json.dumps(names[name])
        except Exception:
            names.pop(name, None)
    link.send(["names", link.keep(module), names])
    while True:
        kind, *message = link.receive()
        link.answer(message)


import operator as operator_module  # noqa: E402 (the prelude has another operator)
