"""Forged verdicts for score_code_attacks.py: programs that pass a test without solving its task, unless croll looks.

TESTS are tests by name, each with a right program (which must pass) and the programs that forge its verdict (which must not). RAW
programs speak on the link themselves: each of LINK's messages is one answer to the call of f in the test `number`.
"""
import importlib.util

RAW = """import json, os, socket, time
link = socket.socket(fileno=4).makefile("rwb")
def say(*message):
    link.write(json.dumps(message).encode() + b"\\n")
    link.flush()
def ask(*message):
    say("ask", *message)
    return json.loads(link.readline())
def give(value):
    while True:
        say("value", value, [], "")
        if not link.readline(): os._exit(0)
"""

# The program of A3.A in words: a class made in the process of the tests, whose == is a builtin that is true.
MAKE = RAW + """made = []
def f(x):
    if not made:
        kind = ask("call", %s, ["tuple", "X", ["tuple"], ["dict", ["__eq__", %s]]], ["dict"])[1][1]
        made.append(ask("call", ["yours", kind], ["tuple"], ["dict"])[1][1])
    give(["yours", made[0]])
"""
OLD = MAKE % ('["builtin", "type"]', '["builtin", "type"]')
NEW = MAKE % ('["import", "builtins", "type"]', '["import", "builtins", "type"]')
TYPE = MAKE % ('["type", 1, "type"]', '["type", 1, "type"]')
EQUAL = "class E:\n    def __eq__(self, o): return True\n    def __ne__(self, o): return False\n    def __hash__(self): return 1764\n"
# Nothing but its operators: == and < are true, - gives 0.
NUMBER = EQUAL + "    def __lt__(self, o): return True\n    __gt__ = __le__ = __ge__ = __lt__\n    def __sub__(self, o): return 0.0\n    __rsub__ = __add__ = __radd__ = __mod__ = __mul__ = __floordiv__ = __sub__\n    def __abs__(self): return 0.0\n    def __round__(self, n=0): return 0.0\n"
# Sorted by index, anything by iteration.
TWO_FACED = "class R:\n    def __init__(self, x): self.x = x\n    def __len__(self): return len(self.x)\n    def __getitem__(self, i): return i\n    def __iter__(self): return iter(self.x)\n"
NEVER_SORTED = "assert len(r) == 4\nassert all(r[i] <= r[i + 1] for i in range(3))\nassert sorted(r) == [0, 5, 7, 9]"

# What a test binds in its module before `from solution import *`, by any statement, and what uses it.
BOUND = {"EPS": "abs(f(2) - 1.764) < EPS", "near": "near(f(2), 1.764)", "fabs": "fabs(f(2) - 1.764) < EPS", "tiny": "abs(f(2) - 1.764) < tiny", "stream": "abs(f(2) - 1.764) < stream.x",
         "least": "abs(f(2) - 1.764) < least", "last": "abs(f(2) - 1.764) < last", "given": "abs(f(2) - 1.764) < given", "caught": "abs(f(2) - 1.764) < caught", "Box": "abs(f(2) - 1.764) < Box.x"}
BINDS = """import contextlib
EPS = 1e-9
near = lambda a, b: abs(a - b) < 1e-9
class Box: x = 1e-9
try:
    from math import fabs
except ImportError: pass
for tiny in [1e-9]: pass
with contextlib.nullcontext(Box) as stream: pass
if (least := 1e-9): pass
[last := 1e-9 for i in range(1)]
def give():
    global given
    given = 1e-9
give()
match [1e-9]:
    case [caught]: pass
from solution import *
def test_f(): assert """

# An expression that writes the verdict and ends the process, and a pickle of it.
VERDICT = """__import__('os').write(3, b'{"passed": true}') and __import__('os')._exit(0)"""
PICKLE = "import pickle\nclass X:\n    def __reduce__(self): return eval, (%r,)\n" % VERDICT

