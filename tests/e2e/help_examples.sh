#!/bin/bash
# The examples of --help and of the pages, pasted into a shell after the quickstart, do what they say: exit code 0 and an answer.
# Not covered: export, report, replay, why and bisect (they need the quickstart's runs; tests/e2e/export.sh, pages.sh, run_replay.sh, run_why.sh, bisect.sh), image (a photo; image.sh), reward and actor (they name a host), serve (e2e/serve).
. tests/e2e/run.inc
quick_model
mkdir $tmp/output $tmp/bin
cp -r configs $tmp/configs
cp -r examples $tmp/examples
mv $tmp/home $tmp/output/quickstart
ln -s "$(realpath "$CROLL")" $tmp/bin/croll
log=$tmp/log num=0
for command in $("$CROLL" --help | sed -n 's/^  \([a-z]*\)  .*/\1/p'); do
    case $command in image | export | report | replay | why | bisect | reward | actor | serve) continue ;; esac
    example=$("$CROLL" $command --help | sed -n '/^example:/{n;s/^ *//;p}')
    (cd $tmp && PATH=$tmp/bin:$PATH sh -c "$example" >$tmp/out 2>$log </dev/null) || fail "$example: exit code $?"
    [ -s $tmp/out ] || [ -s $log ] || fail "$example: no answer"
    [ $command != generate ] || grep -q 'boxed{' $tmp/out || fail "$example: no answer to the chat: $(cat $tmp/out)"
    num=$((num + 1))
done
[ $num -ge 12 ] || fail "only $num examples"
# defaults that generate's help says are those of the keys: "(generating_args.top_p, 1)"
"$CROLL" config configs/quickstart/rlvr.yaml --json >$tmp/resolved 2>$log || fail "config: exit code $?"
"$CROLL" generate --help | grep -o '(generating_args\.[a-z_]*, [^)]*)' >$tmp/said
python3 - $tmp/resolved $tmp/said <<'PY' || fail "defaults of generate --help"
import json, re, sys
keys = json.load(open(sys.argv[1]))["actor_train"]["generating_args"]  # none is given: defaults
said = re.findall(r"\(generating_args\.(\w+), (.*)\)", open(sys.argv[2]).read())
assert len(said) == 6, said
for key, value in said:
    assert float(value) == keys[key], (key, value, keys[key])
PY
# blocks of the pages that end in a formula, a rule or a program of examples/
for page in losses math rewards eval; do
    rm -f $tmp/block.*
    awk -v out=$tmp/block. '/^```/ { in_block = !in_block; num++; next } in_block { print >(out num) }' docs/$page.md
    for block in $(grep -lE '\| croll (formula|score) |^echo |^croll eval ' $tmp/block.*); do
        (cd $tmp && PATH=$tmp/bin:$PATH sh $block >$tmp/out 2>$log) || fail "docs/$page.md: exit code $?: $(cat $block)"
        num=$((num + 1))
    done
done
[ $num -ge 19 ] || fail "only $num examples with those of the pages"
echo "$num examples"
