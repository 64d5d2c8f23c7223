"""200 tasks ($CROLL_TASKS) for score_code_tasks.sh: programs with their tests, right, wrong, slow, crashing, each judged by plain execution, too.

    score_code_tasks.py lines FILE          lines of croll score, and the verdicts of plain execution in FILE
    score_code_tasks.py check FILE          croll's answers on stdin have the same verdicts

Plain execution is python3 on a file that holds the program and then its test (and calls its test_ functions), or on the program with its
stdin; it has SECONDS, and passes with exit code 0 and, with stdin, the same output.
"""
import concurrent.futures
import json
import os
import random
import subprocess
import sys
import tempfile

NUM = int(os.environ.get("CROLL_TASKS", 200))
SECONDS = 4

# A program, its test (statements, or functions test_), and what makes it wrong (old, new). $a, $b, $c are small numbers.
TESTED = [
    ("def f(x): return x * $a + $b", "assert f(3) == 3 * $a + $b\nassert f(0) == $b", ("+ $b", "- $b")),
    ("def f(xs): return sorted(xs)[-$a:]", "assert f([5, 1, 9, 7, 3, 8, 2, 6, 4, 10]) == list(range(1, 11))[-$a:]", ("[-$a:]", "[:$a]")),
    ("def f(xs):\n    xs.sort()\n    xs.append($a)", "l = [3, 1, 2]\nassert f(l) is None\nassert l == [1, 2, 3, $a]", ("xs.sort()", "xs.reverse()")),
    ("def f(d):\n    d['k'] = $a\n    d.pop('old', None)\n    return d", "d = {'old': 1}\nr = f(d)\nassert d == {'k': $a} and r == d", ("= $a", "= $b + 100")),
    ("def f(s): s.add($a); s.discard(0)", "s = {0, 1}\nf(s)\nassert s == {1, $a}", ("s.add($a)", "s.add(-1)")),
    ("def f(m):\n    for row in m: row[0] = $a", "m = [[1, 2], [3, 4]]\nf(m)\nassert m == [[$a, 2], [$a, 4]]", ("row[0]", "row[1]")),
    ("class Stack:\n    def __init__(self): self.items = []\n    def push(self, x): self.items.append(x)\n    def pop(self):\n        if not self.items: raise IndexError('empty')\n        return self.items.pop()\n    def __len__(self): return len(self.items)",
     "s = Stack()\ns.push($a)\ns.push($b)\nassert len(s) == 2 and s.pop() == $b and s.pop() == $a\ntry:\n    s.pop()\n    assert False\nexcept IndexError as e:\n    assert str(e) == 'empty'\nassert not s.items", ("self.items.pop()", "self.items.pop(0)")),
    ("class Node:\n    def __init__(self, v, n=None): self.val = v; self.next = n\ndef rev(h):\n    p = None\n    while h: h.next, p, h = p, h, h.next\n    return p",
     "h = Node($a, Node($b, Node($c)))\nr = rev(h)\nout = []\nwhile r:\n    out.append(r.val)\n    r = r.next\nassert out == [$c, $b, $a]", ("return p", "return h")),
    ("def gen(n):\n    for i in range(n): yield i * $a", "assert list(gen(4)) == [0, $a, 2 * $a, 3 * $a]\ng = gen(2)\nassert next(g) == 0\nassert next(g, None) == $a and next(g, 'end') == 'end'", ("i * $a", "i + $a")),
    ("class E(Exception):\n    def __init__(self, code): super().__init__('code %d' % code); self.code = code\ndef f(x):\n    if x < 0: raise E($a)\n    return x",
     "try:\n    f(-1)\nexcept E as e:\n    assert e.code == $a and str(e) == 'code $a'\nelse:\n    assert False\nassert f(2) == 2", ("raise E($a)", "raise E($a + 1)")),
    ("def f(x):\n    if x == 0: raise ValueError('zero')\n    return $a / x", "def test_a():\n    assert f(2) == $a / 2\ndef test_b():\n    try: f(0)\n    except ValueError: return\n    raise AssertionError", ("raise ValueError", "return str")),
    ("def apply(g, x): return g(g(x))", "assert apply(lambda v: v + $a, 1) == 1 + 2 * $a\nassert apply(str.upper, 'a') == 'A'", ("g(g(x))", "g(x)")),
    ("def make(n):\n    def add(x): return x + n\n    return add", "assert make($a)($b) == $a + $b\nh = make(1)\nassert [h(i) for i in range(3)] == [1, 2, 3]", ("x + n", "x - n")),
    ("def f(*args, sep='-', **kw): return sep.join(map(str, args)) + str(len(kw))", "assert f(1, $a) == '1-$a' + '0'\nassert f(1, 2, sep='+', z=1) == '1+2' + '1'", ("len(kw)", "len(args)")),
    ("from collections import Counter, OrderedDict, defaultdict, deque\ndef c(s): return Counter(s)\ndef d():\n    x = defaultdict(list)\n    x['a'].append($a)\n    return x\ndef q(): return deque([1, $a], maxlen=5)",
     "assert c('aab') == {'a': 2, 'b': 1}\nassert d() == {'a': [$a]}\nassert list(q()) == [1, $a]", ("[1, $a]", "[$a, 0]")),
    ("from fractions import Fraction\nfrom decimal import Decimal\ndef f(): return Fraction($a, $a + 1)\ndef g(): return Decimal('$a.5')", "from fractions import Fraction as F\nfrom decimal import Decimal as D\nassert f() == F($a, $a + 1) and f() < 1\nassert g() + 1 == D('$a.5') + 1", ("'$a.5'", "'$a.25'")),
    ("import datetime\ndef f(n): return datetime.date(2020, 1, 1) + datetime.timedelta(days=n)", "import datetime\nassert f($a) == datetime.date(2020, 1, 1) + datetime.timedelta($a)\nassert f(1).isoformat() == '2020-01-02'", ("days=n", "weeks=n")),
    ("from dataclasses import dataclass\n@dataclass(order=True)\nclass P:\n    x: int\n    y: int = $a\n    def far(self): return self.x ** 2 + self.y ** 2", "p = P(3)\nassert p == P(3, $a) and p.far() == 9 + $a ** 2 and P(1) < P(2)\np.x = 0\nassert p.far() == $a ** 2\nassert repr(P(1, 2)) == 'P(x=1, y=2)'", ("int = $a", "int = -1")),
    ("from collections import namedtuple\nPt = namedtuple('Pt', 'x y')\ndef f(): return Pt($a, $b)", "assert f() == ($a, $b) and f().x == $a\nx, y = f()\nassert y == $b", ("Pt($a, $b)", "Pt($b + 1, $a)")),
    ("from enum import Enum\nclass Color(Enum):\n    RED = $a\n    BLUE = 99\ndef f(n): return Color(n)", "assert f($a) == Color.RED and f(99).name == 'BLUE' and f(99) is not None\nassert Color.RED.value == $a", ("RED = $a", "RED = $a + 30")),
    ("class V:\n    def __init__(self, x, y): self.x, self.y = x, y\n    def __add__(self, o): return V(self.x + o.x, self.y + o.y)\n    def __mul__(self, k): return V(self.x * k, self.y * k)\n    def __eq__(self, o): return isinstance(o, V) and (self.x, self.y) == (o.x, o.y)\n    def __repr__(self): return f'V({self.x}, {self.y})'",
     "assert V(1, 2) + V($a, $b) == V(1 + $a, 2 + $b)\nassert V(1, 2) * 3 == V(3, 6)\nassert repr(V(1, $a)) == 'V(1, $a)'\nassert V(1, 1) != V(1, 2)", ("self.y + o.y", "self.y - o.y")),
    ("class Shape:\n    def area(self): raise NotImplementedError\nclass Sq(Shape):\n    def __init__(self, a): self.a = a\n    def area(self): return self.a ** 2", "s = Sq($a)\nassert s.area() == $a ** 2 and isinstance(s, Shape) and issubclass(Sq, Shape)\ntry:\n    Shape().area()\n    assert 0\nexcept NotImplementedError: pass", ("** 2", "* 3 + 1")),
    ("class A:\n    count = 0\n    def __init__(self): A.count += 1\n    @staticmethod\n    def s(x): return x + $a\n    @classmethod\n    def make(cls): return cls()\n    @property\n    def double(self): return 2 * $a", "A()\na = A.make()\nassert A.count == 2 and A.s(1) == 1 + $a and a.double == 2 * $a", ("A.count += 1", "A.count += 2")),
    ("class C:\n    def __enter__(self): self.open = True; return self\n    def __exit__(self, *a): self.open = False; return $flag", "with C() as c:\n    assert c.open\nassert not c.open", ("self.open = False", "self.open = True")),
    ("class R:\n    def __init__(self, n): self.n = n\n    def __iter__(self): return iter(range(self.n))\n    def __getitem__(self, i): return i * $a\n    def __contains__(self, x): return x < self.n\n    def __call__(self, x): return x + self.n", "r = R(3)\nassert list(r) == [0, 1, 2] and r[2] == 2 * $a and 2 in r and 5 not in r and r(1) == 4\nassert sum(r) == 3", ("x + self.n", "x - self.n")),
    ("from functools import lru_cache\n@lru_cache(None)\ndef fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)", "assert fib(30) == 832040\nassert fib(10 + $a) > fib(9 + $a)", ("n - 2", "n - 1")),
    ("import asyncio\nasync def f(x):\n    await asyncio.sleep(0)\n    return x * $a", "import asyncio\nassert asyncio.run(f(2)) == 2 * $a", ("x * $a", "x")),
    ("def f(s): return s[::-1].upper() + '\\u00e9\\U0001f600'", "assert f('abc') == 'CBA\\u00e9\\U0001f600'", (".upper()", "")),
    ("def f(n): return 2 ** (n * 100)", "assert f($a) == 1 << (100 * $a)", ("n * 100", "n * 99")),
    ("def f(x): return x / 3", "assert abs(f($a) - $a / 3) < 1e-12 and isinstance(f(3), float)\nassert f(0) == 0", ("/ 3", "// 3 + 0.1")),
    ("def f(): return float('inf'), float('nan'), -0.0, 1e-300", "import math\na, b, c, d = f()\nassert a > 10 ** 300 and math.isnan(b) and math.copysign(1, c) == -1 and d == 1e-300", ("-0.0", "0.0")),
    ("def f(b): return bytes(reversed(b)) + bytes([$a])", "assert f(b'ab') == b'ba' + bytes([$a])", ("reversed(b)", "b")),
    ("def f(x): return complex(x, $a), range(x), None, True, ...", "assert f(2) == (complex(2, $a), range(2), None, True, ...)", ("range(x)", "range(x + 1)")),
    ("def f(x): return {frozenset([x]): {(1, $a): [x, {x}]}}", "assert f(5) == {frozenset([5]): {(1, $a): [5, {5}]}}", ("[x, {x}]", "({x}, x)")),
    ("class Bank:\n    def __init__(self): self.money = {}\n    def put(self, who, n):\n        if n <= 0: raise ValueError('no ' + str(n))\n        self.money[who] = self.money.get(who, 0) + n\n        return self", "b = Bank().put('x', $a).put('x', 1)\nassert b.money == {'x': $a + 1}\ntry: b.put('x', -1)\nexcept ValueError as e: assert e.args == ('no -1',)\nelse: assert 0", ("+ n\n", "- n\n")),
    ("class L(list):\n    def total(self): return sum(self) + $a", "l = L([1, 2])\nl.append(3)\nassert l.total() == 6 + $a and l == [1, 2, 3] and len(l) == 3 and list(l) == [1, 2, 3]", ("+ $a", "")),
    ("class D(dict):\n    def __missing__(self, k): return k * $a", "d = D(a=1)\nassert d['a'] == 1 and d[3] == 3 * $a and dict(d) == {'a': 1}", ("k * $a", "k")),
    ("X = [1, 2]\nY = {'k': $a}\ndef f(): return X + [Y['k']]", "assert f() == [1, 2, $a] and X == [1, 2] and Y['k'] == $a", ("X + [", "[")),
    ("class Tree:\n    def __init__(self, v, l=None, r=None): self.val, self.left, self.right = v, l, r\nclass Solution:\n    def depth(self, t): return 0 if t is None else 1 + max(self.depth(t.left), self.depth(t.right))", "t = Tree(1, Tree(2, None, Tree(3)), Tree(4))\nassert Solution().depth(t) == 3 and Solution().depth(None) == 0", ("1 + max", "max")),
    ("def f(xs, key=None): return max(xs, key=key)", "assert f([1, -$a - 5, 3], key=abs) == -$a - 5\nassert f(['a', 'bbb'], key=lambda s: len(s)) == 'bbb'", ("max(xs", "min(xs")),
    ("def f(it):\n    total = 0\n    for x in it: total += x\n    return total", "assert f(x for x in range($a + 2)) == sum(range($a + 2))\nassert f(iter([1, 2])) == 3", ("total += x", "total -= x")),
    ("def memo(f):\n    seen = {}\n    def g(*a):\n        if a not in seen: seen[a] = f(*a)\n        return seen[a]\n    return g", "calls = []\ndef h(x):\n    calls.append(x)\n    return x * $a\nm = memo(h)\nassert m(2) == 2 * $a and m(2) == 2 * $a and calls == [2]", ("if a not in seen: ", "")),
]
# Programs with stdin: program, input, output, what makes it wrong.
PIPED = [
    ("a, b = map(int, input().split())\nprint(a + b)", "$a $b\n", "$sum\n", ("a + b", "a - b + 1000")),
    ("import sys\nxs = [int(x) for x in sys.stdin.read().split()]\nprint(*sorted(xs))", "3 $a 1\n", "$sorted\n", ("sorted(xs)", "xs[::-1], 0")),
    ("n = int(input())\nfor _ in range(n):\n    s = input()\n    print(s[::-1])", "2\nabc\n$a$b\n", "cba\n$rev\n", ("[::-1]", "")),
    ("import sys\nfor line in sys.stdin:\n    print(len(line.rstrip('\\n')))", "aa\n\nb\n", "2\n0\n1\n", ("len(line", "1 + len(line")),
    ("def main():\n    print('%.3f' % (float(input()) / 3))\nif __name__ == '__main__':\n    main()", "$a\n", "$third\n", ("/ 3", "/ 2")),
    ("import sys\ndata = sys.stdin.buffer.read().split()\nsys.stdout.write(str(sum(map(int, data))))\nsys.exit(0)", "1 $a\n2", "$plus", ("sum(", "-sum(")),
    ("try:\n    while True:\n        print(input().upper())\nexcept EOFError:\n    print('end')", "x\ny", "X\nY\nend\n", ("'end'", "'END'")),
    ("print('\\u00e9', '\\U0001f600')", "", "\u00e9 \U0001f600\n", ("\\u00e9", "e")),
    ("import threading\nout = []\nts = [threading.Thread(target=out.append, args=(i,)) for i in range(3)]\n[t.start() for t in ts]\n[t.join() for t in ts]\nprint(sorted(out))", "", "[0, 1, 2]\n", ("range(3)", "range(4)")),
    ("import subprocess, sys, os\nr, w = os.pipe()\nif os.fork() == 0:\n    os.write(w, b'$a')\n    os._exit(0)\nos.wait()\nprint(os.read(r, 10).decode())", "", "$a\n", ("b'$a'", "b'x'")),
    ("import re, json, math, itertools\nprint(json.dumps(re.findall('[0-9]+', input())), math.gcd(12, 18), list(itertools.islice(itertools.count(), 2)))", "a1b$a\n", '["1", "$a"] 6 [0, 1]\n', ("gcd(12, 18)", "gcd(12, 19)")),
    ("class A:\n    def __del__(self): pass\nimport atexit\natexit.register(print, 'bye')\nprint('hi')", "", "hi\nbye\n", ("'bye'", "'by'")),
]


