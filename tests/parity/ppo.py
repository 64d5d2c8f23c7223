#!/usr/bin/env python3
"""ppo.py -- runs of croll with a critic (adv_estimator gae), recomputed in float64.

    tests/parity/ppo.py --croll build/release/croll --model MODEL [--only PART] [--steps 5] [--keep FOLDER]

Each case is a run of 5 steps with one update of both roles a step. Models of Transformers in float64 (the critic a
ForTokenClassification, as croll saves it) take the weights that each step began with from the run's checkpoints, and
compute, from the samples in rollouts/: values, returns, advantages, both losses, the norms of both gradients, and the
critic's weights after AdamW. Some samples are cut off at response_length, some have no verdict, some are left out by a mask. The
first head of the critic comes from files, in Transformers' and in TRL's form. All of it once more with another reward in the last step (croll replay
--set). Printed are the worst differences, relative
to the largest value of their kind. Exits 1 if one is above --tolerance.
Needs the Python packages torch and transformers, and a MODEL with a tokenizer (the quickstart's sft_model).
"""
import json, os, pathlib, shutil, sys

here = sys.path.pop(0)
import safetensors.torch, torch, transformers

sys.path.append(here)
import runs
from policy_loss import aggregate, token_loss
from run_losses import DEFAULTS, Follower

torch.set_default_dtype(torch.float64)
LIMIT = 10  # tokens of a response
SCORER = """#!/usr/bin/env python3
import json, sys
for line in sys.stdin:
    row = json.loads(line)
    kind = sum(map(ord, row["response"])) % 7
    print(json.dumps({"id": row["id"], "status": "error", "detail": "none"} if kind == 0 else {"id": row["id"], "score": kind % 2, "reward": kind / 3 - 1}), flush=True)
"""
WORKER = """
  strategy_args: {{strategy_name: fsdp2_train, strategy_config: {{param_dtype: fp32, reduce_dtype: float32}}}}
  device_mapping: "[0]"
  infer_batch_size: 8"""
YAML = """
exp_name: ppo
seed: 7
pretrain: {model}
reward_pretrain: {home}/critic
output_dir: {out}
track_with: none
max_steps: {steps}
save_steps: 1
logging_steps: 1000
prompt_length: 64
response_length: 10
adv_estimator: gae
init_kl_coef: 0.0
max_grad_norm: 0.05
actor_train:
  model_args: {{dtype: fp32, disable_gradient_checkpointing: true}}
  training_args: {{learning_rate: 5.0e-5, lr_scheduler_type: constant_with_warmup, weight_decay: 0.01, adam_beta2: 0.95,
    per_device_train_batch_size: 4, gradient_accumulation_steps: 4, warmup_steps: 1}}
  data_args: {{file_name: [{home}/rows.jsonl], prompt: prompt, domain_interleave_probs: {{own: 1.0}}}}""" + WORKER + """
critic:
  model_args: {{dtype: fp32, disable_gradient_checkpointing: true}}
  training_args: {{learning_rate: 2.0e-4, lr_scheduler_type: linear, weight_decay: 0.1, adam_beta1: 0.8, adam_beta2: 0.9,
    per_device_train_batch_size: 8, gradient_accumulation_steps: 2}}""" + WORKER + """
actor_infer:
  model_args: {{dtype: fp32}}
  generating_args: {{temperature: 1.0, top_p: 1.0, top_k: -1}}
  strategy_args: {{strategy_name: fsdp2_infer, strategy_config: {{param_dtype: fp32}}}}
  device_mapping: "[0]"
rewards:
  own: {{exec: {home}/score, tag_included: [own], world_size: 1}}
"""


def cases():
    yield dict(n=4)
    yield dict(n=1, gamma=0.97, lambd=0.8, whiten_advantages=True, advantage_clip=1.5)
    yield dict(n=4, max_len_mask=True, whiten_rewards=True, value_clip=0.2, head="trl")
    yield dict(n=1, max_len_mask=True, reward_clip=0.5, critic_warmup=2)


def overrides(case):
    words = [f"num_return_sequences_in_group={case['n']}", f"rollout_batch_size={16 // case['n']}"]
    if "head" in case:
        words += ["critic.model_args.model_type=trl", f"reward_pretrain={{home}}/trl"]
    return words + [f"{k}={json.dumps(v)}" for k, v in case.items() if k not in ("n", "head")]


