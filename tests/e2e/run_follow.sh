#!/bin/bash
# run_follow.sh -- `croll run` with sync_ref_model: after every second step the reference of the checkpoint is alpha x the policy + (1 - alpha) x
# the one before, recomputed in float64, and else it stays; the KL of each step is that of the log-probs which croll computes with the
# checkpoint's reference; the same bits whatever ranks and shards the reference has, and on the actor's ranks or its own; alpha 1 in bf16
# copies, so that the KL after a sync is 0; killed and resumed, whole files and parts of hosts; replay; with a critic; dpo; what is refused.
# CROLL_FOLLOW=all: more ranks of both.
# also long: CROLL_FOLLOW=all
. tests/e2e/run.inc
quick_model
cat >$tmp/score <<'PY'
#!/usr/bin/env python3
import json, sys
for line in sys.stdin:
    row = json.loads(line)
    kind = sum(map(ord, row["response"])) % 7
    print(json.dumps({"id": row["id"], "score": kind % 2, "reward": kind / 3 - 1}), flush=True)
PY
chmod +x $tmp/score
keys=(max_steps=6 save_steps=1 max_ckpt_to_keep=10 validation=null rollout_batch_size=8 num_return_sequences_in_group=4 response_length=12
    actor_train.training_args.per_device_train_batch_size=8 actor_train.training_args.gradient_accumulation_steps=2
    actor_train.training_args.learning_rate=1e-3 actor_train.training_args.warmup_steps=0 use_kl_loss=true kl_loss_coef=0.1
    sync_ref_model=true ref_model_sync_steps=2
    "rewards={math_rule: {exec: $tmp/score, tag_included: [sums], world_size: 1}}")
# reference DEVICES FSDP [DTYPE]
reference() {
    echo "reference={model_args: {dtype: ${3:-fp32}}, strategy_args: {strategy_name: fsdp2_infer, strategy_config: {fsdp_size: $2, param_dtype: ${3:-fp32}}}, device_mapping: $1, infer_batch_size: 16}"
}

# followed NAME ALPHA: references of all checkpoints, of those of actor_train in float32
followed() {
    python3 - $tmp/$1 $2 $tmp/home/sft_model <<'PY' || fail "$1: the references of the checkpoints"
import json, struct, sys
from array import array
run, alpha, start = sys.argv[1], float(sys.argv[2]), sys.argv[3]
def tensors(folder):
    data = open(folder + "/model.safetensors", "rb").read()
    n, = struct.unpack("<Q", data[:8])
    head = json.loads(data[8:8 + n])
    head.pop("__metadata__", None)
    assert all(t["dtype"] == "F32" for t in head.values())
    return {k: array("f", data[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]]) for k, t in head.items()}
before, moved = tensors(start), 0
for step in range(1, 6): # step 0 is not saved
    ref = tensors(f"{run}/checkpoint-{step}/reference")
    if (step + 1) % 2 == 0:
        policy = tensors(f"{run}/checkpoint-{step}/actor_train")
        for name, x in ref.items():
            for got, p, old in zip(x, policy[name], before[name]):
                want = alpha * p + (1 - alpha) * old
                assert abs(got - want) <= 2e-7 * (abs(alpha * p) + abs((1 - alpha) * old)), (step, name, got, want)
                moved += got != old
    else:
        assert ref == before, step
    before = ref
assert moved > 100000, moved
PY
}

