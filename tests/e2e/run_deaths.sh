#!/bin/bash
# croll run while what it has started dies or freezes at once, again and again: pauses, then the end with a reason.
# Not here: single deaths, which cost nothing (run_chaos.sh, run_verdicts.sh).
# mostly waits
. tests/e2e/run.inc
scripts/make_sums $tmp/home
mv $tmp/home/model $tmp/home/sft_model && "$CROLL" init $tmp/home/sft_model >/dev/null
small=(rollout_batch_size=4 num_return_sequences_in_group=8 validation=null
    actor_train.training_args.per_device_train_batch_size=16 actor_train.training_args.gradient_accumulation_steps=1)

# ---- a worker that freezes at each sample: killed and started again, five times; meanwhile the others ----
(job freezes max_steps=9 collective_timeout=$((5 * slower)) "${small[@]}" "rewards.math_rule.exec=bash -c 'while read -r l; do case \$l in *probe*) echo \"{\\\"id\\\":\\\"probe\\\",\\\"score\\\":1}\";; *) kill -STOP \$(ps -o ppid= \$PPID);; esac; done'"; exit $code) &
freezes=$!
trap 'kill -9 $(jobs -p) 2>/dev/null || true; rm -rf $tmp' EXIT

# ---- a program, and a worker, that die at once: pauses, then the end with the last words ----
job dies max_steps=9 "${small[@]}" "rewards.math_rule.exec=bash -c 'while read -r l; do case \$l in *probe*) echo \"{\\\"id\\\":\\\"probe\\\",\\\"score\\\":1}\";; *) echo no such judge >&2; exit 3;; esac; done'"
[ $code = 1 ] || fail "a program that dies: exit code $code"
grep -q "^croll run: .*reward worker 0 of math_rule ended with exit code 2: bash ended with exit code 3, 8 times in a row and without any answer: no such judge" $log ||
    fail "a program that dies: another sentence"
# its program is slow, so that it never answers before it is killed
words hunted max_steps=100000 "${small[@]}" "rewards.math_rule.exec=bash -c 'while read -r l; do case \$l in *probe*) echo \"{\\\"id\\\":\\\"probe\\\",\\\"score\\\":1}\";; *) sleep 9;; esac; done'"
log=$tmp/hunted.log code=0 begin=$(date +%s)
"${words[@]}" >$log 2>&1 </dev/null &
pid=$!
while kill -0 $pid 2>/dev/null; do
    [ $(($(date +%s) - begin)) -lt 100 ] || { kill -9 $pid; fail "a worker that dies: the run goes on"; }
    pkill -KILL -f "reward $tmp/hunted/config.yaml" || true
    sleep 0.05
done
wait $pid || code=$?
[ $code = 1 ] || fail "a worker that dies: exit code $code"
grep -q "^croll run: .*reward worker 0 of math_rule was killed by signal 9, 21 times in a row before its first answer" $log ||
    fail "a worker that dies: another sentence"
[ "$(grep -c 'it is started again in' $log)" -ge 20 ] || fail "a worker that dies: no pauses"
nothing_left hunted

code=0 log=$tmp/freezes.log
wait $freezes || code=$?
[ $code = 1 ] || fail "a worker that freezes: exit code $code"
grep -q "^croll run: .*reward worker 0 of math_rule has given no sign of life for [0-9]* s, 5 times in a row before its first answer" $log ||
    fail "a worker that freezes: another sentence"
nothing_left freezes
echo ok
