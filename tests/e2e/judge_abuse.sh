#!/bin/bash
# A judge on its worst days (judge_mock.py): delays, 429 with Retry-After in both forms, errors of every kind, answers that are cut,
# lie about their length, are no HTTP, no JSON or no clear verdict. No score is wrong, 256 chats are under way at once, what
# can be asked again is, and the key is nowhere. Not covered: replies one by one (unit/scorers_judge), a run (e2e/run_judge).
. tests/e2e/run.inc
server=
trap '[ -z "$server" ] || kill -9 $server 2>/dev/null; rm -rf $tmp' EXIT
key=sk-5f0a93c1d7
python3 tests/e2e/judge_mock.py $key $tmp/port &
server=$!
until_true '[ -s $tmp/port ]'
port=$(cat $tmp/port)
CROLL_JUDGE_KEY=$key
export CROLL_JUDGE_KEY
num=2000
"$CROLL" config configs/quickstart/rlvr.yaml pretrain=$tmp reward_timeout=$((10 * slower)) \
    "rewards.math_rule={judge: {url: http://127.0.0.1:$port, key_env: CROLL_JUDGE_KEY}, judge_prompt: '{response}', max_in_flight: 256}" >$tmp/judge.yaml
python3 -c '
import json
for n in range('$num'):
    print(json.dumps({"id": n, "ground_truth": "x", "messages": [{"role": "user", "content": "q"}], "response": "ID=%d TRUE=%s" % (n, "YES" if n * 7919 % 3 else "NO")}))
' >$tmp/lines
log=$tmp/err
"$CROLL" score math_rule --config $tmp/judge.yaml <$tmp/lines >$tmp/verdicts 2>$tmp/err || fail "exit code $?"
cat >$tmp/check.py <<'PY'
import json, sys, urllib.request
sys.path.insert(0, "tests/e2e")
seen, none = set(), 0
for line in open(sys.argv[1]):
    v = json.loads(line)
    n = v["id"]
    assert n not in seen, n
    seen.add(n)
    has_none = n % 4 == 1 or n % 40 == 2
    assert (v["status"] == "ok") != has_none, v
    none += has_none
    if not has_none:
        assert v["score"] == v["reward"] == (1 if n * 7919 % 3 else 0), v
    assert n % 40 != 2 or v["status"] == "timeout", v
stats = json.load(urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[2]}/stats"))
print(len(seen), "lines,", none, "without a verdict,", stats)
assert len(seen) == int(sys.argv[3]) and stats["most"] > 200 and stats["num"] > len(seen), stats
assert stats["early"] == 0, stats
PY
python3 $tmp/check.py $tmp/verdicts $port $num || fail "a wrong verdict"
rm -f $tmp/port
! grep -rl $key $tmp || fail "the key is in a file"
