"""link.py -- the messages between a solution in one process (solution.py) and its tests in another (stand_ins.py).

The tests see functions, classes and objects of the solution as stand-ins, whose uses become messages. From the solution to the tests
only data crosses: numbers, texts, plain containers, names of exceptions, and handles (numbers of objects). docs/sandbox.md has the
grammar. What is not of it ends the case: the tests read nothing as a name of theirs but the tags below, and evaluate nothing.

A message is a line of JSON, at most LONGEST bytes. A value that JSON has not is a list that begins with its tag.
"""
import asyncio
import collections
import collections.abc
import datetime
import decimal
import fractions
import inspect
import io
import operator as operator_module
import pathlib
import re as re_module

LONGEST = 64 << 20
SCALARS = (type(None), bool, int, float, str)
COMPARISONS = "lt le gt ge eq ne".split()
OPERATORS = {n: "__%s__" % n for n in "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift".split() + COMPARISONS}
REFLECTED = {"__r%s__" % n: n for n in "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift".split()}
UNARY = {"__neg__": lambda x: -x, "__pos__": lambda x: +x, "__abs__": abs, "__invert__": lambda x: ~x, "__len__": len, "__bool__": bool,
         "__str__": str, "__repr__": repr, "__hash__": hash, "__int__": int, "__float__": float, "__complex__": complex,
         "__index__": lambda x: x.__index__(), "__next__": next, "__iter__": iter, "__reversed__": reversed,
         "__enter__": lambda x: x.__enter__(), "__round__": round, "__bytes__": bytes, "__dir__": dir, "__aiter__": lambda x: x.__aiter__()}
# What a solution may do with any object of the tests that it was given, and with one of a class of the tests.
STEPS = "__call__ __iter__ __next__ __await__".split()
METHODS = ["__hash__", *OPERATORS.values(), *REFLECTED, *"__neg__ __pos__ __abs__ __invert__ __len__ __bool__ __str__ __repr__ __int__ __float__ __index__ __reversed__ "
           "__round__ __enter__ __exit__ __getitem__ __setitem__ __delitem__ __contains__".split()]
CONTAINERS = {k.__name__: k for k in (list, tuple, set, frozenset, collections.deque)}
MAPPINGS = {k.__name__: k for k in (dict, collections.OrderedDict, collections.Counter)}
RECORDS = {"datetime": (datetime.datetime, "year month day hour minute second microsecond"), "date": (datetime.date, "year month day"),
           "time": (datetime.time, "hour minute second microsecond"), "timedelta": (datetime.timedelta, "days seconds microseconds"),
           "Fraction": (fractions.Fraction, "numerator denominator")}
RECORD_NAMES = {kind: (name, fields.split()) for name, (kind, fields) in RECORDS.items()}
DTYPES = r"bool|u?int(8|16|32|64)|float(16|32|64|128)|complex(64|128|256)|[<|][US][0-9]{1,5}|(datetime|timedelta)64(\[[a-zA-Z]{1,2}\])?|object"
EXCEPTIONS = {n: k for n, k in vars(builtins).items() if isinstance(k, type) and issubclass(k, BaseException)}


class LinkError(BaseException):
    """A message that is not of the grammar, or the end of the other process: the end of the case, too."""


def of(kind, x):
    """x, which is of this kind and not of one derived from it."""
    if type(x) is not kind:
        raise LinkError("%s where the link has %s" % (type(x).__name__, kind.__name__))
    return x


def read_array(link, dtype, values):
    if not re_module.fullmatch(DTYPES, dtype):
        raise LinkError("an array of %r" % dtype)
    return importlib.import_module("numpy").array(link.read(values), dtype=dtype if dtype != "object" else None)


loops = []


def run_here(x):
    """An awaitable to its end, also below a coroutine that runs. All others run in the same loop."""
    async def wait():
        return await x

    running = asyncio._get_running_loop()
    if not running and not loops:
        loops.append(asyncio.new_event_loop())
    loop = asyncio.new_event_loop() if running else loops[0]
    asyncio._set_running_loop(None)
    try:
        return loop.run_until_complete(wait())
    finally:
        asyncio._set_running_loop(running)


named_tuples = {}


def read_named(link, name, fields, *values):
    key = of(str, name), tuple(of(str, f) for f in of(list, fields))
    if key not in named_tuples:
        named_tuples[key] = collections.namedtuple(*key)
    return named_tuples[key](*map(link.read, values))


def container_reader(kind):
    return lambda link, *values: kind(map(link.read, values))