# kl_of NAME TOLERANCE: the KL of each step is that of the checkpoint's reference
kl_of() {
    for step in 0 1 2 3 4 5; do
        local from=$tmp/$1/checkpoint-$((step - 1))/reference
        [ $step -gt 1 ] || from=$tmp/home/sft_model
        python3 - $tmp/$1 $step <<'PY' >$tmp/lines
import json, sys
for n, line in enumerate(open(f"{sys.argv[1]}/rollouts/step-{int(sys.argv[2]):06d}.jsonl")):
    r = json.loads(line)
    print(json.dumps({"id": n, "input_ids": r["prompt_ids"] + r["ids"]}))
PY
        "$CROLL" logprobs $from model_args.dtype=fp32 <$tmp/lines >$tmp/out 2>$tmp/log || { log=$tmp/log; fail "logprobs of $from"; }
        python3 - $tmp/$1 $step $2 $tmp/out <<'PY' || fail "$1: KL of step $step"
import json, sys
run, step, tolerance = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
m = json.loads(open(run + "/metrics.jsonl").readlines()[step])
rows = [json.loads(x) for x in open(f"{run}/rollouts/step-{step:06d}.jsonl")]
means = []
for r, line in zip(rows, open(sys.argv[4])):
    ref = json.loads(line)["logprobs"][-len(r["ids"]):]
    means.append(sum(a - b for a, b in zip(r["log_probs"], ref)) / len(ref))
got, want = m["math_rule/critic/kl"], sum(means) / len(means)
assert m["reference/synced_step"] == step // 2 * 2 and ("system/reference/sync_bytes" in m) == (step % 2 == 1), m
assert abs(got - want) <= tolerance * (1e-3 + abs(want)), (got, want)
PY
    done
}
# numbers FILE: a line each, without what depends on the ranks of the reference
numbers() {
    timeless $1 | grep -o '"[^"]*":[^,}]*' | grep -v '^"memory/'
}

# same_run NAME: numbers, samples, weights and references of whole
same_run() {
    diff <(numbers $tmp/whole/metrics.jsonl) <(numbers $tmp/$1/metrics.jsonl) >$tmp/diff || { log=$tmp/diff; fail "$1: other numbers"; }
    diff -r $tmp/whole/rollouts $tmp/$1/rollouts >$tmp/diff || { log=$tmp/diff; fail "$1: other samples"; }
    for f in actor_train reference; do
        cmp $tmp/whole/latest/$f/model.safetensors $tmp/$1/latest/$f/model.safetensors || fail "$1: another $f"
    done
}

# good NAME [key=value ..]: a job that ends well
good() {
    job "$@"
    [ $code = 0 ] || fail "$1: exit code $code"
}

# a reference of two shards on the actor's ranks: TRL's alpha
good whole "${keys[@]}" "$(reference '[0, 1]' 2)"
learned whole 6
followed whole 0.6
kl_of whole 1e-3
[ "$(values system/reference/sync_bytes $tmp/whole/metrics.jsonl | head -1)" -lt $(($(stat -c %s $tmp/whole/latest/reference/model.safetensors) * 6 / 10)) ] ||
    fail "a shard of two gets the whole model"

# other ranks of the reference: the same bits
places=('[2, 3, 4] 3' '[0, 1, 2, 3] 2') actors=("4 2")
[ "${CROLL_FOLLOW:-}" != all ] || places+=('[2] 1' '[0, 1] 1' '[0, 1, 2, 3] 4') actors+=("1 1")
for at in "${places[@]}"; do
    good other "${keys[@]}" "$(reference "${at% *}" ${at##* })" --overwrite
    same_run other
