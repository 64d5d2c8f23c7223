#!/usr/bin/env python3
"""losses.py -- policy losses, train/infer correction and their gradients by torch's autograd in float64.

    tests/parity/losses.py > tests/parity/losses.json

Each case is a request of `croll formula loss` and its answer, computed here from the definitions of the
papers (docs/losses.md) on padded [rows, width] tensors; unit_formula_loss holds the program's answer
against it. Needs the Python package torch.
"""
import json, sys

import torch

from policy_loss import aggregate, row_mean, token_loss

torch.set_default_dtype(torch.float64)
LENGTHS = [7, 1, 5, 9, 3]
N, W = len(LENGTHS), max(LENGTHS)
DEFAULTS = dict(pg_clip=0.2, pg_clip_low=0.2, pg_clip_high=0.2, rl_loss_coef=1, kl_loss_coef=0, entropy_loss_coef=0,
                topr_positive_weight=1, topr_negative_weight=1, tis_lower_bound=0, tis_upper_bound=1,
                cispo_epsilon_low=0.1, cispo_epsilon_high=0.1, cispo_use_unified_mask=False, kimi15_tau=0.1,
                dppo_mask_low=0.2, dppo_mask_high=0.2, dppo_clip_ratio_c=20, sapo_temperature_pos=1,
                sapo_temperature_neg=1.05)


def batch():
    g = torch.Generator().manual_seed(11)
    normal = lambda *s: torch.randn(*s, generator=g).round(decimals=3)
    real = torch.tensor([[t < n for t in range(W)] for n in LENGTHS]).double()
    old = -normal(N, W).abs() - 0.05
    lp = (old + 0.5 * normal(N, W)).clamp(max=-0.01)
    mask = real * (torch.rand(N, W, generator=g) < 0.85)
    final = mask.clone()
    final[2] = 0  # a sample that a mask dropped
    return dict(log_probs=lp, old_log_probs=old, ref_log_probs=old + 0.4 * normal(N, W),
                infer_log_probs=old + 0.15 * normal(N, W), entropy=normal(N, W).abs(), advantages=normal(N, W),
                mask=mask, final_mask=final, scores=torch.tensor([1.0, 0, 1, 0, 0.5]),
                weights=torch.tensor([0.7, 1.3, 1, 0.9, 1.1])), real


def segments(x, m):
    """The mean of each run of 1s, on that run."""
    out = torch.zeros_like(x)
    for i in range(N):
        t = 0
        while t < W:
            end = t
            while end < W and m[i, end] != 0:
                end += 1
            if end > t:
                out[i, t:end] = x[i, t:end].sum() / (end - t + 1e-8)
            t = max(end, t + 1)
    return out


def grains(x, m, finish):
    return dict(token=finish(x), geometric=finish(row_mean(x, m)), segment=finish(segments(x, m)),
                sequence=finish((x * m).sum(1, keepdim=True).expand_as(x)))


def correction(b, config):
    x = b["old_log_probs"] - b["infer_log_probs"]
    ratio = grains(x, b["mask"], torch.exp)
    diff = grains(b["old_log_probs"].exp() - b["infer_log_probs"].exp(), b["mask"], lambda v: v)
    weight, keep = torch.ones(N, W), torch.ones(N, W)
    w = config.get("is_weight", {})
    if w.get("enabled"):
        weight = ratio[w.get("weight_type", "token")].clamp(max=w["upper_bound"] or float("inf"))
    for f in config.get("filters", []):
        if not f["enabled"]:
            continue
        r, d = ratio[f["agg_type"]], diff[f["agg_type"]]
        if f.get("ratio_enabled", True):
            keep = keep * (r >= f.get("ratio_low", 0.8)) * (r <= f.get("ratio_high", 1.2))
        if f.get("diff_enabled", False):
            keep = keep * (d >= f.get("diff_low", -0.2)) * (d <= f.get("diff_high", 0.2))
    return weight, keep


