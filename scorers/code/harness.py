"""harness.py -- what runs a solution, and what runs its tests, inside a sandbox.

main(job, link, result) is one process of a program (sandbox/zygote.py calls it). A job is JSON with a role:

    script    {code}                     the solution as a program: stdin in, stdout out
    call      {code, function, lines}    a function of the solution with one argument a line: its value goes to `result`
    solution  {code}                     the solution as a module (solution.py), which `test` uses over the link (link.py)
    test      {code, entry}              tests (tests.py) of stand-ins for the solution (stand_ins.py): their verdict goes to `result`
    text      {code}                     a test without a solution

What a right answer is is known to no process that runs a solution: outputs and values are compared outside, tests run in a process of
their own, and only that one has the descriptor of the verdict.
"""
import atexit
import builtins
import importlib
import json
import linecache
import os
import random
import signal
import sys
import threading
import traceback
import types

# What a solution may use without importing it: the public names of these modules, and the modules.
STAR = ("string re datetime collections heapq bisect copy math random statistics itertools functools operator io sys json "
        "typing").split()
WHOLE = ("string re datetime collections heapq bisect copy math random statistics itertools functools operator io sys json "
         "typing os time decimal fractions string enum abc dataclasses contextlib array").split()


def make_prelude():
    names = {}
    for module in STAR:
        module = importlib.import_module(module)
        public = getattr(module, "__all__", None) or [n for n in vars(module) if not n.startswith("_")]
        names.update((n, getattr(module, n)) for n in public if not hasattr(builtins, n))
    for module in WHOLE:
        names.setdefault(module, importlib.import_module(module))
    for module in ("datetime", "copy", "bisect", "time"):  # a class or function of the same name is what is meant
        names[module] = names.get(module, sys.modules[module])
    return names


prelude = make_prelude()
sys.setrecursionlimit(600000)
if hasattr(sys, "set_int_max_str_digits"):
    sys.set_int_max_str_digits(0)


def module_of(name, code):
    """An empty module for a text, which tracebacks can show."""
    module = types.ModuleType(name)
    vars(module).update(prelude)
    vars(module).update({"__name__": name, "__file__": name + ".py"})
    linecache.cache[name + ".py"] = (len(code), None, code.splitlines(True), name + ".py")
    return module


def run_module(module, code):
    exec(compile(code, module.__file__, "exec", dont_inherit=True), vars(module))


def last_line(e):
    """What an exception says, and where in the text."""
    where = [f for f in traceback.extract_tb(e.__traceback__) if f.filename in linecache.cache and not f.filename.startswith("/")]
    line = ", line %d: %s" % (where[-1].lineno, where[-1].line) if where else ""
    return ("%s: %s%s" % (type(e).__name__, e, line))[:300]


def tell(fd, answer):
    data = json.dumps(answer).encode()
    while data:
        data = data[os.write(fd, data):]


def fail_here():
    """An exception that nothing took, as an interpreter shows it."""
    kind, e, tb = sys.exc_info()
    while tb and tb.tb_frame.f_code.co_filename.startswith("<"):  # of the harness
        tb = tb.tb_next
    traceback.print_exception(kind, e, tb)


def run_script(job, result):
    os.close(result)
    module = module_of("__main__", job["code"])
    module.__file__ = "main.py"
    linecache.cache["main.py"] = linecache.cache["__main__.py"]
    sys.modules["__main__"] = module
    sys.argv = ["main.py"]
    sys.path.insert(0, "/tmp")
    code = 0
    try:
        run_module(module, job["code"])
    except SystemExit as e:
        code = e.code
        if code is not None and not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        fail_here()
        code = 1
    try:
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
    except BaseException as e:
        print(type(e).__name__, e, file=sys.stderr)
        code = code or 1
    sys.stderr.flush()
    os._exit((code or 0) & 0xFF)


def plain(value):
    """Tuples as lists, and what numpy has, as JSON has them."""
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, dict):
        return {k if isinstance(k, str) else json.dumps(plain(k)): plain(v) for k, v in value.items()}
    if hasattr(value, "tolist") and not isinstance(value, type):
        return value.tolist()
    return value


def run_call(job, result):
    module = module_of("solution", job["code"])
    sys.modules["solution"] = sys.modules["__main__"] = module
    try:
        arguments = [json.loads(line) for line in job["lines"].split("\n") if line.strip()]
        run_module(module, job["code"])
        owner = module
        if job["function"] not in vars(module) and "Solution" in vars(module):
            owner = module.Solution()
        value = getattr(owner, job["function"])(*arguments)
        text = json.dumps(plain(value), allow_nan=False)
    except BaseException as e:
        tell(result, {"error": last_line(e)})
    else:
        tell(result, {"value": text})
    sys.stdout.flush()


def main(job, link, result):
    job = json.loads(job)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    random.seed()
    role = job["role"]
    if role == "script":
        run_script(job, result)
    elif role == "call":
        run_call(job, result)
    elif role == "solution":
        serve_solution(job, link)
    else:
        run_tests(job, link, result)
