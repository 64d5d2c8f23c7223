"""What every peer benchmark shares: arguments, clock, memory, and the one JSON line it prints.

Import this before torch: it fixes the number of threads and keeps the hub off.
Memory is VmHWM of /proc/self/status, not ru_maxrss: after fork + exec ru_maxrss still holds the parent's peak.
"""
import argparse, json, os, statistics, sys, threading, time

os.environ.setdefault('HF_HUB_OFFLINE', '1')
os.environ.setdefault('TOKENIZERS_PARALLELISM', 'false')
os.environ.setdefault('TRANSFORMERS_VERBOSITY', 'error')
os.environ.setdefault('HF_HUB_DISABLE_PROGRESS_BARS', '1')
os.environ.setdefault('TQDM_DISABLE', '1')


def parser(doc, repeat=3):
    p = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--threads', type=int, default=2, help='threads of each process (default %(default)s)')
    p.add_argument('--repeat', type=int, default=repeat, help='timed repetitions (default %(default)s)')
    return p


def set_threads(n):
    """Call before importing torch; returns torch with its thread count set."""
    os.environ['OMP_NUM_THREADS'] = str(n)
    import torch
    torch.set_num_threads(n)
    return torch


def add_device(p):
    p.add_argument('--device', default='cpu', choices=['cpu', 'cuda'])


def sync(torch, device):
    """What was queued on the device is over."""
    if device == 'cuda':
        torch.cuda.synchronize()


def self_launch(world, threads):
    """Run this script again under torchrun with `world` ranks; returns in the ranks only."""
    if 'RANK' in os.environ:
        return
    os.environ['OMP_NUM_THREADS'] = str(threads)
    os.execv(sys.executable, [sys.executable, '-m', 'torch.distributed.run', '--standalone',
                              '--nproc-per-node', str(world), *sys.argv])


def process_age():
    """Seconds since the kernel started this process: counts the interpreter and the imports."""
    with open('/proc/self/stat') as f:
        start = int(f.read().rsplit(')', 1)[1].split()[19]) / os.sysconf('SC_CLK_TCK')
    return time.clock_gettime(time.CLOCK_BOOTTIME) - start


def _status(key):
    with open('/proc/self/status') as f:
        for line in f:
            if line.startswith(key):
                return int(line.split()[1]) / 1024
    return 0.0


def rss_mb():
    return _status('VmRSS:')


def peak_rss_mb():
    return _status('VmHWM:')


def reset_peak_rss():
    try:
        with open('/proc/self/clear_refs', 'w') as f:
            f.write('5')
    except OSError:
        pass


def pss_mb():
    with open('/proc/self/smaps_rollup') as f:
        for line in f:
            if line.startswith('Pss:'):
                return int(line.split()[1]) / 1024
    return 0.0


class PeakPss:
    """Samples Pss (shared pages divided among their users) every 20 ms. Slows what it watches: use it untimed."""
    def __enter__(self):
        self.peak, self.stop = pss_mb(), threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        return self

    def _run(self):
        while not self.stop.wait(0.02):
            self.peak = max(self.peak, pss_mb())

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()
        self.peak = max(self.peak, pss_mb())


def clock(fn, repeat, warmup=1, cpu=None):
    """Seconds of each of `repeat` calls, after `warmup` calls that are not counted; CPU seconds are appended to cpu."""
    for _ in range(warmup):
        fn()
    seconds = []
    for _ in range(repeat):
        t, c = time.perf_counter(), time.process_time()
        fn()
        seconds.append(time.perf_counter() - t)
        if cpu is not None:
            cpu.append(time.process_time() - c)
    return seconds


def _busy():
    """CPU seconds that all processes of the machine have used since it started."""
    with open('/proc/stat') as f:
        n = list(map(int, f.readline().split()[1:9]))
    return (sum(n) - n[3] - n[4]) / os.sysconf('SC_CLK_TCK')


_BORN, _BUSY = time.perf_counter(), _busy()


def others(processes=1):
    """Cores that other programs kept busy since this one began; `processes` ranks like this one are ours."""
    own = sum(os.times()[:4]) * processes
    return max(0.0, (_busy() - _BUSY - own) / (time.perf_counter() - _BORN))


median = statistics.median


def _round(x):
    if isinstance(x, float):
        return float(f'{x:.5g}')
    if isinstance(x, dict):
        return {k: _round(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return [_round(v) for v in x]
    return x


def emit(peer, case, processes=1, **fields):
    """The one line. others_cores above 0.1 or so: the seconds are disturbed (two threads then far more than one)."""
    fields.setdefault('peak_rss_mb', peak_rss_mb())
    line = {'peer': peer, 'case': case, **fields, 'others_cores': others(processes)}
    print(json.dumps(_round(line)), flush=True)
