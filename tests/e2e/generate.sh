#!/bin/bash
# croll generate on a random model: what a line gets depends on its id, not on its place or company;
# a bad line is answered in place; a pipe is answered while it is open; log-probs are those of logprobs.
# also on far
set -eu
tmp=$(mktemp -d)
trap 'rm -rf $tmp' EXIT
fail() { echo "FAILED: $*"; exit 1; }
scripts/make_sums $tmp
model=$tmp/model
"$CROLL" init $model --seed 5 >$tmp/log || fail "init"
generate() { "$CROLL" generate $model --json --max-new-tokens 12 --temperature 1 --top-p 1 --top-k 0 "$@"; }

for i in 1 2 3 4 5 6; do echo "{\"id\":\"l$i\",\"input_ids\":[1,20$i,1${i}7]}"; done >$tmp/lines
generate --n 3 --seed 7 <$tmp/lines >$tmp/all
[ "$(wc -l <$tmp/all)" = 18 ] || fail "18 completions"
generate --n 3 --seed 7 <$tmp/lines | cmp - $tmp/all || fail "same seed, other text"
tac $tmp/lines | generate --n 3 --seed 7 infer_batch_size=2 | sort | cmp - <(sort $tmp/all) || fail "order of lines"
sed -n 4p $tmp/lines | generate --n 3 --seed 7 | cmp - <(grep '"l4"' $tmp/all) || fail "a line alone"
generate --n 3 --seed 8 <$tmp/lines | cmp -s - $tmp/all && fail "another seed, same text"

# bad lines in between: unknown id, no tokens, no JSON, too long; the others as if they were not there
{ sed -n 1,2p $tmp/lines
  echo '{"id":"bad1","input_ids":[264]}'
  echo '{"id":"bad2","input_ids":[]}'
  echo '{"id":"bad3",'
  echo "{\"id\":\"bad4\",\"input_ids\":[1$(printf ',3%.0s' $(seq 600))]}"
  sed -n 3,6p $tmp/lines; } >$tmp/mixed
code=0
generate --n 3 --seed 7 <$tmp/mixed >$tmp/answers 2>$tmp/err || code=$?
[ $code = 2 ] || fail "exit code $code after bad lines"
grep -v '"error"' $tmp/answers | cmp - $tmp/all || fail "good lines beside bad ones"
[ "$(sed -n 7,10p $tmp/answers | grep -c '"error"')" = 4 ] || fail "errors in their places: $(cat $tmp/answers)"

# a conversation over a pipe
coproc talk { generate --n 1 --seed 7; }
job=$talk_PID
for i in 2 5; do
    sed -n ${i}p $tmp/lines >&"${talk[1]}"
    IFS= read -r -t 20 -u "${talk[0]}" answer || fail "no answer while the pipe is open"
    [ "$answer" = "$(grep "\"l$i\",\"index\":0" $tmp/all)" ] || fail "answer over a pipe: $answer"
done
exec {talk[1]}>&-
wait $job || fail "exit code of the conversation"

# texts, of lines with the same id, too, and of other lengths than their neighbours
for i in $(seq 10 39); do echo "{\"id\":$((i / 2)),\"input_ids\":[1,20$((i % 9)),1$i]}"; done >$tmp/rows
texts() { "$CROLL" generate $model --max-new-tokens 40 --temperature 1 --stop '"' --stop '#' --stop A --stop 9 "$@" <$tmp/rows; }
texts infer_batch_size=1 >$tmp/one
[ "$(wc -l <$tmp/one)" -ge 30 ] || fail "texts: $(cat $tmp/one)"
for num in 2 8 256; do texts infer_batch_size=$num | cmp - $tmp/one || fail "texts of $num lines at a time"; done

# the same model in the cache of Hugging Face, by its name
mkdir -p $tmp/hf/hub/models--org--name/refs $tmp/hf/hub/models--org--name/snapshots
printf 0abc >$tmp/hf/hub/models--org--name/refs/main
cp -r $model $tmp/hf/hub/models--org--name/snapshots/0abc
HF_HOME=$tmp/hf HF_HUB_CACHE= model=org/name generate --n 3 --seed 7 <$tmp/lines | cmp - $tmp/all || fail "a model of the cache"

# log-probs of the first completion, as text
line=$(grep '"l3","index":2' $tmp/all)
prompt=$(sed 's/.*"prompt_ids":\[\([0-9,]*\)\].*/\1/' <<<"$line")
output=$(sed 's/.*"output_ids":\[\([0-9,]*\)\].*/\1/' <<<"$line")
want=$(sed 's/.*"logprobs":\[\([^]]*\)\].*/\1/' <<<"$line")
got=$(echo "{\"id\":1,\"input_ids\":[$prompt,$output]}" | "$CROLL" logprobs $model)
[[ $got == *",$want]"* ]] || fail "log-probs: $got and $want"

# wrong settings are refused before anything is read
for bad in "--n 0" "--max-new-tokens 0" "--temperature -1" "--top-p 0" "generating_args.num_beams=2"; do
    code=0
    generate $bad </dev/null >$tmp/out 2>$tmp/err || code=$?
    [ $code = 2 ] && [ -s $tmp/err ] && [ ! -s $tmp/out ] || fail "$bad: exit code $code"
done
echo ok