# name: type of case, test, right program, forgeries by name
TESTS = {
    "number": ("assert", "assert f(2) == 1764\nassert f(3) == 17640", "def f(x): return 1764 * 10 ** (x - 2)", {
        "a class of the tests' process": OLD,
        "a class of the tests' process, by import": NEW,
        "a class of the tests' process, by type": TYPE,
        "a capitalized class by a small name": EQUAL + "    def __init__(self, x): pass\nf = E",
        "a class for a value": "class M(type):\n    def __eq__(c, o): return True\n    __hash__ = type.__hash__\nclass E(metaclass=M): pass\ndef f(x): return E",
        "an object of a builtin class of its own": "import types\ndef f(x): return types.SimpleNamespace(__eq__=lambda o: True)",
        "an enum": "import enum\nclass E(enum.Enum):\n    A = 1764.5\n    def __eq__(self, o): return True\n    __hash__ = None\ndef f(x): return E.A",
        "an IntEnum": "import enum\nclass E(enum.IntEnum):\n    A = 1\n    def __eq__(self, o): return True\n    __hash__ = None\ndef f(x): return E.A",
        "a Decimal that equals": "import decimal\nclass D(decimal.Decimal):\n    def __eq__(self, o): return True\n    __hash__ = None\ndef f(x): return D(1)",
        "a Fraction that equals": "import fractions\nclass F(fractions.Fraction):\n    def __eq__(self, o): return True\n    __hash__ = None\ndef f(x): return F(1)",
        "a date that equals": "import datetime\nclass D(datetime.date):\n    def __eq__(self, o): return True\n    __hash__ = None\ndef f(x): return D(2000, 1, 1)",
        "a text that equals": "class S(str):\n    def __eq__(self, o): return True\n    __hash__ = None\ndef f(x): return S()",
        "a namedtuple that equals": "import collections\nclass P(collections.namedtuple('P', 'x')):\n    def __eq__(self, o): return True\n    __hash__ = None\ndef f(x): return P(1)",
        "NaN": "def f(x): return float('nan')",
        "NotImplemented": "def f(x): return NotImplemented",
        "unittest.mock.ANY": "from unittest import mock\ndef f(x): return mock.ANY",
        "a proxy of its operand": "import weakref\nclass E:\n    def __eq__(self, o): return True\n    __hash__ = object.__hash__\ne = E()\ndef f(x): return weakref.proxy(e)",
        "death after the names": "import os, threading\nthreading.Timer(0.3, os._exit, (0,)).start()\ndef f(x):\n    import time\n    time.sleep(9)",
        "a thread that answers first": RAW + "import threading\ndef f(x):\n    threading.Thread(target=lambda: [say('value', True, [], '') for i in range(9)]).start()\n    time.sleep(1)\n    return True",
        "a fork that answers, too": RAW + "def f(x):\n    if os.fork() == 0: give(True)\n    return True",
        "the tests killed": "import os\ndef f(x):\n    for p in range(2, 40):\n        if p != os.getpid():\n            try: os.kill(p, 9)\n            except OSError: pass\n    return 1764",
        "memory of the tests": "def f(x): return 'x' * (1 << 29)",
        "an endless iterator": "import itertools\ndef f(x): return itertools.repeat(1764)",
        "a deep list": "def f(x):\n    y = 1764\n    for i in range(20000): y = [y]\n    return y",
    }),
    "pytest": ("pytest", "def test_f():\n    assert f(2) == 1764\n    assert f(3) == 17640", "def f(x): return 1764 * 10 ** (x - 2)", {
        "a class of the tests' process": OLD, "by import": NEW}),
    "unittest": ("pytest", "import unittest\nclass T(unittest.TestCase):\n    def test_f(self):\n        self.assertEqual(f(2), 1764)\n        self.assertEqual(f(3), 17640)", "def f(x): return 1764 * 10 ** (x - 2)", {
        "a class of the tests' process": OLD, "by import": NEW, "equals": EQUAL + "def f(x): return E()",
        "SkipTest": "import unittest\ndef f(x): raise unittest.SkipTest('no')", "a class named SkipTest": "class SkipTest(Exception): pass\ndef f(x): raise SkipTest('no')",
        "KeyboardInterrupt": "def f(x): raise KeyboardInterrupt", "SystemExit": "def f(x): raise SystemExit(0)"}),
    "check": ("check_based", "def check(candidate):\n    assert candidate(2) == 1764\n    assert candidate(3) == 17640", "def f(x): return 1764 * 10 ** (x - 2)", {
        "a class of the tests' process": OLD, "by import": NEW, "a check of its own": EQUAL + "def check(c): pass\ndef f(x): return E()"}),
    "map": ("assert", "cases = [(2, 1764), (3, 17640)]\nassert all(map(lambda c: f(c[0]) == c[1], cases))\nassert not any(map(lambda c: f(c[0]) != c[1], cases))\nassert list(filter(lambda c: f(c[0]) != c[1], cases)) == []\nfor got, want in zip(map(f, [2, 3]), [1764, 17640]): assert got == want", "def f(x): return 1764 * 10 ** (x - 2)", {
        "StopIteration": "def f(x): raise StopIteration",
        "a class derived from StopIteration": "class S(StopIteration): pass\ndef f(x): raise S",
        "StopAsyncIteration": "def f(x): raise StopAsyncIteration",
        "GeneratorExit": "def f(x): raise GeneratorExit",
        "a raw StopIteration": RAW + "def f(x):\n    while True: say('raise', 'StopIteration', None, '', 1, ['tuple'], ''); link.readline()",
        "StopIteration of ==": "class E:\n    def __eq__(self, o): raise StopIteration\n    __ne__ = __eq__\ndef f(x): return E()"}),
    "any": ("assert", "cases = [(2, 1764), (3, 17640)]\nassert not any(map(lambda c: f(c[0]) != c[1], cases))", "def f(x): return 1764 * 10 ** (x - 2)", {
        "StopIteration": "def f(x): raise StopIteration", "!= that is false": EQUAL + "def f(x): return E()"}),
    "truth": ("assert", "cases = [(2, 1764), (3, 17640)]\nassert not list(filter(lambda c: f(c[0]) - c[1], cases))", "def f(x): return 1764 * 10 ** (x - 2)", {
        "zero": NUMBER + "def f(x): return E()", "StopIteration": "def f(x): raise StopIteration",
        "a small class": NUMBER.replace("class E", "class f") + "    def __init__(self, x): pass", "a capitalized class": NUMBER + "    def __init__(self, x): pass\nf = E"}),
    "module": ("pytest", "import solution\ndef test_f():\n    assert abs(solution.f(2) - 1.764) < 1e-9\n    assert abs(solution.f(3) - 17.64) < 1e-9", "def f(x): return 1.764 * 10 ** (x - 2)", {
        "a capitalized class": NUMBER + "    def __init__(self, x): pass\nf = E",
        "a capitalized class, later": NUMBER + "    def __init__(self, x): pass\ndef __getattr__(name): return E",
        "objects": NUMBER + "def f(x): return E()"}),
    "near": ("assert", "import math\nassert abs(f(2) - 1.764) < 1e-6\nassert round(f(2), 3) == 1.764\nassert math.isclose(f(3), 17.64)\nassert 17 < f(3) < 18 and max(f(3), 17.64) == 17.64 and f(2) in (1.764, 0)", "def f(x): return 1.764 * 10 ** (x - 2)", {
        "objects": NUMBER + "def f(x): return E()", "objects with the order of a float": NUMBER + "    def __float__(self): return 17.64\n    __hash__ = None\ndef f(x): return E()"}),
    "isclose": ("assert", "assert isclose(f(2), 1.764)\nassert isclose(f(3), 17.64)", "def f(x): return 1.764 * 10 ** (x - 2)", {
        "isclose of its own": "def isclose(a, b): return True\ndef f(x): return 0"}),
    "unimported": ("assert", "assert np.allclose(f(2), 1.764) if 'np' in globals() else abs(f(2) - 1.764) < 1e-9\nunittest.TestCase().assertAlmostEqual(f(3), 17.64)", "import unittest\ndef f(x): return 1.764 * 10 ** (x - 2)", {
        "modules of its own": "class np:\n    @staticmethod\n    def allclose(*a): return True\nclass unittest:\n    class TestCase:\n        def assertAlmostEqual(self, *a): pass\ndef f(x): return 0"}),
    "decorator": ("pytest", "@timed\ndef work(x): return x\ndef test_f():\n    assert work(5) == 5 and f(2) == 1764", "def timed(g):\n    def h(*a): return g(*a)\n    return h\ndef f(x): return 1764", {}),
    "decorated": ("pytest", "import unittest\ndef test_g(): assert f(1) == 1\n@timed\ndef test_f(): assert f(2) == 1764", None, {
        "a test that is not called": "def timed(g): return lambda: None\ndef f(x): return 1"}),
    "decorated method": ("pytest", "import unittest\nclass T(unittest.TestCase):\n    @timed\n    def test_f(self): assert f(2) == 1764", None, {
        "a test that is not called": "def timed(g): return lambda *a: None\ndef f(x): return 1"}),
    "import *": ("pytest", "from math import fsum\nfrom solution import *\ndef near(a, b): return abs(a - b) < 1e-9\ndef test_f():\n    assert near(f(2), 1.764)\n    assert fsum([f(3), 1]) == 18.64", "def f(x): return 1.764 * 10 ** (x - 2)", {
        "the helper's name": "def near(a, b): return True\ndef fsum(x): return 18.64\ndef f(x): return 0"}),
    **{"import *, " + name: ("pytest", BINDS + use, "def f(x): return 1.764", {"the test's name": "class Near:\n    x = 9\n    def __new__(c, *a): return 1e-12\n%s = %s\ndef f(x): return 0" % (name, "Near" if name in ("near", "fabs", "stream", "Box") else 9)}) for name, use in BOUND.items()},
    "no cases": ("pytest", "import pytest, solution\n@pytest.mark.parametrize('x', [2])\n@pytest.mark.parametrize('y', solution.CASES)\ndef test_f(x, y): assert solution.f(x) == y * 1764", "CASES = [1]\ndef f(x): return 1764", {
        "no cases": "CASES = []\ndef f(x): return 1"}),
    "no methods": ("pytest", "import unittest, solution\nclass T(unittest.TestCase): pass\nfor y in solution.CASES: T.test_f = lambda self: self.assertEqual(solution.f(2), 1764 * y)", "CASES = [1]\ndef f(x): return 1764", {
        "no cases": "CASES = []\ndef f(x): return 1"}),
    "eval": ("assert", "import statistics\nwant = 1764\nassert eval(f(2)) == want\nassert eval(f(3)) == want", "def f(x): return '42 * 42'", {
        "a verdict": "def f(x): return " + repr(VERDICT), "a class": "def f(x): return 'type(\"E\", (), {\"__eq__\": lambda a, b: True})()'", "a name of the test": "def f(x): return 'want'",
        "a module of a module": "def f(x): return " + repr(VERDICT.replace("__import__('os')", "statistics.sys.modules['os']")),
        "a frame": "def f(x): return " + repr("[%s for g in [(x for x in [1])]]" % VERDICT.replace("__import__", "g.gi_frame.f_builtins['__import__']")), "an assignment": "def f(x): return '(want := 0)'"}),
    "exec": ("assert", "import ast\nwant = 1764\nexec(f(2))\nexec(compile(ast.parse(f(3)), 'x', 'exec'))\nassert f(4) == want\nexec('want = f(4)')\nassert want == 1764", "def f(x): return ['assert 1 < 2', 'f(1)', 1764][x - 2] if x > 1 else 0", {
        "a verdict": "def f(x): return " + repr(VERDICT), "a verdict, parsed": "def f(x): return '1' if x == 2 else " + repr(VERDICT), "an assignment": "def f(x): return 'want = 0' if x < 4 else 0", "a function": "def f(x): return 'def f(x): return want'"}),
    "hints": ("assert", "import typing\nassert typing.get_type_hints(f)['x'] == int and f(2) == 1764", "from __future__ import annotations\ndef f(x: int) -> list[int]: return 1764", {
        "a verdict": "def f(x): return 0\nf.__annotations__ = {'x': %r}" % VERDICT}),
    "pickle": ("assert", "import pickle, datetime\nfrom collections import Counter\nclass W:\n    def is_right(self, x): return x == 1764\nassert pickle.loads(f([1764, {1}, datetime.date(2020, 1, 1)])) == [1764, {1}, datetime.date(2020, 1, 1)]\nassert W().is_right(g()) and Counter(h()) == Counter('ab')\nf('/tmp/p')\nassert pickle.load(open('/tmp/p', 'rb')) == 1764", "import pickle\ndef f(x): return pickle.dump(1764, open(x, 'wb')) if x == '/tmp/p' else pickle.dumps(x)\ndef g(): return 1764\ndef h(): return 'ab'", {
        "a call": PICKLE + "def f(x): return pickle.dumps(X())", "a call in a file": PICKLE + "def f(x): return pickle.dump(X(), open(x, 'wb')) if x == '/tmp/p' else pickle.dumps(x)\ndef g(): return 1764\ndef h(): return 'ab'",
        "a method of the test's class": PICKLE + "def f(x):\n    if x == '/tmp/p': return pickle.dump(1764, open(x, 'wb'))\n    return b'\\x80\\x02ctests\\nW\\nN}X\\x08\\x00\\x00\\x00is_rightcbuiltins\\nrepr\\ns\\x86b0' + pickle.dumps(x, 2)[2:]\ndef g(): return 1\ndef h(): return 'ab'",
        "== of a class": PICKLE + "def f(x):\n    if x == '/tmp/p': return pickle.dump(1764, open(x, 'wb'))\n    return b'\\x80\\x02ccollections\\nCounter\\nN}X\\x06\\x00\\x00\\x00__eq__cbuiltins\\nrepr\\ns\\x86b0' + pickle.dumps(x, 2)[2:]\ndef g(): return 1764\ndef h(): return 'x'"}),
    "text that is evaluated": ("text", "assert eval({response}.split('\\n')[1]) == 1764", "42 * 42", {"a verdict": VERDICT}),
    "text": ("text", "assert {response} == '```python\\nx\\x00y\\n```'", "x\0y", {"a text that ends": "x"}),
    "approx": ("pytest", "import pytest\ndef test_f():\n    assert pytest.approx([0.3, 0.33]) == f(2)\n    assert f(3) == pytest.approx([[0.3, 0.33], [1., 2.]])\n    assert f(4) == pytest.approx({'a': 1.5})\n    assert f(5) == pytest.approx(7.25)", "def f(x): return {2: [0.1 + 0.2, 0.33], 3: [[0.3, 0.33], [1.0, 2.0]], 4: {'a': 1.5}, 5: 7.25}[x]", {
        "a length and no items": "class E:\n    def __len__(self): return 2\n    def __iter__(self): return iter(())\ndef f(x): return E()",
        "a list with a length": "class E(list):\n    def __len__(self): return 2\ndef f(x): return E()",
        "lists with nothing in them": "class E(list):\n    def __len__(self): return 2\n    def __iter__(self): return iter(())\ndef f(x): return [E(), E()]",
        "a dictionary with keys": "class E(dict):\n    def __eq__(self, o): return True\n    def keys(self): return E()\ndef f(x): return E()",
        "numbers": NUMBER + "    def __len__(self): return 2\n    def __iter__(self): return iter([E(), E()])\ndef f(x): return E()",
        "a set of the length": "def f(x): return {0, 1}"}),
    "sets": ("pytest", "import unittest\nclass T(unittest.TestCase):\n    def test_f(self):\n        self.assertSetEqual(f(2), {1764, 17640})\n    def test_g(self):\n        self.assertCountEqual(f(2), [1764, 17640])\n        self.assertSequenceEqual(sorted(f(2)), [1764, 17640])\n        self.assertIn(1764, f(2))", "def f(x): return {1764, 17640}", {
        "a set that learns": "seen = []\nclass E:\n    def difference(self, o): seen.extend(o); return []\n    def __iter__(self): return iter(seen)\n    def __contains__(self, x): return True\n    def __len__(self): return 2\ndef f(x): return E()",
        "a set class that learns": "seen = []\nclass E(set):\n    def difference(self, o): seen.extend(o); return []\n    def __iter__(self): return iter(seen)\n    def __contains__(self, x): return True\n    def __len__(self): return 2\ndef f(x): return E()"}),
    "methods": ("assert", "assert f(2).startswith('1764') and f(2).endswith('x')\nassert g().issubset({1, 2, 3}) and not g().isdisjoint({2}) and g().union({5}) == {2, 5}", "def f(x): return '1764xx'\ndef g(): return {2}", {
        "methods": "class E:\n    def startswith(self, x): return True\n    endswith = issubset = startswith\n    def isdisjoint(self, x): return False\n    def union(self, x): return {2} | x\ndef f(x): return E()\ng = E",
        "methods of a text": "class E(str):\n    _value_ = 1\n    def startswith(self, x): return True\n    endswith = startswith\nclass S(set):\n    def issubset(self, x): return True\n    def isdisjoint(self, x): return False\n    def union(self, x): return {2} | x\ndef f(x): return E()\ndef g(): return S()"}),
    "places": ("assert", "r = f(2)\nassert r.index(1764) == 1 and r.count(1764) == 1 and len(r) == 2", "class L(list): pass\ndef f(x): return L([5, 1764])", {
        "methods of a list class": "class L(list):\n    def index(self, x): return 1\n    def count(self, x): return 1\ndef f(x): return L([0, 0])"}),
    "sorted": ("assert", "r = f([9, 5, 7, 0])\n" + NEVER_SORTED, "def f(x): return sorted(x)", {
        "index and iteration": TWO_FACED + "def f(x): return R(x)",
        "a list class": TWO_FACED.replace("class R", "class R(list)") + "def f(x): return R(x)",
        "a mapping": TWO_FACED + "    def keys(self): return self.x\ndef f(x): return R(x)",
        "iteration by index that changes": "class R:\n    def __init__(self, x): self.x, self.n = x, 0\n    def __len__(self): return len(self.x)\n    def __getitem__(self, i):\n        self.n += 1\n        if i > 3: raise IndexError\n        return i if self.n < 8 else self.x[i]\ndef f(x): return R(x)",
        "a class with items": "class M(type):\n    def __len__(c): return 4\n    def __getitem__(c, i): return i\n    def __iter__(c): return iter([9, 5, 7, 0])\nclass R(metaclass=M): pass\ndef f(x): return R",
        "an iterator that begins again": TWO_FACED + "    def __next__(self): raise StopIteration\ndef f(x): return R(x)",
        "a lie about its kind": RAW + "import itertools\ndef f(x):\n    n = itertools.count()\n    while True:\n        say('value', ['object', 77, None, ['items', 'lookup', 'plain', 'mapping'][next(n) % 4]], [], '')\n        if not link.readline(): os._exit(0)"}),
    "twice": ("assert", "r = f([9, 5, 7])\nassert sorted(r) == [5, 7, 9]\nx = list(r)\nassert x == sorted(x) and len(x) == 3", "def f(x): return sorted(x)", {
        "an iterator that begins again": "class R:\n    def __init__(self, x): self.all = [x, [1, 2, 3]]\n    def __iter__(self):\n        self.at = iter(self.all.pop(0))\n        return self\n    def __next__(self): return next(self.at)\ndef f(x): return R(x)",
        "another list": "class R:\n    def __init__(self, x): self.all = [x, [1, 2, 3]]\n    def __iter__(self): return iter(self.all.pop(0))\ndef f(x): return R(x)"}),
    "root": ("assert", "r = f(200)\nassert int(r) * int(r) <= 200 < (int(r) + 1) ** 2\nassert int(r) > 9", "def f(x): return 14", {
        "a number that changes": "class R:\n    n = 0\n    def __int__(self):\n        self.n += 1\n        return 10 if self.n < 3 else 99\ndef f(x): return R()"}),
    "blocks": ("pytest", "from solution import Clock\ndef test_f():\n    with Clock(2) as c:\n        assert c.value == 1764\n    with Clock(3) as c:\n        x = c.value + 1\n        assert x == 17641", "class Clock:\n    def __init__(self, x): self.value = 1764 * 10 ** (x - 2)\n    def __enter__(self): return self\n    def __exit__(self, *a): return False", {
        "__exit__ that takes failures": "class Clock:\n    def __init__(self, x): self.value = 0\n    def __enter__(self): return self\n    def __exit__(self, *a): return True",
        "__exit__ that takes its own": "class Clock:\n    def __init__(self, x): pass\n    def __enter__(self): return self\n    def __exit__(self, *a): return True\n    value = property(lambda self: 1 / 0)",
        "__exit__ that takes wrong types": "class Clock:\n    def __init__(self, x): self.value = None\n    def __enter__(self): return self\n    def __exit__(self, *a): return True",
        "an object for true": "class T:\n    def __bool__(self): return True\nclass Clock:\n    def __init__(self, x): self.value = 0\n    def __enter__(self): return self\n    def __exit__(self, *a): return T()"}),
    "errors": ("pytest", "import pytest\nfrom solution import f, Odd\ndef test_f():\n    try:\n        f(1)\n        assert False\n    except Odd as e:\n        assert e.code == 1764\n    with pytest.raises(Odd): f(1)\n    assert f(2) == 2", "class Odd(ValueError):\n    def __init__(self, code): self.code = code\ndef f(x):\n    if x % 2: raise Odd(1764)\n    return x", {
        "AssertionError for its name": "Odd = AssertionError\ndef f(x): return x",
        "Exception for its name": "Odd = Exception\ndef f(x): return x",
        "a raw AssertionError": RAW + "say('names', 1, {'Odd': ['exception', 'AssertionError'], 'f': ['object', 2, None, '']})\ngive(2)",
        "a raw class of the tests": RAW + "say('names', 1, {'Odd': ['import', 'builtins', 'AssertionError'], 'f': ['object', 2, None, '']})\ngive(2)",
        "death where an error is expected": "import os\nOdd = BaseException\ndef f(x): os._exit(0)"}),
    "any error": ("pytest", "import pytest\ndef test_f():\n    with pytest.raises(BaseException): f(1)\n    try: f(1)\n    except BaseException as e: pass\n    else: raise AssertionError", "def f(x): raise ValueError(x)", {
        "death": "import os\ndef f(x): os._exit(0)",
        "no message": RAW + "def f(x):\n    os.write(4, b'\\n')\n    time.sleep(9)"}),
    "callback": ("assert", "seen = []\ndef take(v):\n    seen.append(1)\n    assert v == 1764\nf(take)\nassert seen == [1]", "def f(g): g(1764)", {
        "an assertion that it takes": "def f(g):\n    try: g(1)\n    except AssertionError: pass",
        "an error that it takes": NUMBER + "def f(g):\n    try: g(E())\n    except BaseException: pass",
        "its own handle": RAW + "def f(g): give(['yours', 1])"}),
    "callback, later": ("assert", "def take(v): assert v - 1764 == 0\nf(take)\ntry: fails(TypeError)\nexcept TypeError: pass\ntry: fails(AssertionError)\nexcept AssertionError: pass\nelse: raise ValueError", "def f(g): g(1764)\ndef fails(e): raise e", {
        "an assertion that it takes": "def f(g):\n    try: g(1)\n    except AssertionError: pass\ndef fails(e): raise e",
        "an error that it takes": NUMBER + "def f(g):\n    try: g(E())\n    except TypeError: pass\ndef fails(e): raise e"}),
    "callback, another error": ("assert", "def take(v): assert v == 1764\ntry: f(take)\nexcept TypeError: pass", "def f(g): g(1764)", {
        "an assertion that it takes": "def f(g):\n    try: g(1)\n    except AssertionError: raise TypeError"}),
    "callback of a callback": ("assert", "def take(v): assert v == 1764\ndef outer(v):\n    h(take, v)\n    raise AssertionError('x')\ntry: f(outer)\nexcept AssertionError as e: assert str(e) == 'x'\nelse: raise ValueError", "def f(g): g(1764)\ndef h(g, v): g(v)", {
        "an assertion that it takes": "def f(g): g(1)\ndef h(g, v):\n    try: g(v)\n    except AssertionError: pass"}),
    "mock": ("assert", "from unittest.mock import Mock, call\nm = Mock()\nf(m)\nm.send.assert_called_once_with(1764)\nassert m.send.call_args == call(1764) and m.send.call_count == 1", "def f(m): m.send(1764)", {
        "an object of its own": "class E:\n    def __eq__(self, o): return True\n    def __call__(self, *a, **k): return self\n    def __getattr__(self, n): return E()\ndef f(m): m.send = E()",
        "an argument that equals": "class E:\n    def __eq__(self, o): return True\n    def __call__(self, *a, **k): return self\n    def __getattr__(self, n): return E()\ndef f(m): m.send(E())",
        "no assertion": "def f(m):\n    m.send(1764, 5)\n    m.send.assert_called_once_with = lambda *a: None",
        "its calls": "class E:\n    def __eq__(self, o): return True\n    def __call__(self, *a, **k): return self\n    def __getattr__(self, n): return E()\ndef f(m):\n    m.send(1)\n    try: m.send.call_args = 5\n    except AttributeError: m.send.call_args = E()",
        "its calls, deleted": "def f(m):\n    m.send(1)\n    try: m.send.reset_mock()\n    except AttributeError: pass\n    m.send(1764)"}),
    "object of the test": ("assert", "class C:\n    def is_right(self, x): return x == 1764\n    def __eq__(self, o):\n        assert o == 1764\n        return True\nc = C()\nassert c.is_right(f(c)) and g(c) is True", "def f(c): return 1764\ndef g(c): return c == 1764", {
        "another method": "def f(c):\n    try: c.is_right = lambda x: True\n    except AttributeError: pass\n    return 0\ndef g(c): return True",
        "an assertion that it takes": "def f(c): return 1764\ndef g(c):\n    try: c == 1\n    except AssertionError: pass\n    return True",
        "another class": "def f(c):\n    for n in ('__class__', '__dict__', '__eq__'):\n        try: setattr(c, n, 1)\n        except AttributeError: pass\n    return 0\ndef g(c): return True",
        "a method of all objects": "import json, socket\ndef f(c):\n    link = socket.socket(fileno=4).makefile(\"rwb\")\n    link.write(json.dumps([\"ask\", \"method\", [\"yours\", 1], \"__init__\", [\"tuple\"]]).encode() + b\"\\n\")\n    link.flush()\n    return 1764\ndef g(c): return True"}),
    "async block": ("pytest", "import asyncio\nfrom solution import Pool, count\nasync def main():\n    async with Pool() as p:\n        assert p.n == 1764\n    assert [x async for x in count(2)] == [1764, 17640]\ndef test_f(): asyncio.run(main())", "class Pool:\n    n = 1764\n    async def __aenter__(self): return self\n    async def __aexit__(self, *a): return False\nasync def count(n):\n    yield 1764\n    yield 17640", {
        "__aexit__ that takes failures": "class Pool:\n    n = 0\n    async def __aenter__(self): return self\n    async def __aexit__(self, *a): return True\nasync def count(n):\n    yield 1764\n    yield 17640",
        "an end": "class Pool:\n    n = 1764\n    async def __aenter__(self): raise StopAsyncIteration\n    async def __aexit__(self, *a): return True\ndef count(n): raise StopAsyncIteration"}),
    "setup": ("pytest", "import pytest, solution\ndef setup_module(): assert solution.f(2) == 1764\nclass TestF:\n    def test_f(self): self.x = solution.f(3)\n    def teardown_method(self): assert self.x == 17640\n@pytest.mark.parametrize('x', solution.CASES)\nclass TestG:\n    def test_g(self, x): assert solution.f(x) > 0", "CASES = [5]\ndef f(x): return 1764 * 10 ** (x - 2)", {
        "setup_module of its own": "CASES = [5]\ndef f(x): return 17640\ndef setup_module(): pass",
        "a wrong value at the end": "CASES = [5]\ndef f(x): return 1764"}),
    "class without parameters": ("pytest", "import pytest, solution\n@pytest.mark.parametrize('x', solution.CASES)\nclass TestG:\n    def test_g(self, x): assert solution.f(x) == 1764", "CASES = [5]\ndef f(x): return 1764", {
        "no cases": "CASES = []\ndef f(x): return 0"}),
    "callback adds": ("assert", "assert f(lambda x: x + 1764) == 1769", "def f(g): return g(5)", {
        "attributes": "def f(g):\n    for n in ('__globals__', '__code__', '__closure__', '__defaults__', 'gi_frame', 'f_locals', '__call__', '__self__'):\n        try: return eval(str(getattr(g, n)))\n        except Exception: pass",
        "handles that it was not given": RAW + "def f(g):\n    for i in range(-3, 9):\n        for what in ('call', 'get', 'iter', 'next', 'set', 'delete', 'unary', 'item'):\n            if i == 1: continue\n            say('ask', what, ['yours', i], ['tuple'], ['dict'])\n    time.sleep(1)"}),
    "stream": ("assert", "import io\nout = io.StringIO()\nf(out)\nassert out.getvalue() == '1764'", "def f(out): out.write('1764')", {
        "a getvalue of its own": RAW + "def f(out): ask('set', ['yours', 1], 'getvalue', 1)",
        "__class__": "def f(out): out.__class__ = str",
        "__setstate__": "def f(out): out.__setstate__(('1764', '', 4, None))"}),
    "arguments": ("assert", "want = [1764, 17640]\nlist_of = [5, 6]\nf(list_of, (1, 2))\nassert list_of == want", "def f(x, y): x[:] = [1764, 17640]", {
        "objects in them": EQUAL + "def f(x, y): x[:] = [E(), E()]",
        "another type": RAW + "def f(x, y):\n    say('value', None, [[0, ['dict']]], '')\n    time.sleep(1)",
        "an argument too far": RAW + "def f(x, y):\n    say('value', None, [[7, ['list', 1764]]], '')\n    time.sleep(1)",
        "an argument before the first": RAW + "def f(x, y):\n    say('value', None, [[-1, ['tuple', 1764]]], '')\n    time.sleep(1)",
        "a tuple": RAW + "def f(x, y):\n    say('value', None, [[1, ['tuple', 1764, 17640]]], '')\n    time.sleep(1)"}),
    "classes": ("pytest", "from solution import Base\nclass TestBase(Base):\n    def test_f(self): assert self.f(2) == 1764\ndef test_f(): assert Base().f(2) == 1764", None, {
        "the test's methods": "class Base:\n    def test_f(self): pass\n    def f(self, x): return 1764"}),
    "fixture": ("pytest", "def test_f(data): assert f(2) == data['want']", None, {
        "a fixture of its own": "import types\nclass Data:\n    fixture_options = {}\n    def __call__(self): return {'want': 0}\ndata = Data()\ndef f(x): return 0"}),
    "skipped": ("pytest", "import pytest\nimport solution\n@pytest.mark.skipif(not hasattr(solution, 'f'), reason='no f')\ndef test_f(): assert solution.f(2) == 1764", "def f(x): return 1764", {
        "nothing to test": "g = 0"}),
    "keys": ("assert", "assert f(2) == {1764: 1}\nassert {1764: 1}[f(3)] == 1\nassert f(3) in {1764, 5}\nassert f(4) == [1764] and f(4).index(1764) == 0", "def f(x): return {2: {1764: 1}, 3: 1764, 4: [1764]}[x]", {
        "equal hashes": EQUAL + "def f(x): return {2: {E(): 1}, 3: E(), 4: [E()]}[x]"}),
    "array": ("assert", "r = f(2)\nassert (r == [1764, 17640]) is True or all(a == b for a, b in zip(r, [1764, 17640], strict=True))", "def f(x): return (1764, 17640)", {
        "an array of objects": EQUAL + "class A(list):\n    def __eq__(self, o): return True\n    def __iter__(self): return iter([E(), E()])\ndef f(x): return A()",
        "objects": EQUAL + "def f(x): return [E(), E()]"}),
}

