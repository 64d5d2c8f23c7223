#!/bin/bash
# croll generate on several ranks writes the bytes of one rank, whatever the line: without id, bad, refused by an engine, with
# the id of another; more lines than run at a time; a pipe that stays open. A rank that is killed ends it.
. tests/e2e/run.inc
scripts/make_sums $tmp
model=$tmp/model
"$CROLL" init $model --seed 5 >$tmp/log || fail "init"
generate() { "$CROLL" generate $model --json --max-new-tokens 12 --temperature 1 --top-p 1 --top-k 0 "$@"; }
for i in 1 2 3 4 5 6; do echo "{\"id\":\"l$i\",\"input_ids\":[1,20$i,1${i}7]}"; done >$tmp/lines

{ sed 's/"id":"l[0-9]",//' $tmp/lines
  cat $tmp/lines
  echo '{"id":"bad1","input_ids":[264]}'
  echo '{"id":"bad2",'
  sed 's/"l/"m/' $tmp/lines
  echo "{\"id\":\"bad3\",\"input_ids\":[1$(printf ',3%.0s' $(seq 300))]}"
  echo "{\"id\":\"bad4\",\"input_ids\":[1$(printf ',3%.0s' $(seq 300))]}"
  sed 's/"l/"k/' $tmp/lines; } >$tmp/many
for what in "--n 3" "--n 1"; do
    code=0
    generate $what --seed 7 <$tmp/many >$tmp/one || code=$?
    [ $code = 2 ] && [ "$(grep -c '256 fit' $tmp/one)" = 2 ] || fail "$what: exit code $code, $(grep '"error"' $tmp/one)"
    for n in 2 3; do
        code=0
        generate $what --seed 7 "device_mapping=list(range(0,$n))" infer_batch_size=2 <$tmp/many >$tmp/ranks 2>$tmp/err || code=$?
        [ $code = 2 ] && cmp $tmp/one $tmp/ranks || fail "$what on $n ranks: exit code $code, $(cat $tmp/err)"
    done
done
texts() { sed 's/l[2-6]/l2/' $tmp/lines | "$CROLL" generate $model --max-new-tokens 40 --temperature 1 --top-p 1 --top-k 0 "$@"; }
texts >$tmp/one
texts device_mapping=[0,1] | cmp - $tmp/one || fail "texts on two ranks"
generate device_mapping=[0,1] </dev/null >$tmp/ranks 2>$tmp/err && [ ! -s $tmp/ranks ] && [ ! -s $tmp/err ] || fail "no lines on two ranks: $(cat $tmp/err)"

# rank 1 is killed: while all wait for a line, and while it works
mkfifo $tmp/pipe
for i in $(seq 400); do cat $tmp/lines; done >$tmp/many
for input in pipe many; do
    exec 9<>$tmp/pipe
    : >$tmp/ranks # what the last one wrote is no answer of this one
    sed -n 1,2p $tmp/lines >&9
    generate device_mapping=[0,1] --max-new-tokens 240 --n 2 <$tmp/$input >$tmp/ranks 2>$tmp/err 9>&- &
    job=$! code=0
    until_true '[ "$(wc -l <$tmp/ranks)" -ge 4 ]'
    kill -9 $(rank_with 1 "generate $model") || fail "$input: rank 1 is not there: $(cat $tmp/err)"
    wait $job || code=$?
    [ $code = 1 ] && grep -q '^croll generate: rank 1 ' $tmp/err || fail "$input: rank 1 killed: exit code $code, $(cat $tmp/err)"
    [ "$(wc -l <$tmp/ranks)" -lt 4800 ] || fail "$input: all lines were answered before"
    exec 9>&-
    until_true '! pgrep -f "generate $model" >/dev/null'
done

# settings are refused once, before ranks start
for bad in "--n 0" strategy_args.strategy_config.fsdp_size=2 model_args.ulysses_size=2; do
    code=0
    generate device_mapping=[0,1] $bad </dev/null >$tmp/ranks 2>$tmp/err || code=$?
    [ $code = 2 ] && [ "$(wc -l <$tmp/err)" = 1 ] && [ ! -s $tmp/ranks ] || fail "$bad: exit code $code, $(cat $tmp/err)"
done
echo ok
