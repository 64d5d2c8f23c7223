#!/bin/bash
# croll run: the same seed gives the same numbers; a run that was killed goes on as if it had not been, and before it was killed it had
# the numbers of the other run with its seed. CROLL_AGAIN=1: also the whole run again.
# also long: CROLL_AGAIN=1
. tests/e2e/run.inc
quick_model
keys="max_steps=9 save_steps=3 eval_steps=4"
job whole $keys
[ $code = 0 ] || fail "exit code $code"
if [ "${CROLL_AGAIN:-}" ]; then
    job again $keys
    [ $code = 0 ] || fail "exit code $code"
    diff <(timeless $tmp/whole/metrics.jsonl) <(timeless $tmp/again/metrics.jsonl) >$tmp/diff || { log=$tmp/diff; fail "two runs with one seed differ"; }
fi

# killed in step 5 or so, the whole process group at once, and again after it went on
killed killed 5 $keys
[ "$(readlink $tmp/killed/latest)" = checkpoint-3 ] || fail "newest checkpoint: $(readlink $tmp/killed/latest)"
job killed $keys resume_from_checkpoint=true
[ $code = 0 ] || fail "resumed: exit code $code"
diff <(timeless $tmp/whole/metrics.jsonl) <(timeless $tmp/killed/metrics.jsonl) >$tmp/diff || { log=$tmp/diff; fail "the resumed run differs"; }
for f in $(cd $tmp/whole/rollouts && ls); do
    cmp $tmp/whole/rollouts/$f $tmp/killed/rollouts/$f || fail "samples of $f differ"
done
cmp $tmp/whole/latest/actor_train/model.safetensors $tmp/killed/latest/actor_train/model.safetensors || fail "weights differ"

# a signal: the step is finished and saved, exit code 130, nothing is left
stopped stopped 2 $keys
diff <(timeless $tmp/whole/metrics.jsonl) <(timeless $tmp/stopped/metrics.jsonl) >$tmp/diff || { log=$tmp/diff; fail "the run after SIGTERM differs"; }
echo ok
