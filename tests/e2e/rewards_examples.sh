#!/bin/bash
# The reward programs of examples/rewards: by hand, with functions that misbehave, and as the program of a run, where each gives
# the verdict of the responses. A program whose compiler or interpreter is not here is named and left out.
# Not covered: how fast they are.
# mostly waits
. tests/e2e/run.inc
quick_model
here=$(pwd)
cat >$tmp/lines <<'END'
{"id":"a","prompt":"3+4=","ground_truth":"7","response":"\\boxed{8}, no: \\boxed{7}","response_tokens":16,"finish":"stop"}
{"id":"b","prompt":"3+4=","ground_truth":"7","response":"\\boxed{7}, no: \\boxed{8}","response_tokens":16,"finish":"length"}
{"id":"c","prompt":"3+4=","ground_truth":"7","response":"7","response_tokens":0,"finish":"stop"}
END
check='import json, re, sys
for line in sys.stdin:
    x = json.loads(line)
    print(x["id"], x.get("status", "ok"), *(format(x[k], ".6g") for k in ("score", "reward") if k in x), *([x["detail"]] if "detail" in x else []))'
# by_hand WORDS..: the answers, in order of ids
by_hand() { timeout 120 "$@" <$tmp/lines 2>$tmp/err | python3 -c "$check" | sort || fail "$*: $(cat $tmp/err)"; }
# answers WANTED WORDS..: lines of id, status, score, reward, detail
answers() {
    local want=$1
    shift
    [ "$(by_hand "$@")" = "$want" ] || fail "$*: $(by_hand "$@")"
}
right=$'a ok 1\nb ok 0\nc ok 0'
functions="python3 examples/rewards/run_functions.py"

# every program gives the verdicts of the run's responses
cat >$tmp/verdicts.py <<'END'
import json, re, sys
rows = [json.loads(line) for line in open(f"{sys.argv[1]}/rollouts/step-000000.jsonl")]
assert len(rows) == 512, len(rows)
for r in rows:
    box = re.findall(r"\\boxed\{([^{}]*)\}", r["response"])
    assert r["status"] == "ok" and r["score"] == float(bool(box) and box[-1] == r["ground_truth"]), r
assert 0 < sum(r["score"] for r in rows) < 512
END
# in_run NAME WORDS..: the program of a run of one step
in_run() {
    local name=$1
    shift
    job $name max_steps=1 validation=null "rewards.math_rule.exec=$*" rewards.math_rule.max_in_flight=$at_once
    [ $code = 0 ] || fail "$*: exit code $code"
    python3 $tmp/verdicts.py $tmp/$name || fail "$*: other verdicts"
}
absent() { echo "left out: $1 (there is no $2)"; }

at_once=1
if command -v jq >/dev/null; then
    answers "$right" examples/rewards/reward.sh
    in_run shell $here/examples/rewards/reward.sh
else
    absent reward.sh jq
fi
if echo '#include <jansson.h>' | cc -E - >/dev/null 2>&1; then
    cc -std=c11 -Wall -Wextra -Werror -O2 -o $tmp/reward_c examples/rewards/reward.c -ljansson
    answers "$right" $tmp/reward_c
    in_run c $tmp/reward_c
else
    absent reward.c jansson.h
fi
at_once=64
if command -v go >/dev/null; then
    GOCACHE=${GOCACHE:-$tmp/go} GO111MODULE=off go build -o $tmp/reward_go examples/rewards/reward.go
    answers "$right" $tmp/reward_go
    in_run go $tmp/reward_go
else
    absent reward.go go
fi

# functions in Python: alone, several, lists of lines, coroutines
answers "$right" $functions examples/rewards/functions.py
answers "$right" $functions examples/rewards/functions.py batch
asked='the service was asked about 7'
answers "a ok 1 $asked"$'\n'"b ok 0 $asked"$'\n'"c ok 0 $asked" $functions examples/rewards/functions.py service
answers $'a ok 0.75\nb abstain\nc ok 1' $functions examples/rewards/functions.py brief
answers $'a ok 1 2.15\nb ok 0 0\nc ok 0 0.2' $functions examples/rewards/functions.py reward brief=0.2 batch
in_run several "$here/examples/rewards/run_functions.py $here/examples/rewards/functions.py reward batch=0.25 service=0.5"
python3 - $tmp/several <<'END' || fail "several functions"
import json, sys
rows = [json.loads(line) for line in open(f"{sys.argv[1]}/rollouts/step-000000.jsonl")]
assert all(r["reward"] == 1.75 * r["score"] and r["metrics"] == dict.fromkeys(("reward", "batch", "service"), r["score"]) for r in rows)
assert "math_rule/reward/batch" in open(f"{sys.argv[1]}/metrics.jsonl").read()
END

