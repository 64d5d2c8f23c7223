"""stand_ins.py -- the side of the tests: what they see of a solution.

Nothing that a solution answers decides a comparison with a value of the tests:
 - an object of the solution is unequal to it, and has no order with it. An object whose class is derived from a plain one (list,
   int, an IntEnum ..) is compared here, by its plain value.
 - two objects of the solution are compared by the solution.
 - arithmetic with a value of the tests, and `value in object`, are the solution's if the test itself made the object by calling a
   class by a Capitalized name (Vector(1, 2) * 3). Objects that a function gave raise Misuse.
What a function gave is read like data: an object of a class that the tests have not called answers the same until the next call of
the solution, and its length and items are those of one iteration. So nothing is a sorted list when its order is looked at, and
another one when its members are.
"""
import ast
import functools
import itertools

SHAPES = ("plain", "await", "iterator", "mapping", "items", "lookup", "module", "")
STREAM = "write writelines read readline readlines getvalue flush seek tell truncate close".split()
NAMES_OF_SOLUTION = "solution main submission answer your_module candidate".split()
# Methods of texts and sets whose answer is about a value that they are given.
ABOUT_VALUES = ("startswith endswith issubset issuperset isdisjoint union intersection difference symmetric_difference "
                "equals").split()
PLACES = "index rindex find rfind count copy".split()  # of a class derived from a plain one


class Misuse(TypeError):
    """A test computes with an object of the solution as if it were data."""


class Stopped(RuntimeError):
    """StopIteration, StopAsyncIteration or GeneratorExit of a solution (as PEP 479)."""


