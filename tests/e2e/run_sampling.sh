#!/bin/bash
# croll run with temperature, top_p, top_k and repetition penalty: log-probs of generation are those of training, bit for
# bit, before the first update of every step, over two epochs of several updates, in fp32, and in bf16 with sequences cut
# over a ulysses group, on one rank and two, and with raw log-probs. Which words were kept is in the rollout file.
# Not here: that the numbers are right (tests/unit/actors_distribution.c, tests/parity/sampled_log_probs.py).
. tests/e2e/run.inc
quick_model
drawn="actor_infer.generating_args.temperature=0.6 actor_infer.generating_args.top_p=0.9 actor_infer.generating_args.top_k=50
    actor_infer.generating_args.repetition_penalty=1.1"
several="max_steps=2 ppo_epochs=2 validation=null rollout_batch_size=8
    actor_train.training_args.per_device_train_batch_size=16 actor_train.training_args.gradient_accumulation_steps=1
    entropy_loss_coef=0.01"
bf16="actor_train.model_args.dtype=bf16 actor_train.strategy_args.strategy_config.param_dtype=bf16
    actor_infer.model_args.dtype=bf16 actor_infer.strategy_args.strategy_config.param_dtype=bf16"
one="actor_train.strategy_args.strategy_config.fsdp_size=1 actor_train.device_mapping=[0]
    actor_infer.strategy_args.strategy_config.fsdp_size=1 actor_infer.device_mapping=[0]"
# same NAME [key=value ..]
same() {
    job "$@"
    [ $code = 0 ] || fail "$1: exit code $code"
    [ "$(values actor/train_infer_diff_max $tmp/$1/metrics.jsonl | tr '\n' ' ')" = "0 0 " ] || fail "$1: log-probs differ"
    for x in $(values actor/train_infer_compared_tokens $tmp/$1/metrics.jsonl); do
        [ "$x" -gt 100 ] || fail "$1: only $x tokens compared"
    done
}
same filtered $several $drawn
same computed $several $drawn enable_old_logprobs_recompute=true
same ulysses $several $drawn $bf16 actor_train.model_args.ulysses_size=2
same reference $several $drawn $one actor_train.training_args.learning_rate=1e-30 use_kl_loss=true kl_loss_coef=0.1 "reference={model_args: {dtype: fp32},
    strategy_args: {strategy_name: fsdp2_infer}, device_mapping: [1]}"
same temperature $several actor_infer.generating_args.temperature=0.6
same raw $several $drawn logprobs_mode=raw
cmp $tmp/filtered/latest/actor_train/model.safetensors $tmp/computed/latest/actor_train/model.safetensors ||
    fail "other weights with old log-probs of a pass"
# its weights are those of the reference all the time, and so are its log-probs: of the same words
! values actor/kl_loss $tmp/reference/metrics.jsonl | grep -vx 0 || fail "kl of equal weights"
! values actor/ratio_max $tmp/reference/metrics.jsonl | grep -vx 1 || fail "ratio of equal weights"
grep -q '"log_mass":\[[^]]*-.*"kept_ids":\[\[' $tmp/filtered/rollouts/step-000001.jsonl || fail "no kept ids in the rollout"
! grep -q 'log_mass\|kept_ids' $tmp/temperature/rollouts/step-000001.jsonl || fail "kept ids without filters"
! grep -q 'log_mass\|kept_ids' $tmp/raw/rollouts/step-000001.jsonl || fail "kept ids with raw log-probs"