# what goes wrong in them is said of the sample; nothing that they print, read or raise ends the loop
cat >$tmp/bad.py <<'END'
import asyncio, os, sys, time
print("loaded")
def prints(row): print("printed"); os.write(1, b"written\n"); return 1
def reads(row): return len(sys.stdin.read())
def raises(row): return 1 / 0
def leaves(row): sys.exit(3)
def stops(row): raise StopIteration
async def cancels(row): raise asyncio.CancelledError
def endless(row): return float("inf")
def short(responses): return []
def drawn(responses): return (1 for text in responses)
def odd(responses): return [float("nan") if not i else 1 for i, text in enumerate(responses)]
def lacks(colour): return 1
def scoreless(row): return {"detail": "none"}
def strange(row): return {"score": 1, "detail": "\udc80"}
def silent(row): return None
def huge(row): return {"score": 10 ** 30, "reward": 2}
def hangs(row): time.sleep(1000 if row["id"].endswith("0") else 0); return 1
END
each() { for id in a b c; do echo "$id $1"; done; }
for pair in "prints:ok 1" "reads:ok 0" "raises:error ZeroDivisionError: division by zero" "leaves:error SystemExit: 3" \
    "stops:error StopIteration" "cancels:error asyncio.exceptions.CancelledError" "endless:error ValueError: endless gave the score inf" \
    "drawn:ok 1" "lacks:error TypeError: lacks() missing 1 required positional argument: 'colour'" "scoreless:error KeyError: 'score'" \
    "strange:ok 1 ?" "silent:abstain" "huge:ok 1e+30 2"; do
    answers "$(each "${pair#*:}")" $functions $tmp/bad.py ${pair%%:*}
done
by_hand $functions $tmp/bad.py short | grep -q 'error ValueError: short gave 0 scores for' || fail "a list that is too short"
by_hand $functions $tmp/bad.py odd | grep -q 'error ValueError: odd gave the score nan' || fail "one of a list"
$functions $tmp/bad.py prints <$tmp/lines 2>&1 >/dev/null | grep -q printed || fail "what is printed is not on stderr"

# what is wrong with a file or a function is known before a run begins
refused() { # FUNCTION PATTERN
    code=0
    sed 's/"id":"a"/"id":"probe","probe":true/; q' $tmp/lines | $functions $tmp/${3:-bad.py} $1 >$tmp/out 2>$tmp/err || code=$?
    [ $code = 1 ] && [ ! -s $tmp/out ] && tail -n 1 $tmp/err | grep -q "$2" || fail "$1: exit code $code: $(cat $tmp/err)"
}
echo 'def reward(:' >$tmp/syntax.py
refused lacks 'lacks asks for colour; a row has id, probe, prompt, ground_truth'
refused nothing "bad.py has no function nothing"
refused reward 'SyntaxError' syntax.py
refused reward "No such file or directory: '.*absent.py'" absent.py

# one that hangs at the first question of some samples (the second one's id ends with .1): time-outs, asked again
job hangs max_steps=1 validation=null rollout_batch_size=2 actor_train.training_args.per_device_train_batch_size=8 actor_train.training_args.gradient_accumulation_steps=2 \
    "rewards.math_rule.exec=$here/examples/rewards/run_functions.py $tmp/bad.py hangs" rewards.math_rule.max_in_flight=64 reward_timeout=$((10 * slower))
[ $code = 0 ] || fail "a function that hangs: exit code $code"
python3 - $tmp/hangs <<'END' || fail "a function that hangs"
import json, sys
rows = [json.loads(line) for line in open(f"{sys.argv[1]}/rollouts/step-000000.jsonl")]
assert len(rows) == 32 and all(r["status"] == "ok" for r in rows), [r for r in rows if r["status"] != "ok"]
assert '"scheduler/reward_retries":2,' in open(f"{sys.argv[1]}/metrics.jsonl").read()
END