done
# other ranks of the actor: the same within what the order of sums changes
for at in "${actors[@]}"; do
    n=${at% *}
    good actor$n "${keys[@]}" "$(reference '[0, 1]' 2)" "actor_train.device_mapping=list(range(0,$n))" actor_train.strategy_args.strategy_config.fsdp_size=${at#* } \
        actor_train.training_args.gradient_accumulation_steps=$((4 / n))
    followed actor$n 0.6
    kl_of actor$n 1e-3
    same whole actor$n math_rule/critic/kl 6
done

# alpha 1 in bf16 copies what the actor computes with: no KL after a sync
good copy "${keys[@]}" "$(reference '[2, 3]' 2 bf16)" ref_model_mixup_alpha=1 actor_train.model_args.dtype=bf16 actor_infer.model_args.dtype=bf16 \
    actor_train.strategy_args.strategy_config.param_dtype=bf16 actor_infer.strategy_args.strategy_config.param_dtype=bf16
values math_rule/critic/kl $tmp/copy/metrics.jsonl | awk '(NR % 2 == 1) != ($1 == 0) { exit 1 }' || fail "KL after a copy"
cmp $tmp/copy/latest/actor_train/model.safetensors $tmp/copy/latest/reference/model.safetensors || fail "a copy is another model"

# killed and resumed; a step again from its files; parts of hosts
killed killed 4 "${keys[@]}" "$(reference '[0, 1]' 2)"
good killed "${keys[@]}" "$(reference '[0, 1]' 2)" resume_from_checkpoint=true
same_run killed
# the same with parts of hosts, and a reference on other ranks
killed others 3 "${keys[@]}" "$(reference '[0, 1, 2]' 3)" checkpoint_config.hosts=each
good others "${keys[@]}" "$(reference '[0, 1]' 2)" checkpoint_config.hosts=each resume_from_checkpoint=true
diff <(numbers $tmp/whole/metrics.jsonl) <(numbers $tmp/others/metrics.jsonl) >$tmp/diff || { log=$tmp/diff; fail "parts: other numbers"; }
"$CROLL" export $tmp/others/latest $tmp/joined --role reference >/dev/null
cmp $tmp/joined/model.safetensors $tmp/whole/latest/reference/model.safetensors || fail "parts: another reference"
for step in 2 3; do
    log=$tmp/replay.log
    "$CROLL" replay $tmp/whole --step $step --out $tmp/again$step >$log 2>&1 </dev/null || fail "replay of step $step: exit code $?"
done

# PPO, and pairs: margins are 0 right after a copy
good ppo "${keys[@]}" "$(reference '[0, 1]' 2)" adv_estimator=gae max_steps=3 ref_model_mixup_alpha=1 "critic={model_args: {model_type: trl, dtype: fp32,
  disable_gradient_checkpointing: true}, training_args: {learning_rate: 1.0e-3, per_device_train_batch_size: 8, gradient_accumulation_steps: 2},
  strategy_args: {strategy_name: fsdp2_train, strategy_config: {fsdp_size: 2, param_dtype: fp32}}, device_mapping: [0, 1], infer_batch_size: 8}"
values math_rule/critic/kl $tmp/ppo/metrics.jsonl | awk '(NR % 2 == 1) != ($1 == 0) { exit 1 }' || fail "ppo: KL after a copy"
dpo=("$CROLL" run configs/quickstart/dpo.yaml pretrain=$tmp/home/sft_model output_dir=$tmp/dpo track_with=none max_steps=6 validation=null
    "actor_train.data_args.file_name=[$tmp/home/pairs.train.jsonl]" actor_train.training_args.warmup_steps=0 sync_ref_model=true
    ref_model_sync_steps=2 ref_model_mixup_alpha=1 "reference.device_mapping=[2]")
log=$tmp/dpo.log
"${dpo[@]}" >$log 2>&1 </dev/null || fail "dpo: exit code $?"
values rewards/margins $tmp/dpo/metrics.jsonl | awk '(NR % 2 == 1) != ($1 == 0) { exit 1 } END { if (NR != 6) exit 1 }' || fail "dpo: margins after a copy"
grep -q 'cache_reference_log_probs is false here' $log || fail "dpo: a cache of what changes"

# what is refused
wrong() {
    local pattern=${@: -1}
    words wrong "${keys[@]}" "${@:1:$#-1}"
    log=$tmp/wrong.log
    "${words[@]}" >$log 2>&1 </dev/null && fail "$*: accepted"
    grep -Eq "error: .*$pattern" $log || fail "$*: another sentence"
}
wrong use_kl_loss=false 'sync_ref_model: there is no reference'
wrong 'reference={service: "http://127.0.0.1:9"}' 'sync_ref_model: the reference is a service'
wrong actor_train.model_args.lora_target=all-linear 'sync_ref_model: actor_train has adapters'
wrong "$(reference '[0, 1]' 2)" actor_train.model_args.lora_target=all-linear 'sync_ref_model: actor_train has adapters'
wrong "$(reference '[0, 1]' 2)" ref_model_mixup_alpha=0 'ref_model_mixup_alpha'
wide_model $tmp/wide
wrong "$(reference '[0, 1]' 2)" reference.model_args.model_name_or_path=$tmp/wide 'sync_ref_model: .*wide has other parameters'
echo ok