def answer(b, real, config):
    c = dict(DEFAULTS, **config)
    lp, entropy = b["log_probs"].clone().requires_grad_(), b["entropy"].clone().requires_grad_()
    mask, final, mode = b["mask"], b["final_mask"], c["loss_agg_mode"]
    weight = 1
    if "train_infer_correction" in c:
        weight, keep = correction(b, c["train_infer_correction"])
        mask, final = mask * keep, final * keep
    pg = token_loss(c, lp, b["old_log_probs"], b["advantages"], final, b["scores"]) * weight
    r = b["ref_log_probs"] - lp
    kl = aggregate(mode, (r.exp() - r - 1).clamp(-10, 10), final, W)
    total = c["rl_loss_coef"] * (aggregate(mode, pg, final, W, b["weights"]) + (c["kl_loss_coef"] * kl if c.get("use_kl_loss") else 0))
    total = total - c["entropy_loss_coef"] * aggregate(mode, entropy, b["mask"], W)
    total.backward()
    ragged = lambda x: [[float(f"{v:.15g}") for v in x[i, :n].tolist()] for i, n in enumerate(LENGTHS)]
    grad_entropy = entropy.grad if entropy.grad is not None else torch.zeros(N, W)
    return dict(total_loss=total.item(), pg_loss=aggregate(mode, pg, final, W).item(), kl_loss=kl.item(),
                entropy_loss=aggregate(mode, entropy, b["mask"], W).item(), grad_log_probs=ragged(lp.grad),
                grad_entropy=ragged(grad_entropy), approxkl=aggregate(mode, 0.5 * (lp - b["old_log_probs"]) ** 2, mask, W).item())


MODES = ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
KINDS = [dict(pg_variant="ppo"), dict(pg_variant="ppo", importance_sampling="seq", use_pg_clip_range=True, pg_clip_low=0.1, pg_clip_high=0.3),
         dict(pg_variant="ppo", dual_clip_loss=True, pg_clip=0.05), dict(pg_variant="vanilla"), dict(pg_variant="tis"),
         dict(pg_variant="tis", tis_lower_bound=0.6, tis_upper_bound=1.5), dict(pg_variant="topr"),
         dict(pg_variant="topr", topr_positive_weight=0.5, topr_negative_weight=2), dict(pg_variant="cispo"),
         dict(pg_variant="cispo", cispo_epsilon_low=0.3, cispo_epsilon_high=0.2, cispo_use_unified_mask=True),
         dict(pg_variant="kimi15"), dict(pg_variant="kimi15", kimi15_tau=0.7), dict(pg_variant="dppo_tv"),
         dict(pg_variant="dppo_tv", dppo_mask_low=0.05, dppo_mask_high=0.1, dppo_clip_ratio_c=1.1), dict(pg_variant="sapo"),
         dict(pg_variant="sapo", sapo_temperature_pos=2, sapo_temperature_neg=5)]
GRAINS = ["token", "geometric", "sequence", "segment"]


def cases():
    for k, kind in enumerate(KINDS):
        yield dict(kind, loss_agg_mode=MODES[k % 4])
        yield dict(kind, loss_agg_mode=MODES[(k + 1) % 4], use_kl_loss=True, kl_loss_coef=0.3, entropy_loss_coef=0.05, rl_loss_coef=0.7,
                   train_infer_correction=dict(is_weight=dict(enabled=True, weight_type=GRAINS[k % 4], upper_bound=1.05)))
    for k, grain in enumerate(GRAINS):
        for mode in MODES:
            ratio = dict(enabled=True, agg_type=grain, ratio_low=0.9, ratio_high=1.1)
            diff = dict(enabled=True, agg_type=grain, ratio_enabled=False, diff_enabled=True, diff_low=-0.03, diff_high=0.04)
            for filters in ([ratio], [diff], [ratio, diff, dict(enabled=False, agg_type="token", ratio_low=5, ratio_high=6)]):
                yield dict(pg_variant="ppo", loss_agg_mode=mode, entropy_loss_coef=0.1, train_infer_correction=dict(
                    filters=filters, is_weight=dict(enabled=k % 2 == 0, weight_type="token", upper_bound=None)))


b, real = batch()
rows = {k: (v.tolist() if v.dim() == 1 else [[round(x, 6) for x in v[i, :n].tolist()] for i, n in enumerate(LENGTHS)]) for k, v in b.items()}
for key in ("mask", "final_mask"):
    rows[key] = [[int(x) for x in r] for r in rows[key]]
b = {k: (v.round(decimals=6) if v.dim() == 2 else v) for k, v in b.items()}
json.dump(dict(torch=torch.__version__.split("+")[0], batch=rows, cases=[dict(config=c, want=answer(b, real, c)) for c in cases()]),
          sys.stdout, separators=(",", ":"))
print()