class TestLink(Link):
    """Asks the solution. What it gets back is data, or a stand-in of a class that is made here."""

    def __init__(self, sock):
        super().__init__(sock)
        self.lock = threading.RLock()
        self.classes = {}
        self.untitled = set()  # numbers of classes that the solution has given as values, or by a name in small letters
        self.memo = {}  # what was read since the last call
        self.ended = set()  # numbers of iterators
        self.failure = self.swallowed = None
        self.pending = []  # for each ask that waits: what failed in callbacks below it, and was not raised by it so far

    # ---- what the tests give ----

    def write_object(self, v):
        if isinstance(v, Remote):
            return ["yours", number_of(v)]
        if isinstance(v, RemoteClass):
            return ["yours", v._class[1]]
        return place_of(v) or ["object", self.keep(v), type(v).__name__, methods_of(type(v))]

    # ---- what the solution gives ----

    def read_object(self, number, own, shape):
        if shape not in SHAPES:
            raise LinkError("an object of the shape %r" % (shape,))
        kind = self.read_class(own) if own is not None else Awaited if shape == "await" else Thing
        x = kind.__new__(kind)
        set_state(x, self, of(int, number), shape, False)
        return x

    def read_class(self, v):
        tag, number, name, errors, bases = of(list, v)
        if tag != "class":
            raise LinkError("a class with the tag %r" % (tag,))
        if of(int, number) not in self.classes:
            bases = [self.read_class(b) for b in bases]
            if errors and not any(issubclass(b, BaseException) for b in bases):
                bases.append(EXCEPTIONS[of(str, errors[0])])
            if not any(isinstance(b, RemoteClass) for b in bases):
                bases.insert(0, Thing)
            made = RemoteClass(of(str, name), tuple(dict.fromkeys(bases)), {})
            type.__setattr__(made, "_class", (self, number))
            self.classes[number] = made
        return self.classes[number]

    def read_given_class(self, *rest):
        self.untitled.add(of(int, rest[0]))
        return self.read_class(["class", *rest])

    def read_titled(self, name, v):
        """The value of a name: a class of a Capitalized one keeps its title."""
        is_class = type(v) is list and v and v[0] == "class"
        return self.read_class(v) if is_class and name[:1].isupper() else self.read(v)

    def read_type(self, number, name):
        x = TypeName.__new__(TypeName)
        set_state(x, self, of(int, number), "", False)
        object.__setattr__(x, "_type", of(type, getattr(builtins, of(str, name))))
        return x

    def read_exception(self, name):
        if not is_alias(EXCEPTIONS[name]):
            raise LinkError("%s for an exception of its own" % name)
        return EXCEPTIONS[name]

    readers = {**DATA, "yours": Link.read_yours, "object": read_object, "class": read_given_class, "type": read_type, "exception": read_exception}

    def read_error(self, name, own, shown, number, args):
        kind, args = EXCEPTIONS[of(str, name)], of(tuple, self.read(args))
        own = None if own is None else self.read_class(own)
        if own and issubclass(own, BaseException):
            e = own.__new__(own, of(str, shown))
            set_state(e, self, of(int, number), "", False)
            e.args = args or (shown,)
        else:
            e = error_of(kind, args, of(str, shown))
        if isinstance(e, (StopIteration, StopAsyncIteration, GeneratorExit)):
            return Stopped("the solution raised %s" % type(e).__name__, *args)
        return e

    def take_answer(self, message, kind, rest):
        error = result = None
        try:
            *said, text = rest
            of(str, text)
            if kind == "raise":
                error = self.read_error(*said)
            elif kind == "value":
                value, changes = said
                value = self.read_titled(message[2], value) if message[0] == "get" else self.read(value)
                result = value, [(of(int, i), self.read(x)) for i, x in changes]
            else:
                raise LinkError("an answer %r" % kind)
        except Exception as e:
            raise LinkError("the solution sends a line that is not a message (%s: %s)" % (type(e).__name__, e)) from None
        sys.stdout.write(text)
        if error is not None:
            self.pending[-1][:] = [e for e in self.pending[-1] if not isinstance(error, TypeError if isinstance(e, Misuse) else AssertionError)]
            raise error
        return result

    def ask(self, *message):
        with self.lock:
            if self.failure:
                raise LinkError(self.failure)
            self.pending.append([])
            try:
                return super().ask(*message)
            except LinkError as e:
                self.failure = str(e)
                raise
            finally:
                for e in self.pending.pop():
                    self.swallowed = "%s: %s" % (type(e).__name__, e)

    def check(self):
        """At the end: a test may have taken an exception that was the end of the link."""
        if self.failure or self.swallowed:
            raise LinkError(self.failure or "an assertion failed in a call by the solution, which took it: %s" % self.swallowed)

    # ---- uses ----

    def use(self, what, number, *rest):
        return self.ask(what, ["yours", number], *[self.write(x) for x in rest])[0]

    def once(self, key, get):
        if key not in self.memo:
            self.memo[key] = get()
        return self.memo[key]

    def change(self, what, number, *rest):
        self.memo.clear()
        try:
            return self.use(what, number, *rest)
        finally:
            self.memo.clear()

    def call(self, number, args, kwargs):
        return self.call_of(["yours", number], args, kwargs)

    def call_of(self, target, args, kwargs):
        self.memo.clear()
        try:
            value, changes = self.ask("call", target, self.write(tuple(args)), self.write(kwargs))
        finally:
            self.memo.clear()
        given = list(args) + list(kwargs.values())
        for i, now in changes:
            if not 0 <= i < len(given) or type(given[i]) is not type(now):
                self.failure = "the solution turns an argument into another type"
                raise LinkError(self.failure)
            v = given[i]
            if isinstance(v, (list, bytearray)):
                v[:] = now
            else:
                v.clear()
                (v.extend if isinstance(v, collections.deque) else v.update)(now)
        return value

    # ---- what the solution asks ----

    def answer(self, message):
        """What a solution may do with things of the tests that it was given."""
        self.memo.clear()
        try:
            do = self.read_ask(*message)
        except Exception as e:
            raise LinkError("the solution sends an ask that is not a message (%s: %s)" % (type(e).__name__, e)) from None
        try:
            answer = ["value", self.write(do())]
        except LinkError:
            raise
        except BaseException as e:
            if isinstance(e, (AssertionError, Misuse)):
                self.pending[-1].append(e)
            kind = next(k for k in type(e).__mro__ if EXCEPTIONS.get(k.__name__) is k)
            answer = ["raise", kind.__name__, self.write(tuple(str(a) for a in e.args))]
        self.send(answer)

    def read_ask(self, what, *rest):
        if what == "input":
            return lambda: builtins.input(*[of(str, x) for x in rest])
        if what in ("read", "readline"):
            return getattr(sys.stdin, what)
        tag, number = of(list, rest[0])
        if tag != "yours":
            raise LinkError("the solution uses a thing with the tag %r" % (tag,))
        target = self.read_yours(number)
        if what == "call":
            args, kwargs = of(tuple, self.read(rest[1])), of(dict, self.read(rest[2]))
            return lambda: target(*args, **kwargs)
        if what == "get":
            return lambda: attribute(target, of(str, rest[1]))
        if what == "set":
            value = self.read(rest[2])
            return lambda: set_attribute(target, of(str, rest[1]), value)
        if what == "method":
            name, args = of(str, rest[1]), of(tuple, self.read(rest[2]))
            return lambda: method_of(target, name)(target, *args)
        if what not in ("iter", "next", "await"):
            raise LinkError("the solution asks %r" % (what,))
        return {"iter": lambda: Handle(iter(target)), "next": lambda: next(target), "await": lambda: run_here(target)}[what]


