"""solution.py -- the side of the solution: does what the tests ask for, and shows them things of theirs as stand-ins."""

NAMED = "__name__ __qualname__ __doc__".split()  # of functions and classes of the tests
PLAIN = (list, tuple, dict, set, frozenset, collections.deque, int, float, str, bytes)


def changed(before, values, link):
    """Which of the containers that a call got it has changed."""
    return [[i, link.write(v)] for i, v in enumerate(values) if before[i] is not None and link.write(v) != before[i]]


def kind_of(v):
    """How the tests may read an object: stand_ins.py has what each kind allows."""
    t = type(v)
    if isinstance(v, types.ModuleType):
        return "module"
    if isinstance(v, PLAIN):
        return "plain"
    if hasattr(t, "__await__") or inspect.isawaitable(v):
        return "await"
    if hasattr(t, "__next__"):
        return "iterator"
    if isinstance(v, collections.abc.Mapping) or t.__module__ == "solution" and hasattr(t, "keys") and hasattr(t, "__getitem__"):
        return "mapping"
    return "items" if hasattr(t, "__iter__") else "lookup" if hasattr(t, "__getitem__") else ""


def is_alias(kind):
    """May `E = ValueError` be an exception of the tests? Not if it takes their failures, too."""
    return issubclass(kind, Exception) and not issubclass(AssertionError, kind) and not issubclass(kind, AssertionError)


class SolutionLink(Link):
    def __init__(self, sock, module):
        super().__init__(sock)
        self.module = module
        self.text = io.StringIO()
        self.foreign, self.kinds = {}, {}

    def read_foreign(self, number, name, methods):
        """The same object each time, of a class that has what the tests' one has."""
        if number not in self.foreign:
            key = name, tuple(methods)
            if key not in self.kinds:
                self.kinds[key] = type(name, (Foreign,), {n: foreign_method(n) for n in methods})
            self.foreign[number] = self.kinds[key](self, number)
        return self.foreign[number]

    def write_class(self, kind):
        errors = [b.__name__ for b in kind.__mro__[1:] if EXCEPTIONS.get(b.__name__) is b]
        bases = [self.write_class(b) for b in kind.__bases__ if b.__module__ == "solution"]
        return ["class", self.keep(kind), kind.__name__, errors[:1], bases]

    def write_object(self, v):
        if isinstance(v, Foreign):
            return ["yours", vars(v)["number"]]
        if isinstance(v, type):
            if getattr(builtins, v.__name__, None) is not v:
                return self.write_class(v)
            return ["exception", v.__name__] if v.__name__ in EXCEPTIONS and is_alias(v) else ["type", self.keep(v), v.__name__]
        return ["object", self.keep(v), self.write_class(type(v)) if type(v).__module__ == "solution" else None, kind_of(v)]

    def read_import(self, module, name):
        v = importlib.import_module(module)
        for part in name.split(".") if name else ():
            v = getattr(v, part)
        return v

    readers = {**DATA, "yours": Link.read_yours, "object": lambda link, *rest: link.read_foreign(*rest), "import": read_import}

    def take_answer(self, message, kind, rest):
        if kind == "value":
            return self.read(rest[0])
        raise EXCEPTIONS[rest[0]](*self.read(rest[1]))

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
            return UNARY[rest[0]](target, *rest[1:])
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
            return bool(target.__exit__(*rest[0]))
        if what == "format":
            return format(target, rest[0])
        if what == "await":
            return run_here(getattr(target, rest[0])(*rest[1]) if rest else target)
        base = next(k for k in PLAIN if isinstance(target, k))
        return str.__str__(target) if base is str else base(target)  # "plain"

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
            kind = next(k for k in type(e).__mro__ if EXCEPTIONS.get(k.__name__) is k)
            try:
                shown = str(e)
            except BaseException:
                shown = ""
            answer = ["raise", kind.__name__, self.write_class(type(e)) if type(e) is not kind else None, shown[:10000],
                      self.keep(e), self.arguments_of(e)]
        text = self.text.getvalue()
        self.text.seek(0)
        self.text.truncate()
        self.send(answer + [text])

    def arguments_of(self, e):
        try:
            return self.write(tuple(e.args))
        except BaseException:
            return ["tuple"]


class Foreign:
    """An object of the tests, in the solution: what is done with it is an ask."""

    def __init__(self, link, number):
        vars(self).update(link=link, number=number)

    def __getattr__(self, name):
        if name.startswith("__") and name not in NAMED:
            raise AttributeError(name)
        return ask_of(self, "get", name)

    def __setattr__(self, name, value):
        ask_of(self, "set", name, vars(self)["link"].write(value))


def ask_of(x, what, *rest):
    v = vars(x)
    return v["link"].ask(what, ["yours", v["number"]], *rest)


def foreign_method(name):
    def method(self, *args, **kwargs):
        write = vars(self)["link"].write
        rest = () if name in STEPS and name != "__call__" else (write(args), write(kwargs)) if name == "__call__" else (name, write(args))
        return ask_of(self, name.strip("_") if name in STEPS else "method", *rest)

    def wait(self):
        return method(self)
        yield  # it is a generator that waits for nothing

    return wait if name == "__await__" else method


class Input:
    """stdin of a solution that is tested."""

    def __init__(self, link):
        self.link = link

    def readline(self, *args):
        return self.link.ask("readline")

    def read(self, *args):
        return self.link.ask("read")

    def readlines(self):
        return self.read().splitlines(True)

    def __iter__(self):
        return iter(self.readline, "")


def serve_solution(job, sock):
    module = module_of("solution", job["code"])
    sys.modules["solution"] = sys.modules["__main__"] = module
    link = SolutionLink(sock, module)
    sys.stdout, sys.stdin = link.text, Input(link)
    builtins.input = lambda *prompt: link.ask("input", *map(str, prompt))
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
        kind, message = link.receive()
        link.answer(message)
