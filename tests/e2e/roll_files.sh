#!/bin/bash
# Files with the keys and the structure of ROLL's fsdp2 examples and of each YAML block of its FSDP2 guide (tests/roll,
# all written for this test): croll config accepts them, and its resolved form again; those that begin with
# "# refused: PATTERN" are refused with that sentence. At least 20 are accepted: the number may only rise.
. tests/e2e/run.inc
num=0
for file in tests/roll/*.yaml; do
    [ $file = tests/roll/base.yaml ] && continue
    pattern=$(sed -n '1s/^# refused: //p' $file) log=$tmp/log code=0
    "$CROLL" config $file >$tmp/resolved.yaml 2>$log || code=$?
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
[ $num -ge 20 ] || fail "only $num are accepted"
"$CROLL" config tests/roll/guide_8_vision.yaml 2>&1 >/dev/null | grep -q 'vision_model means the vision tower' || fail "no note of vision_model"
echo ok
