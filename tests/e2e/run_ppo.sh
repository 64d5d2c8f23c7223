#!/bin/bash
# croll run with a critic (adv_estimator: gae). From the files of a run: returns and advantages of the values, both losses
# of the first update, with samples that are cut off, masked or without a verdict, one sample a prompt and several; the
# critic on the actor's devices and on its own gives the same bits; critic_warmup leaves the actor alone; a killed run goes
# on as if it had not been; a critic whose rank dies ends the run. Values, gradients and weights: tests/parity/ppo.py.
. tests/e2e/run.inc
quick_model
critic="critic={model_args: {model_type: trl, dtype: fp32, disable_gradient_checkpointing: true}, training_args: {learning_rate: 1.0e-3,
  warmup_steps: 0, per_device_train_batch_size: 8, gradient_accumulation_steps: 2}, strategy_args: {strategy_name: fsdp2_train,
  strategy_config: {fsdp_size: 2, param_dtype: fp32}}, device_mapping: [0, 1], infer_batch_size: 8}"
cat >$tmp/score <<'PY'
#!/usr/bin/env python3
import json, sys
for line in sys.stdin:
    row = json.loads(line)
    kind = sum(map(ord, row["response"])) % 4
    print(json.dumps({"id": row["id"], "status": "error"} if kind == 0 else {"id": row["id"], "score": kind % 2, "reward": kind / 4}), flush=True)
PY
chmod +x $tmp/score
keys=(adv_estimator=gae lambd=0.9 max_steps=5 save_steps=1 validation=null rollout_batch_size=8 num_return_sequences_in_group=4
    response_length=13 max_len_mask=true actor_infer.generating_args.temperature=1.5 whiten_advantages=true value_clip=0.5 actor_train.training_args.per_device_train_batch_size=16
    actor_train.training_args.gradient_accumulation_steps=1 max_failed_reward_steps=0
    "rewards={math_rule: {exec: $tmp/score, tag_included: [sums], world_size: 1}}")

# recomputed NAME LAMBD WHITEN: what the files of each step say, against loops in float64
recomputed() {
    python3 - $tmp/$1 $2 $3 <<'PY' || fail "$1: numbers differ"
import json, math, sys
run, lambd, is_whitened = sys.argv[1], float(sys.argv[2]), sys.argv[3] == "true"
def near(got, want, what, size=1):
    assert abs(got - want) <= 1e-5 * max(size, abs(want)), (step, what, got, want)
seen = {"cut": 0, "silent": 0, "kept": 0}
for step, line in enumerate(open(run + "/metrics.jsonl")):
    m = json.loads(line)
    rows = [json.loads(x) for x in open(f"{run}/rollouts/step-{step:06d}.jsonl")]
    raw, keep = [], []
    for r in rows:
        n, v = len(r["ids"]), r["values"]
        assert len(v) == len(r["returns"]) == n
        k = r["status"] == "ok" and n < 13
        seen["cut"] += n == 13
        seen["silent"] += r["status"] != "ok"
        seen["kept"] += k
        delta = [(r["reward"] if k and t == n - 1 else 0) + (v[t + 1] if t + 1 < n else 0) - v[t] for t in range(n)]
        adv = [sum(lambd ** (j - t) * delta[j] for j in range(t, n)) for t in range(n)]
        for t in range(n):
            near(r["returns"][t], adv[t] + v[t], "return")
        raw.append(adv)
        keep.append(k)
    kept = [x for a, k in zip(raw, keep) if k for x in a]
    mean, std = 0, 1
    if is_whitened:
        mean = sum(kept) / len(kept)
        std = math.sqrt(sum((x - mean) ** 2 for x in kept) / (len(kept) - 1) + 1e-8)
    loss = total = size = 0
    for r, a, k in zip(rows, raw, keep):
        got = r["advantage"] if isinstance(r["advantage"], list) else [r["advantage"]] * len(a)
        for t, x in enumerate(a):
            near(got[t], (x - mean) / std if k else 0, "advantage", 1 / std)
            total -= got[t]
            size += abs(got[t])
        if k:
            loss += sum(0.5 * (v - x) ** 2 for v, x in zip(r["values"], r["returns"])) / len(a)
    near(m["critic/loss"], loss / sum(keep), "critic/loss")
    near(m["critic/vpred"], m["critic/value"], "critic/vpred")
    assert m["critic/grad_norm"] > 0 and m["critic/clipfrac"] == 0
    if "actor/total_loss" in m:
        near(m["actor/total_loss"], total / len(kept), "actor/total_loss", size / len(kept))
assert seen["cut"] and seen["kept"] and (seen["silent"] > 0) == run.endswith("whole"), seen
print(seen)
PY
}

# numbers FILE: a line each, in an order of their own: a critic that trains beside the actor is heard later
numbers() {
    timeless $1 | grep -o '"[^"]*":[^,}]*' | grep -v '^"memory/' | awk '/^"step"/ { step = $0 } { print step, $0 }' | sort
}