def fill(text, v):
    for key in sorted(v, key=len, reverse=True):
        text = text.replace("$" + key, str(v[key]))
    return text


def tasks():
    rng = random.Random(7)
    made = []
    while len(made) < NUM:
        a, b, c = rng.randint(1, 9), rng.randint(1, 9), rng.randint(1, 9)
        v = dict(a=a, b=b, c=c, sum=a + b, sorted=" ".join(map(str, sorted([3, a, 1]))), rev="%d%d" % (b, a), third="%.3f" % (a / 3), plus=3 + a,
                 flag=rng.choice(["False", "None"]))
        k = len(made) % (len(TESTED) + len(PIPED))
        how = ["right", "right", "wrong", "wrong", "crash", "syntax", "exit", "right"][rng.randrange(8)]
        if len(made) % 100 == 99:
            how = "slow"
        program, *rest, (old, new) = (TESTED + PIPED)[k]
        if how == "wrong":
            assert old in program, (program, old)
            program = program.replace(old, new)
        program = fill(program, v)
        if how == "crash":
            program = "undefined_name()\n" + program if rng.random() < 0.5 else program.replace("return", "return undefined_name +")
        if how == "syntax":
            program += "\ndef ("
        if how == "exit":
            program = "import sys\nsys.exit(3)\n" + program
        if how == "slow":
            program = "while True: pass\n" + program
        made.append((how, program, [fill(x, v) for x in rest]))
    return made


