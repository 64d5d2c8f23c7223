#!/bin/bash
# croll run with several updates a step: taking the sampler's log-probs for the old ones gives the bits that a pass
# over the batch gives, over one and two epochs, and what is compared is counted.
# Not here: a sampler whose log-probs differ (it has none; planted by hand: the weights are those of the pass).
. tests/e2e/run.inc
quick_model
several="max_steps=2 validation=null rollout_batch_size=8 actor_train.training_args.per_device_train_batch_size=16 actor_train.training_args.gradient_accumulation_steps=1"
for epochs in 1 2; do
    job taken$epochs $several ppo_epochs=$epochs
    [ $code = 0 ] || fail "exit code $code"
    job asked$epochs $several ppo_epochs=$epochs enable_old_logprobs_recompute=true
    [ $code = 0 ] || fail "exit code $code"
    cmp $tmp/taken$epochs/latest/actor_train/model.safetensors $tmp/asked$epochs/latest/actor_train/model.safetensors ||
        fail "other weights without the pass, ppo_epochs $epochs"
    [ "$(values actor/old_log_probs_recomputed $tmp/taken$epochs/metrics.jsonl | tr '\n' ' ')" = "0 0 " ] || fail "computed after all"
    ! grep -q time/old_log_probs $tmp/taken$epochs/metrics.jsonl || fail "the pass ran"
    grep -q time/old_log_probs $tmp/asked$epochs/metrics.jsonl || fail "the pass that was asked for did not run"
    for x in $(values actor/train_infer_compared_tokens $tmp/taken$epochs/metrics.jsonl); do
        [ "$x" -gt 100 ] || fail "only $x tokens compared"
    done
    ! values actor/train_infer_diff_max $tmp/taken$epochs/metrics.jsonl | grep -vx 0 || fail "log-probs differ"
done
# samples carry the version of the weights that made them
sed -E 's/.*"version":([0-9]+).*/\1/' $tmp/taken1/rollouts/step-000001.jsonl | sort -u | grep -qx 4 || fail "weight version"
# other dtypes: nothing is taken for granted
job dtypes $several max_steps=1 actor_infer.strategy_args.strategy_config.param_dtype=bf16 actor_infer.model_args.dtype=bf16
[ $code = 0 ] || fail "exit code $code"
grep -q time/old_log_probs $tmp/dtypes/metrics.jsonl || fail "log-probs of bf16 taken for those of fp32"