def error_of(kind, args, shown):
    for made in args, (shown,):
        try:
            return kind(*made)
        except Exception:
            pass
    return RuntimeError(shown)


def place_of(v):
    """A function, class or module that the solution has as well, from the same module; or None."""
    if v is NotImplemented:
        return ["import", "builtins", "NotImplemented"]
    if isinstance(v, types.ModuleType):
        return ["import", v.__name__, ""]
    if not isinstance(v, (type, types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType)):
        return None
    module = getattr(v, "__module__", None) or getattr(getattr(v, "__objclass__", None), "__module__", None)
    if module not in sys.modules or module in ("tests", "__main__", "pytest", *NAMES_OF_SOLUTION):
        return None
    found = sys.modules[module]
    for part in v.__qualname__.split("."):
        found = getattr(found, part, None)
    return ["import", module, v.__qualname__] if found is v else None


def is_of_tests(kind):
    """A class of the tests, or of a mock that they made."""
    return kind.__module__ in ("tests", "unittest.mock") and not issubclass(kind, unittest.TestCase)


def is_of_mocks(target, name):
    """What a mock is asked for by its test, not by what it is given to."""
    return type(target).__module__ == "unittest.mock" and (hasattr(sys.modules["unittest.mock"].Mock, name) or name == "method_calls" or name.startswith("assert"))


@functools.lru_cache(None)
def methods_of(kind):
    """The special methods that a solution may use of objects of a class."""
    names = STEPS + (METHODS if is_of_tests(kind) else [])
    found = {n: next((vars(k)[n] for k in kind.__mro__[:-1] if n in vars(k)), None) for n in names}
    return [n for n in names if found[n] is not None]


def method_of(target, name):
    if name not in methods_of(type(target)):
        raise LinkError("the solution uses %s of an object of the class %s" % (name, type(target).__name__))
    return getattr(type(target), name)


def attribute(target, name):
    """Of objects and classes of the tests, of their mocks and streams; the names of functions."""
    if name in NAMED and isinstance(target, (type, types.FunctionType, types.MethodType)):
        return getattr(target, name)
    is_stream = type(target).__module__ == "_io" and name in STREAM
    is_class = isinstance(target, type) and target.__module__ == "tests" and is_of_tests(target)
    if name.startswith("_") or is_of_mocks(target, name) or not (is_stream or is_class or is_of_tests(type(target))):
        raise AttributeError(name)
    value = getattr(target, name)
    if isinstance(value, (types.FrameType, types.CodeType, types.ModuleType, types.TracebackType)):
        raise AttributeError(name)
    return value


def set_attribute(target, name, value):
    """Of objects of the tests: not a method, and of mocks only data."""
    kind = type(target)
    is_method = callable(getattr(kind, name, None)) or callable(getattr(target, "__dict__", {}).get(name))
    if name.startswith("_") or not is_of_tests(kind) or is_method or kind.__module__ != "tests" and (is_of_mocks(target, name) or isinstance(value, Remote)):
        raise AttributeError("the attribute %r of an object of the tests cannot be set" % name)
    setattr(target, name, value)


class Handle:
    """An iterator of the tests."""

    def __init__(self, iterator):
        self.iterator = iterator

    def __iter__(self):
        return self

    def __next__(self):
        return next(self.iterator)


# ---- classes ----


def set_state(x, link, number, shape, is_named):
    object.__setattr__(x, "_state", (link, number, shape, is_named))


