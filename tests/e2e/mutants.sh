#!/bin/bash
# Broken copies of files and rows, through whole processes: exit code 0 or 2, a sentence for 2, in time, no
# sanitizer report; rows are answered line by line in JSON. unit_commands_mutants calls the same commands
# 1000 times each within one process; CROLL_MUTANTS=1000 does it here too (20 without).
set -eu
num=${CROLL_MUTANTS:-20}
tmp=$(mktemp -d)
trap 'rm -rf $tmp' EXIT
fail() { echo "FAILED: $*"; tail -c 3000 $tmp/err; exit 1; }

# expect NAME COMMAND..: run it on stdin
expect() {
    local name=$1 code=0
    shift
    timeout 120 "$CROLL" "$@" >$tmp/out 2>$tmp/err || code=$?
    [ $code = 0 ] || [ $code = 2 ] || fail "$name: croll $*: exit code $code"
    ! grep -q "Sanitizer\|runtime error" $tmp/err || fail "$name: croll $*"
    [ $code = 0 ] || [ -s $tmp/err ] || [ -s $tmp/out ] || fail "$name: croll $*: exit code 2 without a word"
}

scripts/make_sums $tmp/home
model=$tmp/home/model
"$CROLL" init $model >/dev/null
"$TOOLS/tool_mutate" configs/quickstart/rlvr.yaml "$num" $tmp/yaml
for ((i = 0; i < num; i++)); do
    expect "YAML $i" config $tmp/yaml$i </dev/null
    rm $tmp/yaml$i
done

cat >$tmp/scores <<'END'
{"id":1,"prompt":"3+4=","ground_truth":"7","response":"so \\boxed{7}"}
{"id":"a","prompt":"?","ground_truth":"\\frac{1}{2}","response":"<think>x</think>\n\n$\\boxed{0.5}$"}
{"id":2,"prompt":"?","ground_truth":"(1, \\sqrt{2}]","response":"\\boxed{x^2+3x-1=0, \\text{or } 2^{10}}"}
END
"$TOOLS/tool_mutate" $tmp/scores 1000 >$tmp/rows
expect "rows" score math_rule <$tmp/rows
[ "$(wc -l <$tmp/out)" -ge 900 ] || fail "$(wc -l <$tmp/out) answers to 1000 rows"

head -c 40000 $model/model.safetensors >$tmp/head # its tensors end beyond the file, which is an error too
for base in $model/model.safetensors $tmp/head; do
    "$TOOLS/tool_mutate" $base $((num / 2)) $tmp/tensors
    for ((i = 0; i < num / 2; i++)); do
        expect "safetensors $i of $base" inspect $tmp/tensors$i </dev/null
        rm $tmp/tensors$i
    done
done
mkdir $tmp/model
cp $model/*config.json $tmp/model
"$TOOLS/tool_mutate" $model/tokenizer.json "$num" $tmp/tokenizer
for ((i = 0; i < num; i++)); do
    mv $tmp/tokenizer$i $tmp/model/tokenizer.json
    expect "tokenizer $i" tokenize $tmp/model <<<'{"id":1,"text":"Once upon a time, \u00fc\ud83d\ude00"}'
done

cat >$tmp/prompts <<'END'
{"id":1,"input_ids":[1,203,207,250],"labels":[-100,203,207,250]}
{"id":"b","prompt":"Once upon a time"}
{"id":3,"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":"there"}]}
END
"$TOOLS/tool_mutate" $tmp/prompts 1000 >$tmp/rows
for command in "logprobs" "tokenize" "grad"; do
    more=
    [ $command != grad ] || more="--out $tmp/grad"
    expect "rows" $command $model $more <$tmp/rows
    [ $command = grad ] || [ "$(wc -l <$tmp/out)" -ge 900 ] || fail "$command: $(wc -l <$tmp/out) answers to 1000 rows"
done