def mapping_reader(kind):
    return lambda link, *pairs: kind({link.read(k): link.read(v) for k, v in pairs})


def record_reader(kind):
    return lambda link, *numbers: kind(*[of(int, n) for n in numbers])


DATA = {
    **{name: container_reader(kind) for name, kind in CONTAINERS.items()},
    **{name: mapping_reader(kind) for name, kind in MAPPINGS.items()},
    **{name: record_reader(kind) for name, (kind, fields) in RECORDS.items()},
    "bytes": lambda link, x: bytes.fromhex(x),
    "bytearray": lambda link, x: bytearray.fromhex(x),
    "complex": lambda link, a, b: complex(of(float, a), of(float, b)),
    "range": lambda link, a, b, step: range(of(int, a), of(int, b), of(int, step)),
    "slice": lambda link, *ends: slice(*[None if x is None else of(int, x) for x in ends]),
    "Decimal": lambda link, x: decimal.Decimal(of(str, x)),
    "path": lambda link, x: pathlib.Path(of(str, x)),
    "ellipsis": lambda link: Ellipsis,
    "array": read_array,
    "named": read_named,
}


class Link:
    """What both sides have in common. Objects that the other side has a handle of are kept by number."""

    readers = DATA

    def __init__(self, sock):
        self.file = sock.makefile("rwb")
        self.kept, self.numbers = {}, {}

    def keep(self, value):
        number = self.numbers.get(id(value))
        if number is None:
            number = self.numbers[id(value)] = len(self.kept) + 1
            self.kept[number] = value
        return number

    # ---- values ----

    def write(self, v):
        kind = type(v)
        if kind in SCALARS:
            return v
        if kind in CONTAINERS.values():
            return [kind.__name__] + [self.write(x) for x in v]
        if kind in (dict, collections.OrderedDict, collections.Counter, collections.defaultdict):
            name = "dict" if kind is collections.defaultdict else kind.__name__
            return [name] + [[self.write(k), self.write(x)] for k, x in v.items()]
        if kind in (bytes, bytearray):
            return [kind.__name__, v.hex()]
        if kind is complex:
            return ["complex", v.real, v.imag]
        if kind is range or kind is slice and all(x is None or type(x) is int for x in (v.start, v.stop, v.step)):
            return [kind.__name__, v.start, v.stop, v.step]
        if kind in RECORD_NAMES and getattr(v, "tzinfo", None) is None:
            name, fields = RECORD_NAMES[kind]
            return [name] + [getattr(v, f) for f in fields]
        if kind is decimal.Decimal:
            return ["Decimal", str(v)]
        if isinstance(v, pathlib.PurePath):
            return ["path", str(v)]
        if v is Ellipsis:
            return ["ellipsis"]
        if kind.__module__ == "numpy" and hasattr(v, "tolist") and (not v.shape or re_module.fullmatch(DTYPES, str(v.dtype))):
            return self.write(v.tolist()) if not v.shape else ["array", str(v.dtype), self.write(v.tolist())]
        for base in (bool, int, float, str, bytes):
            if isinstance(v, base) and not hasattr(v, "_value_"):
                return self.write(base(v) if base is not str else str.__str__(v))
        if isinstance(v, tuple) and hasattr(v, "_fields"):
            return ["named", kind.__name__, list(v._fields)] + [self.write(x) for x in v]
        return self.write_object(v)

    def read(self, v):
        if type(v) in SCALARS:
            return v
        reader = self.readers.get(of(str, of(list, v)[0]))
        if reader is None:
            raise LinkError("a value with the tag %r" % v[0])
        return reader(self, *v[1:])

    def read_yours(self, number):
        """An object of this side, which the other one has a handle of."""
        return self.kept[of(int, number)]

    # ---- messages ----

    def send(self, message):
        try:
            self.file.write(json.dumps(message).encode() + b"\n")
            self.file.flush()
        except OSError:
            raise LinkError("the process of the solution has ended") from None

    def receive(self):
        try:
            line = self.file.readline(LONGEST)
            if not line.endswith(b"\n"):
                raise LinkError("the process of the solution has ended" if not line else "a message is too long")
            kind, *rest = of(list, json.loads(line))
        except Exception as e:
            raise LinkError("a line that is no message (%s: %s)" % (type(e).__name__, e)) from None
        return of(str, kind), rest

    def ask(self, *message):
        """Send a request; the other side may ask back before it answers."""
        self.send(["ask"] + list(message))
        while True:
            kind, rest = self.receive()
            if kind != "ask":
                return self.take_answer(message, kind, rest)
            self.answer(rest)
