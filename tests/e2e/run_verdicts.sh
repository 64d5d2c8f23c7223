#!/bin/bash
# croll run with scoring programs that fail now and then, or always: what has no verdict counts nowhere, programs
# that cannot work are refused before the start, a run that learns nothing ends; programs with many lines at
# once, their metrics and rewards of tokens; frozen and killed workers.
# Not here: single lines and processes (unit/scorers_scorer.c); ranks and Redis (run_chaos.sh).
# mostly waits
. tests/e2e/run.inc
scripts/make_sums $tmp/home
mv $tmp/home/model $tmp/home/sft_model && "$CROLL" init $tmp/home/sft_model >/dev/null
small=(rollout_batch_size=4 num_return_sequences_in_group=8 validation=null
    actor_train.training_args.per_device_train_batch_size=16 actor_train.training_args.gradient_accumulation_steps=1)

# lines at once: threads that wait, then answer with how many of them wait; $1 is what to do with a line
cat >$tmp/program.py <<'PY'
import json, sys, threading, time
how, lock, busy = sys.argv[1], threading.Lock(), [0]
def answer(r):
    with lock:
        busy[0] += 1
    index = int(r["id"].split(".")[0][-4:], 16) if "probe" not in r else 0
    if "probe" not in r:
        assert len(r["response_ids"]) == r["response_tokens"] and r["finish"] in ("stop", "length") and r["step"] >= 0
        time.sleep(0.1)
    with lock:
        n, busy[0] = busy[0], busy[0] - 1
    out = {"id": r["id"], "score": index % 2, "metrics": {"at_once": n}, "detail": "why"}
    if how == "tokens":
        out.update(score=0, token_rewards=[0.25] * r["response_tokens"])
    if how == "some" and index in (1, 4, 6):
        return
    with lock:
        print(json.dumps(out), flush=True)
for line in sys.stdin:
    r = json.loads(line)
    if how == "never" and "probe" not in r:
        print("Traceback", flush=True)
    else:
        threading.Thread(target=answer, args=(r,), daemon=True).start()
if how != "some":
    while threading.active_count() > 1:
        time.sleep(0.01)
PY
program() { echo "rewards.math_rule.exec=python3 '$tmp/program.py' $1"; }

# ---- refused before the start ----
for bad in "$tmp/no/program" "bash -c 'echo 5'" "cat /dev/null" 'python3 -c "[print(1, flush=True) for l in open(0)]"'; do
    job refused max_steps=1 "${small[@]}" "rewards.math_rule.exec=$bad"
    [ $code = 2 ] || fail "$bad: exit code $code"
    grep -q "got no verdict: error: " $log || fail "$bad is not told"
    [ ! -e $tmp/refused ] || fail "$bad: the run was started"
    rm $log
done
# one that answers, but with an error: a warning before anything starts
printf '%s\n' 'import json, sys' 'for line in sys.stdin:' \
    '    print(json.dumps({"id": json.loads(line)["id"], "status": "error", "detail": "ZeroDivisionError"}), flush=True)' >$tmp/raises.py
job raises max_steps=1 max_failed_reward_steps=1 "${small[@]}" "rewards.math_rule.exec=python3 $tmp/raises.py"
[ $code = 1 ] || fail "a program that always raises: exit code $code"
sed '/^starting/,$d' $log | grep -q "cannot score the first row with an empty response: ZeroDivisionError" || fail "a program that raises: no warning before the start"
while IFS='|' read -r says change; do
    job refused max_steps=1 "${small[@]}" "$change"
    [ $code = 2 ] && grep -q "$says" $log || fail "$change: exit code $code"
    rm $log
done <<'LIST'
a built-in rule takes one line at a time|rewards.math_rule.max_in_flight=2
a quote is not closed|rewards.math_rule.exec=python3 'rw.py
65544, but the ids of samples have room for 65536|num_return_sequences_in_group=65544
8388608, but the ids of samples have room for 8388607|max_steps=8388608
LIST
grep -v '"ground_truth"' $tmp/home/sums.train.jsonl | grep . && fail "rows without ground_truth"
sed '3s/"ground_truth": *"[^"]*"/"ground_truth": null/; 5s/"ground_truth": *"\([^"]*\)"/"ground_truth": \1/' \
    $tmp/home/sums.train.jsonl >$tmp/rows.jsonl
job refused max_steps=1 "${small[@]}" "actor_train.data_args.file_name=[$tmp/rows.jsonl]"
[ $code = 2 ] || fail "null as ground_truth: exit code $code"
grep -q "rows.jsonl:3: the column ground_truth is null" $log || fail "the row is not told"
! grep -q "rows.jsonl:5" $log || fail "a number as ground_truth is refused"

