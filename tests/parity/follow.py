#!/usr/bin/env python3
"""follow.py -- the KL of runs of croll whose reference follows the policy (sync_ref_model), recomputed in float64.

    tests/parity/follow.py --croll build/release/croll --model MODEL [--only PART] [--steps 6] [--keep FOLDER]

Each case is a run on 1, 2 or 4 ranks, with a reference on other meshes. Its references are made again in float64 from the actor's
weights in the checkpoints, alpha x policy + (1 - alpha) x reference after every second step; models of Transformers in float64 take
them and the weights that the step began with, and compute the log-probs of the samples in rollouts/ and with them critic/kl. Printed
are the worst differences, relative to the largest KL. Exits 1 if one is above --tolerance.
Needs the Python packages torch and transformers, and a MODEL with a tokenizer (the quickstart's sft_model).
"""
import json, pathlib, sys

here = sys.path.pop(0)
import safetensors.torch, torch, transformers

sys.path.append(here)
import runs

torch.set_default_dtype(torch.float64)
SCORER = """#!/usr/bin/env python3
import json, sys
for line in sys.stdin:
    row = json.loads(line)
    kind = sum(map(ord, row["response"])) % 7
    print(json.dumps({"id": row["id"], "score": kind % 2, "reward": kind / 3 - 1}), flush=True)
"""
YAML = """
exp_name: follow
seed: 7
pretrain: {model}
output_dir: {out}
track_with: none
max_steps: {steps}
save_steps: 1
max_ckpt_to_keep: 100
logging_steps: 1000
prompt_length: 64
response_length: 10
rollout_batch_size: 8
num_return_sequences_in_group: 4
adv_estimator: grpo
init_kl_coef: 0.05
add_token_level_kl: true
sync_ref_model: true
ref_model_sync_steps: 2
actor_train:
  model_args: {{dtype: fp32, disable_gradient_checkpointing: true}}
  training_args: {{learning_rate: 1.0e-3, lr_scheduler_type: constant_with_warmup, warmup_steps: 1, weight_decay: 0.0, per_device_train_batch_size: 8}}
  data_args: {{file_name: [{home}/rows.jsonl], prompt: prompt, domain_interleave_probs: {{own: 1.0}}}}
  strategy_args: {{strategy_name: fsdp2_train, strategy_config: {{param_dtype: fp32, reduce_dtype: float32}}}}
  device_mapping: [0]
  infer_batch_size: 8
actor_infer:
  model_args: {{dtype: fp32}}
  generating_args: {{temperature: 1.0, top_p: 1.0, top_k: -1}}
  strategy_args: {{strategy_name: fsdp2_infer, strategy_config: {{param_dtype: fp32}}}}
  device_mapping: [0]
reference:
  model_args: {{dtype: fp32}}
  strategy_args: {{strategy_name: fsdp2_infer, strategy_config: {{param_dtype: fp32}}}}
  device_mapping: [0]
  infer_batch_size: 8
rewards:
  own: {{exec: {home}/score, tag_included: [own], world_size: 1}}
"""


def cases():
    yield dict(actor=1, fsdp=1, reference=[0], shards=1, alpha=0.6)
    yield dict(actor=2, fsdp=2, reference=[0, 1], shards=2, alpha=0.6)
    yield dict(actor=2, fsdp=2, reference=[2, 3, 4], shards=3, alpha=0.3)
    yield dict(actor=4, fsdp=2, reference=[0, 1], shards=2, alpha=0.6)
    yield dict(actor=4, fsdp=4, reference=[0, 1, 2, 3], shards=2, alpha=1.0)


def overrides(case):
    ranks = list(range(case["actor"]))
    return [f"ref_model_mixup_alpha={case['alpha']}", f"actor_train.device_mapping={ranks}", f"actor_infer.device_mapping={ranks}",
            f"actor_train.strategy_args.strategy_config.fsdp_size={case['fsdp']}", f"reference.device_mapping={case['reference']}",
            f"reference.strategy_args.strategy_config.fsdp_size={case['shards']}",
            f"actor_train.training_args.gradient_accumulation_steps={4 // case['actor']}"]


def weights(folder):
    return {k: v.double() for k, v in safetensors.torch.load_file(folder / "model.safetensors").items()}


def log_probs(model, row):
    ids = torch.tensor([row["prompt_ids"] + row["ids"]])
    with torch.no_grad():
        all = model(ids).logits[0, :-1].log_softmax(-1)
    return all.gather(-1, ids[0, 1:, None])[-len(row["ids"]):, 0]


def main(a):
    rows = [dict(id=str(i), prompt=f"sum {i}+{7 * i % 10}=", ground_truth=str(i + 7 * i % 10), tag="own") for i in range(64)]
    runs.prepare(a, YAML, SCORER, rows)
    model = transformers.AutoModelForCausalLM.from_pretrained(a.model).double().eval()
    start = weights(pathlib.Path(a.model))

    def check(case, run, words):
        reference, policy, worst, largest = start, start, 0, 0
        for step, line in enumerate((run / "metrics.jsonl").read_text().splitlines()):
            samples = [json.loads(x) for x in (run / f"rollouts/step-{step:06d}.jsonl").read_text().splitlines()]
            of = []
            for now in (policy, reference):
                model.load_state_dict(now, strict=False)
                of.append([log_probs(model, x) for x in samples])
            kl = sum(float((p - r).mean()) for p, r in zip(*of)) / len(samples)
            got = json.loads(line)
            worst, largest = max(worst, abs(got["critic/kl"] - kl)), max(largest, abs(kl))
            assert got["reference/synced_step"] == step // 2 * 2
            if step == 0:
                continue  # not saved, and of learning rate 0
            policy = weights(run / f"checkpoint-{step}/actor_train")
            if (step + 1) % 2 == 0:
                reference = {k: case["alpha"] * policy[k] + (1 - case["alpha"]) * v for k, v in reference.items()}
        worst /= largest
        print(f"{worst:.1e} of {largest:.2g}", " ".join(words))
        return worst <= a.tolerance

    return runs.each(a, list(cases()), overrides, check)


if __name__ == "__main__":
    sys.exit(bool(main(runs.arguments(__doc__, 6, 1e-4))))
