"""tests.py -- the side of the tests: stand-ins for what a solution has, and the part of pytest that tests of functions use."""
import contextlib
import re as re_module
import tempfile
import traceback as traceback_module
import unittest


class TestLink(Link):
    """Asks the solution. What it gets back is data, or a stand-in of a class that is made here."""

    def __init__(self, sock):
        super().__init__(sock)
        self.classes = {}

    def write_object(self, v):
        if isinstance(v, Remote):
            return ["yours", number_of(v)]
        if isinstance(v, RemoteClass):
            return ["yours", v.number]
        return ["object", self.keep(v)]

    def read_object(self, tag, rest):
        if tag == "class":
            return self.class_of(rest)
        if tag != "object":
            raise LinkError("the solution sends %r" % (tag,))
        kind = self.read(rest[1])
        x = object.__new__(kind if isinstance(kind, RemoteClass) else Awaited if rest[3] else Thing)
        set_state(x, self, int(rest[0]), bool(rest[2]), False)
        return x

    def class_of(self, rest):
        number, name, errors, bases = int(rest[0]), str(rest[1]), rest[2], [self.read(b) for b in rest[3]]
        if number not in self.classes:
            bases = [b for b in bases if isinstance(b, RemoteClass)]
            if errors and not bases:
                kind = getattr(builtins, errors[0])
                bases = [Thing, kind] if issubclass(kind, BaseException) else [Thing]
            made = RemoteClass(name, tuple(dict.fromkeys(bases or [Thing])), {})
            type.__setattr__(made, "link", self)
            type.__setattr__(made, "number", number)
            self.classes[number] = made
        return self.classes[number]

    def take_answer(self, kind, rest):
        if kind == "value":
            sys.stdout.write(str(rest[2]))
            return self.read(rest[0]), rest[1]
        if kind != "raise":
            raise LinkError("the solution answers %r" % (kind,))
        name, own, shown, number, args, text = rest
        sys.stdout.write(str(text))
        builtin = getattr(builtins, name)
        if not (isinstance(builtin, type) and issubclass(builtin, BaseException)):
            raise LinkError("the solution raises %r" % (name,))
        if own is None:
            args = self.read(args)
            try:
                e = builtin(*args)
            except Exception:
                e = builtin(shown)
            raise e
        kind = self.read(own)
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise builtin(shown)
        e = kind.__new__(kind, shown)
        set_state(e, self, int(number), False, False)
        e.args = tuple(self.read(args)) or (shown,)
        raise e

    def use(self, what, target, *rest):
        return self.ask(what, ["yours", target], *[self.write(x) for x in rest])[0]

    def call(self, target, args, kwargs):
        value, changes = self.ask("call", ["yours", target], self.write(tuple(args)), self.write(kwargs))
        given = list(args) + list(kwargs.values())
        for i, now in changes:
            v, now = given[i], self.read(now)
            if type(v) is not type(now):
                raise LinkError("the solution turns an argument into another type")
            if isinstance(v, (list, bytearray)):
                v[:] = now
            else:
                v.clear()
                (v.extend if isinstance(v, collections.deque) else v.update)(now)
        return value

    def answer(self, message):
        """What a solution may do with things of the tests that it was given."""
        try:
            what, target, *rest = message
            if what in ("input", "readline", "read"):
                value = builtins.input(*rest) if what == "input" else getattr(sys.stdin, what)()
            else:
                target = self.read(target)
                if what == "call":
                    value = target(*self.read(rest[0]), **self.read(rest[1]))
                elif what == "iter":
                    value = Handle(iter(target))
                elif what == "next":
                    value = next(target.iterator if isinstance(target, Handle) else target)
                else:
                    value = self.attribute(target, str(rest[0]))
            self.send(["value", self.write(value)])
        except LinkError:
            raise
        except BaseException as e:
            kind = next(k for k in type(e).__mro__ if getattr(builtins, k.__name__, None) is k)
            self.send(["raise", kind.__name__, self.write([str(a) for a in e.args])])

    def attribute(self, target, name):
        if name.startswith("_") or type(target).__module__ not in ("tests", "_io"):
            raise AttributeError(name)
        value = getattr(target, name)
        if isinstance(value, (types.FrameType, types.CodeType, types.ModuleType, types.TracebackType)):
            raise AttributeError(name)
        return value


