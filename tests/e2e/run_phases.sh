#!/bin/bash
# croll run with roles that share devices: states are offloaded after each command, byte counts return to where they
# were in every step, and the weights are those of a run whose roles have devices of their own.
# Not here: states on a device whose memory is not the host's (tests/mesh/modes.c counts those).
. tests/e2e/run.inc
quick_model
short="max_steps=3 init_kl_coef=0.1 eval_steps=1 rollout_batch_size=8 actor_train.training_args.gradient_accumulation_steps=1"
reference='reference={model_args: {dtype: fp32}, strategy_args: {strategy_name: fsdp2_infer, strategy_config: {fsdp_size: 2, param_dtype: fp32}}, device_mapping: "list(range(0,2))", infer_batch_size: 64}'
own='actor_infer.device_mapping=list(range(2,4))'
job shared $short "$reference"
[ $code = 0 ] || fail "exit code $code"
job alone $short "${reference/range(0,2)/range(4,6)}" "$own"
[ $code = 0 ] || fail "exit code $code"
cmp $tmp/shared/latest/actor_train/model.safetensors $tmp/alone/latest/actor_train/model.safetensors || fail "other weights"
! grep -q '"memory/' $tmp/alone/metrics.jsonl || fail "a role with devices of its own was offloaded"
for phase in actor_train/train_step actor_infer/generate reference/compute_log_probs; do
    values memory/$phase/start/offload/allocated $tmp/shared/metrics.jsonl >$tmp/before
    values memory/$phase/end/offload/allocated $tmp/shared/metrics.jsonl >$tmp/after
    values memory/$phase/end/onload/allocated $tmp/shared/metrics.jsonl >$tmp/most
    [ "$(wc -l <$tmp/before)" = 3 ] || fail "$phase is not reported in every step"
    cmp $tmp/before $tmp/after || fail "bytes of $phase do not return to the start"
    [ "$(sort -u $tmp/after | wc -l)" = 1 ] || fail "bytes of $phase grow from step to step"
    paste $tmp/after $tmp/most | awk '$2 <= 1.2 * $1 { exit 1 }' || fail "$phase gave nothing up"
done
# the plan knows what an engine at work holds: weights, packed weights, cache
words shared $short "$reference"
log=$tmp/plan.log
"$CROLL" plan "${words[@]:2}" --json >$tmp/plan 2>$log || fail "plan: exit code $?"
planned=$(tr '{' '\n' <$tmp/plan | grep -A 20 '"name":"actor_infer"' | sed -n 's/.*"values":\([0-9]*\).*"kept":\([0-9]*\).*/\1 \2/p' | head -n 1)
values memory/actor_infer/generate/end/onload/allocated $tmp/shared/metrics.jsonl | tail -n 1 |
    awk -v planned="$planned" '{ split(planned, x, " "); want = x[1] + x[2]; got = $1 * 2 ^ 30
        if (want < 0.999 * got || want > 1.01 * got) { print got, want; exit 1 } }' || fail "the plan has other bytes for an engine"
# sleep_level 2: the engine's weights go, too
job deep $short "$reference" actor_infer.strategy_args.strategy_config.sleep_level=2
[ $code = 0 ] || fail "exit code $code"
cmp $tmp/shared/latest/actor_train/model.safetensors $tmp/deep/latest/actor_train/model.safetensors || fail "other weights"
paste <(values memory/actor_infer/generate/end/offload/allocated $tmp/deep/metrics.jsonl) \
    <(values memory/actor_infer/generate/end/offload/allocated $tmp/shared/metrics.jsonl) |
    awk '$1 >= $2 { exit 1 }' || fail "sleep_level 2 keeps what sleep_level 1 keeps"
job wrong $short actor_infer.strategy_args.strategy_config.sleep_level=2 actor_train.model_update_frequency=2
[ $code = 2 ] || fail "weights that are dropped and not sent: exit code $code"
