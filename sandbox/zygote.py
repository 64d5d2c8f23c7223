"""zygote.py -- an interpreter that has loaded a harness, and forks itself for each program of a slot.

Descriptors: 3 the slot (messages, see start), 4 the filter of system calls, 5 the harness. What a program could use against the
next one stays in its own process: this one runs nothing of a program's, and gets nothing back from it but how it ended.
"""
import ctypes
import gc
import os
import resource
import select
import signal
import socket
import sys
import threading

FILES, AS, PROCESSES, OPEN = (int(x) for x in sys.argv[1:5])
SIGNALS = 256
HIGH = 100  # descriptors above all that are open here
CLONE_NEWPID = 0x20000000
NAMESPACES = 0x02000000 | 0x00020000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x40000000  # cgroup mount uts ipc user net
libc = ctypes.CDLL(None, use_errno=True)


class Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_char_p)]


def whole(fd):
    size = os.fstat(fd).st_size
    data = os.pread(fd, size, 0)
    os.close(fd)
    return data


code = whole(4)
program = Filter(len(code) // 8, code)
harness = {"__name__": "harness"}
sys.path = [p for p in sys.path if p]
exec(compile(whole(5).decode(), "<harness>", "exec"), harness)
no_rights = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()


threading.stack_size(8 << 20)  # not as large as the main thread's, which may recurse
if hasattr(libc, "mallopt"):
    libc.mallopt(-8, 2)  # M_ARENA_MAX: else each thread may take 64 MB of the address space


def check(result, what):
    if result != 0:
        raise OSError(ctypes.get_errno(), what)


def limit(which, value):
    hard = resource.getrlimit(which)[1]
    value = value if hard == resource.RLIM_INFINITY or value < hard else hard
    resource.setrlimit(which, (value, value))


def enter(pid_fd, cpu_s):
    """Into the namespaces, without a way back."""
    os.setsid()  # kill(0, ..) reaches the group of a process, also outside of its namespace
    if not OPEN:
        check(libc.setns(pid_fd, NAMESPACES), "setns")
    os.chdir("/tmp")
    for which, value in ((resource.RLIMIT_AS, AS), (resource.RLIMIT_FSIZE, FILES), (resource.RLIMIT_CPU, cpu_s),
                         (resource.RLIMIT_NOFILE, 256), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_MEMLOCK, 0),
                         (resource.RLIMIT_MSGQUEUE, 0)):
        limit(which, value)
    if not OPEN:
        limit(resource.RLIMIT_NPROC, PROCESSES)
        limit(11, SIGNALS)  # RLIMIT_SIGPENDING, timers too
        check(libc.capset(ctypes.byref(no_rights[0]), ctypes.byref(no_rights[1])), "capset")
        check(libc.prctl(38, 1, 0, 0, 0), "no new privileges")
        check(libc.prctl(22, 2, ctypes.byref(program), 0, 0), "seccomp")


def become(words, fds):
    """The process of a program. fds: namespaces, stdin, stdout, stderr, job, then the result and the link if there are."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    rest = fds[5:]
    result = rest.pop(0) if words[1] == "1" else None
    link = rest.pop(0) if words[2] == "1" else None
    job = whole(fds[4])
    places = [None if fd is None else os.dup2(fd, HIGH + i, False) for i, fd in enumerate(fds[:4] + [result, link])]
    os.closerange(3, HIGH)  # of the slot, and of other programs
    enter(places[0], int(words[3]))
    os.close(places[0])
    for to, fd in enumerate(places[1:4]):
        os.dup2(fd, to, True)
        os.close(fd)
    for to, fd in ((3, places[4]), (4, places[5])):
        if fd is not None:
            os.dup2(fd, to, False)
            os.close(fd)
    harness["main"](job, socket.socket(fileno=4) if link is not None else None, 3 if result is not None else -1)


def start(control, message, fds):
    """`index has_result has_link cpu_s`: answered with `started pid`, later `ended pid status cpu_us peak_kb`."""
    if not OPEN:
        check(libc.setns(fds[0], CLONE_NEWPID), "setns of the next child")
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            become(message.split(), fds)
            code = 0
        except SystemExit as e:
            code = e.code if isinstance(e.code, int) else 1
        except BaseException as e:
            os.write(2, ("%s: %s\n" % (type(e).__name__, e)).encode()[:2000])
        finally:
            os._exit(code)
    for fd in fds:
        os.close(fd)
    control.send(b"started %d" % pid)


def reap(control):
    while True:
        try:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        control.send(b"ended %d %d %d %d" % (pid, status, (usage.ru_utime + usage.ru_stime) * 1e6, usage.ru_maxrss))


def serve():
    control = socket.socket(fileno=3)
    wake, woken = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda *args: None)
    poll = select.poll()
    poll.register(3, select.POLLIN)
    poll.register(wake, select.POLLIN)
    gc.collect()
    gc.freeze()
    control.send(b"ready")
    while True:
        ready = [fd for fd, event in poll.poll()]
        if wake in ready:
            os.read(wake, 4096)
            reap(control)
        if 3 in ready:
            message, fds, flags, address = socket.recv_fds(control, 256, 16)
            if not message:
                os._exit(0)
            start(control, message.decode(), list(fds))


serve()
