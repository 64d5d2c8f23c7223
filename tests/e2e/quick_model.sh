#!/bin/bash
# The model that other tests begin with, made once in $QUICK_MODEL: it has learned the form of an answer.
. tests/e2e/run.inc
QUICK_MODEL=${QUICK_MODEL:-$tmp/quick_model}
rm -rf $QUICK_MODEL
make_quick_model $tmp/home
answers() { # to the first 20 validation questions, the likeliest tokens
    sed -n '1,20s/.*"prompt":"\([^"]*\)".*/{"id":"\1","messages":[{"role":"user","content":"\1"}]}/p' $tmp/home/sums.val.jsonl |
        "$CROLL" generate $1 --json --temperature 0 --max-new-tokens 16
}
[ "$(answers $tmp/home/sft_model | grep -c '"text":"\\\\boxed{[0-9]*}')" -ge 10 ] || fail "it does not answer in boxes"
rm -r $tmp/home/sft/checkpoint-* $tmp/home/sft/latest
mv $tmp/home $QUICK_MODEL
