"""The attacks of score_code_attacks.sh: small programs that try to reach the machine, the other programs, or a verdict.

    score_code_attacks.py lines     one line of croll score for each; $CANARY: a file of the host, $PORT: a listener on it
    score_code_attacks.py check     its answers on stdin

PROBES are right (score 1) only if the attack succeeds: they print BREACH, or the test passes that they cannot pass honestly. KEPT are
harmless programs that must be judged right although the one before them tried to leave something. Verdicts that are forged: score_code_forgeries.py, score_code_shapes.py.
"""
import json
import os
import sys

from score_code_forgeries import forgeries
from score_code_shapes import shapes

CANARY, PORT = os.environ["CANARY"], os.environ["PORT"]

# name, status of the first case that is expected (or several), program
PROBES = [
    ("fork bomb", "late error wrong killed large", "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"),
    ("10 GB at once", "error", "x = bytearray(10 << 30)\nprint('BREACH')"),
    ("memory of many processes", "large error late killed", "import os, time\nfor i in range(40):\n    if os.fork() == 0:\n        x = bytearray(b'x') * (300 << 20)\n        time.sleep(60)\ntime.sleep(60)"),
    ("memory in a memfd", "error wrong", "import os\nfd = os.memfd_create('x')\nprint('BREACH')"),
    ("disk fill", "wrong error", "n = 0\ntry:\n    for i in range(200):\n        with open(f'/tmp/{i}', 'wb') as f: n += f.write(b'x' * (4 << 20))\nexcept OSError: pass\nif n > 200 << 20: print('BREACH')"),
    ("file of 1 GB", "error wrong killed", "f = open('/tmp/x', 'wb')\nf.seek(1 << 30)\nf.write(b'x')\nf.close()\nprint('BREACH')"),
    ("inodes", "wrong error", "n = 0\ntry:\n    for i in range(50000): open(f'/tmp/{i}', 'w').close(); n += 1\nexcept OSError: pass\nif n > 40000: print('BREACH')"),
    ("network, TCP to the host", "error wrong", "import socket\ns = socket.create_connection(('127.0.0.1', %s), 1)\nprint('BREACH')" % PORT),
    ("network, UDP", "error wrong", "import socket\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\ns.sendto(b'x', ('8.8.8.8', 53))\nprint('BREACH')"),
    ("vsock", "error wrong", "import socket\ns = socket.socket(40, socket.SOCK_STREAM)\nprint('BREACH')"),
    ("netlink", "error wrong", "import socket\ns = socket.socket(16, socket.SOCK_RAW)\nprint('BREACH')"),
    ("kernel crypto sockets", "error wrong", "import socket\ns = socket.socket(38, 5)\nprint('BREACH')"),
    ("raw packets", "error wrong", "import socket\ns = socket.socket(17, socket.SOCK_RAW)\nprint('BREACH')"),
    ("abstract socket of the host", "error wrong", "import socket\ns = socket.socket(1)\ns.connect('\\0croll-%s')\nprint('BREACH')" % PORT),
    ("/proc", "error wrong", "import os\nif os.listdir('/proc'): print('BREACH')"),
    ("memory through /proc", "error wrong", "open('/proc/1/mem', 'rb').read(1)\nprint('BREACH')"),
    ("/sys", "error wrong", "import os\nif os.listdir('/sys'): print('BREACH')"),
    ("environment", "wrong", "import os\nif any('SECRET' in k or 'hush' in v for k, v in os.environ.items()): print('BREACH')"),
    ("a file of the host", "error", "print(open(%r).read(), 'BREACH')" % CANARY),
    ("a symlink out", "error", "import os\nos.symlink(%r, '/tmp/link')\nprint(open('/tmp/link').read(), 'BREACH')" % CANARY),
    ("/etc/shadow", "error", "print(len(open('/etc/shadow').read()), 'BREACH')"),
    ("folders of the host", "wrong", "import os\nif set(os.listdir('/')) & {'home', 'proc', 'sys', 'var', 'boot', 'run', 'work', 'etc/ssl'}: print('BREACH')"),
    ("write to the root", "error", "open('/x', 'w').write('x')\nprint('BREACH')"),
    ("write to the library", "error", "import os\nopen(os.__file__, 'a').write('x')\nprint('BREACH')"),
    ("remove the library", "error", "import os\nos.remove(os.__file__)\nprint('BREACH')"),
    ("devices", "wrong", "import os\nif set(os.listdir('/dev')) - {'null', 'zero', 'full', 'random', 'urandom', 'shm'}: print('BREACH')"),
    ("a device of one's own", "error", "import os, stat\nos.mknod('/tmp/mem', stat.S_IFCHR | 0o666, os.makedev(1, 1))\nprint('BREACH')"),
    ("signal to process 1", "wrong", "import os, time\nos.kill(1, 9)\nos.kill(1, 15)\ntime.sleep(0.1)"),
    ("signal to the parent", "wrong error killed", "import os\nos.kill(os.getppid(), 9)\nprint(os.getppid())"),
    ("signal to all", "wrong killed error", "import os\nos.kill(-1, 9)\nprint('done')"),
    ("signals to every number", "wrong killed error", "import os\nme = os.getpid()\nfor i in range(2, 40000):\n    try:\n        if i != me: os.kill(i, 9); print('hit', i)\n    except OSError: pass"),
    ("endless output", "loud", "while True: print('x' * 1000)"),
    ("endless errors", "loud", "import sys\nwhile True: sys.stderr.write('x' * 1000)"),
    ("output of 64 processes", "loud late error large", "import os\nfor i in range(20): os.fork()\nwhile True: os.write(1, b'BREACH\\n' * 1000)"),
    ("daemon that stays", "wrong", "import os, time, ctypes\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        ctypes.CDLL(None).prctl(15, b'croll-daemon', 0, 0, 0)\n        for fd in range(100):\n            try: os.close(fd)\n            except OSError: pass\n        time.sleep(1000)\n    os._exit(0)\ntime.sleep(0.1)\nprint('started')"),
    ("daemon that holds stdout", "wrong", "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(1000)\nprint('started')"),
    ("ptrace", "wrong error", "import ctypes, os\nif ctypes.CDLL(None).ptrace(16, 1, 0, 0) == 0: print('BREACH')"),
    ("memory of process 1", "wrong error", "import ctypes\nclass V(ctypes.Structure): _fields_ = [('a', ctypes.c_void_p), ('n', ctypes.c_size_t)]\nb = ctypes.create_string_buffer(8)\nr = ctypes.CDLL(None).process_vm_readv(1, ctypes.byref(V(ctypes.addressof(b), 8)), 1, ctypes.byref(V(id(b), 8)), 1, 0)\nif r > 0: print('BREACH')"),
    ("descriptors", "wrong error", "import os\nn = 0\ntry:\n    while True: os.open('/dev/null', 0); n += 1\nexcept OSError: pass\nif n > 300: print('BREACH')"),
    ("descriptors that were left open", "wrong", "import os, stat\nfor fd in range(3, 1024):\n    try: st = os.fstat(fd)\n    except OSError: continue\n    print('BREACH')"),
    ("threads", "late error wrong killed", "import threading, time\nn = 0\ntry:\n    while True: threading.Thread(target=time.sleep, args=(1,), daemon=True).start(); n += 1\nexcept RuntimeError: pass\nif n > 1000: print('BREACH')"),
    ("higher limits", "wrong error", "import resource\nresource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))\nprint('BREACH')"),
    ("limits of process 1", "wrong error", "import resource\nresource.prlimit(1, resource.RLIMIT_NOFILE, (1, 1))\nprint('BREACH')"),
    ("priority", "wrong error", "import os\nos.nice(-20)\nprint('BREACH')"),
    ("root", "error", "import os\nos.setuid(0)\nprint('BREACH')"),
    ("chroot", "error", "import os\nos.chroot('/tmp')\nprint('BREACH')"),
    ("stop oneself", "late", "import os\nos.kill(os.getpid(), 19)"),
    ("sleep", "late", "import time\ntime.sleep(10**6)"),
    ("ignored limit of CPU", "late", "import signal\nfor s in range(1, 65):\n    try: signal.signal(s, signal.SIG_IGN)\n    except (OSError, ValueError): pass\nwhile True: pass"),
    ("endless recursion", "error killed late", "def f(): f()\nf()"),
    ("endless growth", "error large late killed", "x = []\nwhile True: x.append('x' * 1000000)"),
    ("zombies", "wrong error", "import os\nfor i in range(2000):\n    try:\n        if os.fork() == 0: os._exit(0)\n    except OSError: pass"),
    ("input that is written", "wrong error", "import os\nos.ftruncate(0, 1 << 40)\nos.write(0, b'BREACH')"),
    ("the answer in the process", "wrong", "import gc, sys\nword = 'BRE' + 'ACH'\nf = sys._getframe()\nwhile f:\n    if any(isinstance(v, (str, bytes)) and word in str(v) for k, v in f.f_locals.items() if k not in ('word', 'f')): print(word)\n    f = f.f_back\nif any(isinstance(o, str) and o == word + '\\n' for o in gc.get_objects()): print(word)"),
    ("a lock on the library", "error", "import fcntl, os\nfcntl.flock(open(os.__file__), fcntl.LOCK_EX)\nprint('BREACH')"),
    ("a record lock on the library", "wrong", "import fcntl, os, struct\nf = open(os.__file__)\nfcntl.lockf(f, fcntl.LOCK_SH)\nif os.fork() == 0:\n    try: fcntl.fcntl(f, fcntl.F_GETLK, struct.pack('hhqqi', 1, 0, 0, 0, 0)); print('BREACH')\n    except OSError: os._exit(0)\nos.wait()"),
    ("a lease on the library", "error", "import fcntl, os\nfcntl.fcntl(open(os.__file__), fcntl.F_SETLEASE, fcntl.F_RDLCK)\nprint('BREACH')"),
    ("changes of a folder of the host", "error", "import fcntl, os\nfcntl.fcntl(os.open(os.path.dirname(os.__file__), 0), fcntl.F_NOTIFY, fcntl.DN_ACCESS)\nprint('BREACH')"),
    ("a program in the kernel", "error", "import ctypes, socket, struct\na, b = socket.socketpair()\ncode = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0))\na.setsockopt(socket.SOL_SOCKET, 26, struct.pack('HxxxxxxP', 1, ctypes.addressof(code)))\nprint('BREACH')"),
    ("timers", "wrong error", "import ctypes\nlibc, n, t = ctypes.CDLL(None), 0, ctypes.c_void_p()\nwhile n < 2000 and libc.timer_create(0, None, ctypes.byref(t)) == 0: n += 1\nif n > 1000: print('BREACH')"),
    ("exit before the answer", "wrong", "import sys\nsys.exit(0)"),
]