# same_run NAME: the numbers, samples and weights of whole
same_run() {
    diff <(numbers $tmp/whole/metrics.jsonl) <(numbers $tmp/$1/metrics.jsonl) >$tmp/diff || { log=$tmp/diff; fail "$1: other numbers"; }
    diff -r $tmp/whole/rollouts $tmp/$1/rollouts >$tmp/diff || { log=$tmp/diff; fail "$1: other samples"; }
    for f in actor_train/model.safetensors critic/model.safetensors critic/config.json state/critic.master state/critic.m state/critic.v; do
        cmp $tmp/whole/latest/$f $tmp/$1/latest/$f || fail "$1: other $f"
    done
}

job whole "${keys[@]}" "$critic" critic_warmup=2
[ $code = 0 ] || fail "exit code $code"
recomputed whole 0.9 true
! head -n 2 $tmp/whole/metrics.jsonl | grep -q '"actor/total_loss"' || fail "an update in the warm-up"
sed -n 3,5p $tmp/whole/metrics.jsonl | grep -c '"actor/total_loss"' | grep -qx 3 || fail "no update after the warm-up"
cmp $tmp/home/sft_model/model.safetensors $tmp/whole/checkpoint-1/actor_train/model.safetensors || fail "critic_warmup: the actor has moved"
! cmp -s $tmp/whole/checkpoint-1/actor_train/model.safetensors $tmp/whole/latest/actor_train/model.safetensors || fail "the actor does not move"
! cmp -s $tmp/whole/checkpoint-1/critic/model.safetensors $tmp/whole/checkpoint-2/critic/model.safetensors || fail "the critic does not move"
grep -q 'Qwen3ForTokenClassification' $tmp/whole/latest/critic/config.json || fail "config.json of the critic"
[ "$(values memory/critic/train_step/end/onload/allocated $tmp/whole/metrics.jsonl | wc -l)" = 5 ] || fail "a critic on the actor's devices is not offloaded"

job own "${keys[@]}" "$critic" critic_warmup=2 "critic.device_mapping=[2, 3]"
[ $code = 0 ] || fail "exit code $code"
! grep -q '"memory/critic' $tmp/own/metrics.jsonl || fail "a critic with devices of its own is offloaded"
same_run own

killed killed 3 "${keys[@]}" "$critic" critic_warmup=2
job killed "${keys[@]}" "$critic" critic_warmup=2 resume_from_checkpoint=true
[ $code = 0 ] || fail "resumed: exit code $code"
same_run killed

# one sample a prompt (those without a verdict are replaced), a critic on one rank that begins as Transformers would and has learning rate 0
words n1 "${keys[@]}" "$critic" max_steps=3 critic.training_args.learning_rate=0 rollout_batch_size=32 num_return_sequences_in_group=1 whiten_advantages=false lambd=1 \
    "critic.device_mapping=[0]" critic.strategy_args.strategy_config.fsdp_size=1 critic.training_args.gradient_accumulation_steps=4 \
    critic.model_args.model_type=auto_token_classification
"${words[@]}" >$tmp/n1.log 2>&1 </dev/null || { log=$tmp/n1.log; fail "exit code $?"; }
recomputed n1 1 false
cmp $tmp/n1/checkpoint-1/critic/model.safetensors $tmp/n1/checkpoint-2/critic/model.safetensors || fail "a critic with learning rate 0 moves"

# the plan knows it; what is wrong is said
"$CROLL" plan "${words[@]:2}" --json 2>$tmp/plan.log >$tmp/plan </dev/null || { log=$tmp/plan.log; fail "plan: exit code $?"; }
tr '{' '\n' <$tmp/plan | grep -q '"name":"critic"' || fail "no critic in the plan"
wrong() {
    local pattern=${@: -1}
    words wrong "${keys[@]}" "${@:1:$#-1}"
    "${words[@]}" >$tmp/wrong.log 2>&1 </dev/null && fail "$*: accepted"
    grep -Eq "error: .*$pattern" $tmp/wrong.log || { log=$tmp/wrong.log; fail "$*: another sentence"; }
}
wrong 'needs a critic: a block critic'
wrong "$critic" critic.model_args.lora_target=all-linear 'adapters of a critic are not available yet'
wrong "$critic" critic.training_args.gradient_accumulation_steps=3 'ranks of critic .* not whole mini-batches of 8 x 3'

# its rank dies
words dead "${keys[@]}" "$critic" max_steps=50
log=$tmp/dead.log
"${words[@]}" >$log 2>&1 </dev/null &
pid=$!
steps dead 1
kill -9 $(rank_of dead 4)
code=0
wait $pid || code=$?
[ $code != 0 ] && grep -q 'critic rank 0' $log || fail "a dead critic: exit code $code"
nothing_left dead
echo ok
