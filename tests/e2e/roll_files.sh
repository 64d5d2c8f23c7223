#!/bin/bash
# Files with the keys and the structure of ROLL's fsdp2 examples and of each YAML block of its FSDP2 guide (tests/roll,
# all written for this test): croll config accepts them, and its resolved form again; those that begin with
# "# refused: PATTERN" are refused with that sentence; "# flags: .." are options of the command. At least 28 are accepted:
# the number may only rise. Notes of one kind are one line with all places.
. tests/e2e/run.inc
num=0
for file in tests/roll/*.yaml; do
    [ $file = tests/roll/base.yaml ] && continue
    pattern=$(sed -n '1s/^# refused: //p' $file) flags=$(sed -n '1s/^# flags: //p' $file) log=$tmp/log code=0
    "$CROLL" config $file $flags >$tmp/resolved.yaml 2>$log || code=$?
    if [ "$pattern" ]; then
        [ $code = 2 ] && grep -q -- "$pattern" $log || fail "$file: exit code $code instead of: $pattern"
        [ "$(grep -c ': error: ' $log)" = 1 ] || fail "$file: more than the one reason"
        tail -n 2 $log | head -n 1 | grep -q ': error: ' || fail "$file: notes after the error"
    else
        [ $code = 0 ] || fail "$file: exit code $code"
        "$CROLL" config $tmp/resolved.yaml >$tmp/again.yaml 2>$log || fail "$file: its resolved form is refused"
        cmp $tmp/resolved.yaml $tmp/again.yaml || fail "$file: resolving twice is not the same"
        num=$((num + 1))
    fi
done
[ $num -ge 28 ] || fail "only $num are accepted"
"$CROLL" config tests/roll/guide_8_vision.yaml 2>&1 >/dev/null | grep -q 'vision_model means the vision tower' || fail "no note of vision_model"
log=$tmp/log
"$CROLL" config tests/roll/rlvr_megatron.yaml --as-fsdp2 2>$log >$tmp/resolved.yaml
[ -z "$(sed -n -E 's/.* no effect \((.*)\)(; also at .*)?$/\1/p' $log | sort | uniq -d)" ] || fail "a reason has two lines"
grep -q 'note: tensor_model_parallel_size, pipeline_model_parallel_size have no effect (fsdp2 cuts .*); also at [0-9]*:7, [0-9]*:23$' $log || fail "two names and three places in one line"
said='actor_train: megatron_train becomes fsdp2_train with fsdp_size 16; per_device_train_batch_size 1 x gradient_accumulation_steps 32 become 1 x 8, '
grep -q "note: $said.*; ulysses_size is 2; layers are recomputed" $log || fail "what becomes of the block"
"$CROLL" plan tests/roll/rlvr_megatron.yaml --as-fsdp2 pretrain=Qwen/Qwen3-30B-A3B --json 2>$log | grep -q '"strategy":"fsdp2_train","mesh":{"ranks":16,"ddp":1,"fsdp":16,"dp":8,"ulysses":2}' || fail "the plan of a mapped block"
echo ok
