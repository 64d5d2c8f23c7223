#!/bin/bash
# croll run with async_generation_ratio 1: samples of step N are drawn while step N - 1 trains, with the weights that
# step N - 1 begins with, and old log-probs are those of these weights. A step after a save samples with its own weights,
# so that a run which goes on after a kill has the numbers of one that was not killed. CROLL_AGAIN=1: also the whole run again.
# also long: CROLL_AGAIN=1
. tests/e2e/run.inc
quick_model
keys="max_steps=8 save_steps=3 eval_steps=4 async_generation_ratio=1 actor_infer.device_mapping=[2]
    actor_infer.strategy_args.strategy_config.fsdp_size=1 actor_train.training_args.warmup_steps=0"
job whole $keys
[ $code = 0 ] || fail "exit code $code"
learned whole 8
[ "$(values scheduler/off_policy_ratio $tmp/whole/metrics.jsonl | tr '\n' ' ')" = "0 1 1 1 0 1 1 0 " ] ||
    fail "steps old: $(values scheduler/off_policy_ratio $tmp/whole/metrics.jsonl | tr '\n' ' ')"
step=0
for version in 0 0 1 2 4 4 5 7; do # an update a step
    [ "$(sed -E 's/.*"version":([0-9]+).*/\1/' $tmp/whole/rollouts/step-00000$step.jsonl | sort -u)" = $version ] ||
        fail "step $step was not sampled by weights after $version updates"
    step=$((step + 1))
done
# validations of steps 0 and 4, and after the last one
[ "$(ls $tmp/whole/rollouts | grep -c '^val-')" = 3 ] || fail "validations: $(ls $tmp/whole/rollouts | grep '^val-')"

# Step 1: drawn by the weights of step 0, bit for bit; trained on by those after it, with the ratio between both
job first $keys validation=null max_steps=1
[ $code = 0 ] || fail "exit code $code"
cmp $tmp/first/rollouts/step-000000.jsonl $tmp/whole/rollouts/step-000000.jsonl || fail "step 0 differs"
python3 - $tmp/whole/rollouts/step-000001.jsonl >$tmp/lines.jsonl <<'PY'
import json, sys
for line in open(sys.argv[1]):
    s = json.loads(line)
    print(json.dumps({"id": s["id"], "input_ids": s["prompt_ids"] + s["ids"]}))
PY
"$CROLL" export $tmp/first/latest $tmp/after >/dev/null
for of in home/sft_model after; do
    "$CROLL" logprobs $tmp/$of model_args.dtype=fp32 <$tmp/lines.jsonl >$tmp/$(basename $of).jsonl 2>$tmp/logprobs.log ||
        { log=$tmp/logprobs.log; fail "croll logprobs"; }
done
python3 - $tmp <<'PY' || fail "step 1: log-probs or ratios"
import json, math, sys
tmp = sys.argv[1]
read = lambda name: [json.loads(line) for line in open(f"{tmp}/{name}")]
samples, before, after = read("whole/rollouts/step-000001.jsonl"), read("sft_model.jsonl"), read("after.jsonl")
metrics = read("whole/metrics.jsonl")[1]
ratios, diff = [], 0
for s, b, a in zip(samples, before, after):
    n = len(s["ids"])
    assert s["id"] == b["id"] == a["id"]
    assert s["log_probs"] == b["logprobs"][-n:], "not those of the weights that sampled"
    ratios += [math.exp(x - y) for x, y in zip(a["logprobs"][-n:], s["log_probs"])]
    diff = max([diff] + [abs(x - y) for x, y in zip(a["logprobs"][-n:], s["log_probs"])])
for name, value in ("actor/ratio_max", max(ratios)), ("actor/ratio_min", min(ratios)), ("actor/train_infer_diff_max", diff):
    assert abs(metrics[name] - value) < 1e-5 * value, (name, metrics[name], value)
assert max(ratios) > 1.01
PY

if [ "${CROLL_AGAIN:-}" ]; then
    job again $keys
    [ $code = 0 ] || fail "exit code $code"
    diff <(timeless $tmp/whole/metrics.jsonl) <(timeless $tmp/again/metrics.jsonl) >$tmp/diff || { log=$tmp/diff; fail "two runs with one seed differ"; }
fi

killed killed 6 $keys
job killed $keys resume_from_checkpoint=true
[ $code = 0 ] || fail "resumed: exit code $code"
diff <(timeless $tmp/whole/metrics.jsonl) <(timeless $tmp/killed/metrics.jsonl) >$tmp/diff || { log=$tmp/diff; fail "the resumed run differs"; }
cmp $tmp/whole/latest/actor_train/model.safetensors $tmp/killed/latest/actor_train/model.safetensors || fail "weights differ"

# A signal: the samples that were drawn ahead are dropped, their prompts are not
stopped stopped 2 $keys
prompts() { sed -E 's/"response".*//' $tmp/$1/rollouts/step-*.jsonl; }
cmp <(prompts whole) <(prompts stopped) || fail "after SIGTERM: other prompts"

# Engines that share a device with training cannot sample meanwhile
job shared async_generation_ratio=1
[ $code = 2 ] || fail "shared devices: exit code $code"
grep -q "actor_infer samples while actor_train works, and both have device 0" $log || fail "shared devices: message"
echo ok
