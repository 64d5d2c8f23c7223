"""Programs with a time limit, and the end of all that they leave running."""
import ctypes
import glob
import os
import re
import signal
import subprocess
import time

HOME = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # the tree


class Refused(Exception):
    """Nothing can be checked, or packed: exit code 2."""


class Stopped(Exception):
    """SIGINT or SIGTERM."""


def adopt_orphans():
    """Processes whose parent ends become children of this one (PR_SET_CHILD_SUBREAPER), also those of a session of their own."""
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)


def started():
    """All processes that come from this one and still run."""
    parents = {}
    for path in glob.glob("/proc/[0-9]*/stat"):
        try:
            fields = open(path).read().rsplit(")", 1)[1].split()
        except OSError:
            continue  # it has ended
        if fields[0] != "Z":
            parents[int(path.split("/")[2])] = int(fields[1])
    found = {os.getpid()}
    while more := {p for p, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {os.getpid()}


def end_all(grace_s=10):
    """Ends them: asks, and after `grace_s` no longer does."""
    until = time.monotonic() + grace_s
    asked = set()
    while left := started():
        number = signal.SIGTERM if time.monotonic() < until else signal.SIGKILL
        for pid in left if number == signal.SIGKILL else left - asked:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass
        asked |= left
        time.sleep(0.05)
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass  # all have been waited for


def run(words, log, limit_s, env=None):
    """Exit code, or None where it took longer; output is appended to the file log."""
    with open(log, "ab") as out:
        out.write(f"$ {' '.join(words)}\n".encode())
        out.flush()
        try:
            process = subprocess.Popen(words, cwd=HOME, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)
        except OSError as error:
            out.write(f"{error}\n".encode())
            return 127
        try:
            code = process.wait(timeout=max(limit_s, 0.1))
        except subprocess.TimeoutExpired:
            code = None
        except BaseException:
            end_all()
            raise
        if code is not None and started():
            out.write(b"gpu-check: it has left processes, which are ended\n")
        end_all()
        return code


def output_of(*words):
    try:
        return subprocess.run(words, cwd=HOME, capture_output=True, text=True, errors="replace", timeout=30).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def loaded(program):
    """The libraries that the loader takes for a program or library, by name; of one that it does not find the path is "not"."""
    return dict(re.findall(r"^\s*(\S+) => (\S+)", output_of("ldd", program), re.M))
