#!/usr/bin/env python3
"""formulas.py -- numbers of torch and Transformers that unit tests compare with.

    tests/parity/formulas.py > tests/parity/formulas.json

Learning-rate schedules (C23), AdamW (C24), the auxiliary loss of routers and its gradient (C33). The file
is committed; run this again when a formula is added. Needs the Python packages torch and transformers.
"""
import json, math, sys

sys.path.append(sys.path.pop(0))  # tokenizers.py of this folder is not the package
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


LONG = 1000  # updates, of which every 37th and those around the turning points are kept
KWARGS = [
    ("linear", {}), ("constant", {}), ("constant_with_warmup", {}), ("inverse_sqrt", {}), ("inverse_sqrt", dict(timescale=300)),
    ("cosine", {}), ("cosine", dict(num_cycles=1.25)), ("cosine_with_restarts", {}), ("cosine_with_restarts", dict(num_cycles=3)),
    ("polynomial", {}), ("polynomial", dict(lr_end=1e-6, power=2.5)),
    ("cosine_with_min_lr", dict(min_lr=1e-5)), ("cosine_with_min_lr", dict(min_lr_rate=0.1, num_cycles=0.75)),
    ("cosine_warmup_with_min_lr", dict(min_lr=1e-5)), ("cosine_warmup_with_min_lr", dict(min_lr_rate=0.1, warmup_lr_rate=0.3, num_cycles=0.4)),
    ("warmup_stable_decay", dict(num_decay_steps=300)), ("warmup_stable_decay", dict(num_decay_steps=200, num_stable_steps=500, min_lr_ratio=0.1)),
    ("warmup_stable_decay", dict(num_decay_steps=970)),  # longer than what the warm-up leaves
    *(("warmup_stable_decay", dict(num_decay_steps=300, warmup_type=w, decay_type=d, min_lr_ratio=m, num_cycles=c))
      for w, d, m, c in (("cosine", "linear", 0.05, 0.5), ("1-sqrt", "1-sqrt", 0.0, 0.5), ("linear", "cosine", 0.2, 0.25)))]


def long_schedules():
    for kind, kwargs in KWARGS:
        for warmup in (0, 70):
            lr = 3e-4
            optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
            scheduler = get_scheduler(kind, optimizer, num_warmup_steps=warmup, num_training_steps=LONG, scheduler_specific_kwargs=kwargs)
            values = []
            for _ in range(LONG + 2):
                values.append(scheduler.get_last_lr()[0])
                optimizer.step()
                scheduler.step()
            at = sorted({k for k in range(0, LONG, 37)} | {k for turn in (0, 70, 570, 700, 770, 1000) for k in (turn - 1, turn, turn + 1) if 0 <= k < LONG + 2})
            yield dict(kind=kind, kwargs=kwargs, learning_rate=lr, warmup_steps=warmup, steps=LONG, at=at, values=[values[k] for k in at])


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


json.dump(dict(torch=torch.__version__.split("+")[0], transformers=transformers.__version__, schedules=list(schedules()) + list(long_schedules()),
               adamw=adamw(), aux_loss=aux_loss()), sys.stdout, separators=(",", ":"))
print()
