#!/bin/bash
# Rewards that a judge gives (rewards.<domain>.judge): a scripted service of chat completions whose verdicts are those of the rule,
# with some replies without one, errors and silence; `croll serve` as judge; what is refused before anything starts. Not covered:
# texts of requests and replies (unit/scorers_judge).
# mostly waits
. tests/e2e/run.inc
quick_model
server= port=$(port_pair)
trap 'kill -9 $server 2>/dev/null || true; rm -rf $tmp' EXIT
cat >$tmp/judge.py <<'END'
import re, sys, threading, time
from mock_service import Handler, Server
lock, num, most, now = threading.Lock(), 0, 0, 0
class Judge(Handler):
    def do_GET(self):
        self.answer(200, {"num": num, "most": most})
    def do_POST(self):
        global num, most, now
        with lock:
            num, now = num + 1, now + 1
            n, most = num, max(most, now)
        body = self.read()
        time.sleep(0.005)
        with lock:
            now -= 1
        if self.path != "/v1/chat/completions" or body["temperature"] != 0 or len(body["messages"]) != 1:
            return self.answer(400, {"error": {"message": "not as agreed"}})
        if self.headers.get("Authorization") != "Bearer sk-e2e":
            return self.answer(401, {"error": {"message": "wrong key"}})
        if n % 7 == 3:
            return self.answer(503, {"error": {"message": "busy"}})
        if n % 11 == 5:
            self.close_connection = True
            return
        question, right, given = re.search(r"Question:\n(.*?)\n\nReference answer:\n(.*?)\n\nResponse:\n(.*?)\n\nIs the answer", body["messages"][0]["content"], re.S).groups()
        if body["model"] == "vague" and "3" in given:
            return self.answer(200, {"choices": [{"message": {"content": "hm"}}]})
        boxed = re.findall(r"-?\d+", given)
        self.answer(200, {"choices": [{"message": {"content": "Yes" if boxed and boxed[-1] == right else "No"}}]})
Server(Judge, int(sys.argv[1])).serve_forever()
END
PYTHONPATH=tests/e2e python3 $tmp/judge.py $port &
server=$!
until_true 'curl -sf http://127.0.0.1:$port/ >/dev/null'
echo sk-e2e >$tmp/key
small="max_steps=2 validation=null rollout_batch_size=8 actor_train.training_args.per_device_train_batch_size=16
    actor_train.training_args.gradient_accumulation_steps=1 rewards.math_rule.worker_cls=roll.pipeline.rlvr.rewards.llm_judge_reward_worker.LLMJudgeRewardWorker"
job judged $small "rewards.math_rule.judge={url: http://127.0.0.1:$port, model: m, key_file: $tmp/key}"
[ $code = 0 ] || fail "exit code $code"
! grep -rq sk-e2e $tmp/judged || fail "the key is in a file of the run"
curl -sf http://127.0.0.1:$port/ | python3 -c '
import json, sys
x = json.load(sys.stdin)
assert x["num"] > 250 and 3 < x["most"] <= 32, x'
# each verdict is that of the reply, retries and all; what has no verdict is null and in the counts
cat >$tmp/check.py <<'END'
import json, re, sys
num = none = 0
for step in range(2):
    rows = [json.loads(line) for line in open(f"{sys.argv[1]}/rollouts/step-{step:06d}.jsonl")]
    for r in rows:
        num += 1
        if r["status"] != "ok":
            assert r["score"] is None, r
            none += 1
            continue
        assert sys.argv[2] == "0" or "3" not in r["response"], r
        numbers = re.findall(r"-?\d+", r["response"])
        assert r["score"] == (1 if numbers and numbers[-1] == str(r["ground_truth"]) else 0), r
assert num == 256 and (0 < none < 256 if sys.argv[2] == "1" else none == 0), (num, none)
END
python3 $tmp/check.py $tmp/judged 0 || fail "other verdicts"
job vague $small "rewards.math_rule.judge={url: http://127.0.0.1:$port, model: vague, key_file: $tmp/key}"
[ $code = 0 ] || fail "exit code $code"
python3 $tmp/check.py $tmp/vague 1 || fail "a sample without a verdict has a score"
values scheduler/reward_errors $tmp/vague/metrics.jsonl | grep -qvx 0 || fail "nothing counts them"

# by hand: lines in, verdicts out, in any order, with what cannot be judged
cat >$tmp/lines <<END
{"id":1,"messages":[{"role":"user","content":"3+4="}],"ground_truth":"7","response":"so 7"}
{"id":2,"messages":[{"role":"user","content":"3+4="}],"ground_truth":"7","response":"8"}
{"id":3,"messages":[{"role":"user","content":"3+1="}],"ground_truth":"4","response":"3"}
{"id":4,"ground_truth":"4","response":"4"}
{"id":5,"messages":[{"role":"user","content":"3+4="}],"response":"4"}
END
CR_KEY=sk-e2e
export CR_KEY
"$CROLL" config configs/quickstart/rlvr.yaml pretrain=$tmp/home/sft_model $small \
    "rewards.math_rule.judge={url: http://127.0.0.1:$port/v1, model: vague, key_env: CR_KEY}" >$tmp/vague.yaml
