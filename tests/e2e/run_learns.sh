#!/bin/bash
# croll run: the score rises, train and generation agree, and every sample is written once.
# Not here: other models, other rewards (the acceptance runs of bench/README.md).
. tests/e2e/run.inc
quick_model
job learns max_steps=24 eval_steps=24
[ $code = 0 ] || fail "exit code $code"
first=$(values val_correct/all/mean $tmp/learns/metrics.jsonl | head -1)
last=$(values final/val_correct/all/mean $tmp/learns/metrics.jsonl)
awk "BEGIN { exit !($last >= $first + 0.2) }" || fail "validation from $first to $last"
[ "$(wc -l <$tmp/learns/metrics.jsonl)" = 24 ] || fail "24 lines of metrics"

# what the engine computed is what training computes, bit for bit
values actor/train_infer_diff_max $tmp/learns/metrics.jsonl >$tmp/diffs
[ "$(wc -l <$tmp/diffs)" = 24 ] || fail "$(wc -l <$tmp/diffs) of 24 steps compare log-probs"
! grep -vx 0 $tmp/diffs || fail "log-probs of generation and training differ"

# 32 prompts x 16 samples a step, each id once, each scored
cat $tmp/learns/rollouts/step-*.jsonl >$tmp/all
[ "$(wc -l <$tmp/all)" = $((24 * 32 * 16)) ] || fail "$(wc -l <$tmp/all) samples"
[ "$(sed 's/^{"id":\("[^"]*"\).*/\1/' $tmp/all | sort -u | wc -l)" = $((24 * 32 * 16)) ] || fail "ids are not unique"
! grep -v '"status":"ok"' $tmp/all || fail "a sample was not scored"
nothing_left learns

# a folder that holds a run is refused, without touching it
before=$(sha256sum $tmp/learns/metrics.jsonl)
job learns max_steps=1
[ $code = 2 ] || fail "second run in one folder: exit code $code"
[ "$before" = "$(sha256sum $tmp/learns/metrics.jsonl)" ] || fail "the second run wrote into the folder"
echo "validation $first -> $last"