# ---- 3 of 8 without a verdict: the others alone ----
job some max_steps=1 "${small[@]}" reward_timeout=2 rewards.math_rule.max_in_flight=64 "$(program some)"
[ $code = 0 ] || fail "some: exit code $code"
grep -q "12 samples have no verdict (12 time-outs, 0 errors; 12 were asked twice, 0 groups" $log || fail "time-outs are not told"
python3 - $tmp/some "$CROLL" <<'PY' || fail "samples without a verdict count"
import json, subprocess, sys
folder, croll = sys.argv[1:]
rows = [json.loads(l) for l in open(folder + "/rollouts/step-000000.jsonl")]
metrics = json.loads(open(folder + "/metrics.jsonl").readline())
judged = [r for r in rows if r["status"] == "ok"]
assert len(rows) == 32 and len({r["id"] for r in rows}) == 32 and len(judged) == 20
assert all(r["score"] is None and "no answer" in r["detail"] for r in rows if r["status"] != "ok")
assert all(r["detail"] == "why" and r["ground_truth"] and r["tag"] == "sums" for r in judged)
ask = {"group": 5, "scores": [r["score"] for r in judged], "final_mask": [[1] * len(r["ids"]) for r in judged],
       "config": {"adv_estimator": "grpo", "gamma": 1}}
alone = json.loads(subprocess.run([croll, "formula", "advantage"], input=json.dumps(ask), text=True,
                                  capture_output=True, check=True).stdout)
ask.update(group=8, scores=[r["score"] or 0 for r in rows], final_mask=[[1] * len(r["ids"]) for r in rows],
           verdict=[r["status"] == "ok" for r in rows])
among = json.loads(subprocess.run([croll, "formula", "advantage"], input=json.dumps(ask), text=True,
                                  capture_output=True, check=True).stdout)
assert [a for a, r in zip(among["advantages"], rows) if r["status"] == "ok"] == alone["advantages"]
for r, a in zip(judged, alone["advantages"]):
    assert abs(r["advantage"] - a[0]) < 1e-6, (r["advantage"], a[0])
assert all(r["advantage"] == 0 for r in rows if r["status"] != "ok")
kept = [a for row in alone["advantages"] for a in row]
assert abs(metrics["critic/advantages/mean"] - sum(kept) / len(kept)) < 1e-6
assert abs(metrics["critic/score/mean"] - sum(r["score"] for r in judged) / 20) < 1e-9
assert metrics["scheduler/reward_timeouts"] == 12 and metrics["scheduler/reward_retries"] == 12
assert metrics["math_rule/reward/at_once"] >= 8, metrics["math_rule/reward/at_once"]
PY

# ---- rewards of tokens ----
job tokens max_steps=1 "${small[@]}" rewards.math_rule.max_in_flight=64 adv_estimator=reinforce "$(program tokens)"
[ $code = 0 ] || fail "tokens: exit code $code"
python3 - $tmp/tokens/rollouts/step-000000.jsonl <<'PY' || fail "rewards of tokens"
import json, sys
for r in map(json.loads, open(sys.argv[1])):
    n = len(r["ids"])
    want = [0.25 * (n - t) for t in range(n)]
    got = r["advantage"] if isinstance(r["advantage"], list) else [r["advantage"]] * n
    assert got == want and r["token_rewards"] == [0.25] * n, (got, want)
PY

# ---- nothing has a verdict ----
job never max_steps=9 max_failed_reward_steps=2 "${small[@]}" "$(program never)"
[ $code = 1 ] || fail "never: exit code $code"
grep -q "step 1: 2 steps in a row trained nothing (max_failed_reward_steps): no sample has a verdict: error of math_rule, .*: Traceback" $log ||
    fail "why nothing is learned is not told"
grep -q "2 of 2 steps trained nothing" $tmp/never/run.html || fail "run.html says nothing"

# ---- verdicts, and a mask that leaves no sample ----
job emptied max_steps=9 max_failed_reward_steps=2 "${small[@]}" difficulty_mask=true difficulty_low_threshold=5
[ $code = 1 ] || fail "emptied: exit code $code"
grep -q "step 1: 2 steps in a row trained nothing (max_failed_reward_steps): no token is left by difficulty_mask" $log ||
    fail "which mask leaves no token is not told"
[ "$(values mask/final_mask_sum_eq_0 $tmp/emptied/metrics.jsonl | tr '\n' ' ')" = "1 1 " ] || fail "emptied: metrics"
! grep -q "actor/total_loss" $tmp/emptied/metrics.jsonl || fail "an update without a sample"
grep -q "2 of 2 steps trained nothing" $tmp/emptied/run.html || fail "emptied: run.html says nothing"

# ---- a frozen worker, and programs that are killed: every sample once ----
words frozen max_steps=3 collective_timeout=$((5 * slower)) "${small[@]}" rewards.math_rule.max_in_flight=4 "$(program all)"
log=$tmp/frozen.log code=0
"${words[@]}" >$log 2>&1 </dev/null &
pid=$!
steps frozen 1
pkill -STOP -f "reward $tmp/frozen/config.yaml"
for k in 1 2 3 4; do
    sleep 0.4
    pkill -KILL -f "$tmp/program.py all" || true
done
wait $pid || code=$?
[ $code = 0 ] || fail "frozen: exit code $code"
grep -q "reward worker 0 of math_rule has given no sign of life" $log || fail "the frozen worker is not told"
cat $tmp/frozen/rollouts/*.jsonl >$tmp/all
[ "$(wc -l <$tmp/all)" = 96 ] || fail "$(wc -l <$tmp/all) samples"
[ "$(cut -d, -f1 $tmp/all | sort -u | wc -l)" = 96 ] || fail "a sample came twice"
[ "$(grep -c '"status":"ok"' $tmp/all)" = 96 ] || fail "a killed program cost samples their verdict"
nothing_left frozen
