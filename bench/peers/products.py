#!/usr/bin/env python3
"""The products of bench_products in torch (oneDNN): GFLOP/s of y = x W^T, dx = dy W and dw = dy^T x (in bf16: torch adds it to
the gradient afterwards).

usage: products.py [--threads 1] [--repeat 15] [--dtypes fp32,bf16] [--min-m 16] [--croll build/release/bench_products]
One JSON line a shape and dtype, [best, median]; one thread: its CPU time, more: the wall clock. --croll: that program in turn, each
shape in fp32 and bf16 before torch's, so that both have the same clock of the CPU.
"""
import json
import subprocess
import time

import common


def main():
    p = common.parser(__doc__, repeat=15)
    p.add_argument('--dtypes', default='bf16')
    p.add_argument('--min-m', type=int, default=16)
    p.add_argument('--croll')
    a = p.parse_args()
    torch = common.set_threads(a.threads)
    now = time.thread_time if a.threads == 1 else time.perf_counter
    for n, k in ((1536, 576), (576, 1536), (576, 576), (49152, 576)):
        for m in (16, 64, 256, 512):
            if m < a.min_m:
                continue
            for dtype in ('fp32', 'bf16') if a.croll else ():
                subprocess.run([a.croll, str(a.threads), dtype, str(a.repeat), f'{m}x{n}x{k}'], check=True)
            for dtype in a.dtypes.split(','):
                of = {'bf16': torch.bfloat16, 'fp32': torch.float32}[dtype]
                x, w, dy = (torch.randn(*s).to(of) for s in ((m, k), (n, k), (m, n)))
                out = {}
                for name, fn in (('y', lambda: torch.nn.functional.linear(x, w)), ('dx', lambda: dy @ w), ('dw', lambda: dy.t() @ x)):
                    out[name] = [round(2e-9 * m * n * k / t, 1) for t in best_and_median(fn, now, a.repeat)]
                print(json.dumps(dict(peer='torch', dtype=dtype, threads=a.threads, m=m, n=n, k=k, **out)), flush=True)


def best_and_median(fn, now, repeat):
    def took(calls):
        start = now()
        for _ in range(calls):
            fn()
        return (now() - start) / calls
    fn()
    calls = max(1, int(0.01 / max(took(1), 1e-6)) + 1)
    s = sorted(took(calls) for _ in range(repeat))
    return s[0], s[len(s) // 2]


if __name__ == '__main__':
    main()
