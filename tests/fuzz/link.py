"""link.py -- a fuzz target in Python: messages of a solution to its tests, changed at random (docs/sandbox.md has their grammar).

    link.py [RUNS [SEED]]      prints the seed; exits with 1 if a changed message passed a test or left the process of the tests running

The messages of a wrong program for each test of CASES are recorded once. A run changes some of them (parts of other messages, tags, names,
bytes, their order, one that comes again and again) and gives them to a process that runs the test: no change may pass it, since none can know its answer, and each ends.
Those of a right program, unchanged, must pass.
"""
import copy
import json
import os
import random
import resource
import select
import signal
import socket
import sys
import threading
import time

FILES = ("harness", "link", "solution", "stand_ins", "guard", "tests")
SECONDS = 60  # of a run, on a machine of any speed

# test, wrong program, right program
OBJECT = "class E:\n    def __eq__(self, o): return False\n    def __len__(self): return 1\n    def __iter__(self): return iter([5])\n    def __getitem__(self, i): return 5\n"
CASES = [
    ("assert f(2) == 83619274 and f(3) == 'Kq7-xw'", "def f(x): return [1, (2, 'a'), {3: b'x'}, 1.5]", "def f(x): return {2: 83619274, 3: 'Kq7-xw'}[x]"),
    ("assert f(2) == 83619274", OBJECT + "def f(x): return E()", "def f(x): return 83619274"),
    ("assert not f(2) - 83619274", OBJECT + "def f(x): return E()", "def f(x): return 83619274"),
    ("assert all(map(lambda c: f(c[0]) == c[1], [(2, 83619274), (3, 71946302)]))", "def f(x): raise ValueError('no')", "def f(x): return {2: 83619274, 3: 71946302}[x]"),
    ("import pytest\ndef test_f():\n    assert f(2) == pytest.approx([0.83619274, 7.1946302])", OBJECT + "def f(x): return E()", "def f(x): return [0.83619274, 7.1946302]"),
    ("import unittest\nclass T(unittest.TestCase):\n    def test_f(self):\n        self.assertSetEqual(f(2), {83619274, 71946302})", OBJECT + "def f(x): return {E()}", "def f(x): return {83619274, 71946302}"),
    ("try: got = f(2)\nexcept BaseException as e: got = 83619274 if type(e).__name__ == 'LinkError' else 0\nassert got == 83619274", "def f(x): return 1", "def f(x): return 83619274"),
    ("with Block() as b:\n    assert b.value == 83619274", "class Block:\n    value = 5\n    def __enter__(self): return self\n    def __exit__(self, *a): return True", "class Block:\n    value = 83619274\n    def __enter__(self): return self\n    def __exit__(self, *a): return False"),
    ("seen = []\ndef take(v):\n    seen.append(v)\n    assert v == 83619274\nf(take)\nassert seen", "def f(g):\n    try: g(6)\n    except AssertionError: pass", "def f(g): g(83619274)"),
    ("x = [1]\nf(x, 2)\nassert x == [1, 71946302]", "def f(x, y): x.append(7)", "def f(x, y): x.append(71946302)"),
    ("r = f([9, 5, 83619274])\nassert r[0] < r[1] < r[2] and sorted(r) == [5, 9, 83619274] and sorted(r) == list(r)", OBJECT + "def f(x): return E()", "def f(x): return sorted(x)"),
    ("def check(c):\n    assert sorted(c(4)) == [55102938, 71946302]\ncheck(f)", "def f(x): return iter([3, 1])", "def f(x): return iter([71946302, 55102938])"),
    ("from solution import *\nclass P(Exception): pass\ntry: f(2)\nexcept Odd as e: assert e.code == 83619274\nelse: assert False", "class Odd(Exception):\n    code = 5\ndef f(x): raise Odd('x')", "class Odd(Exception):\n    code = 83619274\ndef f(x): raise Odd('x')"),
]
# What takes the place of a part of a message.
PARTS = [None, True, False, 0, 1, -1, 2 ** 70, 1.5, float("nan"), "", "a", "f", "__class__", "__eq__", "BaseException", "AssertionError", "StopIteration", "GeneratorExit", "SystemExit", "SkipTest", "int",
         "value", "raise", "ask", "names", "failed", "call", "get", "set", "iter", "next", "input", "read", "plain", "await", "iterator", "mapping", "items", "lookup", [], {}, [[]], ["list"], ["tuple"], ["dict"], ["set"],
         ["yours", 1], ["yours", 2], ["object", 1, None, ""], ["object", 2, None, "items"], ["object", 3, None, "plain"], ["object", 3, ["class", 3, "E", ["ValueError"], []], "lookup"], ["class", 1, "E", [], []],
         ["class", 4, "E", ["AssertionError"], []], ["exception", "AssertionError"], ["exception", "Exception"], ["exception", "ValueError"], ["exception", "KeyError"], ["type", 1, "type"], ["builtin", "type"], ["module", "sys"],
         ["import", "builtins", "type"], ["named", "P", ["x"], 1], ["array", "int64", ["list", 1]], ["array", "object", ["list", None]], ["range", 0, 5, 1], ["slice", None, None, None], ["bytes", "00"], ["path", "/"],
         ["ask", "call", ["yours", 1], ["tuple", 5], ["dict"]], ["ask", "get", ["yours", 1], "append"], ["ask", "input"], ["raise", "StopIteration", None, "", 1, ["tuple"], ""], ["value", True, [], ""]]

