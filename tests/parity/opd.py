#!/usr/bin/env python3
"""opd.py -- advantages of on-policy distillation by torch in float64, for tests/unit/formula_opd.c.

    tests/parity/opd.py > tests/parity/opd.json

Rows are padded here and ragged there. The order is that of ROLL: the estimator's advantages, less the coefficient times
the distance of student and teacher over the final mask, then whitening, then the mask, then the clip; the pure form has
no rewards. The file is committed. Needs the Python package torch.
"""
import itertools, json, sys

import torch

torch.manual_seed(11)
torch.set_default_dtype(torch.float64)
LENGTHS, GROUP, WIDTH = [4, 1, 0, 6, 3, 5], 3, 6
N = len(LENGTHS)
real = torch.arange(WIDTH) < torch.tensor(LENGTHS)[:, None]
student = (-3 * torch.rand(N, WIDTH)).round(decimals=3)
teacher = (student + torch.randn(N, WIDTH)).clamp(max=-0.001).round(decimals=3)
scores = torch.tensor([1.0, 0.0, 0.5, -1.0, 1.0, 1.0])
final = real & (torch.rand(N, WIDTH) < 0.8)


def distance(kind):
    d = student - teacher
    return {"kl": d, "abs": d.abs(), "mse": d.square() / 2}[kind]


def from_rewards(estimator, gamma):
    """Discounted sums of rewards that stand at each row's last token, over the final mask."""
    r = scores
    if estimator == "grpo":
        g = r.view(-1, GROUP)
        r = ((g - g.mean(1, keepdim=True)) / (g.std(1, keepdim=True) + 1e-6)).flatten()
    at, out = torch.zeros(N, WIDTH), torch.zeros(N, WIDTH)
    for i, n in enumerate(LENGTHS):
        if n:
            at[i, n - 1] = r[i]
    at = at * final
    for t in range(WIDTH):
        out[:, t] = (at[:, t:] * gamma ** torch.arange(WIDTH - t)).sum(1)
    return out


def advantages(c):
    kl = c["opd_kl_coef"] * distance(c["kl_penalty"])
    raw = -kl if c.get("is_pure_opd") else from_rewards(c["adv_estimator"], c["gamma"])
    a = raw if c.get("is_pure_opd") else raw - kl
    if c["whiten_advantages"]:
        x = a[final]
        a = (a - x.mean()) * torch.rsqrt(x.var() + 1e-8)
    a = a * final
    return raw, a if c["advantage_clip"] is None else a.clamp(-c["advantage_clip"], c["advantage_clip"])


def rows(x):
    return [[float(f"{v:.10g}") for v in row[:n].tolist()] for row, n in zip(x, LENGTHS)]


cases = []
for kind, whiten, clip, form in itertools.product(["kl", "abs", "mse"], [False, True], [None, 0.7],
                                                        ["grpo", "reinforce", "pure"]):
    c = dict(kl_penalty=kind, opd_kl_coef=0.3, whiten_advantages=whiten, advantage_clip=clip, gamma=0.9,
             adv_estimator="reinforce" if form == "pure" else form)
    c["is_pure_opd" if form == "pure" else "use_opd"] = True
    raw, a = advantages(c)
    cases.append(dict(config=c, want=dict(advantages=rows(a), raw_advantages=rows(raw), opd_kl=rows(distance(kind)))))
batch = dict(scores=scores.tolist(), group=GROUP, old_log_probs=rows(student), teacher_log_probs=rows(teacher),
             final_mask=[[int(v) for v in row[:n]] for row, n in zip(final, LENGTHS)])
json.dump(dict(torch=torch.__version__.split("+")[0], batch=batch, cases=cases), sys.stdout, separators=(",", ":"))
print()