def number_of(x):
    return object.__getattribute__(x, "_state")[1]


class Remote:
    """What an object of the solution is to its tests."""


def titled_class(cls):
    link, number = cls._class
    if number in link.untitled:
        raise Misuse("the solution gave a class (%s) where its test has a value" % cls.__name__)
    return link, number


def object_of_derived(cls, value):
    """An object of a class of the tests that is derived from one of the solution: what that class defines is the tests'."""
    if not isinstance(value, Thing) or not issubclass(cls, type(value)):
        raise Misuse("the solution gave another object than one of the class %s" % cls.__name__)
    x = cls.__new__(cls)
    set_state(x, *value._state)
    return x


class RemoteClass(type):
    """What a class of the solution is."""

    def __call__(cls, *args, **kwargs):
        link, number = cls._class
        value = link.call(number, args, kwargs)
        if "_class" not in vars(cls):
            value = object_of_derived(cls, value)
        if isinstance(value, cls) and number not in link.untitled:
            if args or kwargs:
                type.__setattr__(cls, "_is_called", True)
            set_state(value, *value._state[:3], True)
        return value

    def __getattr__(cls, name):
        if name == "_class" or name.startswith("__") and name not in ("__members__", "__annotations__", "__dataclass_fields__", "__abstractmethods__"):
            raise AttributeError(name)
        link, number = cls._class
        return link.use("get", number, name)

    def __setattr__(cls, name, value):
        link, number = cls._class
        link.change("set", number, name, value)

    def __iter__(cls):
        link, number = titled_class(cls)
        return link.use("unary", number, "__iter__")

    def __len__(cls):
        link, number = titled_class(cls)
        return link.use("unary", number, "__len__")

    def __bool__(cls):
        return True

    def __getitem__(cls, key):
        link, number = titled_class(cls)
        return link.use("item", number, key)

    def __contains__(cls, x):
        link, number = titled_class(cls)
        return isinstance(x, Remote) and link.use("in", number, x)


# ---- objects ----


def is_direct(x):
    """Does x answer anew each time? The test has made it, or others of its class from arguments (Matrix(..), not Solution())."""
    return x._state[3] or type(x)._is_called


def look(x, what, *rest):
    link, number, shape, is_named = x._state
    if is_direct(x):
        return link.use(what, number, *rest)
    return link.once((number, what, json.dumps(link.write(rest))), lambda: link.use(what, number, *rest))


def plain_of(x):
    """The value of an object whose class is derived from a plain one."""
    value = look(x, "plain")
    if type(value) not in PLAIN:
        raise Misuse("the solution gave an object where its test has a value")
    return value


class Items:
    """What an iteration gave, which is read once, as far as it is asked for."""

    def __init__(self, source):
        self.source, self.seen = source, []

    def __iter__(self):
        for i in itertools.count():
            if i == len(self.seen):
                try:
                    self.seen.append(next(self.source))
                except StopIteration:
                    return
            yield self.seen[i]

    def at(self, i):
        found = list(itertools.islice(self, i, i + 1)) if i >= 0 else list(self)[i:][:1] if -i <= len(list(self)) else []
        if not found:
            raise IndexError("list index out of range")
        return found[0]

    def between(self, key):
        """The items of a slice; of an endless object as far as they are needed."""
        is_forward = (key.start or 0) >= 0 and (key.stop or 0) >= 0 and (key.step or 1) > 0
        return list(itertools.islice(self, key.start, key.stop, key.step)) if is_forward else list(self)[key]


def steps(link, number):
    while True:
        try:
            value = link.use("unary", number, "__next__")
        except Stopped:
            return
        yield value


def by_index(x):
    for i in itertools.count():
        try:
            value = look(x, "item", i)
        except IndexError:
            return
        yield value


def items_of(x):
    link, number, shape, is_named = x._state

    def begin():
        if shape == "lookup":
            return Items(by_index(x))
        if shape not in ("items", "mapping"):
            raise TypeError("%r object has no items" % type(x).__name__)
        iterator = link.use("unary", number, "__iter__")
        if not isinstance(iterator, Thing) or number_of(iterator) == number:
            raise Misuse("the solution gave an object (%s) whose iterator is none" % type(x).__name__)
        return Items(steps(link, number_of(iterator)))

    return link.once((number, "items"), begin)


