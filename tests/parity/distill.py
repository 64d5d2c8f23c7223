#!/usr/bin/env python3
"""distill.py -- distillation at one position, its loss and gradient by torch's autograd in float64, for tests/unit/rl_distill.c.

    python tests/parity/distill.py > tests/parity/distill.json     (PyTorch, on the CPU)

Six objectives x top-k 4, 64 or the whole vocabulary x divided by the sum over the k, or with an entry for all other ids. Gradients are of the
student's logits; written down here as the formulas of rl/distill.h read, over lists of entries."""
import json, sys

sys.path.append(sys.path.pop(0))  # tokenizers.py of this folder is not the package
import torch

torch.set_default_dtype(torch.float64)
VOCAB, ALPHA, LAMBDA, T, TEACHER_T = 70, 0.5, 0.1, 1.3, 0.8
KINDS = "forward_kl", "reverse_kl", "adaptive_kl", "skewed_forward_kl", "skewed_reverse_kl", "js_divergence"


def logits(seed):
    return (3 * torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)).round(decimals=3)


def entries(x, top, tail):
    if not tail:
        return torch.softmax(x[top], 0)
    p = torch.softmax(x, 0)
    rest = torch.tensor([i for i in range(VOCAB) if i not in set(top.tolist())])
    return torch.cat([p[top], p[rest].sum().reshape(1)])


def kl(a, b):
    return (a * (a.log() - b.log())).sum()


def distance(kind, p, q):
    if kind == "forward_kl":
        return kl(p, q)
    if kind == "reverse_kl":
        return kl(q, p)
    if kind == "adaptive_kl":
        far, (small, order) = (p - q).abs().detach(), torch.sort(p)
        tail = far[order][torch.cumsum(small, 0) <= ALPHA].sum()
        share = tail / far.sum()
        return (1 - share) * kl(p, q) + share * kl(q, p)
    if kind == "skewed_forward_kl":
        return kl(p, LAMBDA * p + (1 - LAMBDA) * q)
    if kind == "skewed_reverse_kl":
        return kl(q, (1 - LAMBDA) * p + LAMBDA * q)
    m, e = (p + q) / 2, 1e-9
    return ((p * ((p + e).log() - (m + e).log())).sum() + (q * ((q + e).log() - (m + e).log())).sum()) / 2


cases, teacher, student = [], logits(1), logits(2)
for kind in KINDS:
    for k, tail in (0, False), (4, False), (4, True), (64, False), (64, True):
        x = student.clone().requires_grad_()
        top = torch.argsort(teacher, descending=True)[:k or VOCAB]
        loss = distance(kind, entries(teacher / T / TEACHER_T, top, tail), entries(x / T, top, tail))
        loss.backward()
        cases.append(dict(kd_objective=kind, logits_topk=k, is_tail=tail, loss=loss.item(), grad=x.grad.tolist()))
head = dict(kd_temperature=T, teacher_temperature=TEACHER_T, adaptive_kl_alpha=ALPHA, skew_lambda=LAMBDA,
            teacher=teacher.tolist(), student=student.tolist())
print(json.dumps(head)[:-1] + ",\"cases\":[\n" + ",\n".join(json.dumps(x) for x in cases) + "]}")
