#!/usr/bin/env python3
"""attention.py -- causal attention of long sequences in float64 by PyTorch: outputs, log-sums and gradients of a few rows.

    tests/parity/attention.py > tests/parity/attention.json

The file is committed; tests/unit/kernels_attention_long.c makes the same bfloat16 inputs (values()) and compares. Needs the
Python packages torch and numpy. Hidden size 1024; the last kv head and its query heads of each case.
"""
import json, sys

import numpy, torch

HIDDEN, SHARP = 1024, 4.0  # q is SHARP times larger: scores have a standard deviation of 1.3
CASES = [dict(T=T, D=D, group=group) for T in (300, 2049, 5000) for D in (64, 128) for group in (2, 4)]


def values(name, first, num):
    """bfloat16 numbers of [-1, 1) from element `first` of the array `name` on, as float64."""
    x = (numpy.arange(first, first + num, dtype=numpy.uint64) * 2654435761 + ord(name) * 40503) & 0xFFFFFFFF
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x ^= x >> shift
        x = (x * factor) & 0xFFFFFFFF
    x ^= x >> 16
    x = (x >> 24).astype(numpy.float64) / 128 - 1  # 8 bits: bfloat16 has them
    return torch.from_numpy(x)


def head_of(name, T, cols, head, D):
    """[T, D] of one head of [T, cols]."""
    return values(name, 0, T * cols).reshape(T, cols)[:, head * D:(head + 1) * D].clone()


def golden(T, D, group):
    heads, kv_heads = HIDDEN // D, HIDDEN // D // group
    kv_cols = kv_heads * D
    k, v = (head_of(name, T, kv_cols, kv_heads - 1, D).requires_grad_() for name in "kv")
    rows = sorted({r for r in (0, 1, 63, 64, 129, T // 2, 511, 512, 1536, 2047, T - 65, T - 1) if r < T})
    mine, columns = [heads - group, heads - 1], [0, 5, D // 2 + 1, D - 1]
    out = dict(T=T, D=D, group=group, rows=rows, heads=mine, columns=columns)
    hidden_keys = torch.ones(T, T, dtype=torch.bool).triu(1)
    o, lse, dq = {}, {}, {}
    for head in range(heads - group, heads):
        q = (head_of("q", T, HIDDEN, head, D) * SHARP).requires_grad_()
        s = (q @ k.T / D**0.5).masked_fill(hidden_keys, float("-inf"))
        x = torch.softmax(s, -1) @ v
        x.backward(head_of("g", T, HIDDEN, head, D))
        o[head], lse[head], dq[head] = x.detach(), torch.logsumexp(s, -1).detach(), q.grad
        del s, x
    digits = lambda x: [float(f"{float(e):.6g}") for e in x]
    cells = lambda x: digits(x[head][row, column] for row in rows for head in mine for column in columns)
    out.update(o=cells(o), dq=cells(dq), lse=digits(lse[head][row] for row in rows for head in mine))
    out.update({name: digits(x.grad[row, column] for row in rows for column in columns) for name, x in (("dk", k), ("dv", v))})
    return out


cases = [golden(**case) for case in CASES]
print(json.dumps(dict(versions=dict(torch=torch.__version__), cases=cases)).replace('{"T"', '\n{"T"'))