class Handle:
    def __init__(self, iterator):
        self.iterator = iterator


def set_state(x, link, number, is_container, is_named):
    object.__setattr__(x, "_state", (link, number, is_container, is_named))


def number_of(x):
    return object.__getattribute__(x, "_state")[1]


class Remote:
    """What an object of the solution is to its tests."""


class RemoteClass(type):
    """What a class of the solution is."""

    def __call__(cls, *args, **kwargs):
        value = cls.link.call(cls.number, args, kwargs)
        if isinstance(value, Remote) and cls.__name__[:1].isupper():
            link, number, is_container, is_named = value._state
            set_state(value, link, number, is_container, True)
        return value

    def __getattr__(cls, name):
        if name in ("link", "number") or name.startswith("__") and name not in ("__members__", "__annotations__", "__dataclass_fields__", "__abstractmethods__"):
            raise AttributeError(name)
        return cls.link.use("get", cls.number, name)

    def __setattr__(cls, name, value):
        cls.link.use("set", cls.number, name, value)

    def __iter__(cls):
        return cls.link.use("unary", cls.number, "__iter__")

    def __len__(cls):
        return cls.link.use("unary", cls.number, "__len__")

    def __getitem__(cls, key):
        return cls.link.use("item", cls.number, key)

    def __contains__(cls, x):
        return isinstance(x, Remote) and cls.link.use("in", cls.number, x)


def make_unary(name):
    def method(self, *args):
        link, number, *_ = self._state
        return link.use("unary", number, name)

    return method


def make_operator(name, is_reflected):
    def method(self, other):
        link, number, is_container, is_named = self._state
        if not isinstance(other, Remote) and not is_named:
            if is_container and not is_reflected and name in ("eq", "ne", "lt", "le", "gt", "ge", "add"):
                return getattr(operator_module, "__%s__" % name)(plain_of(self), other)
            if name in ("eq", "ne"):
                return name == "ne"
            raise TypeError("the solution gave an object (%s) where its test computes with a value" % type(self).__name__)
        value = link.use("operator", number, name, other, is_reflected)
        if isinstance(value, Remote) and is_named:
            set_state(value, *value._state[:3], True)
        return value

    return method


def plain_of(x):
    """The contents of an object whose class is derived from a container's."""
    link, number, *_ = x._state
    value = link.use("plain", number)
    if isinstance(value, Remote):
        raise TypeError("the solution gave an object where its test has a value")
    return value


class Thing(Remote, metaclass=RemoteClass):
    def __getattr__(self, name):
        if name == "_state" or name.startswith("__") and name not in ("__name__", "__doc__", "__wrapped__", "__annotations__", "__dict__"):
            raise AttributeError(name)
        link, number, *_ = self._state
        return link.use("get", number, name)

    def __setattr__(self, name, value):
        if name in ("args", "__traceback__", "__cause__", "__context__", "__suppress_context__", "__notes__"):
            return object.__setattr__(self, name, value)
        link, number, *_ = self._state
        link.use("set", number, name, value)

    def __delattr__(self, name):
        link, number, *_ = self._state
        link.use("delete", number, name)

    def __call__(self, *args, **kwargs):
        link, number, *_ = self._state
        return link.call(number, args, kwargs)

    def __getitem__(self, key):
        link, number, *_ = self._state
        return link.use("item", number, key)

    def __setitem__(self, key, value):
        link, number, *_ = self._state
        link.use("set item", number, key, value)

    def __delitem__(self, key):
        link, number, *_ = self._state
        link.use("delete item", number, key)

    def __contains__(self, x):
        link, number, is_container, is_named = self._state
        return link.use("in", number, x) if is_named or isinstance(x, Remote) else any(x == y for y in self)

    def __exit__(self, kind, e, tb):
        link, number, *_ = self._state
        return link.use("exit", number, (None, None, None) if e is None else (type(e), e if isinstance(e, Remote) else str(e), None))

    def __format__(self, spec):
        link, number, *_ = self._state
        return link.use("format", number, spec)