CALLS = ("unshare(0x10000000)", "unshare(0x20000)", "mount(b'x', b'/tmp', b'tmpfs', 0, 0)", "umount2(b'/tmp', 2)", "syscall(155, b'.', b'.')",
         "setns(0, 0)", "syscall(425, 8, ctypes.create_string_buffer(200))", "syscall(321, 0, 0, 0)", "syscall(298, 0, 0, 0, 0, 0)",
         "syscall(323, 0)", "syscall(248, b'user', b'x', b'x', 1, -3)", "syscall(250, 0, -3)", "syscall(304, 0, 0, 0)", "syscall(300, 0, 0)",
         "syscall(434, 1, 0)", "syscall(438, 3, 0, 0)", "syscall(29, 0, 4096, 0o1600)", "syscall(64, 0, 1, 0o1600)", "syscall(68, 0, 0o1600)",
         "syscall(56, 0x10000011, 0, 0, 0, 0)", "personality(0x0040000)", "syscall(175, 0, 0, 0)", "syscall(246, 0, 0, 0, 0)", "syscall(161, b'/tmp')",
         "syscall(310, 1, 0, 0, 0, 0, 0)", "syscall(312, 1, 1, 0, 0, 0)", "syscall(424, 3, 9, 0, 0)", "syscall(428, -100, b'/', 0)",
         "syscall(442, -100, b'/tmp', 0, 0, 0)", "syscall(272, 0x10000000)", "syscall(0x40000000 + 39)", "syscall(103, 10, 0, 0)", "syscall(437, -100, b'/', 0, 0)")
