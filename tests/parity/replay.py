#!/usr/bin/env python3
"""replay.py -- what a changed reward and a changed learning rate would have made of a step (croll replay --set), in float64.

    tests/parity/replay.py --croll build/release/croll --model MODEL [--only PART] [--steps 4] [--keep FOLDER]

Each case is a run whose AdamW has an epsilon far above its moments, so that an update is nearly the gradient times the learning
rate: rounding errors of single elements are not made steps of full size. In the last step the reward of the first sample whose group has
two kinds is set to another, with another learning rate. A model of Transformers in float64 takes the weights that the step began with and
the recorded samples, and computes with the changed reward: loss, the gradient's norm, and the next weights, whose
difference from the ones before is the gradient. Printed are the differences from the replay's, of the loss relative to the sum of the absolute values it adds up, of weights relative to the largest
step of any; and how far the step as it was is from the changed one, on the same scale. The norm of the gradient of that sample alone is croll why's. Exits 1 if one is above --tolerance.
Needs the Python packages torch and transformers, and a MODEL with a tokenizer (the quickstart's sft_model).
"""
import json, sys

here = sys.path.pop(0)
import safetensors.torch, torch

sys.path.append(here)
import runs
from policy_loss import aggregate, token_loss
from run_losses import DEFAULTS, SCORER, WORDS, YAML, Follower, advantages

torch.set_default_dtype(torch.float64)
EPSILON, LR, CHANGED_LR = 0.5, 0.02, 0.5
REFERENCE = "{model_args: {dtype: fp32}, strategy_args: {strategy_name: fsdp2_infer, strategy_config: {param_dtype: fp32}}, device_mapping: [0], infer_batch_size: 8}"


def cases():
    yield dict()
    yield dict(loss_agg_mode="token-mean", use_kl_loss=True, kl_loss_coef=0.2, max_grad_norm=0.05)
    yield dict(pg_variant="sapo", loss_agg_mode="seq-mean-token-sum", entropy_loss_coef=0.02)


def overrides(case):
    words = ["ppo_epochs=1", f"actor_train.training_args.adam_epsilon={EPSILON}", f"actor_train.training_args.learning_rate={LR}"]
    for key, value in case.items():
        words.append(f"{'actor_train.' if key == 'pg_variant' else ''}{key}={json.dumps(value)}")
    return words + ([f"reference={REFERENCE}"] if case.get("use_kl_loss") else [])


def derive(case, f, model, rows, only=None):
    """The loss of the samples, and the sum of the absolute values in it; its gradient, or that of one sample's terms, is in the parameters of f."""
    c = dict(DEFAULTS, **case)
    lp, entropy = f.log_probs(rows)
    mask = torch.zeros_like(lp)
    for i, r in enumerate(rows):
        mask[i, :len(r["ids"])] = 1
    A = advantages(rows).unsqueeze(1) * mask
    each = token_loss(c, lp, lp.detach(), A, mask, torch.tensor([float(r["score"]) for r in rows]))
    if case.get("use_kl_loss"):
        with torch.no_grad():
            r = Follower(model).log_probs(rows)[0]
        each = each + c["kl_loss_coef"] * ((r - lp).exp() - (r - lp) - 1).clamp(-10, 10)
    if only:
        alone = torch.tensor([float(r is only) for r in rows]).unsqueeze(1)
        each, entropy = each * alone, entropy * alone
    loss = aggregate(c["loss_agg_mode"], each, mask, 24) - c["entropy_loss_coef"] * aggregate(c["loss_agg_mode"], entropy, mask, 24)
    loss.backward()
    return loss.item(), aggregate(c["loss_agg_mode"], each.abs(), mask, 24).item()


def weights_of(folder):
    return {k: v.double() for k, v in safetensors.torch.load_file(folder / "actor_train" / "model.safetensors").items()}


def check(a, case, run, words):
    last, changed = a.steps - 1, {}
    most = case.get("max_grad_norm", 1.0)
    f = Follower(a.model)
    for step in range(a.steps):  # moments of the steps before
        rows = [json.loads(line) for line in open(run / "rollouts" / f"step-{step:06d}.jsonl")]
        if step > 1:
            f.load(run / f"checkpoint-{step - 1}" / "actor_train" / "model.safetensors")
        if step < last:
            derive(case, f, a.model, rows)
            f.step(LR, most=most, epsilon=EPSILON)
    one = next(r for r in rows for x in rows if x["group"] == r["group"] and x["reward"] != r["reward"])
    out = a.home / f"{run.name}.replay"
    if not runs.croll(a, "replay", run, "--step", last, "--out", out, "--overwrite", "--json", "--set", f"reward.{one['id']}=2.5", "--set",
                      f"actor_train.training_args.learning_rate={CHANGED_LR}"):
        return False
    if not runs.croll(a, "why", run, "--step", last, "--sample", one["id"], "--gradient", "--json", "--overwrite", "--out", a.home / f"{run.name}.why"):
        return False
    alone = json.loads(runs.said)["samples"][0]
    derive(case, f, a.model, rows, only=one)
    worst = {"norm of one sample": abs(alone["gradient_norm"] / f.take_norm() - 1)}
    one["reward"] = one["score"] = 2.5
    before, got, as_it_was = (weights_of(x) for x in (run / f"checkpoint-{last - 1}", out / f"checkpoint-{last}", run / f"checkpoint-{last}"))
    loss, total = derive(case, f, a.model, rows)
    norm = f.step(CHANGED_LR, most=most, epsilon=EPSILON)
    m = next(x for x in map(json.loads, open(out / "metrics.jsonl")) if x["step"] == last)
    want = {k: v for k, v in f.model.state_dict().items() if k in got}
    size = max((want[k] - before[k]).abs().max().item() for k in want)
    worst |= {"loss": abs(m["actor/total_loss"] - loss) / total, "norm": abs(m["actor_train/grad_norm"] - norm) / norm,
              "weights": max((got[k] - want[k]).abs().max().item() for k in want) / size}
    moved = max(((as_it_was[k] - before[k]) * CHANGED_LR / LR - (want[k] - before[k])).abs().max().item() for k in want) / size
    over = [k for k, v in worst.items() if not v <= a.tolerance]
    print(", ".join(f"{k} {v:.1e}{' !' if k in over else ''}" for k, v in worst.items()), f"(by the change {moved:.2f})", " ".join(words)[:120], flush=True)
    return not over and moved > 0.01


def main():
    a = runs.arguments(__doc__, 4, 2e-5)
    runs.prepare(a, YAML, SCORER, [dict(id=str(i), tag="own", prompt=f"{WORDS[i % len(WORDS)]} {'very ' * (i // len(WORDS))}", ground_truth="") for i in range(48)])
    return runs.each(a, cases(), overrides, lambda *of: check(a, *of)) > 0


if __name__ == "__main__":
    sys.exit(main())
