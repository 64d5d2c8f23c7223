#!/bin/bash
# croll logprobs with all that it can print, on a random model: numbers of Transformers in float64 (made by
# tests/parity/logprobs.py); the number of an id has the same digits wherever it stands; a line alone, among others, on two
# ranks (with half the threads each) has the same text; bad candidates are answered in place.
set -eu
tmp=$(mktemp -d)
trap 'rm -rf $tmp' EXIT
fail() { echo "FAILED: $*"; exit 1; }
scripts/make_sums $tmp
"$CROLL" init $tmp/model --seed 5 >$tmp/log || fail "init"
ask() { "$CROLL" logprobs $tmp/model --entropy --rank --top-logprobs 3 "$@"; }

ask <tests/parity/logprobs.json >$tmp/answers || fail "exit code $?"
python3 - $tmp/answers <<'CHECK' || fail "numbers"
import json, sys
for line, want in zip(open(sys.argv[1]), open("tests/parity/logprobs.json")):
    got, want = json.loads(line), json.loads(want)
    assert list(got) == ["id", "input_ids"] + list(want["answer"]), list(got)
    flat = lambda x: sum(map(flat, x), []) if isinstance(x, list) else [x]
    for key, numbers in want["answer"].items():
        a, b = flat(got[key]), flat(numbers)
        assert len(got[key]) == len(numbers) and len(a) == len(b), (key, got[key])
        exact = key in ("rank", "top_ids")
        for x, y in zip(a, b):
            assert x == y if exact else abs(x - y) <= 1e-5 * (1 + abs(y)), (got["id"], key, x, y)
    lists = want["candidates"] if isinstance(want["candidates"][0], list) else None
    for t, own in enumerate(got["logprobs"]):
        label = got["input_ids"][t + 1]
        again = dict(zip(got["top_ids"][t], got["top_logprobs"][t]))
        named = dict(zip(lists[t] if lists else want["candidates"], got["candidate_logprobs"][t]))
        assert again.get(label, own) == own and named.get(label, own) == own, (got["id"], t)
        assert all(again.get(i, x) == x for i, x in named.items()), (got["id"], t)
CHECK

while read -r line; do ask <<<"$line"; done <tests/parity/logprobs.json | cmp - $tmp/answers || fail "a line alone"
ask infer_batch_size=2 <tests/parity/logprobs.json | cmp - $tmp/answers || fail "two lines at a time"
ask 'device_mapping=[0,1]' <tests/parity/logprobs.json | cmp - $tmp/answers || fail "two ranks"

code=0
{ echo '{"id":1,"input_ids":[1,2,3],"candidates":[264]}'
  echo '{"id":2,"input_ids":[1,2,3],"candidates":[[1]]}'
  echo '{"id":3,"input_ids":[1,2,3],"candidates":"x"}'
  sed -n 1p tests/parity/logprobs.json; } | ask >$tmp/mixed || code=$?
[ $code = 2 ] || fail "bad candidates: exit code $code"
[ "$(grep -c '"error":"line .: candidates must be ids below 264' $tmp/mixed)" = 3 ] || fail "bad candidates: $(cat $tmp/mixed)"
tail -n 1 $tmp/mixed | cmp - <(sed -n 1p $tmp/answers) || fail "a good line after bad ones"
"$CROLL" logprobs $tmp/model --top-logprobs 265 </dev/null 2>$tmp/err && fail "265 of 264 ids"
grep -q -e "--top-logprobs 265: from 0 to 264" $tmp/err || fail "$(cat $tmp/err)"