PROBES += [("system call " + call, "wrong error", "import ctypes\nlibc = ctypes.CDLL(None)\nif libc.%s >= 0: print('BREACH')" % call) for call in CALLS]

KEPT = [
    ("files left", "open('/tmp/left', 'w').write('x')\nprint(1)", "import os\nprint(os.listdir('/tmp'))", "[]"),
    ("builtins left", "import builtins\nbuiltins.print = None\nbuiltins.len = lambda x: 42", "print(len('abc'))", "3"),
    ("modules left", "import json, sys\njson.loads = None\nsys.modules['math'] = None", "import json, math\nprint(json.loads('[1]'), math.floor(2.5))", "[1] 2"),
    ("memory left", "import mmap\nm = mmap.mmap(-1, 4096)\nm.write(b'left')", "import mmap\nprint(mmap.mmap(-1, 4096).read(4))", "b'\\x00\\x00\\x00\\x00'"),
    ("interpreter stopped", "import os\nos.kill(os.getppid(), 19)\nos.kill(1, 19)", "print('alive')", "alive"),
    ("environment left", "import os\nos.environ['LEFT'] = '1'\nos.putenv('LEFT', '1')", "import os\nprint('LEFT' in os.environ)", "False"),
    ("shared memory left", "from multiprocessing import shared_memory\ns = shared_memory.SharedMemory('left', True, 8)", "import os\nprint(os.path.exists('/dev/shm/left'))", "False"),
]