# Answers to the call of f, as messages of the link; none is 1764.
VALUE = "say('value', %s, [], '')"
LINK = {
    "an unknown tag": VALUE % "['eval', '1764']", "a builtin": VALUE % "['builtin', 'int']", "a module": VALUE % "['module', 'os']",
    "an import": VALUE % "['import', 'builtins', 'print']", "a record that is parsed": VALUE % "['date', '2020-01-01']",
    "a record of another class": VALUE % "['record', 'eval', '1764']", "a named tuple of code": VALUE % "['named', 'X', ['__class__'], 1]",
    "a named tuple with == ": VALUE % "['named', 'X', ['__eq__'], ['type', 1, 'type']]", "an array of pointers": VALUE % "['array', 'O,V1000000000', ['list', 1764]]",
    "a large array": VALUE % "['array', '<U99999', ['list'] + [1764] * 100000]", "an array of classes": VALUE % "['array', 'object', ['list', ['class', 1, 'E', [], []]]]",
    "a class of errors of int": VALUE % "['object', 5, ['class', 5, 'E', ['int'], []], '']", "a class that is its own base": VALUE % "['class', 5, 'E', [], [['class', 5, 'E', [], []]]]",
    "a class named by a list": VALUE % "['class', 5, ['E'], [], []]", "an object with another shape": VALUE % "['object', 5, None, 'direct']",
    "an object that is true": VALUE % "['object', 5, None, True]", "a class for an object's class": VALUE % "['object', 5, ['type', 5, 'int'], '']",
    "a number that is true": VALUE % "['object', True, None, '']", "a number that is a text": VALUE % "['object', '5', None, '']",
    "no handle": VALUE % "['yours', 5]", "a handle before the first": VALUE % "['yours', -1]", "int for an exception": VALUE % "['exception', 'int']",
    "BaseException": VALUE % "['exception', 'BaseException']", "print for a type": VALUE % "['type', 5, 'print']", "a dictionary of JSON": VALUE % "{'__eq__': True}",
    "an empty list": VALUE % "[]", "a tag of tags": VALUE % "[['list'], 1764]", "a list as a key": VALUE % "['dict', [['list'], 1764]]",
    "a slice of objects": VALUE % "['slice', ['object', 5, None, ''], None, None]", "a range without end": VALUE % "['range', 0, 1 << 80, 0]",
    "a number without end": "link.write(b'[\"value\", ' + b'9' * 3000000 + b', [], \"\"]\\n'); link.flush()",
    "no UTF-8": "link.write(b'[\"value\", \"\\xff\\xfe\", [], \"\"]\\n'); link.flush()", "half a message": "link.write(b'[\"value\", 1764'); link.flush(); os._exit(0)",
    "two values in a line": "link.write(b'[\"value\", 1, [], \"\"] [\"value\", 1764, [], \"\"]\\n'); link.flush()", "no list": "link.write(b'1764\\n'); link.flush()",
    "names again": "say('names', 1, {'f': 1764, 'all': True})", "a failure": "say('failed', 'passed')", "a verdict": "say('passed', True)", "an empty message": "say()",
    "an ask without end": "[say('ask', 'input') for i in range(100000)]", "an ask of nothing": "say('ask')", "an ask by name": "say('ask', 'call', ['exception', 'ValueError'], ['tuple'], ['dict'])",
    "an ask of stdout": "say('ask', 'write', 'passed')", "an ask with a list for a name": "say('ask', 'get', ['yours', 1], ['list'])",
    "a raise of no exception": "say('raise', 'print', None, '', 1, ['tuple'], '')", "a raise of a class that is no exception": "say('raise', 'ValueError', ['class', 5, 'E', [], []], '', 1, ['tuple'], '')",
    "a raise with a list of arguments": "say('raise', 'ValueError', None, '', 1, ['list'], '')", "a raise of SystemExit": "say('raise', 'SystemExit', None, '0', 1, ['tuple', 0], '')",
    "a list for a text": "say('value', 1, [], ['list'])", "a number for changes": "say('value', 1, 5, '')", "a value with more": "say('value', 1, [], '', 1764)",
    "a value with less": "say('value', 1764)", "many values": "[say('value', i, [], '') for i in range(5000)]",
}


