#!/usr/bin/env python3
"""run_losses.py -- runs of croll with every pg_variant, correction and filter, recomputed in float64.

    tests/parity/run_losses.py --croll build/release/croll --model MODEL [--only PART] [--steps 10] [--keep FOLDER]

Each case is a run of 10 steps with two epochs (so that ratios differ from 1), and with weights that reach the
sampler every other step where a correction is looked at. A model of Transformers in float64 takes the weights that
each step began with from the run's checkpoints, and computes advantages, log-probs, loss, gradient, its norm, clipping
and AdamW from the samples in rollouts/. (Followed from the first weights alone, the two differ by up to 3e-4 after
ten steps with weights of sequences: AdamW makes steps of full size of gradients that are rounding errors.) Printed are the worst differences over the steps: of the loss relative to the sum of the absolute values it
adds up, of the gradient's norm relative to itself. Exits 1 if one is above --tolerance.
Needs the Python packages torch and transformers, and a MODEL with a tokenizer (croll init, stories260k).
"""
import json, sys

here = sys.path.pop(0)  # it has a tokenizers.py of its own
import safetensors.torch, torch, transformers

sys.path.append(here)
import runs
from policy_loss import aggregate, row_mean, token_loss

torch.set_default_dtype(torch.float64)
transformers.utils.logging.disable_progress_bar()
WORDS = ["Once upon a time there was a little", "The big dog and the small cat", "One day Lily went to the park and",
         "Tom had a red ball. He liked to", "In the garden there was a flower that", "Mom said that it was time to eat"]
SCORER = """#!/usr/bin/env python3
import json, sys
for line in sys.stdin:
    row = json.loads(line)
    print(json.dumps({"id": row["id"], "score": len(row["response"]) % 3 - 1}), flush=True)
"""
YAML = """
exp_name: losses
seed: 7
pretrain: {model}
output_dir: {out}
track_with: none
max_steps: {steps}
save_steps: 1
logging_steps: 1000
rollout_batch_size: 4
num_return_sequences_in_group: 4
prompt_length: 64
response_length: 24
adv_estimator: grpo
init_kl_coef: 0.0
ppo_epochs: 2
max_grad_norm: 1.0
actor_train:
  model_args: {{dtype: fp32, disable_gradient_checkpointing: true}}
  training_args: {{learning_rate: 5.0e-4, lr_scheduler_type: constant, weight_decay: 0.01, adam_beta2: 0.95,
    per_device_train_batch_size: 4, gradient_accumulation_steps: 4}}
  data_args: {{file_name: [{home}/rows.jsonl], prompt: prompt, domain_interleave_probs: {{own: 1.0}}}}
  strategy_args: {{strategy_name: fsdp2_train, strategy_config: {{param_dtype: fp32, reduce_dtype: float32}}}}
  device_mapping: "[0]"
  infer_batch_size: 8
actor_infer:
  model_args: {{dtype: fp32}}
  generating_args: {{temperature: 1.0, top_p: 1.0, top_k: -1}}
  strategy_args: {{strategy_name: fsdp2_infer, strategy_config: {{param_dtype: fp32}}}}
  device_mapping: "[0]"
rewards:
  own: {{exec: {home}/score, tag_included: [own], world_size: 1}}
"""
DEFAULTS = dict(pg_clip=0.2, pg_clip_low=0.2, pg_clip_high=0.2, rl_loss_coef=1.0, entropy_loss_coef=0.0,
                topr_positive_weight=1.0, topr_negative_weight=1.0, tis_lower_bound=0.0, tis_upper_bound=1.0,
                cispo_epsilon_low=0.1, cispo_epsilon_high=0.1, cispo_use_unified_mask=False, kimi15_tau=0.1,
                dppo_mask_low=0.2, dppo_mask_high=0.2, dppo_clip_ratio_c=20.0, sapo_temperature_pos=1.0,
                sapo_temperature_neg=1.05, loss_agg_mode="seq-mean-token-mean")
MODES = ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
WORKER_KEYS = ("pg_variant", "topr_", "tis_", "cispo_", "kimi15_", "dppo_", "sapo_", "model_update_frequency")