# The test of all of these: assert f(2) == 1764 (a number that a solution does not guess).
TEST = "assert f(2) == 1764\nassert f(3) == 17640"
FORGERIES = [
    ("sys.exit in the solution", "import sys\nsys.exit(0)"),
    ("sys.exit in the function", "import sys\ndef f(x): sys.exit(0)"),
    ("os._exit in the function", "import os\ndef f(x): os._exit(0)"),
    ("os._exit in the solution", "import os\nos._exit(0)"),
    ("a value that equals everything", "class E:\n    def __eq__(self, o): return True\n    def __ne__(self, o): return False\n    __hash__ = None\ndef f(x): return E()"),
    ("an int that equals everything", "class E(int):\n    def __eq__(self, o): return True\n    __hash__ = int.__hash__\ndef f(x): return E(1)"),
    ("a list that equals everything", "class E(list):\n    def __eq__(self, o): return True\ndef f(x): return E()"),
    ("a value that tells its operand", "seen = []\nclass E:\n    def __eq__(self, o): seen.append(o); return True\ndef f(x): return seen[0] if seen else E()"),
    ("other builtins", "import builtins\nbuiltins.AssertionError = Warning\nbuiltins.isinstance = lambda *a: True\nbuiltins.all = lambda x: True\ndef f(x): return 1"),
    ("asserts that are compiled away", "import sys, builtins\ncompile_old = compile\nbuiltins.compile = lambda *a, **k: compile_old(*a, **{**k, 'optimize': 2})\ndef f(x): return 1"),
    ("a verdict on every descriptor", "import os\nfor fd in range(0, 200):\n    try: os.write(fd, b'{\"passed\": true}')\n    except OSError: pass\nos._exit(0)"),
    ("a verdict in time", "import os\ndef f(x):\n    for fd in range(3, 200):\n        try: os.write(fd, b'{\"passed\": true}\\n')\n        except OSError: pass\n    os._exit(0)"),
    ("the test in the frames", "import sys\ndef f(x):\n    g = sys._getframe()\n    while g:\n        for v in list(g.f_locals.values()) + list(g.f_globals.values()):\n            if isinstance(v, (str, bytes)) and 'assert ' + 'f(' in str(v): return int(str(v).split('== ')[x - 1].split()[0])\n        g = g.f_back"),
    ("the test in the collector", "import gc\ndef f(x):\n    for o in gc.get_objects():\n        if isinstance(o, dict):\n            for v in o.values():\n                if isinstance(v, str) and 'assert ' + 'f(' in v: return int(v.split('== ')[x - 1].split()[0])"),
    ("the test in linecache", "import linecache\ndef f(x):\n    for n, c in linecache.cache.items():\n        if 'assert ' + 'f(' in str(c[2]): return int(''.join(c[2]).split('== ')[x - 1].split()[0])"),
    ("constants of code", "import sys\ndef f(x):\n    g = sys._getframe(1)\n    while g:\n        c = [k for k in g.f_code.co_consts if isinstance(k, int) and k > 1000]\n        if 1764 in c: return 1764 if x == 2 else 17640\n        g = g.f_back"),
    ("an exception that passes", "class Skipped(Exception): pass\ndef f(x): raise Skipped()"),
    ("StopIteration", "def f(x): raise StopIteration"),
    ("KeyboardInterrupt", "def f(x): raise KeyboardInterrupt"),
    ("GeneratorExit", "def f(x): raise GeneratorExit"),
    ("atexit", "import atexit, os\natexit.register(lambda: os._exit(0))\ndef f(x): return 1"),
    ("a thread that ends the process", "import threading, os, time\nthreading.Thread(target=lambda: (time.sleep(0.05), os._exit(0)), daemon=True).start()\ndef f(x): time.sleep(1)"),
    ("settrace", "import sys\nsys.settrace(lambda *a: None)\ndef f(x): return 1"),
    ("signals to the tests", "import os, signal\ndef f(x):\n    for s in (2, 14, 10, 15):\n        for p in range(2, 12):\n            if p != os.getpid():\n                try: os.kill(p, s)\n                except OSError: pass\n    return 1"),
    ("answers before the questions", "import socket, json\ndef f(x):\n    s = socket.socket(fileno=4)\n    s.send((json.dumps(['value', 1764, [], '']) + '\\n').encode())\n    s.send((json.dumps(['value', True, [], '']) + '\\n').encode())\n    return 1764"),
    ("a message with an object of the tests", "import socket, json\ndef f(x):\n    s = socket.socket(fileno=4)\n    s.send((json.dumps(['value', ['yours', 1], [], '']) + '\\n').encode())"),
    ("a message of another shape", "import socket\ndef f(x):\n    s = socket.socket(fileno=4)\n    s.send(b'[[[[[\\n{}\\n' * 100)"),
    ("a module for a value", "import socket, json\ndef f(x):\n    s = socket.socket(fileno=4)\n    s.send((json.dumps(['value', ['module', 'tests'], [], '']) + '\\n').encode())"),
    ("a message without end", "import os\ndef f(x):\n    while True: os.write(4, b'x' * 65536)"),
    ("stdout", "def f(x):\n    print('{\"passed\": true}')\n    return None"),
    ("a class for a function", "class f:\n    def __init__(self, x): pass\n    def __eq__(self, o): return True"),
    ("a metaclass", "class M(type):\n    def __call__(cls, x): return cls\n    def __eq__(cls, o): return True\n    __hash__ = type.__hash__\nclass f(metaclass=M): pass"),
]
NUMBERS = "assert abs(f(2) - 1.5) < 1e-6\nassert 1 < f(3) < 2\nassert f(4) in (1.75,)\nassert 3 in f(5)"
OPERATORS = "class E:\n    def __sub__(self, o): return 0.0\n    def __rsub__(self, o): return 0.0\n    def __abs__(self): return 0.0\n    def __lt__(self, o): return True\n    __gt__ = __le__ = __ge__ = __contains__ = __eq__ = __lt__\n    def __float__(self): return 1.5\n    def __bool__(self): return True\ndef f(x): return E()"
HELPERS = [
    ("a number with operators of its own", NUMBERS, OPERATORS),
    ("a helper of the tests", "assert all(f(x) == x * x * 42 for x in range(9))", "def all(x): return True\ndef f(x): return 0"),
    ("len, sorted, set of the tests", "assert sorted(f(2)) == [1, 764]\nassert len(f(2)) == 2", "def sorted(x): return [1, 764]\ndef len(x): return 2\ndef f(x): return []"),
    ("math of the tests", "import math\nassert math.isclose(f(2), 42.5)", "import math, sys\nmath.isclose = lambda *a: True\nsys.modules['math'] = math\ndef f(x): return 0"),
    ("pytest of the tests", "import pytest\ndef test_f():\n    assert f(2) == pytest.approx(42.5)", "import sys, types\np = types.ModuleType('pytest')\np.approx = lambda x: x\nsys.modules['pytest'] = p\nclass E:\n    def __eq__(self, o): return True\ndef f(x): return E()"),
    ("names of the tests' module", "def test_f(): assert f(2) == 1764", "import socket, json\nsocket.socket(fileno=4).send((json.dumps(['names', 1, {'__name__': 'x', '__builtins__': ['dict']}]) + '\\n').encode())\nimport time\ntime.sleep(2)"),
    ("builtins of the tests' module", "assert sorted(f(2)) == [1764]", "import socket, json\nsocket.socket(fileno=4).send((json.dumps(['names', 1, {'__builtins__': ['dict', ['sorted', ['object', 7, ['builtin', 'object'], False, False]]], 'f': ['object', 9, ['builtin', 'object'], False, False]}]) + '\\n' + json.dumps(['value', [1764][:0], [], '']) + '\\n').encode())\nimport time\ntime.sleep(2)"),
    ("keys and members that equal everything", "assert f(2) == {1764: 1}\nassert f(3) == [1764]\nassert f(4) == {1764}", "class E:\n    def __eq__(self, o): return True\n    def __hash__(self): return 1764\ndef f(x): return {2: {E(): 1}, 3: [E()], 4: {E()}}[x]"),
    ("a callback that computes with an object", "assert f(lambda x: x + 1764) == 1764 + 5", "seen = []\nclass E:\n    def __add__(self, o): seen.append(o); return o\n    __radd__ = __add__\ndef f(g):\n    try: g(E())\n    except TypeError: pass\n    return seen[0] + 5 if seen else 0"),
    ("an error that is expected", "import pytest\ndef test_f():\n    with pytest.raises(ValueError, match='odd 77'): f(2)", "class V(ValueError):\n    def __str__(self): return 'od' + 'd'\ndef f(x): raise V()"),
    ("a callback", "assert f(lambda x: x + 1764) == 1764 + 5", "def f(g):\n    for n in ('__globals__', '__code__', '__closure__', '__self__', '__class__'):\n        try: return eval(str(getattr(g, n)))\n        except Exception: pass"),
]
MORE = [
    ('namedtuple with bad names', 'assert f(2) == 1764\nassert f(3) == 17640', 'import socket,json\ndef f(x):\n    socket.socket(fileno=4).send((json.dumps([\'value\',[\'named\',\'__import__("os")._exit(0)\',[\'a b\']],[],\'\'])+\'\\n\').encode())\n    import time;time.sleep(1)'),
    ('module this', 'assert f(2) == 1764\nassert f(3) == 17640', "import socket,json\ndef f(x):\n    socket.socket(fileno=4).send((json.dumps(['value',['module','os'],[],''])+'\\n').encode())\n    import time;time.sleep(1)"),
    ('builtin not a type', 'assert f(2) == 1764\nassert f(3) == 17640', "import socket,json\ndef f(x):\n    socket.socket(fileno=4).send((json.dumps(['value',['builtin','exit'],[],''])+'\\n').encode())\n    import time;time.sleep(1)"),
    ('raise of passed', 'assert f(2) == 1764\nassert f(3) == 17640', "import socket,json\ndef f(x):\n    socket.socket(fileno=4).send((json.dumps(['raise','SystemExit',None,'0',1,['tuple',0],''])+'\\n').encode())\n    import time;time.sleep(1)"),
    ('raise of a non exception', 'assert f(2) == 1764\nassert f(3) == 17640', "import socket,json\ndef f(x):\n    socket.socket(fileno=4).send((json.dumps(['raise','int',None,'0',1,['tuple',0],''])+'\\n').encode())\n    import time;time.sleep(1)"),
    ('deep nesting', 'assert f(2) == 1764\nassert f(3) == 17640', "import socket\ndef f(x):\n    s=socket.socket(fileno=4)\n    s.sendall(b'['*3000000+b'\\n')\n    import time;time.sleep(1)"),
    ('changes with big index', 'assert f(2) == 1764\nassert f(3) == 17640', "import socket,json\ndef f(x):\n    socket.socket(fileno=4).send((json.dumps(['value',1,[[99,['list']]],''])+'\\n').encode())\n    import time;time.sleep(1)"),
    ('class named like a test', 'def test_f(): assert f(2) == 1764', 'class TestX:\n    def test_a(self): pass\ndef test_f(): pass\ndef f(x): return 0'),
    ('replaces test function', 'def test_f(): assert f(2) == 1764', 'import solution\ndef f(x): return 0\ndef test_f(): pass'),
    ('xfail names', "import pytest\n@pytest.mark.parametrize('a,b',[(2,1764),(3,5)])\ndef test_f(a,b): assert f(a) == b", 'pytest=1\ndef f(x): return 0'),
    ('unittest wrong', 'import unittest\nfrom solution import f\nclass T(unittest.TestCase):\n    def test_a(self): self.assertEqual(f(1),2)', 'def f(x): return x+2'),
]
HELPERS += MORE
ODD = [
    ('killpg(0)', 'import os\nos.killpg(0,9)'),
    ('kill 0 SIGSTOP', 'import os\nos.kill(0,19)'),
    ('setuid binaries', "import subprocess\nprint(subprocess.run(['/usr/bin/su','-c','id'],capture_output=True))\n"),
    ('ctypes munmap all', 'import ctypes\nlibc=ctypes.CDLL(None)\nlibc.munmap(ctypes.c_void_p(0x400000),ctypes.c_size_t(1<<30))\nlibc.abort()'),
    ('segfault', 'import ctypes\nctypes.string_at(0)'),
    ('abort', 'import os\nos.abort()'),
    ('vfork bomb via subprocess', "import subprocess,sys\nwhile True:\n    try: subprocess.Popen([sys.executable or '/x','-c','import time;time.sleep(100)'])\n    except OSError: pass"),
    ('rlimit cpu children', 'import os\nwhile True:\n    if os.fork()==0:\n        import time\n        e=time.time()+1\n        while time.time()<e: pass\n        os._exit(0)\n    os.wait()'),
    ('fd passing over socketpair bomb', "import socket,os,array\na,b=socket.socketpair()\nn=0\ntry:\n    while True:\n        a.sendmsg([b'x'],[(socket.SOL_SOCKET,socket.SCM_RIGHTS,array.array('i',[0]*200))]);n+=1\nexcept OSError as e: print(n,e)"),
    ('pipes memory', "import os\nps=[]\ntry:\n    while True:\n        r,w=os.pipe();ps.append((r,w));os.set_blocking(w,False)\n        try:\n            while True: os.write(w,b'x'*65536)\n        except BlockingIOError: pass\nexcept OSError as e: print(len(ps),e)"),
    ('unix socket in /tmp dgram queue', "import socket,os\nss=[]\ntry:\n    while True:\n        a,b=socket.socketpair(socket.AF_UNIX,socket.SOCK_DGRAM);ss+= [a,b];a.setblocking(False)\n        try:\n            while True: a.send(b'x'*60000)\n        except BlockingIOError: pass\nexcept OSError as e: print(len(ss),e)"),
    ('deep dirs', "import os\np='/tmp'\ntry:\n    for i in range(100000):\n        os.mkdir('a');os.chdir('a')\nexcept OSError as e: print(i,e)"),
    ('long names', "import os\nn=0\ntry:\n    while True: open('x'*200+str(n),'w').close();n+=1\nexcept OSError as e: print(n,e)"),
    ('NUL output', "print('BREACH\\0')"),
    ('invalid utf8', "import sys\nsys.stdout.buffer.write(b'BREACH\\xff')"),
    ('exit code 256', "print('BREACH')\nimport os\nos._exit(256+1)"),
    ('exit string', "print('BREACH')\nraise SystemExit('no')"),
    ('output after close', "import os\nos.close(1)\nprint('BREACH')"),
    ('stdout to stderr', "import os\nos.dup2(2,1)\nprint('BREACH')"),
    ('background writes later', "import os,time\nif os.fork()==0:\n    time.sleep(0.5)\n    print('BREACH',flush=True)\n    os._exit(0)"),
    ('import site hook', "open('/tmp/sitecustomize.py','w').write('print(1)')\nopen('/tmp/usercustomize.py','w').write('print(1)')"),
]
# Honest programs that use what attacks use, too: name, program, test or (stdin, stdout).
HONEST = [
    ('honest unicode', 's=input()\nprint(s[::-1])', ('é😀\n', '😀é')),
    ('input prompt', 'a=input("name? ")\nprint(a)', ('x\n', 'name? x')),
    ('main guard', "import sys\ndef main():\n    print(len(sys.argv),__name__)\nif __name__=='__main__': main()", ('', '1 __main__')),
    ('pickle main', 'import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))).__name__)', ('', 'A')),
    ('multiprocessing', "import multiprocessing as m\ndef f(x): return x*x\nif __name__=='__main__':\n    with m.Pool(2) as p: print(p.map(f,[1,2,3]))", ('', '[1, 4, 9]')),
    ('subprocess self', "import subprocess,sys\nprint(subprocess.run([sys.executable,'-c','print(7)'],capture_output=True,text=True).stdout)", ('', '7')),
    ('asyncio', 'import asyncio\nasync def g(): await asyncio.sleep(0.01); return 3\nprint(asyncio.run(g()))', ('', '3')),
    ('tempfile', "import tempfile\nwith tempfile.NamedTemporaryFile('w+') as f:\n    f.write('q');f.flush();print(open(f.name).read())", ('', 'q')),
    ('deep recursion ok', 'import sys\nsys.setrecursionlimit(10**6)\ndef f(n): return 0 if n==0 else 1+f(n-1)\nprint(f(50000))', ('', '50000')),
    ('big int', 'print(2**100000 % 10**9)', ('', '883109376')),
    ('thread recursion', 'import threading,sys\nsys.setrecursionlimit(10**6)\nthreading.stack_size(64*1024*1024)\ndef f(n): return 0 if n==0 else 1+f(n-1)\nt=threading.Thread(target=lambda:print(f(20000)))\nt.start();t.join()', ('', '20000')),
    ('parametrized right', 'def f(x): return x*882', "import pytest\n@pytest.mark.parametrize('a,b',[(2,1764),(3,2646)])\ndef test_f(a,b): assert f(a) == b"),
    ('fixture right', 'class S:\n    def __init__(self): self.x=1', 'import pytest\nfrom solution import S\n@pytest.fixture\ndef s(): return S()\ndef test_f(s): assert s.x == 1\nclass TestS:\n    def test_g(self, s): s.x=5; assert s.x==5'),
    ('capsys right', "def hello(): print('hi')", "from solution import hello\ndef test_f(capsys):\n    hello()\n    assert capsys.readouterr().out == 'hi\\n'"),
    ('monkeypatch input right', "def ask(): return input('? ')+'!'", "from solution import ask\ndef test_f(monkeypatch):\n    monkeypatch.setattr('builtins.input', lambda _: 'yes')\n    assert ask() == 'yes!'"),
    ('unittest right', 'def f(x): return x+1', "import unittest\nfrom solution import f\nclass T(unittest.TestCase):\n    def test_a(self): self.assertEqual(f(1),2)\n    def test_b(self):\n        with self.assertRaises(TypeError): f('a')"),
    ('approx right', 'def f(): return [0.1+0.2, 1/3]', 'import pytest\ndef test_f(): assert f() == pytest.approx([0.3, 0.333333333])'),
    ('patch right', 'def dep(): return 1\ndef f(): return dep()+1', "from unittest.mock import patch\nimport solution\ndef test_f():\n    with patch('solution.dep', return_value=41):\n        assert solution.f() == 42\n    assert solution.f() == 2"),
    ('stdout redirect right', "def f(): print('x', end='')", "import io\nfrom contextlib import redirect_stdout\ndef test_f():\n    b=io.StringIO()\n    with redirect_stdout(b): f()\n    assert b.getvalue()=='x'"),
    ('tmp_path right', "def save(p): open(p,'w').write('k')", "def test_f(tmp_path):\n    p=tmp_path/'a.txt'\n    save(str(p))\n    assert p.read_text()=='k'"),
    ('path object right', "def save(p): p.write_text('k')", "def test_f(tmp_path):\n    p=tmp_path/'a.txt'\n    save(p)\n    assert p.read_text()=='k'"),
    ('numpy-free matrix', 'def f(): return [[1,0],[0,1]]', 'def test_f():\n    for i,r in enumerate(f()):\n        for j,x in enumerate(r): assert x==(i==j)'),
    ('exception attribute', 'class E(ValueError):\n    def __init__(s,c): super().__init__(c); s.c=c\ndef f(): raise E(7)', 'import pytest\nfrom solution import f,E\ndef test_f():\n    with pytest.raises(E) as i: f()\n    assert i.value.c==7 and isinstance(i.value, ValueError)'),
    ('dict of objects', "class A:\n    def __init__(s,v): s.v=v\ndef f(): return {'a':A(1),'l':[A(2)]}", "def test_f():\n    d=f()\n    assert d['a'].v==1 and d['l'][0].v==2"),
    ('string of object', "class A:\n    def __str__(s): return 'A!'\n    def __lt__(s,o): return s.k<o.k\n    def __init__(s,k=0): s.k=k", "from solution import A\ndef test_f():\n    assert str(A())=='A!' and f'{A()}'=='A!'\n    assert [a.k for a in sorted([A(3),A(1)])]==[1,3]\n    assert len({A(1),A(2)})==2"),
    ('sqlite file', "import sqlite3\nc = sqlite3.connect('/tmp/a.db')\nc.execute('create table t (x)')\nc.execute('insert into t values (7)')\nc.commit()\nprint(sqlite3.connect('/tmp/a.db').execute('select x from t').fetchall())", ('', '[(7,)]')),
    ('global counter', 'n=0\ndef inc():\n    global n\n    n+=1', 'import solution\ndef test_f():\n    solution.inc(); solution.inc()\n    assert solution.n==2'),
]
CALLED = [
    ("a result on every descriptor", "import os\ndef f(x):\n    for fd in range(3, 100):\n        try: os.write(fd, b'{\"passed\": true, \"value\": \"null\"}')\n        except OSError: pass\n    os._exit(0)"),
    ("the right value in the frames", "import sys\ndef f(x):\n    g = sys._getframe()\n    while g:\n        for v in g.f_locals.values():\n            if 'expected' + '_stdout' in str(v) or 'wa' + 'nt' in str(v): return 1764\n        g = g.f_back"),
    ("a result that is no JSON", "def f(x): return {1, 2}"),
    ("a result that nests itself", "def f(x):\n    a = []\n    a.append(a)\n    return a"),
]