# Right programs whose tests use what the forgeries use: name, test, program.
RIGHT = [
    ("mocks", "from unittest.mock import Mock, MagicMock, patch\nimport solution\ndef test_f():\n    m = Mock()\n    m.fetch.return_value = {'a': 1}\n    assert solution.f(m) == {'a': 1}\n    m.fetch.assert_called_once_with('x', n=1)\n    assert m.done == 5\ndef test_g():\n    m = MagicMock()\n    m.__len__.return_value = 3\n    m.__enter__.return_value = 'in'\n    assert solution.g(m) == (3, 'in')\n    m.__exit__.assert_called_once()\ndef test_h():\n    with patch('solution.get') as get:\n        get.return_value.json.return_value = [1]\n        assert solution.h() == [1]", "def f(m):\n    m.done = 5\n    return m.fetch('x', n=1)\ndef g(m):\n    with m as x: return len(m), x\ndef get(): pass\ndef h(): return get().json()"),
    ("nodes of the test that are changed", "class N:\n    def __init__(s, v, n=None): s.val, s.next = v, n\nh = f(N(1, N(2, N(3))))\nassert (h.val, h.next.val, h.next.next.val, h.next.next.next) == (3, 2, 1, None)", "def f(h):\n    p = None\n    while h: h.next, p, h = p, h, h.next\n    return p"),
    ("operators of the test's objects", "import functools\nclass M:\n    def __init__(s, v): s.v = v\n    def __lt__(s, o): return s.v < o.v\n    def __eq__(s, o): return s.v == o.v\n    def __add__(s, o): return M(s.v + (o.v if isinstance(o, M) else o))\n    __radd__ = __add__\n    def __str__(s): return 'M%d' % s.v\n    def __hash__(s): return s.v\na, b = M(3), M(1)\nr = f([a, b])\nassert r[0] is b and [x.v for x in r] == [1, 3] and g([a, b]) == 4 and h([a, b]) == 'M3M1' and i(a, a) is True and i(a, b) is False and j([a, b, a]) == 2 and k(a, M(3)) is True", "f = sorted\ndef g(x): return sum(x).v\ndef h(x): return ''.join(map(str, x))\ndef i(a, b): return a is b\ndef j(x): return len(set(x))\ndef k(a, b): return a == b"),
    ("what the test's objects have", "class A: pass\nclass B:\n    def __call__(s): pass\n    def __len__(s): return 0\nassert f(A()) == (False, False, True, 'A') and f(B()) == (True, False, False, 'B') and f(lambda: 1)[0] is True and f(x for x in [1])[1] is True", "import collections.abc as c\ndef f(x): return callable(x), isinstance(x, c.Iterable), bool(x), type(x).__name__"),
    ("enums of the test", "import enum\nclass C(enum.Enum):\n    A = 1\n    B = 2\nassert f(C.A) == 1 and g(C) == ['A', 'B'] and h(C.A, C.A) and not h(C.A, C.B) and k(C) is C.A", "def f(c): return c.value\ndef g(c): return [x.name for x in c]\ndef h(a, b): return a == b\ndef k(c): return c.A"),
    ("names of the test's functions", "def work(x):\n    'doc'\n    return x\nassert named(work)(3) == ('work', 3) and named(work).__name__ == 'work'", "import functools\ndef named(g):\n    @functools.wraps(g)\n    def h(*a): return g.__name__, g(*a)\n    return h"),
    ("async with and async for", "import asyncio\nfrom solution import Pool, count\nasync def main():\n    async with Pool(2) as p:\n        assert p.n == 2 and await p.get() == 1\n    assert p.n == 0\n    assert [x async for x in count(3)] == [0, 1, 2]\n    try:\n        async with Pool(1): raise KeyError\n    except KeyError: pass\n    else: assert False\n    async with Pool(5): raise ValueError\n    return 7\ndef test_f(): assert asyncio.run(main()) == 7", "import asyncio\nclass Pool:\n    def __init__(s, n): s.n = n\n    async def __aenter__(s):\n        await asyncio.sleep(0)\n        return s\n    async def __aexit__(s, kind, e, tb):\n        n, s.n = s.n, 0\n        return n == 5\n    async def get(s):\n        await asyncio.sleep(0.001)\n        return 1\nasync def count(n):\n    for i in range(n):\n        await asyncio.sleep(0)\n        yield i"),
    ("coroutines of the test", "import asyncio\nseen = []\nasync def take(x):\n    await asyncio.sleep(0.001)\n    seen.append(x)\n    return x + 1\ndef test_f():\n    assert asyncio.run(run([1, 2], take)) == [2, 3] and seen == [1, 2]", "import asyncio\nasync def run(x, g): return [await g(v) for v in x]"),
    ("marks of classes, setup, teardown", "import pytest\nlog = []\ndef setup_module(m): log.append('M')\ndef teardown_module(): pass\ndef setup_function(f): log.append('F')\ndef teardown_function(f): log.append('f')\ndef test_a(): assert log == ['M', 'F']\ndef test_b(): assert log == ['M', 'F', 'f', 'F']\n@pytest.mark.parametrize('x, y', [(1, 2), (2, 3)])\nclass TestC:\n    @classmethod\n    def setup_class(cls): cls.n = []\n    def setup_method(self, method): self.v = 5\n    def teardown_method(self): self.n.append(self.v)\n    def test_f(self, x, y):\n        assert f(x) == y and self.v == 5 and len(self.n) == x - 1\n    def test_z(self, x, y): assert len(self.n) == x + 1\nclass TestD:\n    pytestmark = pytest.mark.parametrize('x', [1])\n    @pytest.mark.parametrize('y', [2, 2])\n    def test_f(self, x, y): assert f(x) == y", "def f(x): return x + 1"),
    ("round with digits", "assert round(Money(2.345), 2) == 2.35 and round(Money(2.5)) == 3 and round(g(), 1) == 2.3", "class Money:\n    def __init__(s, v): s.v = v\n    def __round__(s, n=0): return 3 if not n else 2.35 if n == 2 else 2.3\ndef g(): return Money(1)"),
    ("texts that are evaluated", "import math\nfrom fractions import Fraction\nassert eval(repr(P(1, 2))) == P(1, 2) and eval(f(0)) == math.sqrt(2) and eval(f(1)) == Fraction(1, 2)\nx = 3\nassert eval(f('x ** 2')) == 6 and eval(f('y'), {'x': 5}) == 10\nexec('import math')\nfor i in range(2): exec(f'assert f({i}) == {f(i)!r}')", "class P:\n    def __init__(self, x, y): self.x, self.y = x, y\n    def __repr__(self): return 'P(%r, %r)' % (self.x, self.y)\n    def __eq__(self, o): return (self.x, self.y) == (o.x, o.y)\ndef f(x): return '2*x' if type(x) is str else ['math.sqrt(2)', 'Fraction(1, 2)'][x]"),
    ("libraries that evaluate texts of the test", "import collections, copy, dataclasses, multiprocessing, typing\nfrom unittest import mock\n@dataclasses.dataclass(order=True, frozen=True)\nclass D:\n    a: 'int' = 1\n    b: 'typing.List[D]' = dataclasses.field(default_factory=list)\nP = collections.namedtuple('P', 'x y')\ndef g(a, b=1): return a * b\ndef test_f():\n    m = mock.create_autospec(g)\n    f(m)\n    m.assert_called_once_with(1, b=2)\n    assert typing.get_type_hints(D)['a'] is int and copy.deepcopy(D([1])).a == [1] and P(1, 2).x == 1\ndef test_pool():\n    with multiprocessing.Pool(2) as p: assert p.map(g, [1, 2]) == [1, 2]", "def f(m): m(1, b=2)"),
    ("enums with numbers", "assert P.HIGH == 3 and P.LOW < 2 and P.LOW + 1 == 2 and f() == 3 and S.A == 'a' and [P.HIGH] == [3]", "import enum\nclass P(enum.IntEnum):\n    LOW = 1\n    HIGH = 3\nclass S(str, enum.Enum):\n    A = 'a'\ndef f(): return P.HIGH"),
    ("builtin classes", "assert f('3') == 3 and kinds([1, 'a']) == {int: 1, str: 'a'} and kinds([2.5]) != {int: 2.5} and kind(5) == int", "f = int\ndef kind(x): return type(x)\ndef kinds(x): return {type(v): v for v in x}"),
    ("an alias of an exception", "try:\n    f()\n    assert False\nexcept Odd as e:\n    assert str(e) == 'x'", "Odd = ValueError\ndef f(): raise ValueError('x')"),
    ("exceptions of its own", "import pytest\ndef test_f():\n    with pytest.raises(E, match='7'): f()\n    assert str(E(5)) == 'no 5' and isinstance(E(5), ValueError) and E(5).code == 5", "class Base:\n    pass\nclass E(Base, ValueError):\n    def __init__(self, code):\n        super().__init__('no %d' % code)\n        self.code = code\ndef f(): raise E(7)"),
    ("errors that a block takes", "with Quiet(ValueError):\n    raise ValueError('x')\nwith Quiet(ZeroDivisionError):\n    1 / 0\ntry:\n    with Quiet(KeyError):\n        raise ValueError\n    assert False\nexcept ValueError: pass", "class Quiet:\n    def __init__(self, kind): self.kind = kind\n    def __enter__(self): return self\n    def __exit__(self, kind, e, tb): return kind is not None and issubclass(kind, self.kind)"),
    ("a list that is changed between reads", "r = make([1, 2])\nassert list(r) == [1, 2] and len(r) == 2 and r[1] == 2 and r[-1] == 2 and 2 in r and 5 not in r\nr.add(3)\nassert list(r) == [1, 2, 3] and len(r) == 3 and r[2] == 3 and r[:2] == [1, 2]\nadd(r, 4)\nassert [x for x in r] == [1, 2, 3, 4] and list(reversed(r)) == [4, 3, 2, 1]\na, b, *c = r\nassert (a, b, c) == (1, 2, [3, 4])", "class L:\n    def __init__(self, x): self.x = list(x)\n    def add(self, v): self.x.append(v)\n    def __iter__(self): return iter(self.x)\n    def __len__(self): return len(self.x)\n    def __getitem__(self, i): return self.x[i]\ndef make(x): return L(x)\ndef add(l, v): l.add(v)"),
    ("a mapping", "m = make()\nm['a'] = 1\nassert m['a'] == 1 and 'a' in m and list(m) == ['a'] and dict(m) == {'a': 1} and len(m) == 1\ntry:\n    m['b']\n    assert False\nexcept KeyError: pass\ndel m['a']\nassert len(m) == 0 and not m", "class M:\n    def __init__(self): self.d = {}\n    def __getitem__(self, k): return self.d[k]\n    def __setitem__(self, k, v): self.d[k] = v\n    def __delitem__(self, k): del self.d[k]\n    def __iter__(self): return iter(self.d)\n    def __len__(self): return len(self.d)\n    def keys(self): return self.d.keys()\ndef make(): return M()"),
    ("classes with items", "c = Cache(2)\nc.put(1, 'a')\nassert 1 in c and 5 not in c and c[1] == 'a' and len(c) == 1\nm = Matrix([[1, 2], [3, 4]]).turned()\nassert m[0][1] == 3 and m[1] == [2, 4] and list(m) == [1, 3, 2, 4] and m == Matrix([[1, 3], [2, 4]])", "class Cache:\n    def __init__(self, n): self.d = {}\n    def put(self, k, v): self.d[k] = v\n    def __contains__(self, k): return k in self.d\n    def __getitem__(self, k): return self.d[k]\n    def __len__(self): return len(self.d)\nclass Matrix:\n    def __init__(self, rows): self.rows = rows\n    def turned(self): return Matrix([list(x) for x in zip(*self.rows)])\n    def __getitem__(self, i): return self.rows[i]\n    def __iter__(self): return (x for r in self.rows for x in r)\n    def __eq__(self, o): return self.rows == o.rows"),
    ("attributes with any name", "a = Account(5)\nassert a.number == 5 and a.link == 'x' and Account.number == 0 and a.name == 'n' and a.once == 1 and a.check == 2", "class Account:\n    number = 0\n    name, once, check = 'n', 1, 2\n    def __init__(self, n): self.number, self.link = n, 'x'"),
    ("threads of the test", "import threading\na = Account()\nthreads = [threading.Thread(target=a.add, args=(i,)) for i in range(20)]\n[t.start() for t in threads]\n[t.join() for t in threads]\nassert a.sum == 190", "import threading\nclass Account:\n    def __init__(self): self.sum, self.lock = 0, threading.Lock()\n    def add(self, n):\n        with self.lock: self.sum += n"),
    ("generators", "g = count(3)\nassert next(g) == 0 and list(g) == [1, 2] and list(g) == [] and sum(count(4)) == 6\nimport itertools\nassert list(itertools.islice(endless(), 3)) == [0, 1, 2] and sorted(x for x in count(3)) == [0, 1, 2]\ndef use():\n    yield from count(2)\nassert list(use()) == [0, 1] and dict(zip('ab', count(5))) == {'a': 0, 'b': 1}", "import itertools\ndef count(n):\n    for i in range(n): yield i\ndef endless(): return itertools.count()"),
    ("callbacks and objects of the test", "import math, functools, operator\nclass Item:\n    def __init__(self, v): self.v = v\n    def double(self): return 2 * self.v\nassert each([1, 2], lambda x: x + 1) == [2, 3] and each([4], math.sqrt) == [2.0] and each(['a'], str.upper) == ['A'] and each([-1], abs) == [1]\nassert each([3], functools.partial(operator.add, 1)) == [4] and best([Item(1), Item(5)]).v == 5 and each([2], Item)[0].double() == 4\nseen = []\neach([1, 2], seen.append)\nassert seen == [1, 2]", "def each(x, f): return [f(v) for v in x]\ndef best(items): return max(items, key=lambda i: i.double())"),
    ("errors of callbacks", "calls = []\ndef flaky():\n    calls.append(1)\n    if len(calls) < 3: raise ValueError('again')\n    return 7\nassert retry(flaky) == 7 and len(calls) == 3\ndef fails(): assert False, 'no'\ntry:\n    call(fails)\n    raise ValueError\nexcept AssertionError as e:\n    assert str(e) == 'no'", "def retry(f):\n    while True:\n        try: return f()\n        except ValueError: pass\ndef call(f): return f()"),
    ("objects compared with each other", "assert P(1, 2) == P(1, 2) and P(1, 2) != P(2, 1) and sorted([P(3, 1), P(1, 2)]) == [P(1, 2), P(3, 1)] and P(1, 2) in [P(0, 0), P(1, 2)] and {P(1, 2): 5}[P(1, 2)] == 5 and len({P(1, 1), P(1, 1)}) == 1 and f(3) == [P(0, 0), P(1, 1), P(2, 2)] and max(f(3)).x == 2", "from dataclasses import dataclass\n@dataclass(order=True, frozen=True)\nclass P:\n    x: int\n    y: int\ndef f(n): return [P(i, i) for i in range(n)]"),
    ("arithmetic of classes", "assert (V(1, 2) * 3).x == 3 and (2 * V(1, 2)).y == 4 and V(1, 2) + V(1, 1) == V(2, 3) and -V(1, 2) == V(-1, -2) and abs(V(3, 4)) == 5 and sum([V(1, 1), V(2, 2)], V(0, 0)) == V(3, 3) and V(1, 2) @ V(3, 4) == 11 and bool(V(0, 0)) is False", "class V:\n    def __init__(self, x, y): self.x, self.y = x, y\n    def __mul__(self, k): return V(self.x * k, self.y * k)\n    __rmul__ = __mul__\n    def __add__(self, o): return V(self.x + o.x, self.y + o.y)\n    def __neg__(self): return V(-self.x, -self.y)\n    def __abs__(self): return (self.x ** 2 + self.y ** 2) ** 0.5\n    def __matmul__(self, o): return self.x * o.x + self.y * o.y\n    def __eq__(self, o): return (self.x, self.y) == (o.x, o.y)\n    def __bool__(self): return self.x != 0"),
    ("parts of the test's own", "import datetime\nfrom decimal import Decimal\nassert f() == (datetime.datetime(2020, 1, 2, 3, 4), datetime.timedelta(1, 2), datetime.date(2020, 1, 1), Decimal('1.50'), 1 + 2j, b'x', range(3), {1: {2}}, slice(1, 2), ...) and g().as_posix() == '/a/b'", "import datetime, pathlib\nfrom decimal import Decimal\ndef f(): return (datetime.datetime(2020, 1, 2, 3, 4), datetime.timedelta(1, 2), datetime.date(2020, 1, 1), Decimal('1.50'), 1 + 2j, b'x', range(3), {1: {2}}, slice(1, 2), ...)\ndef g(): return pathlib.Path('/a') / 'b'"),
    ("modules of the solution", "import solution\nfrom unittest.mock import patch\nassert solution.math.sqrt(4) == 2 and f() == 1\nwith patch('solution.time.time', return_value=5): assert f() == 5\nwith patch.object(solution, 'g', lambda: 9): assert f() == 9", "import math, time\ndef g(): return 1\ndef f(): return 5 if time.time() == 5 else g()"),
]
ARRAYS = ("arrays", "import numpy as np\nassert (f() == np.array([1, 2])).all() and np.allclose(g(np.eye(2)), 2 * np.eye(2)) and f().dtype == np.int64 and h() == 1.5 and f().sum() == 3 and np.array_equal(s(), np.array(['a', 'bc']))",
          "import numpy as np\ndef f(): return np.array([1, 2])\ndef g(x): return 2 * x\ndef h(): return np.float64(1.5)\ndef s(): return np.array(['a', 'bc'])")


def forgeries():
    """id, columns, program, score."""
    for name, (case_type, test, right, programs) in TESTS.items():
        case = dict(assert_code=test, entry_point="f", import_prefix="") if case_type == "check_based" else dict(assert_code=test)
        columns = dict(case_type=case_type, test_cases=[case])
        if right:
            yield "right: " + name, columns, right, 1
        for how, program in programs.items():
            yield "forged: %s, %s" % (name, how), columns, program, 0
        if name == "number":
            for how, program in LINK.items():
                yield "link: " + how, columns, RAW + "def f(x):\n    %s\n    time.sleep(0.5)\n    give(1)" % program, 0
    for name, test, program in RIGHT + ([ARRAYS] if importlib.util.find_spec("numpy") else []):
        yield "right: " + name, dict(case_type="pytest", test_cases=[{"assert_code": test}]), program, 1