class Awaited(Thing):
    """A coroutine, which runs where it is."""

    def __await__(self):
        link, number, *_ = self._state
        return link.use("await", number)
        yield  # it is a generator that waits for nothing


for _name in UNARY:
    type.__setattr__(Thing, _name, make_unary(_name))
for _name, _method in OPERATORS.items():
    type.__setattr__(Thing, _method, make_operator(_name, False))
for _method, _name in REFLECTED.items():
    type.__setattr__(Thing, _method, make_operator(_name, True))


class Solution(types.ModuleType):
    """The solution as its tests import it."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        link, number = vars(self)["__link__"]
        return link.use("get", number, name)

    def __setattr__(self, name, value):
        link, number = vars(self)["__link__"]
        link.use("set", number, name, value)

    def __delattr__(self, name):
        link, number = vars(self)["__link__"]
        link.use("delete", number, name)


# ---- the part of pytest ----


class Outcome(Exception):
    """A test that says itself what became of it."""


class Skipped(Outcome):
    pass


class Raised:
    def __init__(self, kinds, match):
        self.kinds, self.match, self.value = kinds, match, None

    def __enter__(self):
        return self

    def __exit__(self, kind, e, tb):
        assert e is not None, "DID NOT RAISE %r" % (self.kinds,)
        if not isinstance(e, self.kinds):
            return False
        self.value, self.type = e, type(e)
        assert self.match is None or re_module.search(self.match, str(e)), "%r does not match %r" % (self.match, str(e))
        return True


def raises(kinds, *call, match=None, **kwargs):
    context = Raised(kinds, match)
    if not call:
        return context
    with context:
        call[0](*call[1:], **kwargs)
    return context


class approx:
    __array_ufunc__, __array_priority__ = None, 100

    def __init__(self, expected, rel=None, abs=None, nan_ok=False):
        self.expected, self.rel, self.abs, self.nan_ok = expected, rel, abs, nan_ok

    def near(self, x, want):
        if isinstance(want, dict):
            return isinstance(x, dict) and x.keys() == want.keys() and all(self.near(x[k], want[k]) for k in want)
        if isinstance(want, (list, tuple)) or hasattr(want, "tolist"):
            return len(x) == len(want) and all(self.near(a, b) for a, b in zip(x, want))
        if isinstance(want, (bool, str, type(None))) or isinstance(x, Remote):
            return want == x
        if x == want or self.nan_ok and x != x and want != want:
            return True
        if x != x or want != want or abs(x) == float("inf") or abs(want) == float("inf"):
            return False
        least = 1e-12 if self.abs is None else self.abs
        relative = (0 if self.abs is not None and self.rel is None else self.rel or 1e-6) * abs(want)
        return abs(x - want) <= max(least, relative)

    def __eq__(self, x):
        try:
            return bool(self.near(x, self.expected))
        except TypeError:
            return False

    def __ne__(self, x):
        return not self == x

    def __repr__(self):
        return "approx(%r)" % (self.expected,)


def stop(kind, reason="", *args, **kwargs):
    raise kind(reason or kwargs.get("msg", ""))


class Marks:
    def __getattr__(self, name):
        def mark(*args, **kwargs):
            def put(f):
                f.marks = getattr(f, "marks", []) + [(name, args, kwargs)]
                return f

            if len(args) == 1 and not kwargs and callable(args[0]) and name != "usefixtures":
                f, args_given = args[0], ()
                f.marks = getattr(f, "marks", []) + [(name, args_given, {})]
                return f
            return put

        return mark


def fixture(*args, **kwargs):
    def put(f):
        f.fixture_options = kwargs
        return f

    return put(args[0]) if args and callable(args[0]) else put


class Patch:
    """The fixture monkeypatch."""

    def __init__(self):
        self.undo_steps = []

    def setattr(self, target, name, *value, raising=True):
        if isinstance(target, str):
            target, name, value = importlib.import_module(target.rpartition(".")[0]), target.rpartition(".")[2], (name,) + value
        had = hasattr(target, name)
        old = getattr(target, name) if had else None
        setattr(target, name, value[0])
        self.undo_steps.append(lambda: setattr(target, name, old) if had else delattr(target, name))

    def setitem(self, mapping, key, value):
        old = dict(mapping)
        mapping[key] = value
        self.undo_steps.append(lambda: (mapping.clear(), mapping.update(old)))

    def setenv(self, name, value, prepend=None):
        self.setitem(os.environ, name, str(value))

    def delenv(self, name, raising=True):
        os.environ.pop(name, None)

    def chdir(self, path):
        os.chdir(path)

    def undo(self):
        while self.undo_steps:
            self.undo_steps.pop()()


Captured = collections.namedtuple("CaptureResult", "out err")


class Capture:
    """The fixture capsys."""

    def __init__(self):
        self.old = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = io.StringIO(), io.StringIO()

    def readouterr(self):
        read = Captured(sys.stdout.getvalue(), sys.stderr.getvalue())
        for stream in (sys.stdout, sys.stderr):
            stream.seek(0)
            stream.truncate()
        return read

    def undo(self):
        sys.stdout, sys.stderr = self.old


def make_pytest():
    module = types.ModuleType("pytest")
    vars(module).update(raises=raises, approx=approx, fixture=fixture, mark=Marks(), Skipped=Skipped,
                        fail=lambda *a, **k: stop(AssertionError, *a, **k), skip=lambda *a, **k: stop(Skipped, *a, **k),
                        importorskip=importlib.import_module, MonkeyPatch=Patch,
                        param=lambda *values, **k: values if len(values) > 1 else values[0], main=lambda *a, **k: 0)
    return module


class Runner:
    """Calls the tests of a module, with their fixtures and parameters."""

    def __init__(self, module):
        self.module = module
        self.shared = {}

    def give(self, name, ends, owner=None):
        """The value of a fixture; what undoes it goes to ends."""
        if name in ("monkeypatch", "capsys"):
            x = Patch() if name == "monkeypatch" else Capture()
            ends.append(x.undo)
            return x
        if name in ("tmp_path", "tmpdir"):
            return importlib.import_module("pathlib").Path(tempfile.mkdtemp())
        if name in self.shared:
            return self.shared[name]
        f = getattr(owner, name, None) or vars(self.module).get(name)
        if f is None or not hasattr(f, "fixture_options"):
            raise LookupError("there is no fixture %s" % name)
        value = f(**{n: self.give(n, ends, owner) for n in inspect.signature(f).parameters})
        if inspect.isgenerator(value):
            generator, value = value, next(value)
            ends.append(lambda: next(generator, None))
        if f.fixture_options.get("scope", "function") != "function":
            self.shared[name] = value
        return value

    def cases(self, f):
        """Values by name, for each combination of parameters."""
        made = [{}]
        for name, args, kwargs in getattr(f, "marks", []):
            if name == "parametrize":
                names = [n.strip() for n in args[0].split(",")] if isinstance(args[0], str) else list(args[0])
                rows = [dict(zip(names, row if len(names) > 1 else (row,))) for row in args[1]]
                made = [dict(a, **b) for a in made for b in rows]
        return made

    def is_skipped(self, f):
        return any(n == "skip" or n == "skipif" and a and a[0] or n == "xfail" for n, a, k in getattr(f, "marks", []))

    def run(self, f, owner=None):
        for values in [] if self.is_skipped(f) else self.cases(f):
            ends = []
            try:
                for name, x in list(vars(self.module).items()):
                    if (vars(x) if isinstance(x, types.FunctionType) else {}).get("fixture_options", {}).get("autouse"):
                        self.give(name, ends)
                for name, p in inspect.signature(f).parameters.items():
                    if name not in values and p.default is p.empty:
                        values[name] = self.give(name, ends, owner)
                value = f(**values)
                if inspect.iscoroutine(value):
                    asyncio.run(value)
            except Skipped:
                pass
            finally:
                while ends:
                    ends.pop()()

    def run_class(self, kind):
        if issubclass(kind, unittest.TestCase):
            result = unittest.TestResult()
            unittest.defaultTestLoader.loadTestsFromTestCase(kind).run(result)
            for test, text in result.failures + result.errors:
                raise AssertionError("%s: %s" % (test, text.strip().splitlines()[-1]))
            return
        for name in [n for n in dir(kind) if n.startswith("test")]:
            x = kind()
            for before in ("setup_class", "setup_method", "setUp", "setup"):
                if hasattr(x, before):
                    f = getattr(x, before)
                    f(*[None] * len([p for p in inspect.signature(f).parameters.values() if p.default is p.empty]))
            self.run(getattr(x, name), x)

    def run_all(self):
        """How many it found."""
        found = 0
        for name, x in list(vars(self.module).items()):
            if getattr(x, "__module__", None) != "tests":
                continue
            if isinstance(x, types.FunctionType) and name.startswith("test") and not hasattr(x, "fixture_options"):
                found += 1
                self.run(x)
            elif isinstance(x, type) and (name.startswith("Test") or issubclass(x, unittest.TestCase)):
                found += 1
                self.run_class(x)
        return found


def run_awaited(x, **kwargs):
    """asyncio.run, also of a coroutine of the solution, which runs there."""
    if not isinstance(x, Remote):
        return asyncio_run(x, **kwargs)

    async def wait():
        return await x

    return asyncio_run(wait(), **kwargs)


asyncio_run = asyncio.run
NAMES_OF_SOLUTION = "solution main submission answer your_module candidate".split()


def load_solution(sock):
    link = TestLink(sock)
    kind, *rest = link.receive()
    while kind == "ask":
        link.answer(rest)
        kind, *rest = link.receive()
    if kind == "failed":
        raise ImportError("the solution fails when it is loaded: %s" % rest[0])
    module = Solution("solution")
    names = {n: link.read(v) for n, v in rest[1].items() if n.isidentifier() and not n.startswith("__")}
    shown = {n: v for n, v in names.items() if not hasattr(builtins, n) and not isinstance(prelude.get(n), types.ModuleType)}
    vars(module).update({n: v for n, v in names.items() if isinstance(v, (Remote, RemoteClass))})
    vars(module).update(__link__=(link, int(rest[0])), __all__=list(shown))
    for name in NAMES_OF_SOLUTION:
        sys.modules[name] = module
    return shown


def run_tests(job, sock, result):
    """The verdict is that of this process alone: one that ends in any other way has none."""
    tests = module_of("tests", job["code"])
    sys.modules["tests"] = sys.modules["__main__"] = tests
    sys.modules["pytest"] = make_pytest()
    asyncio.run = run_awaited
    sys.path = [p for p in sys.path if not p.startswith("/tmp")]
    try:
        if sock:
            vars(tests).update(load_solution(sock))
        run_module(tests, job["code"])
        if job.get("entry"):
            tests.check(eval(job["entry"], vars(tests)))
        if Runner(tests).run_all() == 0 and re_module.search(r"^def test", job["code"], re_module.M):
            raise LookupError("none of the tests was called")
    except BaseException as e:
        tell(result, {"error": "%s" % last_line(e)})
    else:
        tell(result, {"passed": True})
    sys.stdout.flush()
    os._exit(0)