class Critic(Follower):
    """Its updates are AdamW's of run_losses.py, with other numbers."""

    def __init__(self, folder):
        self.model = transformers.AutoModelForTokenClassification.from_pretrained(folder, dtype=torch.float64).train()
        self.params = list(self.model.parameters())
        self.m = [torch.zeros_like(p) for p in self.params]
        self.v = [torch.zeros_like(p) for p in self.params]
        self.updates = 0

    def values(self, rows):
        ids = [r["prompt_ids"] + r["ids"] for r in rows]
        width, most = max(map(len, ids)), max(len(r["ids"]) for r in rows)
        packed = torch.tensor([x + [0] * (width - len(x)) for x in ids])
        every = self.model(packed, attention_mask=torch.tensor([[1] * len(x) + [0] * (width - len(x)) for x in ids])).logits
        out = torch.zeros(len(rows), most)
        for i, r in enumerate(rows):
            first = len(r["prompt_ids"]) - 1  # the state in which the first token is chosen
            out[i, :len(r["ids"])] = every[i, first:first + len(r["ids"]), 0]
        return out


def whiten(x, mask):
    """Over the mask; unbiased."""
    m = mask.bool()
    return (x - x[m].mean()) / torch.sqrt(x[m].var() + 1e-8)


def estimate(c, rows, values, final):
    """Returns and advantages, token by token."""
    r, returns, raw = torch.zeros_like(values), torch.zeros_like(values), torch.zeros_like(values)
    for i, row in enumerate(rows):
        if row["status"] == "ok":
            clip = c.get("reward_clip", 1e9)
            r[i, len(row["ids"]) - 1] = min(max(row["reward"], -clip), clip)
    if c.get("whiten_rewards"):
        r = whiten(r, final)
    r = r * final
    for i, row in enumerate(rows):
        for t in range(len(row["ids"])):  # a double loop: sums of the errors of all later states
            for k in range(t, len(row["ids"])):
                after = values[i, k + 1] if k + 1 < len(row["ids"]) else 0
                delta = r[i, k] + c.get("gamma", 1) * after - values[i, k]
                raw[i, t] += (c.get("gamma", 1) * c.get("lambd", 0.95)) ** (k - t) * delta
            returns[i, t] = raw[i, t] + values[i, t]
    adv = whiten(raw, final) if c.get("whiten_advantages") else raw
    clip = c.get("advantage_clip", 1e9)
    return returns, (adv * final).clamp(-clip, clip)


def column(rows, name, like):
    out = torch.zeros_like(like)
    for i, r in enumerate(rows):
        x = r[name] if isinstance(r[name], list) else [r[name]] * len(r["ids"])
        out[i, :len(x)] = torch.tensor(x)
    return out


class Worst(dict):
    def see(self, name, got, want, size=None):
        got, want = torch.as_tensor(got), torch.as_tensor(want)
        size = size or want.abs().max().item() or 1
        self[name] = max(self.get(name, 0), (got - want).abs().max().item() / size)

    def see_weights(self, name, follower, file):
        got = safetensors.torch.load_file(file)
        for key, want in follower.model.state_dict().items():
            if key in got:
                self.see(name, got[key].double(), want, 1)


def follow(case, model, home, run):
    c, worst, seen = dict(DEFAULTS, **case), Worst(), dict(cut=0, silent=0, masked=0)
    actor, critic = Follower(model), Critic(home / "critic")
    steps = [json.loads(line) for line in open(run / "metrics.jsonl")]
    for step, got in enumerate(steps):
        rows = [json.loads(line) for line in open(run / "rollouts" / f"step-{step:06d}.jsonl")]
        if step > 1:  # a run saves none after its first step
            folder = run / f"checkpoint-{step - 1}"
            worst.see_weights("critic's weights", critic, folder / "critic" / "model.safetensors")
            critic.load(folder / "critic" / "model.safetensors")
            actor.load(folder / "actor_train" / "model.safetensors")
        mask = torch.zeros(len(rows), max(len(r["ids"]) for r in rows))
        final = torch.zeros_like(mask)
        for i, r in enumerate(rows):
            cut, silent = len(r["ids"]) == LIMIT, r["status"] != "ok"
            mask[i, :len(r["ids"])] = 1
            final[i, :len(r["ids"])] = not (silent or (cut and case.get("max_len_mask")))
            seen["cut"] += cut
            seen["silent"] += silent
            seen["masked"] += cut and not silent and bool(case.get("max_len_mask"))
        values = critic.values(rows)
        worst.see("values", column(rows, "values", mask), values.detach())
        returns, adv = estimate(c, rows, values.detach(), final)
        worst.see("returns", column(rows, "returns", mask), returns)
        worst.see("advantages", column(rows, "advantage", mask), adv)
        per_row = final.sum(1)
        num = (per_row > 0).sum()

        def mean(x):
            return ((x * final).sum(1) / per_row.clamp(min=1)).sum() / num

        loss = mean(0.5 * (values - returns) ** 2)
        worst.see("critic/loss", got["critic/loss"], loss.detach())
        worst.see("critic/error", got["critic/error"], 2 * loss.detach())
        worst.see("critic/value", got["critic/value"], mean(values).detach(), values.abs().max().item())
        worst.see("critic/vpred", got["critic/vpred"], mean(values).detach(), values.abs().max().item())
        loss.backward()
        lr = 2e-4 * (1 - step / len(steps))
        worst.see("critic/lr", got["critic/lr"], lr)
        worst.see("critic's norm", got["critic/grad_norm"], critic.step(lr, 0.8, 0.9, 0.1, 0.05))
        assert "actor/total_loss" in got or step < case.get("critic_warmup", 0), "no update"
        if "actor/total_loss" not in got:
            continue
        lp, _ = actor.log_probs(rows)
        scores = torch.tensor([float(r["score"] or 0) for r in rows])
        each = token_loss(c, lp, lp.detach(), adv, final, scores)
        loss = aggregate(c["loss_agg_mode"], each, final, LIMIT, torch.ones(len(rows)))
        size = aggregate(c["loss_agg_mode"], each.abs(), final, LIMIT, torch.ones(len(rows))).item()
        worst.see("actor's loss", got["actor/total_loss"], loss.detach(), size)
        loss.backward()
        first = step == case.get("critic_warmup", 0)  # of the warm-up: it moves nothing
        worst.see("actor's norm", got["actor_train/grad_norm"], actor.step(0 if first else 5e-5, most=0.05))
    return worst, seen


