#!/bin/bash
# run_domains.sh -- `croll run` with two domains: shares that are exact over steps and after a resume, metrics by
# domain, validation with several samples a prompt and columns of its own.
. tests/e2e/run.inc
quick_model 60
metric() { values $1 $tmp/$2/metrics.jsonl | sed -n ${3:-1}p; }
true_that() { awk "BEGIN { exit !($1) }"; }

sed '1~2s/"tag":"sums"/"tag":"other"/' $tmp/home/sums.train.jsonl >$tmp/two.jsonl
# validation rows with other names of columns, one too long for val_prompt_length
(head -n 6 $tmp/home/sums.val.jsonl | sed 's/"messages"/"chat"/; s/"tag"/"kind"/; 1~2s/"kind":"sums"/"kind":"other"/'
    head -n 1 $tmp/home/sums.val.jsonl | sed 's/"messages"/"chat"/; s/"tag"/"kind"/; s/"content\\": \\"/&1111111111111111111111111111111111111111/') >$tmp/val.jsonl
two() {
    local name=$1
    shift
    job $name "actor_train.data_args.file_name=[$tmp/two.jsonl]" "actor_train.data_args.domain_interleave_probs={math_rule: 0.7, other: 0.3}" \
        "rewards.other={worker_cls: roll.pipeline.rlvr.rewards.math_rule_reward_worker.MathRuleRewardWorker, tag_included: [other], world_size: 1}" \
        "validation.data_args={file_name: [$tmp/val.jsonl], messages: chat, tag: kind}" validation.generating_args.num_return_sequences=4 \
        val_prompt_length=44 val_sequence_length=64 \
        rollout_batch_size=4 num_return_sequences_in_group=8 actor_train.training_args.per_device_train_batch_size=4 max_steps=4 eval_steps=3 "$@"
}
two whole
[ $code = 0 ] || fail "exit code $code"
grep -q "domain other: 1.2 of 4 prompts a step" $log || fail "the counts of a step are not told"
grep -q "validation: 1 row left out: prompts of more than 44 tokens" $log || fail "val_prompt_length"
[ "$(values other/actor/samples_total $tmp/whole/metrics.jsonl | xargs)" = "8 8 16 8" ] ||
    fail "shares: $(values other/actor/samples_total $tmp/whole/metrics.jsonl | xargs)"
for step in 1 2 3 4; do
    a=$(metric math_rule/critic/score/mean whole $step) b=$(metric other/critic/score/mean whole $step) n=$(metric other/actor/samples_total whole $step)
    true_that "($a * (32 - $n) + $b * $n) / 32 - $(metric critic/score/mean whole $step) < 1e-9" || fail "scores by domain, step $step"
done
for name in val_correct/all/mean val_correct/other/mean other/val_correct/mean val_score/all/mean val_pass@2/all math_rule/val_pass@4 \
    val_maj@4/sums final/val_correct/all/mean final/other/val_maj@2 math_rule/token/right_response_length/mean group/correct_ratio/std \
    global_seqlen/actor_train/balanced_max system/actor_train/tps_gpu actor/valid_samples; do
    [ -n "$(metric $name whole)" ] || fail "$name is missing"
done
true_that "$(metric val_correct/all/mean whole) <= $(metric val_pass@2/all whole) && $(metric val_pass@2/all whole) <= $(metric val_pass@4/all whole)" ||
    fail "pass@k falls with k"
grep -q "other/val_correct/mean" $tmp/whole/run.html || fail "run.html has no curve of a domain"

# the carry of the shares is kept
two part save_steps=1
rm -rf $tmp/part/checkpoint-2 $tmp/part/checkpoint-3 && ln -sfn checkpoint-1 $tmp/part/latest
two part resume_from_checkpoint=true
[ $code = 0 ] && grep -q resuming $log || fail "resumed: exit code $code"
diff <(timeless $tmp/whole/metrics.jsonl) <(timeless $tmp/part/metrics.jsonl) >$tmp/diff || { log=$tmp/diff; fail "the resumed run differs"; }

# rows that are never drawn, and tags without a reward worker
two unused "actor_train.data_args.domain_interleave_probs={math_rule: 2}" max_steps=1
[ $code = 0 ] && grep -q "rows of other will never be drawn" $log && grep -q "add up to 2" $log || fail "unused rows are not told"
two unknown "rewards.other.tag_included=[another]"
[ $code = 2 ] && grep -q "unknown_tag: drop" $log || fail "an unknown tag: exit code $code"
echo ok