grep -q 'max_in_flight: 32' $tmp/vague.yaml || fail "one line at a time"
code=0
"$CROLL" score math_rule --config $tmp/vague.yaml <$tmp/lines >$tmp/verdicts 2>$tmp/err || code=$?
[ $code = 2 ] || fail "exit code $code"
sort $tmp/verdicts | cut -c1-60 >$tmp/sorted
want() { grep -q "^{\"id\":$1,$2" $tmp/verdicts || { cat $tmp/verdicts; fail "line $1"; }; }
want 1 '"score":1,"reward":1,"status":"ok"'
want 2 '"score":0,"reward":0,"status":"ok"'
want 3 '"score":0,"reward":0,"status":"error","detail":"the judge gave no verdict: hm'
want 4 '"score":0,"reward":0,"status":"error","detail":"the row has no question'
want 5 '"error":"line 5: the column ground_truth is missing'
head -1 $tmp/lines | "$CROLL" score math_rule --config $tmp/vague.yaml --explain >$tmp/verdicts || fail "--explain of a judge"
grep -q '"explain":{"asked":"You .*so 7.*","reply":"Yes","tries":[1-9]' $tmp/verdicts || { cat $tmp/verdicts; fail "--explain of a judge"; }

# refused before anything starts: KEY=VALUE .. PATTERN
refused() {
    local pattern=${@: -1}
    job refused $small "${@:1:$#-1}"
    [ $code = 2 ] || fail "$*: exit code $code"
    grep -Eq "$pattern" $log || { cat $log; fail "$*: another sentence"; }
    [ ! -e $tmp/refused ] || fail "$*: started"
    rm -f $log
}
refused "rewards.math_rule.judge={url: http://127.0.0.1:$port, model: m}" 'rewards.math_rule.judge: .*answered 401: wrong key'
refused rewards.math_rule.judge=http://127.0.0.1:$((port + 1)) reward_timeout=1 'rewards.math_rule.judge: .*cannot connect'
refused 'rewards.math_rule: which judge\?'
refused rewards.math_rule.judge_api_url=http://h rewards.math_rule.judge_api_key=sk-1 'judge_api_key: a key stays out of the file'
refused rewards.math_rule.judge=http://h rewards.math_rule.judge_api_url=http://g 'judge.url says it, too'
refused rewards.math_rule.judge=http://h rewards.math_rule.exec=cat 'judge and exec exclude each other'
refused rewards.math_rule.judge=http://h "rewards.math_rule.judge_prompt=is it right?" 'a text with \{response\} is expected'
refused rewards.math_rule.judge=http://h rewards.math_rule.worker_cls=roll.x.MathRuleRewardWorker 'judge and another worker_cls'

# a judge that is silent: a deadline and no score; nothing is learned
kill -STOP $server
"$CROLL" config $tmp/vague.yaml reward_timeout=1 >$tmp/silent.yaml
code=0
head -1 $tmp/lines | "$CROLL" score math_rule --config $tmp/silent.yaml >$tmp/verdicts 2>$tmp/err || code=$?
[ $code = 0 ] || fail "exit code $code"
want 1 '"score":0,"reward":0,"status":"timeout","detail":"http://127.0.0.1:[0-9]*/v1 gave no answer within 0.9 s'
kill -9 $server
wait $server 2>/dev/null || true

# croll serve as the judge: a model of sums says neither yes nor no, which is no verdict
"$CROLL" serve $tmp/home/sft_model --served-model-name vague --listen 127.0.0.1:$port --access-log $tmp/access model_args.dtype=fp32 --max-chat-tokens 4 >$tmp/out 2>$tmp/serve.err &
server=$!
until_true 'grep -q ^ready $tmp/out'
"$CROLL" config $tmp/vague.yaml "rewards.math_rule.judge_prompt='{question} {reference} {response}?'" >$tmp/short.yaml
head -1 $tmp/lines | "$CROLL" score math_rule --config $tmp/short.yaml >$tmp/verdicts || fail "croll serve as a judge"
want 1 '"score":0,"reward":0,"status":"error","detail":"the judge gave no verdict'
kill -TERM $server
wait $server || true
grep '"route":"/v1/chat/completions"' $tmp/access | grep -q '"status":200' || { cat $tmp/access; fail "croll serve has answered no chat"; }
