#!/usr/bin/env python3
"""rewards.py -- advantages from several rewards of a sample by torch in float64, for tests/unit/formula_loss.c.

    tests/parity/rewards.py > tests/parity/rewards.json

Rewards of three kinds, some missing (NaN here), with weights; groups of 4. sum_then_normalize and normalize_then_sum are
TRL's definitions, with nanmean, deviations over n - 1 and 1e-6 where TRL has 1e-4. A row has one token; a sample without
any reward, or without a verdict, gets 0. The file is committed. Needs the Python package torch.
"""
import itertools, json, sys

import torch

torch.manual_seed(5)
torch.set_default_dtype(torch.float64)
N, KINDS, GROUP, EPS, NAN = 16, 3, 4, 1e-6, float("nan")
rewards = (torch.rand(N, KINDS) * 4 - 2).round(decimals=2)
rewards[torch.rand(N, KINDS) < 0.25] = NAN
rewards[5] = NAN                # nothing to say of sample 5
rewards[8:12] = 0.3             # a group without a difference
rewards[12:15, 1] = NAN         # a kind that one sample of a group has
verdict = torch.ones(N, dtype=torch.bool)
verdict[2] = False


def nanstd(x, dim):
    """Over n - 1; 0 for a single number."""
    n = (~x.isnan()).sum(dim, keepdim=True)
    squares = (x - x.nanmean(dim, keepdim=True)).square().nansum(dim, keepdim=True)
    return torch.where(n > 1, (squares / (n - 1).clamp(min=1)).sqrt(), torch.zeros_like(squares))


def by_group(x):  # [N, K]
    g = x.view(-1, GROUP, x.shape[1])
    return ((g - g.nanmean(1, keepdim=True)) / (nanstd(g, 1) + EPS)).view(x.shape)


def advantages(how, weights):
    w = torch.tensor(weights)
    x = rewards.clone()
    x[~verdict] = NAN
    none = x.isnan().all(1)
    if how == "sum_then_normalize":
        total = (x * w).nansum(1)
        total[none] = NAN
        a = by_group(total[:, None])[:, 0]
    else:
        a = (by_group(x) * w).nansum(1)
        a[none] = NAN
        a = (a - a.nanmean()) / (nanstd(a, 0) + EPS)
    return torch.nan_to_num(a, nan=0.0)


cases = [dict(reward_weights=w, config=dict(adv_estimator="grpo", multi_objective_aggregation=how),
              want=dict(rewards=advantages(how, w).tolist(), advantages=advantages(how, w)[:, None].tolist()))
         for how, w in itertools.product(["sum_then_normalize", "normalize_then_sum"],
                                         [[1.0, 1.0, 1.0], [1.0, 0.2, -0.5], [0.0, 3.0, 0.0]])]
batch = dict(group=GROUP, final_mask=[[1]] * N, verdict=verdict.tolist(),
             rewards=[[None if v != v else v for v in kind] for kind in rewards.T.tolist()])
json.dump(dict(torch=torch.__version__.split("+")[0], batch=batch, cases=cases), sys.stdout, separators=(",", ":"))
print()