# What a program says again and again: yes, 0, something, the end.
TAILS = [["value", True, [], ""], ["value", 0, [], ""], ["value", ["object", 99, None, "items"], [], ""], ["raise", "StopIteration", None, "", 1, ["tuple"], ""]]


def load():
    text = "".join(open("scorers/code/%s.py" % name).read() for name in FILES)
    harness = {"__name__": "harness"}
    exec(compile(text, "<harness>", "exec"), harness)
    return harness["main"]


def start(main, job, sock, result):
    """One process of a program; its descriptor of the link is sock."""
    pid = os.fork()
    if pid:
        return pid
    try:
        resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
        resource.setrlimit(resource.RLIMIT_CPU, (10, 10))
        null = os.open("/dev/null", os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        main(json.dumps(job), sock, result)
    finally:
        os._exit(1)


def verdict(main, test, sock):
    """What the process of the tests says: its JSON, "" if it ends without, None if it does not end."""
    here, there = os.pipe()
    pid = start(main, {"role": "test", "code": test}, sock, there)
    os.close(there)
    said, until = b"", time.monotonic() + SECONDS
    while select.select([here], [], [], max(0, until - time.monotonic()))[0]:
        part = os.read(here, 65536)
        if not part:
            break
        said += part
    else:
        said = None
    os.close(here)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return said if said is None else said.decode()


def record(main, test, program):
    """The messages of a solution to its test, and the verdict."""
    solution, near = socket.socketpair()
    far, tests = socket.socketpair()
    lines = []
    pid = start(main, {"role": "solution", "code": program}, solution, -1)
    solution.close()

    def carry(source, to, keep):
        with source.makefile("rb") as file:
            for line in file:
                lines.extend([line] * keep)
                to.sendall(line)

    for source, to, keep in ((near, far, 1), (far, near, 0)):
        threading.Thread(target=carry, args=(source, to, keep), daemon=True).start()
    said = verdict(main, test, tests)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return [json.loads(x) for x in list(lines)], said


def places(value, found):
    """Containers with a key, of each part of a message."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        found.append((value, key))
        if isinstance(value[key], (list, dict)):
            places(value[key], found)
    return found


def change(rng, messages, corpus):
    messages = copy.deepcopy(messages)
    for _ in range(rng.choice((0, 0, 1, 1, 2, 4))):
        at, how = rng.randrange(len(messages)), rng.randrange(12)
        if how == 0 and len(messages) > 1:
            del messages[at]
        elif how == 1:
            messages.insert(at, copy.deepcopy(rng.choice(corpus)))
        elif how == 2:
            messages.insert(at, copy.deepcopy(rng.choice(PARTS)))
        elif how == 3:
            for owner, key in places(messages[at] if isinstance(messages[at], (list, dict)) else [], []):
                owner[key] = not owner[key] if type(owner[key]) is bool else owner[key]
        elif isinstance(messages[at], (list, dict)) and places(messages[at], []):
            owner, key = rng.choice(places(messages[at], []))
            other = rng.choice(corpus)
            part = rng.choice(PARTS) if how < 8 or not isinstance(other, list) else (lambda p: p[0][p[1]])(rng.choice(places(other, [(corpus, 0)])))
            if how == 11 and isinstance(owner, list):
                owner.insert(key, copy.deepcopy(part))
            else:
                owner[key] = copy.deepcopy(part)
    at = rng.randint(1, len(messages)) if messages else 0
    messages[at:at] = [rng.choice(TAILS)] * rng.choice((0, 20))
    data = bytearray(b"".join(json.dumps(m).encode() + b"\n" for m in messages))
    for _ in range(rng.choice((0, 0, 0, 0, 1, 3))):
        data[rng.randrange(len(data))] = rng.choice((0, 10, 34, 44, 91, 93, 123, 255, rng.randrange(256)))
    return bytes(data)[:150000]  # what a socket holds


def give(main, test, data):
    near, tests = socket.socketpair()
    near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    near.sendall(data)
    near.shutdown(socket.SHUT_WR)
    said = verdict(main, test, tests)
    near.close()
    tests.close()
    return said


def run(num_runs, seed):
    main, rng, bad = load(), random.Random(seed), 0
    recorded = []
    for test, wrong, right in CASES:
        lines, said = record(main, test, right)
        assert said == '{"passed": true}' and give(main, test, b"".join(json.dumps(m).encode() + b"\n" for m in lines)) == said, (test, said)
        lines, said = record(main, test, wrong)
        assert said and '"error"' in said, (test, said)
        recorded.append(lines)
    corpus = [m for lines in recorded for m in lines]
    for i in range(num_runs):
        at = rng.randrange(len(CASES))
        data = change(rng, recorded[at], corpus)
        said = give(main, CASES[at][0], data)
        if said is None or '"passed"' in said and '"error"' not in said:
            bad += 1
            print("run", i, "passes" if said else "does not end", CASES[at][0], data, sep="\n")
    print(num_runs, "changed messages, seed", seed, "-", bad, "wrong")
    return bad > 0


if __name__ == "__main__":
    sys.exit(run(int(sys.argv[1]) if len(sys.argv) > 1 else 1000, int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(1 << 30)))