def cases():
    yield dict()
    yield dict(use_pg_clip_range=True, pg_clip_low=0.05, pg_clip_high=0.1, dual_clip_loss=True)
    yield dict(importance_sampling="seq", loss_agg_mode="token-mean")
    variants = [dict(pg_variant="ppo"), dict(pg_variant="vanilla"), dict(pg_variant="tis"),
                dict(pg_variant="tis", tis_lower_bound=0.9, tis_upper_bound=1.1), dict(pg_variant="topr"),
                dict(pg_variant="topr", topr_positive_weight=0.5, topr_negative_weight=2.0), dict(pg_variant="cispo"),
                dict(pg_variant="cispo", cispo_epsilon_low=0.02, cispo_epsilon_high=0.03, cispo_use_unified_mask=True),
                dict(pg_variant="kimi15"), dict(pg_variant="kimi15", kimi15_tau=2.0), dict(pg_variant="dppo_tv"),
                dict(pg_variant="dppo_tv", dppo_mask_low=0.01, dppo_mask_high=0.02, dppo_clip_ratio_c=1.05),
                dict(pg_variant="sapo"), dict(pg_variant="sapo", sapo_temperature_pos=5.0, sapo_temperature_neg=10.0)]
    for k, v in enumerate(variants):
        yield dict(v, loss_agg_mode=MODES[k % 4])
    for k, grain in enumerate(["token", "geometric", "sequence", "segment"]):
        late = dict(model_update_frequency=2, loss_agg_mode=MODES[k])
        yield dict(late, is_weight=dict(enabled=True, weight_type=grain, upper_bound=1.05))
        wide = 6 if grain == "sequence" else 1
        yield dict(late, filters=[dict(enabled=True, agg_type=grain, ratio_low=1 - 0.03 * wide, ratio_high=1 + 0.03 * wide)])
        yield dict(late, filters=[dict(enabled=True, agg_type=grain, ratio_enabled=False, diff_enabled=True,
                                       diff_low=-0.01 * wide, diff_high=0.02 * wide)])
    yield dict(model_update_frequency=2, pg_variant="cispo", loss_agg_mode="token-mean", entropy_loss_coef=0.01,
               is_weight=dict(enabled=True, weight_type="token", upper_bound=1.05),
               filters=[dict(enabled=True, agg_type="geometric", ratio_low=0.97, ratio_high=1.03)])
    yield dict(difficulty_loss_weight=True)
    yield dict(length_loss_weight=True)
    yield dict(difficulty_loss_weight=True, length_loss_weight=True, loss_agg_mode="token-mean")
    yield dict(critic_warmup=3, pg_variant="tis")
    yield dict(tokens=100, pg_variant="sapo")  # micro-batches by tokens: the same numbers


def overrides(case):
    words = []
    for key, value in case.items():
        if key in ("is_weight", "filters"):
            key = f"train_infer_correction.{key}"
        elif key == "tokens":
            words += ["actor_train.use_dynamic_batching_in_train=true", f"actor_train.max_tokens_per_microbatch_in_train={value}",
                      "actor_train.use_dynamic_batching_in_infer=true", f"actor_train.max_tokens_per_microbatch_in_infer={value}"]
            continue
        elif key.startswith(WORKER_KEYS):
            key = f"actor_train.{key}"
        words.append(f"{key}={json.dumps(value)}")
    return words


# ---- the same in float64 ----


def grains(x, m, finish):
    sums = (x * m).sum(1, keepdim=True).expand_as(x)
    mean = row_mean(x, m)  # one turn: the segment is the response
    return dict(token=finish(x), geometric=finish(mean), segment=finish(mean), sequence=finish(sums))


def correct(c, old, infer, mask):
    ratio = grains(old - infer, mask, torch.exp)
    diff = grains(old.exp() - infer.exp(), mask, lambda v: v)
    weight, keep, w = torch.ones_like(old), torch.ones_like(old), c.get("is_weight")
    if w:
        weight = ratio[w["weight_type"]].clamp(max=w["upper_bound"])
    for f in c.get("filters", []):
        if f.get("ratio_enabled", True):
            keep = keep * (ratio[f["agg_type"]] >= f["ratio_low"]) * (ratio[f["agg_type"]] <= f["ratio_high"])
        if f.get("diff_enabled"):
            keep = keep * (diff[f["agg_type"]] >= f["diff_low"]) * (diff[f["agg_type"]] <= f["diff_high"])
    return weight, keep


def sample_weights(c, rows, mask, final, difficulty):
    w, trained, n = torch.ones(len(rows)), final.sum(1) > 0, mask.sum(1)
    if c.get("difficulty_loss_weight"):
        w = w * (0.5 + 1.5 * torch.tensor([difficulty[r["prompt"]] for r in rows]).clamp(0, 1))
    if c.get("length_loss_weight"):
        least, most = n[trained].min(), n[trained].max()
        w = w * (1.5 - (n - least) / (most - least + 1e-8))
    w = w * trained
    return w * trained.sum() / (w.sum() + 1e-8)