def item_of(x, key):
    """x[key] of an object that is read like data."""
    shape = x._state[2]
    if shape == "plain":
        return plain_of(x)[key]
    if shape == "mapping":
        if not any(key == k for k in items_of(x)):
            raise KeyError(key)
    elif shape in ("items", "lookup") and isinstance(key, slice) and all(type(k) in (int, type(None)) for k in (key.start, key.stop, key.step)):
        return items_of(x).between(key)
    elif shape == "items" and hasattr(type(key), "__index__") and not isinstance(key, Remote):
        return items_of(x).at(operator_module.index(key))
    elif shape not in ("items", "lookup"):
        raise TypeError("%r object is not subscriptable" % type(x).__name__)
    return look(x, "item", key)


def may_suppress(e, tb):
    """May a context manager of the solution end an exception of the tests' block? Only one that the block raises whatever the
    solution does: by a `raise` in it, or by a statement that has nothing but builtins."""
    if not isinstance(e, Exception) or isinstance(e, (AssertionError, Outcome)) or tb.tb_frame.f_code.co_filename != "tests.py":
        return False
    blocks = [x for x in ast.walk(ast.parse("".join(linecache.getlines("tests.py")))) if isinstance(x, (ast.With, ast.AsyncWith))]
    found = [s for x in blocks for s in x.body if s.lineno <= tb.tb_lineno <= s.end_lineno and not isinstance(s, ast.With)]
    return bool(found) and all(isinstance(s, ast.Raise) or all(not isinstance(x, ast.Name) or isinstance(x.ctx, ast.Store) or
                                                               hasattr(builtins, x.id) for x in ast.walk(s)) for s in found)


def may_end(is_ended, e, tb):
    """Does the block of a context manager of the solution end without its exception?"""
    return is_ended is True and e is not None and may_suppress(e, tb)


def end_of_block(e):
    """What its __exit__ is given."""
    return (None, None, None) if e is None else (type(e), e if isinstance(e, Remote) else str(e), None)


def make_unary(name):
    def method(self, *digits):
        return look(self, "unary", name, *digits)  # of round

    return method


def make_operator(name, is_reflected):
    def method(self, other):
        link, number, shape, is_named = self._state
        if not isinstance(other, Remote):
            if shape == "plain" and (name in COMPARISONS or not is_named):
                a, b = (other, plain_of(self)) if is_reflected else (plain_of(self), other)
                return getattr(operator_module, OPERATORS[name])(a, b)
            if name in ("eq", "ne"):
                return name == "ne"
            if name in COMPARISONS or not is_named:
                raise Misuse("the solution gave an object (%s) where its test computes with a value" % type(self).__name__)
        value = link.use("operator", number, name, other, is_reflected)
        if isinstance(value, Remote) and is_named:
            set_state(value, *value._state[:3], True)
        return value

    return method


