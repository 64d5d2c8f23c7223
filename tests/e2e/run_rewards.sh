#!/bin/bash
# croll run with scorers that need more than the text: one's own program, and a rule with a length penalty,
# get the number of tokens of the response.
# Not here: scorers that hang or die (run_chaos.sh).
. tests/e2e/run.inc
quick_model

# awk as a scorer: the score is the number of tokens it got
cat >$tmp/count <<'EOF'
#!/bin/bash
exec mawk -W interactive '{
    n = $0; sub(/.*"response_tokens":/, "", n); sub(/,.*/, "", n)
    id = $0; sub(/.*"id":"/, "", id); sub(/".*/, "", id)
    printf "{\"id\":\"%s\",\"score\":%d}\n", id, n; fflush() }'
EOF
chmod +x $tmp/count
job counted max_steps=1 validation=null rewards.math_rule.exec=$tmp/count
[ $code = 0 ] || fail "exit code $code"
sed -E 's/.*"ids":\[([^]]*)\].*"score":([0-9]+).*/\2 \1/' $tmp/counted/rollouts/step-000000.jsonl >$tmp/pairs
[ "$(wc -l <$tmp/pairs)" = 512 ] || fail "$(wc -l <$tmp/pairs) samples"
awk '{ n = $2 == "" ? 0 : split($2, ids, ","); if (n != $1) exit 1 }' $tmp/pairs || fail "a scorer got another length"

# the built-in rule whose penalty counts tokens; its ground truth is a letter
sed 's/"ground_truth":"[^"]*"/"ground_truth":"B"/' $tmp/home/sums.train.jsonl >$tmp/letters.jsonl
job penalty max_steps=1 validation=null actor_train.data_args.file_name=[$tmp/letters.jsonl] rewards.math_rule.reward_type=soft rewards.math_rule.response_length_penalty_coef=0.5 \
    rewards.math_rule.worker_cls=roll.pipeline.rlvr.rewards.crossthinkqa_rule_reward_worker.CrossThinkQARuleRewardWorker
[ $code = 0 ] || fail "exit code $code"
! grep -v '"status":"ok"' $tmp/penalty/rollouts/step-000000.jsonl | head -2 | grep . || fail "crossthinkqa did not score"
