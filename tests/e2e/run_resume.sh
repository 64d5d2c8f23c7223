#!/bin/bash
# croll run: the same seed gives the same numbers; a run that was killed goes on as if it had not been.
. tests/e2e/run.inc
quick_model
keys="max_steps=9 save_steps=3 eval_steps=4"
job whole $keys
[ $code = 0 ] || fail "exit code $code"
job again $keys
[ $code = 0 ] || fail "exit code $code"
diff <(timeless $tmp/whole/metrics.jsonl) <(timeless $tmp/again/metrics.jsonl) >$tmp/diff || { log=$tmp/diff; fail "two runs with one seed differ"; }

# killed in step 5 or so, the whole process group at once, and again after it went on
words killed $keys
setsid "${words[@]}" >$tmp/killed.log 2>&1 </dev/null &
log=$tmp/killed.log
steps killed 5
pid=$(pgrep -f "run configs/quickstart/rlvr.yaml pretrain=$tmp" | head -1)
kill -9 -- -$pid 2>/dev/null || kill -9 $pid
wait || true
nothing_left killed
[ "$(readlink $tmp/killed/latest)" = checkpoint-3 ] || fail "newest checkpoint: $(readlink $tmp/killed/latest)"
job killed $keys resume_from_checkpoint=true
[ $code = 0 ] || fail "resumed: exit code $code"
diff <(timeless $tmp/whole/metrics.jsonl) <(timeless $tmp/killed/metrics.jsonl) >$tmp/diff || { log=$tmp/diff; fail "the resumed run differs"; }
for f in $(cd $tmp/whole/rollouts && ls); do
    cmp $tmp/whole/rollouts/$f $tmp/killed/rollouts/$f || fail "samples of $f differ"
done
cmp $tmp/whole/latest/actor_train/model.safetensors $tmp/killed/latest/actor_train/model.safetensors || fail "weights differ"

# a signal: the step is finished and saved, exit code 130, nothing is left
words stopped $keys
"${words[@]}" >$tmp/stopped.log 2>&1 </dev/null &
pid=$!
log=$tmp/stopped.log
steps stopped 2
kill -TERM $pid
code=0
wait $pid || code=$?
[ $code = 130 ] || fail "after SIGTERM: exit code $code"
nothing_left stopped
job stopped $keys resume_from_checkpoint=true
[ $code = 0 ] || fail "resumed after SIGTERM: exit code $code"
diff <(timeless $tmp/whole/metrics.jsonl) <(timeless $tmp/stopped/metrics.jsonl) >$tmp/diff || { log=$tmp/diff; fail "the run after SIGTERM differs"; }
echo ok