class Thing(Remote, metaclass=RemoteClass):
    _is_called = False

    def __getattr__(self, name):
        if name in ("_state", "_type") or name.startswith("__") and name not in ("__name__", "__qualname__", "__wrapped__", "__annotations__"):
            raise AttributeError(name)
        if name in ABOUT_VALUES + PLACES and not is_direct(self):
            if self._state[2] == "plain" and hasattr(plain_of(self), name):
                return getattr(plain_of(self), name)
            if name in PLACES:
                return look(self, "get", name)
            raise AttributeError("%s: the solution gave an object where its test has a value" % name)
        return look(self, "get", name)

    def __setattr__(self, name, value):
        if name in ("args", "__traceback__", "__cause__", "__context__", "__suppress_context__", "__notes__"):
            return object.__setattr__(self, name, value)
        self._state[0].change("set", number_of(self), name, value)

    def __delattr__(self, name):
        self._state[0].change("delete", number_of(self), name)

    def __call__(self, *args, **kwargs):
        return self._state[0].call(number_of(self), args, kwargs)

    def __getitem__(self, key):
        return look(self, "item", key) if is_direct(self) else item_of(self, key)

    def __setitem__(self, key, value):
        self._state[0].change("set item", number_of(self), key, value)

    def __delitem__(self, key):
        self._state[0].change("delete item", number_of(self), key)

    def __len__(self):
        shape = self._state[2]
        if is_direct(self) or shape in ("lookup", "await", ""):
            return look(self, "unary", "__len__")
        return len(plain_of(self)) if shape == "plain" else len(list(iter(items_of(self))))

    def __bool__(self):
        return bool(plain_of(self)) if self._state[2] == "plain" and not is_direct(self) else look(self, "unary", "__bool__")

    def __iter__(self):
        shape = self._state[2]
        if is_direct(self):
            return look(self, "unary", "__iter__")
        return self if shape == "iterator" else iter(plain_of(self) if shape == "plain" else items_of(self))

    def __next__(self):
        link, number, shape, is_named = self._state
        if not is_direct(self) and (shape != "iterator" or number in link.ended):
            raise StopIteration if shape == "iterator" else TypeError("%r object is not an iterator" % type(self).__name__)
        try:
            return link.use("unary", number, "__next__")
        except Stopped as e:
            link.ended.add(number)
            raise StopIteration(*e.args[1:]) from None

    def __copy__(self):
        return self._state[0].call_of(["import", "copy", "copy"], (self,), {})

    def __deepcopy__(self, memo):
        return self._state[0].call_of(["import", "copy", "deepcopy"], (self,), {})

    __dict__ = property(lambda self: look(self, "get", "__dict__"))
    __doc__ = property(lambda self: look(self, "get", "__doc__"))

    def __reversed__(self):
        return look(self, "unary", "__reversed__") if is_direct(self) else iter(list(self)[::-1])

    def __contains__(self, x):
        link, number, shape, is_named = self._state
        return link.use("in", number, x) if is_named or isinstance(x, Remote) else any(x == y for y in self)

    def __exit__(self, kind, e, tb):
        return may_end(self._state[0].change("exit", number_of(self), end_of_block(e)), e, tb)

    async def __aenter__(self):
        return self._state[0].change("await", number_of(self), "__aenter__", ())

    async def __aexit__(self, kind, e, tb):
        return may_end(self._state[0].change("await", number_of(self), "__aexit__", end_of_block(e)), e, tb)

    async def __anext__(self):
        link, number, shape, is_named = self._state
        if number in link.ended:
            raise StopAsyncIteration
        try:
            return link.change("await", number, "__anext__", ())
        except Stopped:
            link.ended.add(number)
            raise StopAsyncIteration from None

    def __format__(self, spec):
        return look(self, "format", spec)


class Awaited(Thing):
    """A coroutine, which runs where it is: as one of the tests it ends at its first step."""

    def __await__(self):
        return self._state[0].change("await", number_of(self))
        yield  # it is a generator that waits for nothing

    def __next__(self):
        raise StopIteration(self._state[0].change("await", number_of(self)))

    def send(self, x):
        return next(self)

    def throw(self, kind, *rest):
        raise kind

    def close(self):
        pass


collections.abc.Coroutine.register(Awaited)


def there(module, name):
    """A function of a module, which runs in the solution if it is asked about a thing of the solution."""
    here = getattr(module, name)

    @functools.wraps(here)
    def either(*args, **kwargs):
        x = args[0] if args else None
        if not isinstance(x, (Remote, RemoteClass)):
            return here(*args, **kwargs)
        link = x._class[0] if isinstance(x, RemoteClass) else x._state[0]
        return link.call_of(["import", module.__name__, name], args, kwargs)

    setattr(module, name, either)


def ask_there():
    for name in "asdict astuple fields replace".split():
        there(importlib.import_module("dataclasses"), name)
    for name in "signature getsource getdoc isgenerator isgeneratorfunction iscoroutine iscoroutinefunction isabstract".split():
        there(inspect, name)


class TypeName(Thing):
    """A builtin class as a value: equal to the tests' one, and called in the solution."""

    def __eq__(self, other):
        return self._type is (other._type if type(other) is TypeName else other)

    def __ne__(self, other):
        return not self == other

    def __hash__(self):
        return hash(self._type)


for _name in UNARY:
    if _name not in vars(Thing):
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
        link.change("set", number, name, value)
        vars(self)[name] = value

    def __delattr__(self, name):
        link, number = vars(self)["__link__"]
        link.change("delete", number, name)
        vars(self).pop(name, None)
