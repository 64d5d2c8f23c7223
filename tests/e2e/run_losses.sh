#!/bin/bash
# Keys of the loss reach the trainer: settings that make two variants the same formula give the same bits, ones that
# drop every token or hold the actor back give no update, micro-batches by tokens give the same numbers; and what
# makes no sense exits with 2. The numbers themselves: tests/parity/run_losses.py.
. tests/e2e/run.inc
quick_model
several="max_steps=2 validation=null rollout_batch_size=8 actor_train.training_args.per_device_train_batch_size=16"
several="$several actor_train.training_args.gradient_accumulation_steps=2 ppo_epochs=2 actor_train.training_args.learning_rate=1e-4"
job vanilla $several actor_train.pg_variant=vanilla actor_train.worker_cls=roll.pipeline.rlvr.actor_pg_worker.ActorPGWorker
[ $code = 0 ] || fail "exit code $code"
learned vanilla 2
# factors that are 1 everywhere; and the sampler's weights are those of training: ratio 1, nothing is cut or dropped
job same $several actor_train.pg_variant=tis actor_train.tis_lower_bound=1 actor_train.tis_upper_bound=1 \
    "train_infer_correction={is_weight: {enabled: true}, filters: [{enabled: true, agg_type: sequence, diff_enabled: true}]}"
[ $code = 0 ] || fail "exit code $code"
cmp $tmp/vanilla/latest/actor_train/model.safetensors $tmp/same/latest/actor_train/model.safetensors || fail "tis of 1 is not vanilla"
[ "$(values actor/train_infer_final_mask_mean $tmp/same/metrics.jsonl | tr '\n' ' ')" = "1 1 " ] || fail "the filter dropped tokens"
[ "$(values actor/tis_clipped_ratio_mean $tmp/same/metrics.jsonl | tr '\n' ' ')" = "1 1 " ] || fail "actor/tis_clipped_ratio_mean"
[ "$(values actor/tis_total_clipfrac $tmp/same/metrics.jsonl)" = "$(values actor/clipfrac $tmp/same/metrics.jsonl)" ] || fail "actor/tis_total_clipfrac"
# tokens that cispo leaves out count in the mean with their cut ratio: it is within the range, although most are left out
job cispo $several actor_train.pg_variant=cispo actor_train.cispo_use_unified_mask=true actor_train.cispo_epsilon_low=0.001 actor_train.cispo_epsilon_high=0.001
[ $code = 0 ] || fail "exit code $code"
[ "$(values actor/cispo_kept_tokens $tmp/cispo/metrics.jsonl | awk '$1 < 0.99' | wc -l)" = 2 ] || fail "cispo leaves nothing out"
[ "$(values actor/cispo_clipped_ratio_mean $tmp/cispo/metrics.jsonl | awk '$1 >= 0.999 && $1 <= 1.001' | wc -l)" = 2 ] ||
    fail "actor/cispo_clipped_ratio_mean: $(values actor/cispo_clipped_ratio_mean $tmp/cispo/metrics.jsonl)"
# another variant trains other weights; micro-batches of 100 tokens are the same update
job fixed $several actor_train.pg_variant=sapo
job tokens $several actor_train.pg_variant=sapo \
    actor_train.use_dynamic_batching_in_train=true actor_train.max_tokens_per_microbatch_in_train=100 \
    actor_train.use_dynamic_batching_in_infer=true actor_train.max_tokens_per_microbatch_in_infer=70
[ $code = 0 ] || fail "exit code $code"
for m in actor/total_loss actor_train/grad_norm critic/score/mean; do same fixed tokens $m 2; done
! cmp -s $tmp/vanilla/latest/actor_train/model.safetensors $tmp/fixed/latest/actor_train/model.safetensors || fail "sapo is vanilla"
# step 0 is held back, in step 1 the filter drops all
job none $several critic_warmup=1 \
    "train_infer_correction={filters: [{enabled: true, agg_type: geometric, ratio_low: 1.5, ratio_high: 2}]}"
[ $code = 0 ] || fail "exit code $code"
cmp $tmp/home/sft_model/model.safetensors $tmp/none/latest/actor_train/model.safetensors || fail "an update without a token"
[ "$(values mask/final_mask_sum_eq_0 $tmp/none/metrics.jsonl | wc -l)" = 2 ] || fail "nothing says that no token is left"
! grep -q actor/total_loss $tmp/none/metrics.jsonl || fail "a loss without an update"
grep -q 'no token is left by train_infer_correction' $tmp/none.log || fail "nothing says what dropped all tokens"
grep -q 'makes no updates in the first 1 steps' $tmp/none.log || fail "no word of critic_warmup"

# wrong KEY=VALUE.. PATTERN: an error of the file
wrong() {
    local pattern=${@: -1}
    set -- "${@:1:$#-1}"
    words wrong "$@"
    "${words[@]}" >$tmp/wrong.log 2>&1 </dev/null && fail "$*: accepted"
    grep -Eq "error: .*$pattern" $tmp/wrong.log || { cat $tmp/wrong.log; fail "$*: another sentence"; }
    [ ! -e $tmp/wrong ] || fail "$*: started"
}
pg=actor_train.worker_cls=roll.pipeline.rlvr.actor_pg_worker.ActorPGWorker
wrong $pg 'ActorPGWorker needs pg_variant'
wrong actor_train.worker_cls=roll.pipeline.rlvr.actor_worker.ActorWorker actor_train.pg_variant=tis 'pg_variant is of ActorPGWorker'
wrong actor_train.pg_variant=tis importance_sampling=seq 'seq goes with the ppo loss'
wrong actor_train.pg_variant=tis actor_train.tis_lower_bound=2 'tis_lower_bound is 2, above'
wrong actor_train.pg_variant=sapo actor_train.sapo_temperature_neg=0 'sapo_temperature_neg: a number of at least 1e-6 is expected, not 0'
wrong actor_train.pg_variant=sapo actor_train.sapo_temperature_pos=1e-320 'sapo_temperature_pos: a number of at least 1e-6'
wrong actor_train.pg_variant=dppo_tv actor_train.dppo_clip_ratio_c=0 'dppo_clip_ratio_c: a number of at least 1e-6'
wrong actor_train.pg_variant=kimi15 actor_train.kimi15_tau=1e7 'kimi15_tau: a number of at most 1e6'
wrong entropy_loss_coef=1e7 'entropy_loss_coef: a number of at most 1e6'
wrong gamma=1.5 'gamma: a number of at most 1'
wrong target_kl=0 'target_kl: a number of at least 1e-6'
wrong target_kl=0.1 kl_horizon=10 'kl_horizon is 10: with .* samples a step'
wrong 'train_infer_correction={is_weight: {enabled: true, upper_bound: 0}}' 'upper_bound: a number of at least 1e-6'
wrong 'train_infer_correction={filters: [{enabled: true, ratio_low: 3}]}' 'ratio_low is 3, above ratio_high 1.2'
wrong actor_train.use_dynamic_batching_in_train=true 'needs max_tokens_per_microbatch_in_train'
wrong actor_train.use_dynamic_batching_in_train=true actor_train.max_tokens_per_microbatch_in_train=55 'must fit into a micro-batch'
sed 's/"difficulty":[^,}]*,//' $tmp/home/sums.train.jsonl >$tmp/plain.jsonl
words plain difficulty_loss_weight=true "actor_train.data_args.file_name=[$tmp/plain.jsonl]"
"${words[@]}" >$tmp/plain.log 2>&1 </dev/null && fail "rows without difficulty are accepted"
grep -q 'the row has no number "difficulty"' $tmp/plain.log || fail "rows without difficulty: another sentence"
