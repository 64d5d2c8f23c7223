"""The policy losses of docs/losses.md in float64 torch: what losses.py and run_losses.py hold croll against.

Rows are padded: [samples, tokens] with a mask. c: the keys of a run.
"""
import torch


def row_mean(x, m):
    return ((x * m).sum(1) / (m.sum(1) + 1e-8)).unsqueeze(1).expand_as(x)


def token_loss(c, lp, old, A, final, scores):
    rho = (lp - old).exp()
    sg, kind = rho.detach(), c.get("pg_variant", "ppo")
    if kind == "ppo":
        if c.get("importance_sampling") == "seq":
            rho = row_mean(lp - old, final).exp()
        low, high = (c["pg_clip_low"], c["pg_clip_high"]) if c.get("use_pg_clip_range") else (c["pg_clip"],) * 2
        loss = -torch.minimum(rho * A, rho.clamp(1 - low, 1 + high) * A)
        bound = -(1 + 2 * c["pg_clip"]) * A
        return torch.where((A < 0) & (loss > bound), bound, loss) if c.get("dual_clip_loss") else loss
    if kind == "vanilla":
        return -A * lp
    if kind == "tis":
        return -sg.clamp(c["tis_lower_bound"], c["tis_upper_bound"]) * A * lp
    if kind == "topr":
        positive = (scores > 0).double().unsqueeze(1)
        return -(c["topr_positive_weight"] * positive + c["topr_negative_weight"] * (1 - positive) * sg.clamp(0, 1)) * A * lp
    if kind == "cispo":
        low, high = 1 - c["cispo_epsilon_low"], 1 + c["cispo_epsilon_high"]
        outside = ((A > 0) & (sg > high)) | ((A < 0) & (sg < low))
        keep = 1 - outside.double() if c["cispo_use_unified_mask"] else 1
        return -sg.clamp(low, high) * A * lp * keep
    if kind == "kimi15":
        return -A * lp + c["kimi15_tau"] / 2 * (lp - old) ** 2
    if kind == "dppo_tv":
        moved = lp.detach().exp() - old.exp()
        keep = torch.where(A > 0, moved <= c["dppo_mask_high"], moved >= -c["dppo_mask_low"])
        return -sg.clamp(max=c["dppo_clip_ratio_c"]) * A * lp * keep
    if kind == "sapo":
        tau = torch.where(A > 0, c["sapo_temperature_pos"], c["sapo_temperature_neg"])
        return -torch.sigmoid(tau * (rho - 1)) * 4 / tau * A
    raise ValueError(kind)


def aggregate(mode, x, m, width, w=1):
    sums, counts = w * (x * m).sum(1), m.sum(1)
    rows = (counts > 0).sum()
    if mode == "token-mean":
        return sums.sum() / counts.sum()
    if mode == "seq-mean-token-sum":
        return sums.sum() / (rows + 1e-8)
    if mode == "seq-mean-token-mean":
        return (sums / (counts + 1e-8)).sum() / (rows + 1e-8)
    return sums.sum() / width / rows