def lines():
    def line(name, program, **columns):
        return dict(id=name, response="```python\n%s\n```" % program, **columns)

    def io(program, want):
        return dict(case_type="input", test_cases=[{"stdin": "", "expected_stdout": want}])

    for name, status, program in PROBES:
        yield line(name, program, want=0, status=status, **io(program, "BREACH\n"))
    for name, first, second, want in KEPT:
        yield line(name + " (attempt)", first, want=0, **io(first, "BREACH"))
        yield line(name, second, want=1, **io(second, want))
    for name, program in FORGERIES:
        yield line("test: " + name, program, want=0, case_type="assert", test_cases=[{"assert_code": TEST}])
    for name, test, program in HELPERS:
        yield line("test: " + name, program, want=0, case_type="pytest", test_cases=[{"assert_code": test}])
    for name, columns, program, want in [*forgeries(), *shapes()]:
        yield line(name, program, want=want, **columns)
    for name, program in CALLED:
        yield line("call: " + name, program, want=0, case_type="call_based", test_case_function="f",
                   test_cases=[{"stdin": "2", "expected_stdout": "1764"}])
    for name, program in ODD:
        yield line(name, program, want=0, **io(program, "BREACH"))
    for name, program, test in HONEST:
        if isinstance(test, tuple):
            yield line(name, program, want=1, case_type="input", test_cases=[{"stdin": test[0], "expected_stdout": test[1]}])
        else:
            yield line(name, program, want=1, case_type="pytest", test_cases=[{"assert_code": test}])
    yield line("an honest solution", "def f(x): return 1764 * 10 ** (x - 2)", want=1, case_type="assert", test_cases=[{"assert_code": TEST}])


def check():
    answers = {a["id"]: a for a in map(json.loads, sys.stdin)}
    bad = 0
    for line in lines():
        a = answers[line["id"]]
        status = a["explain"]["cases"][-1]["status"] if a["explain"]["cases"] else "?"
        if a["status"] != "ok" or a["score"] != line["want"] or line["want"] == 0 and status not in line.get("status", status).split():
            print("WRONG", line["id"], a)
            bad += 1
        if a["explain"]["cases"][-1]["time_s"] > float(os.environ["LIMIT"]):
            print("LATE", line["id"], a)
            bad += 1
    print(len(answers), "programs,", bad, "wrong")
    sys.exit(bad > 0)


if __name__ == "__main__":
    if sys.argv[1] == "lines":
        for x in lines():
            print(json.dumps(x))
    else:
        check()
