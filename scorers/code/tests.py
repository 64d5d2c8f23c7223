"""tests.py -- runs the tests of a solution, with the part of pytest that tests of functions use."""
import contextlib
import symtable
import tempfile
import traceback as traceback_module
import unittest


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
        if isinstance(x, Remote):
            if x._state[2] != "plain":
                return False
            x = plain_of(x)
        if isinstance(want, dict):
            return isinstance(x, dict) and x.keys() == want.keys() and all(self.near(x[k], want[k]) for k in want)
        if isinstance(want, (list, tuple)) or hasattr(want, "tolist") and want.shape:
            is_sequence = isinstance(x, (list, tuple, collections.deque, range)) or hasattr(x, "tolist") and x.shape
            return bool(is_sequence) and len(x) == len(want) and all(self.near(a, b) for a, b in zip(x, want))
        if isinstance(want, (bool, str, type(None))):
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

            put.mark = name, args, kwargs
            if len(args) == 1 and not kwargs and callable(args[0]) and name != "usefixtures":
                f, args = args[0], ()
                return put(f)
            return put

        mark.mark = name, (), {}
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


def fixtures_of(f):
    """The parameters that a test leaves to its fixtures: those that have no value and are no mocks of @patch."""
    names = [n for n, p in inspect.signature(f).parameters.items() if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    mocks = [x for x in getattr(f, "patchings", ()) if not x.attribute_name and x.new is sys.modules["unittest.mock"].DEFAULT]
    return names[len(mocks):]


class Runner:
    """Calls the tests of a module, with their fixtures and parameters."""

    def __init__(self, module):
        self.module = module
        self.shared = {}
        self.num_run = self.num_skipped = 0

    def own(self):
        """What the module has besides the prelude."""
        return [(name, x) for name, x in vars(self.module).items() if name not in prelude or prelude[name] is not x]

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
        if not isinstance(f, (types.FunctionType, types.MethodType)) or not hasattr(f, "fixture_options"):
            raise LookupError("there is no fixture %s" % name)
        value = f(**{n: self.give(n, ends, owner) for n in inspect.signature(f).parameters})
        if inspect.isgenerator(value):
            generator, value = value, next(value)
            ends.append(lambda: next(generator, None))
        if f.fixture_options.get("scope", "function") != "function":
            self.shared[name] = value
        return value

    def marks(self, f, kind):
        """The function's, its class's, and the module's."""
        found = getattr(f, "marks", []) + getattr(kind, "marks", [])
        for owner in (kind, self.module):
            more = vars(owner).get("pytestmark", []) if owner else []
            found = found + [m.mark for m in (more if isinstance(more, (list, tuple)) else [more])]
        return found

    def cases(self, marks):
        """Values by name, for each combination of parameters."""
        made = [{}]
        for name, args, kwargs in marks:
            if name == "parametrize":
                args = args + tuple(kwargs[k] for k in ("argnames", "argvalues") if k in kwargs)
                names = [n.strip() for n in args[0].split(",")] if isinstance(args[0], str) else list(args[0])
                rows = [dict(zip(names, row if len(names) > 1 else (row,))) for row in args[1]]
                made = [dict(a, **b) for a in made for b in rows]
        return made

    def is_skipped(self, marks):
        return any(n == "skip" or n == "skipif" and a and a[0] or n == "xfail" for n, a, k in marks)

    def call(self, owner, name, *given):
        """setup_method and its kin, if owner has one: with as many arguments as it takes."""
        f = vars(owner).get(name) if isinstance(owner, types.ModuleType) else getattr(owner, name, None)
        if callable(f) and not isinstance(f, Remote):
            f(*given[:len([p for p in inspect.signature(f).parameters.values() if p.default is p.empty])])

    def run(self, name, f, kind=None):
        """A function, or a method of a class: each case has an object of its own."""
        marks = self.marks(f, kind)
        cases = self.cases(marks)
        if self.is_skipped(marks) or not cases:
            self.num_skipped += 1
            return
        for values in cases:
            owner, ends = kind and kind(), []
            f = getattr(owner, name) if kind else f
            try:
                for before in ("setup_method", "setUp", "setup") if kind else ("setup_function",):
                    self.call(owner or self.module, before, f)
                for after in ("teardown", "tearDown", "teardown_method") if kind else ("teardown_function",):
                    ends.append(functools.partial(self.call, owner or self.module, after, f))
                for fixture_name, x in self.own():
                    if (vars(x) if isinstance(x, types.FunctionType) else {}).get("fixture_options", {}).get("autouse"):
                        self.give(fixture_name, ends)
                for n in fixtures_of(f):
                    if n not in values:
                        values[n] = self.give(n, ends, owner)
                value = f(**values)
                if inspect.iscoroutine(value):
                    asyncio.run(value)
                self.num_run += 1
            except Skipped:
                self.num_skipped += 1
            finally:
                while ends:
                    ends.pop()()

    def run_class(self, kind):
        if issubclass(kind, unittest.TestCase):
            result = unittest.TestResult()
            unittest.defaultTestLoader.loadTestsFromTestCase(kind).run(result)
            for test, text in result.failures + result.errors:
                raise AssertionError("%s: %s" % (test, text.strip().splitlines()[-1]))
            for test in result.unexpectedSuccesses:
                raise AssertionError("%s: it passes, and is expected to fail" % test)
            self.num_skipped += len(result.skipped) + (result.testsRun == 0)
            self.num_run += result.testsRun - len(result.skipped)
            return
        self.call(kind, "setup_class", kind)
        for name in [n for n in dir(kind) if n.startswith("test")]:
            self.run(name, getattr(kind, name), kind)
        self.call(kind, "teardown_class", kind)

    def run_all(self):
        """How many it has run."""
        self.call(self.module, "setup_module", self.module)
        for name, x in self.own():
            if getattr(x, "__module__", None) != "tests":
                continue
            if isinstance(x, types.FunctionType) and name.startswith("test") and not hasattr(x, "fixture_options"):
                self.run(name, x)
            elif isinstance(x, type) and (name.startswith("Test") or issubclass(x, unittest.TestCase)):
                if isinstance(x, RemoteClass):
                    raise LookupError("%s: a class of tests is derived from one of the solution" % name)
                self.run_class(x)
        self.call(self.module, "teardown_module", self.module)
        if self.num_skipped and not self.num_run:
            raise LookupError("all tests were skipped")
        return self.num_run


# Names of the prelude that are never the solution's: what they say is a verdict.
JUDGES = "isclose isnan isinf isfinite eq ne lt le gt ge is_ is_not truth not_ contains".split()

MODULES = {"np": "numpy", "numpy": "numpy", "pd": "pandas", "pandas": "pandas", "pytest": "pytest", "unittest": "unittest"}


def is_module(name, v):
    return name in MODULES or isinstance(v, Thing) and v._state[2] == "module"


def own_modules(names, code):
    """Modules that a test uses and leaves to the solution to import: the tests' own of these names."""
    found = {}
    for name in names:
        if re_module.search(r"\b%s\b" % name, code):
            with contextlib.suppress(ImportError):
                found[name] = importlib.import_module(MODULES.get(name, name))
    return found


def names_bound(code):
    """What a test itself binds in its module, by any statement: `from solution import *` leaves it alone."""
    if "import *" not in code:
        return set()
    tables, found = [symtable.symtable(code, "tests.py", "exec")], set()
    for table in tables:
        is_module = table.get_type() == "module"
        found.update(s.get_name() for s in table.get_symbols() if (s.is_assigned() or s.is_imported()) and (is_module or s.is_declared_global()))
        tables.extend(table.get_children())
    return found


def load_solution(link, code):
    """The names that a solution defines, for its test, which is code."""
    kind, rest = link.receive()
    while kind == "ask":
        link.answer(rest)
        kind, rest = link.receive()
    try:
        if kind == "failed":
            raise ImportError("the solution fails when it is loaded: %s" % of(str, *rest))
        number, values = rest
        if kind != "names" or type(number) is not int:
            raise LinkError("the solution sends %r" % (kind,))
        names = {n: link.read_titled(n, v) for n, v in of(dict, values).items() if n.isidentifier() and not n.startswith("__")}
    except ImportError:
        raise
    except Exception as e:
        raise LinkError("the names of the solution are no message (%s: %s)" % (type(e).__name__, e)) from None
    module = Solution("solution")
    hidden = {n for n in names if hasattr(builtins, n) or isinstance(prelude.get(n), types.ModuleType) or n in JUDGES}
    modules = {n for n, v in names.items() if n not in hidden and is_module(n, v)}
    vars(module).update({n: v for n, v in names.items() if isinstance(v, (Remote, RemoteClass))})
    vars(module).update(__link__=(link, number), __all__=sorted(set(names) - hidden - names_bound(code)))
    for name in NAMES_OF_SOLUTION:
        sys.modules[name] = module
    shown = {n: v for n, v in names.items() if n not in hidden | modules}
    return {**shown, **own_modules(modules, code)}


def definitions(code):
    """Functions and classes of a compiled text, by name: a test may be defined twice."""
    found = {}
    for c in code.co_consts:
        if isinstance(c, types.CodeType) and not c.co_name.startswith("<"):
            found.setdefault(c.co_name, []).append(c)
    return found


def is_function(code):
    return bool(code.co_flags & inspect.CO_OPTIMIZED)


def leads_to(value, codes):
    """Is value one of these functions of the test, or what the test has made of it (a wrapper, a part of a closure)?"""
    where, seen, open_ends = {(c.co_name, c.co_firstlineno) for c in codes}, set(), [value]
    while open_ends:
        v = open_ends.pop()
        v = v.__func__ if isinstance(v, (types.MethodType, staticmethod, classmethod)) else v
        if not isinstance(v, types.FunctionType) or id(v) in seen:
            continue
        seen.add(id(v))
        c = v.__code__
        if c.co_filename == "tests.py" and (c.co_name, c.co_firstlineno) in where:
            return True
        open_ends += [x.cell_contents for x in v.__closure__ or () if x != types.CellType()] + list(vars(v).values())
    return False


def check_defined(names, found, is_test):
    """What the test has by the names of its tests is what it defines there, not what a decorator of the solution gave for it."""
    for name, codes in found.items():
        functions = [c for c in codes if is_function(c)]
        inside = {} if functions else {n: x for c in codes for n, x in definitions(c).items() if n.startswith("test")}
        if name not in names or not (functions and is_test(name) or inside):
            continue
        v = names[name]
        if functions and not leads_to(v, functions) or inside and (not isinstance(v, type) or isinstance(v, RemoteClass)):
            raise LookupError("%s is not what the test defines: it is wrapped by the solution" % name)
        check_defined(vars(v) if inside else {}, inside, is_test)


def has_tests(names, found):
    """Does the text define tests that are to be run?"""
    def is_run(name, codes):
        v = names.get(name)
        is_class = isinstance(v, type) and (name.startswith("Test") or issubclass(v, unittest.TestCase))
        return any(is_function(c) and name.startswith("test") or not is_function(c) and is_class and any(n.startswith("test") for n in definitions(c)) for c in codes)

    return any(is_run(name, codes) for name, codes in found.items())


def run_tests(job, sock, result):
    """The verdict is that of this process alone: one that ends in any other way has none."""
    tests = module_of("tests", job["code"])
    sys.modules["tests"] = sys.modules["__main__"] = tests
    sys.modules["pytest"] = make_pytest()
    ask_there()
    sys.path = [p for p in sys.path if not p.startswith("/tmp")]
    link = TestLink(sock) if sock else None
    guard(job["code"] if link else "")
    try:
        shown = load_solution(link, job["code"]) if link else {}
        vars(tests).update(shown)
        run_module(tests, job["code"])
        found = definitions(compile(job["code"], "tests.py", "exec", dont_inherit=True))
        check_defined(vars(tests), found, lambda name: name.startswith("test") or job.get("entry") and name == "check")
        if job.get("entry"):
            if not isinstance(vars(tests).get("check"), types.FunctionType):
                raise LookupError("the test defines no function check")
            tests.check(eval(job["entry"], vars(tests)))
        if Runner(tests).run_all() == 0 and has_tests(vars(tests), found):
            raise LookupError("none of the tests was called")
        if link:
            link.check()
    except BaseException as e:
        tell(result, {"error": "%s" % last_line(e)})
    else:
        tell(result, {"passed": True})
    sys.stdout.flush()
    os._exit(0)
