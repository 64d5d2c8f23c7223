#!/bin/bash
# croll score --compare on the files of a run: the rule as it is says what was recorded; a score that was changed in a file, a program
# and two programs are found; --explain on a terminal and through a pipe.
# Not covered: kinds of changes and wrong files (unit/scorers_compare), what is explained (unit/scorers_explain).
. tests/e2e/run.inc
quick_model
job run max_steps=2 validation=null rollout_batch_size=4 actor_train.training_args.per_device_train_batch_size=8 actor_train.training_args.gradient_accumulation_steps=4
[ $code = 0 ] || fail "exit code $code"
log=$tmp/err
# says PATTERN WORDS..: what is printed has a line like that
says() {
    local pattern=$1
    shift
    "$CROLL" score "$@" >$tmp/out 2>$log || fail "$*: exit code $?"
    grep -Eq -- "$pattern" $tmp/out || { cat $tmp/out; fail "$*: no line $pattern"; }
}
first=$tmp/run/rollouts/step-000000.jsonl
says '^0 of 128 samples of math_rule change from what was recorded to the rule as it is now$' math_rule --compare $tmp/run
says '^0 of 128 samples' math_rule --config $tmp/run/config.yaml --compare $tmp/run/rollouts
says '^0 of 64 samples' math_rule --compare $first
sed '3s/"score":[01],"reward":[01]/"score":0.5,"reward":0.5/; 4s/"status":"ok"/"status":"timeout"/' $first >$tmp/changed.jsonl
says '^2 of 64 samples' math_rule --compare $tmp/changed.jsonl
grep -Eq '^ +1  in part -> (right|wrong)$' $tmp/out && grep -Eq '^ +1  time-out -> (right|wrong)$' $tmp/out || fail "other changes"
says '^2 of 192 samples' math_rule --compare $tmp/run --compare $tmp/changed.jsonl

# programs get all columns of the row, which only the first sample of a group has in the file
cat >$tmp/messages <<'END'
#!/bin/sh
while IFS= read -r line; do
    id=${line#*'"id":"'}
    case $line in
    *'"difficulty":"'*'"response_ids":['*) echo "{\"id\":\"${id%%'"'*}\",\"score\":1}" ;;
    *) echo "{\"id\":\"${id%%'"'*}\",\"score\":0.25}" ;;
    esac
done
END
chmod +x $tmp/messages
says '^mean score [0-9.]* -> 1.0000, .* of 128 with a score in both$' math_rule --compare $tmp/run --exec $tmp/messages
says '^0 of 128 samples of math_rule change from .*messages to .*messages$' math_rule --compare $tmp/run --exec $tmp/messages --exec $tmp/messages
says '^\{"samples":128,"changed":[1-9][0-9]*,"changes":\{"wrong -> right":[1-9]' math_rule --compare $tmp/run --exec $tmp/messages --json
[ $(grep -c '^{"id":"[0-9a-f]*","before":' $tmp/out) -ge 1 ] || fail "no line of a sample"
"$CROLL" config $tmp/run/config.yaml rewards.math_rule.exec=$tmp/messages >$tmp/other.yaml 2>$log
says ' change from .*config.yaml to .*other.yaml$' math_rule --compare $tmp/run --config $tmp/run/config.yaml --config $tmp/other.yaml
says '^  "[0-9a-f]{16}"$' math_rule --compare $tmp/run --exec $tmp/messages --show 1
[ $(grep -cE '^  "[0-9a-f]{16}"$' $tmp/out) = 1 ] || fail "--show 1 shows $(grep -cE '^  "[0-9a-f]{16}"$' $tmp/out)"

# wrong usage: exit code 2 and a sentence
refuses() {
    local pattern=$1 code=0
    shift
    "$CROLL" score "$@" >$tmp/out 2>$log </dev/null || code=$?
    [ $code = 2 ] || fail "$*: exit code $code"
    grep -Eq -- "$pattern" $log || { cat $log; fail "$*: another sentence"; }
}
refuses 'no sample is of ifeval \(there are samples of math_rule' ifeval --compare $tmp/run
refuses 'has no reward domain .sums.' sums --compare $tmp/run --config $tmp/run/config.yaml
refuses 'cannot read .*/absent: No such file' math_rule --compare $tmp/absent
refuses 'has no rollouts/step' math_rule --compare $tmp/home
refuses 'at most two versions' math_rule --compare $tmp/run --exec a --exec b --exec c
refuses 'cannot start /absent' math_rule --compare $tmp/run --exec /absent
refuses 'are for --compare' math_rule --exec cat
refuses 'has answered none of the first 8 lines' math_rule --compare $tmp/run --exec cat
refuses '.--show is 0 or more' math_rule --compare $tmp/run --show -1
refuses '.--explain is for lines' math_rule --compare $tmp/run --explain
refuses 'lines are no samples of rollouts' math_rule --compare $tmp/run/metrics.jsonl

# a sample of a run explained: JSON through a pipe, a paragraph on a terminal
head -1 $first | "$CROLL" score math_rule --explain | grep -q '"explain":{"looked_in":' || fail "--explain through a pipe"
if command -v python3 >/dev/null; then
    cat >$tmp/terminal.py <<'END'
import os, pty, subprocess, sys
ours, theirs = pty.openpty()
p = subprocess.Popen(sys.argv[2:], stdin=open(sys.argv[1]), stdout=theirs)
os.close(theirs)
text = b""
while True:
    try:
        piece = os.read(ours, 65536)
    except OSError:
        break
    if not piece:
        break
    text += piece
sys.stdout.write(text.decode().replace("\r", ""))
END
    head -1 $first >$tmp/line
    python3 $tmp/terminal.py $tmp/line "$CROLL" score math_rule --explain >$tmp/out
    grep -q '^  looked in  ' $tmp/out && ! grep -q '{"id"' $tmp/out || fail "--explain on a terminal: $(cat $tmp/out)"
    python3 $tmp/terminal.py $tmp/line "$CROLL" score math_rule --explain --json >$tmp/out
    grep -q '^{"id":.*"explain":{' $tmp/out || fail "--explain --json on a terminal"
fi