class Follower:
    def __init__(self, folder):
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).train()
        self.params = [p for p in self.model.parameters()]
        self.m = [torch.zeros_like(p) for p in self.params]
        self.v = [torch.zeros_like(p) for p in self.params]
        self.updates = 0

    def load(self, file):
        self.model.load_state_dict(safetensors.torch.load_file(file), strict=False)

    def log_probs(self, rows):
        ids = [r["prompt_ids"] + r["ids"] for r in rows]
        width, most = max(map(len, ids)), max(len(r["ids"]) for r in rows)
        packed = torch.tensor([x + [0] * (width - len(x)) for x in ids])
        logits = self.model(packed, attention_mask=torch.tensor([[1] * len(x) + [0] * (width - len(x)) for x in ids])).logits
        every = logits.log_softmax(-1)
        lp, entropy = torch.zeros(len(rows), most), torch.zeros(len(rows), most)
        for i, r in enumerate(rows):
            at = torch.arange(len(r["prompt_ids"]) - 1, len(ids[i]) - 1)
            lp[i, :len(at)] = every[i, at, packed[i, at + 1]]
            entropy[i, :len(at)] = -(every[i, at].exp() * every[i, at]).sum(-1)
        return lp, entropy

    def take_norm(self):
        norm = torch.stack([p.grad.pow(2).sum() for p in self.params]).sum().sqrt().item()
        for p in self.params:
            p.grad = None
        return norm

    def step(self, lr=5e-4, beta1=0.9, beta2=0.95, decay=0.01, most=1.0, epsilon=1e-8):
        """AdamW on the gradients, clipped; the norm before."""
        norm = torch.stack([p.grad.pow(2).sum() for p in self.params]).sum().sqrt()
        scale, self.updates = min(1.0, most / (norm.item() + 1e-6)), self.updates + 1
        with torch.no_grad():
            for p, m, v in zip(self.params, self.m, self.v):
                g = p.grad * scale
                m.mul_(beta1).add_(g, alpha=1 - beta1)
                v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
                p.mul_(1 - lr * decay)
                p.sub_(lr * (m / (1 - beta1 ** self.updates)) / ((v / (1 - beta2 ** self.updates)).sqrt() + epsilon))
        for p in self.params:
            p.grad = None
        return norm.item()


def advantages(rows):
    r = torch.tensor([float(x["reward"]) for x in rows]).reshape(-1, 4)
    return ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-6)).reshape(-1)


def follow(case, model, run, difficulty):
    """Worst differences of a run: (loss, gradient norm, share of tokens that are not as on policy)."""
    c, f, worst, moved = dict(DEFAULTS, **case), Follower(model), [0.0, 0.0], []
    metrics = [json.loads(line) for line in open(run / "metrics.jsonl")]
    for step, got in enumerate(metrics):
        rows = [json.loads(line) for line in open(run / "rollouts" / f"step-{step:06d}.jsonl")]
        if step > 1:  # a run saves none after its first step
            f.load(run / f"checkpoint-{step - 1}" / "actor_train" / "model.safetensors")
        mask = torch.zeros(len(rows), max(len(r["ids"]) for r in rows))
        infer = torch.zeros_like(mask)
        for i, r in enumerate(rows):
            mask[i, :len(r["ids"])] = 1
            infer[i, :len(r["ids"])] = torch.tensor(r["log_probs"])
        A, scores = advantages(rows).unsqueeze(1) * mask, torch.tensor([r["score"] for r in rows])
        with torch.no_grad():
            old = f.log_probs(rows)[0]
        weight, keep = correct(c, old, infer, mask)
        final = mask * keep
        w = sample_weights(c, rows, mask, final, difficulty)
        if step < case.get("critic_warmup", 0):
            assert "actor/total_loss" not in got, "an update in the warm-up"
            continue
        if final.sum() == 0:
            assert got["mask/final_mask_sum_eq_0"] == 1
            continue
        losses, norms, size = [], [], 0
        for _ in range(2):  # ppo_epochs
            lp, entropy = f.log_probs(rows)
            each = token_loss(c, lp, old, A, final, scores) * weight
            loss = aggregate(c["loss_agg_mode"], each, final, 24, w)
            loss = loss - c["entropy_loss_coef"] * aggregate(c["loss_agg_mode"], entropy, mask, 24)
            size += aggregate(c["loss_agg_mode"], each.abs(), final, 24, w).item()
            moved.append(((lp - old).abs() * mask).max().item())
            loss.backward()
            losses.append(loss.item())
            norms.append(f.step())
        worst[0] = max(worst[0], abs(sum(losses) - 2 * got["actor/total_loss"]) / size)
        worst[1] = max(worst[1], abs(sum(norms) - 2 * got["actor_train/grad_norm"]) / sum(norms))
    return worst[0], worst[1], max(moved, default=0), got.get("actor/train_infer_final_mask_mean", 1), got.get("actor/clipfrac", 0)


def main():
    a = runs.arguments(__doc__, 10, 1e-4)
    prompts = [f"{WORDS[i % len(WORDS)]} {'very ' * (i // len(WORDS))}" for i in range(48)]
    difficulty = {x: round(i * 0.37 % 1.2, 2) for i, x in enumerate(prompts)}
    runs.prepare(a, YAML, SCORER, [dict(id=str(i), tag="own", prompt=x, ground_truth="", difficulty=difficulty[x]) for i, x in enumerate(prompts)])

    def check(case, run, words):
        loss, norm, moved, kept, clipped = follow(case, a.model, run, difficulty)
        print(f"{loss:9.1e} {norm:9.1e} {moved:9.2f} {kept:6.3f} {clipped:7.3f}  {' '.join(words) or 'ActorWorker'}", flush=True)
        return loss <= a.tolerance and norm <= a.tolerance

    print(f"{'loss':>9} {'grad_norm':>9} {'log-ratio':>9} {'kept':>6} {'clipped':>7}  case")
    return runs.each(a, cases(), overrides, check) > 0


if __name__ == "__main__":
    sys.exit(main())
