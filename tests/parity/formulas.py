#!/usr/bin/env python3
"""formulas.py -- numbers of torch and Transformers that unit tests compare with.

    tests/parity/formulas.py > tests/parity/formulas.json

Learning-rate schedules (C23), AdamW (C24), the auxiliary loss of routers and its gradient (C33). The file
is committed; run this again when a formula is added. Needs the Python packages torch and transformers.
"""
import json, math, sys

import torch, transformers
from transformers import get_scheduler
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

KINDS = ["linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup", "inverse_sqrt"]


def schedules():
    for kind in KINDS:
        for warmup, steps in ((0, 12), (3, 12), (5, 5), (0, 1)):
            for lr in (2e-3, 1e-6):
                optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
                values = []
                try:
                    scheduler = get_scheduler(kind, optimizer, num_warmup_steps=warmup, num_training_steps=steps)
                    for _ in range(steps + 3):
                        values.append(scheduler.get_last_lr()[0])
                        optimizer.step()
                        scheduler.step()
                except (ValueError, ZeroDivisionError):  # polynomial: the formula needs more steps than warmup
                    pass
                yield dict(kind=kind, learning_rate=lr, warmup_steps=warmup, steps=steps, values=values)


def adamw():
    p = torch.nn.Parameter(torch.tensor([1.0, -2.0, 0.5]))
    optimizer = torch.optim.AdamW([p], lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    for t in range(1, 101):
        p.grad = torch.tensor([math.sin(t * (i + 1)) * 1.5 for i in range(3)])
        optimizer.step()
    return [float(x) for x in p.detach()]


def aux_loss():
    torch.manual_seed(3)
    logits = [(2 * torch.randn(24, 5)).round(decimals=3).requires_grad_() for _ in range(2)]
    loss = load_balancing_loss_func(tuple(logits), num_experts=5, top_k=2)
    loss.backward()
    flat = lambda x: [float(f"{v:.9g}") for v in x.reshape(-1).tolist()]
    return dict(logits=[flat(x.detach()) for x in logits], loss=float(loss.detach()), grads=[flat(x.grad) for x in logits])


json.dump(dict(torch=torch.__version__.split("+")[0], transformers=transformers.__version__, schedules=list(schedules()),
               adamw=adamw(), aux_loss=aux_loss()), sys.stdout, separators=(",", ":"))
print()