def plain(task):
    how, program, rest = task
    with tempfile.TemporaryDirectory() as folder:
        text = program
        if len(rest) == 1:
            text += "\n" + rest[0] + "\nfor name, test in list(globals().items()):\n    if name.startswith('test_'): test()\n"
        with open(folder + "/main.py", "w") as f:
            f.write(text)
        try:
            p = subprocess.run([sys.executable, "-BIS", "main.py"], cwd=folder, input=rest[0] if len(rest) == 2 else "", capture_output=True, text=True,
                               timeout=SECONDS)
        except subprocess.TimeoutExpired:
            return 0
        return int(p.returncode == 0 and (len(rest) == 1 or p.stdout.split("\n") == rest[1].split("\n") or p.stdout.strip() == rest[1].strip()))


if __name__ == "__main__":
    if sys.argv[1] == "lines":
        all_tasks = tasks()
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool, open(sys.argv[2], "w") as f:
            json.dump(list(pool.map(plain, all_tasks)), f)
        for i, (how, program, rest) in enumerate(all_tasks):
            row = {"id": i, "how": how, "response": "Here it is:\n```python\n%s\n```\nDone." % program}
            if len(rest) == 1:
                row.update(case_type="pytest" if "def test_" in rest[0] else "assert", test_cases=json.dumps([{"assert_code": rest[0]}]))
            else:
                row.update(case_type="input", test_cases=[{"stdin": rest[0], "expected_stdout": rest[1]}])
            print(json.dumps(row))
    else:
        want, made = json.load(open(sys.argv[2])), tasks()
        bad, num = 0, 0
        for a in map(json.loads, sys.stdin):
            num += 1
            if a["status"] != "ok" or a["score"] != want[a["id"]]:
                bad += 1
                print("plain execution:", want[a["id"]], "croll:", a, "\n" + made[a["id"]][1], "\n", made[a["id"]][2])
        print(num, "tasks,", sum(want), "right,", bad, "judged otherwise")
        sys.exit(bad > 0 or num != NUM or not 0.3 * NUM < sum(want) < 0.7 * NUM)
