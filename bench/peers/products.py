#!/usr/bin/env python3
"""The products of bench_products in torch (oneDNN): GFLOP/s of y = x W^T, dx = dy W and dw = dy^T x (in bf16: torch adds it to
the gradient afterwards).

usage: products.py [--threads 1] [--repeat 15] [--dtype bf16]
One JSON line a shape, [best, median]; one thread: its CPU time, more: the wall clock.
"""
import json
import time

import common


def main():
    p = common.parser(__doc__, repeat=15)
    p.add_argument('--dtype', default='bf16')
    a = p.parse_args()
    torch = common.set_threads(a.threads)
    dtype = {'bf16': torch.bfloat16, 'fp32': torch.float32}[a.dtype]
    now = time.thread_time if a.threads == 1 else time.perf_counter
    for n, k in ((1536, 576), (576, 1536), (576, 576), (49152, 576)):
        for m in (16, 64, 256, 512):
            x, w, dy = (torch.randn(*s).to(dtype) for s in ((m, k), (n, k), (m, n)))
            out = {}
            for name, fn in (('y', lambda: torch.nn.functional.linear(x, w)), ('dx', lambda: dy @ w), ('dw', lambda: dy.t() @ x)):
                def took(calls):
                    start = now()
                    for _ in range(calls):
                        fn()
                    return (now() - start) / calls
                fn()
                calls = max(1, int(0.01 / max(took(1), 1e-6)) + 1)
                s = sorted(took(calls) for _ in range(a.repeat))
                out[name] = [round(2e-9 * m * n * k / t) for t in (s[0], s[len(s) // 2])]
            print(json.dumps(dict(peer='torch', dtype=a.dtype, threads=a.threads, m=m, n=n, k=k, **out)), flush=True)


if __name__ == '__main__':
    main()
