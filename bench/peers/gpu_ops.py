#!/usr/bin/env python3
"""The operations of bench_products and bench_ops in torch, for bench/gpu_speed: seconds of each, asked for line by line.

usage: gpu_ops.py [--device cuda|cpu] [--repeat 15]
A line of stdin is an operation with its sizes (gemm=MxNxK, copy=BYTES, adamw=ELEMENTS, rmsnorm=ROWSxCOLS, attention=TxHxKxD,
head=ROWSxVOCABxHIDDEN, as bench/ops.c says); the answer is {"case", "seconds"} for it and for its gradients, or {"case",
"failed"}, and then {"done"}. bf16, but for copy and adamw. A repetition is as many calls as take 10 ms, the device is waited
for at both ends, and seconds is the median. Products are cuBLAS's, attention is scaled_dot_product_attention.
"""
import common
import json, sys


def main():
    p = common.parser(__doc__, repeat=15)
    common.add_device(p)
    a = p.parse_args()
    torch = common.set_threads(a.threads)
    if a.device == 'cuda' and not torch.cuda.is_available():
        sys.exit('torch %s sees no GPU' % torch.__version__)
    torch.set_default_device(a.device)
    F, bf16 = torch.nn.functional, torch.bfloat16

    def took(case, fn):
        def many(calls=1):
            for _ in range(calls):
                fn()
            common.sync(torch, a.device)
        once = common.clock(many, 1)[0]
        calls = max(1, int(0.01 / once) + 1) if once < 0.01 else 1
        seconds = common.median(t / calls for t in common.clock(lambda: many(calls), a.repeat))
        print(json.dumps({'case': case, 'seconds': seconds}), flush=True)

    def new(*shape, grad=False):
        return torch.randn(*shape, dtype=bf16).requires_grad_(grad)

    def both(name, sizes, forward, inputs):
        """The operation without its gradient, and the gradient alone."""
        with torch.no_grad():
            took('%s=%s' % (name, sizes), forward)
        y = forward()
        dy = torch.randn_like(y)
        took('%s_grad=%s' % (name, sizes), lambda: torch.autograd.grad(y, inputs, dy, retain_graph=True))

    def gemm(sizes, m, n, k):
        x, w, dy = new(m, k), new(n, k), new(m, n)
        took('y=' + sizes, lambda: torch.matmul(x, w.t()))
        took('dx=' + sizes, lambda: torch.matmul(dy, w))
        took('dw=' + sizes, lambda: torch.matmul(dy.t(), x))

    def copy(sizes, num_bytes):
        x, y = torch.zeros(num_bytes // 4), torch.zeros(num_bytes // 4)
        took('copy=' + sizes, lambda: y.copy_(x))

    def adamw(sizes, num):
        x = torch.zeros(num, requires_grad=True)
        x.grad = torch.full_like(x, 1e-3)
        opt = torch.optim.AdamW([x], lr=1e-6, fused=True)
        took('adamw=' + sizes, opt.step)

    def rmsnorm(sizes, rows, cols):
        x, w = new(rows, cols, grad=True), new(cols, grad=True)
        both('rmsnorm', sizes, lambda: F.rms_norm(x, (cols,), w, 1e-6), (x, w))

    def attention(sizes, t, heads, kv_heads, d):
        q, k, v = new(1, heads, t, d, grad=True), new(1, kv_heads, t, d, grad=True), new(1, kv_heads, t, d, grad=True)
        how = dict(is_causal=True, enable_gqa=heads != kv_heads)
        both('attention', sizes, lambda: F.scaled_dot_product_attention(q, k, v, **how), (q, k, v))

    def head(sizes, rows, vocab, hidden):
        x, w, labels = new(rows, hidden, grad=True), new(vocab, hidden, grad=True), torch.zeros(rows, dtype=torch.int64)
        both('head', sizes, lambda: F.cross_entropy(F.linear(x, w).float(), labels, reduction='none'), (x, w))

    ops = dict(gemm=gemm, copy=copy, adamw=adamw, rmsnorm=rmsnorm, attention=attention, head=head)
    print(json.dumps({'peer': 'torch', 'version': torch.__version__}), flush=True)
    for line in sys.stdin:
        name, sizes = line.strip().split('=')
        try:
            ops[name](sizes, *map(int, sizes.split('x')))
        except Exception as e:  # out of memory, not supported: the next one is asked for all the same
            print(json.dumps({'case': line.strip(), 'failed': '%s: %s' % (type(e).__name__, str(e).split('\n')[0][:160])}))
        if a.device == 'cuda':
            torch.cuda.empty_cache()
        print(json.dumps({'done': line.strip()}), flush=True)


if __name__ == '__main__':
    main()