def changed(a, run):
    """The run as it had been with another reward in its last step (croll replay --set): its folder, or None."""
    last, out, folder = a.steps - 1, a.home / f"{run.name}.replay", a.home / f"{run.name}.changed"
    name = f"rollouts/step-{last:06d}.jsonl"
    rows = [json.loads(line) for line in open(run / name)]
    one = next(r for r in rows if r["status"] == "ok")
    if not runs.croll(a, "replay", run, "--step", last, "--out", out, "--overwrite", "--set", f"reward.{one['id']}=2.5"):
        return None
    for was, now in zip(rows, map(json.loads, open(out / name)), strict=True):
        assert was["ids"] == now["ids"] and now["reward"] == (2.5 if was is one else was["reward"])
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(run, folder, symlinks=True)
    shutil.copy(out / name, folder / name)
    lines = open(run / "metrics.jsonl").readlines()[:last] + open(out / "metrics.jsonl").readlines()[-1:]
    assert lines[-1] != open(run / "metrics.jsonl").readlines()[last]
    (folder / "metrics.jsonl").write_text("".join(lines))
    return folder


def make_critics(model, home):
    """MODEL with a head in Transformers' form, and the same in TRL's."""
    torch.manual_seed(3)
    m = transformers.AutoModelForTokenClassification.from_pretrained(model, num_labels=1, dtype=torch.float32)
    torch.nn.init.normal_(m.score.weight, 0, 0.05)
    torch.nn.init.constant_(m.score.bias, 0.25)
    m.config.classifier_dropout = 0.0
    m.save_pretrained(home / "critic")
    for name in os.listdir(model):
        for folder in ("critic", "trl"):
            (home / folder).mkdir(exist_ok=True)
            target = home / folder / name
            if not target.exists() and not (folder == "critic" and name.endswith(".safetensors")):
                target.write_bytes((pathlib.Path(model) / name).read_bytes())
    safetensors.torch.save_file({"v_head.summary.weight": m.score.weight.detach(), "v_head.summary.bias": m.score.bias.detach()},
                                home / "trl" / "value_head.safetensors")


def main():
    a = runs.arguments(__doc__, 5, 1e-5)
    make_critics(a.model, a.home)
    runs.prepare(a, YAML, SCORER, [dict(id=str(i), tag="own", prompt=f"the sum of {i * 7 % 100} and {i % 10} is ", ground_truth="") for i in range(96)])

    def check(case, run, words):
        worst, seen = follow(case, a.model, a.home, run)
        with_change = changed(a, run)
        if not with_change:
            return False
        worst |= {f"changed {k}": v for k, v in follow(case, a.model, a.home, with_change)[0].items()}
        over = [k for k, v in worst.items() if not v <= a.tolerance]
        print(" ".join(words), seen)
        print("   ", ", ".join(f"{k} {v:.1e}{' !' if k in over else ''}" for k, v in worst.items()), flush=True)
        return not over

    return runs.each(a, cases(), lambda case: [w.replace("{home}", str(a.home)) for w in overrides(case)], check) > 0


if __name__ == "__main__":
    sys.exit(main())
