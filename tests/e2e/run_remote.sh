#!/bin/bash
# RemoteRewardSystemWorker: a run whose rewards come from a service (remote_mock.py), which lets wait, answers at once, fails: each
# score and reward is what it said, a failure is no verdict, what it gets is what docs/rewards.md says; the key is in no file; what
# is refused before anything starts. Not covered: answers one by one (unit/scorers_judge).
. tests/e2e/run.inc
quick_model
server= key=sk-77b1e2
trap '[ -z "$server" ] || kill -9 $server 2>/dev/null; rm -rf $tmp' EXIT
python3 tests/e2e/remote_mock.py $key $tmp/port &
server=$!
until_true '[ -s $tmp/port ]'
port=$(cat $tmp/port)
REMOTE_KEY=$key
export REMOTE_KEY
small="max_steps=2 validation=null rollout_batch_size=8 actor_train.training_args.per_device_train_batch_size=16
    actor_train.training_args.gradient_accumulation_steps=1 exp_name=far"
remote="rewards.math_rule={worker_cls: roll.pipeline.rlvr.rewards.remote_reward_system_worker.RemoteRewardSystemWorker, tag_included: [sums],
    remote: {url: http://127.0.0.1:$port, key_env: REMOTE_KEY}, reward_manager_config: [{name: grader}]}"
job remote $small "$remote"
[ $code = 0 ] || fail "exit code $code"
learned remote 2
curl -sf http://127.0.0.1:$port/v1/seen >$tmp/seen
cat >$tmp/check.py <<'END'
import json, re, sys
seen, num = json.load(open(sys.argv[1] + "/seen")), {"ok": 0, "error": 0}
for step in range(2):
    for r in map(json.loads, open(f"{sys.argv[1]}/remote/rollouts/step-{step:06d}.jsonl")):
        num[r["status"]] += 1
        if r["status"] == "ok":
            numbers = re.findall(r"-?[0-9]+", r["response"])
            right = bool(numbers) and numbers[-1] == str(r["ground_truth"])
            assert (r["score"], r["reward"], r["detail"]) == (int(right), 1.5 if right else -0.5, "seen"), r
        else:
            assert r["score"] is None and re.search("grader is down|no JSON|410", r["detail"]), r
        s = seen[r["id"]]
        assert (s["project"], s["experiment"], s["global_step"], s["rollout_id"], s["response"], s["validation"]) == ("far", "math_rule", step, r["id"], r["response"], False), s
        assert s["reward_manager"] == [{"name": "grader"}] and s["reward_info"]["tag"] == "sums" and s["prompt"] == r["prompt"], s
        assert s["finish"] in ("stop", "length") and not {"id", "response", "step"} & set(s["reward_info"]), s
assert num["ok"] > 150 and num["error"] > 0 and sum(num.values()) == 256, num
assert any(name.endswith(".1") for name in seen) # asked again
END
python3 $tmp/check.py $tmp || fail "other rewards"
rm -f $tmp/port
! grep -rl $key $tmp || fail "the key is in a file"

# refused before anything starts: KEY=VALUE .. PATTERN
refused() {
    local pattern=${@: -1}
    job refused $small "$remote" "${@:1:$#-1}"
    [ $code = 2 ] || fail "$*: exit code $code"
    grep -Eq "$pattern" $log || { cat $log; fail "$*: another sentence"; }
    [ ! -e $tmp/refused ] || fail "$*: started"
    rm -f $log
}
refused rewards.math_rule.remote=null 'rewards.math_rule: which service\?'
refused rewards.math_rule.remote.key_env=null 'rewards.math_rule.remote: .*answered 401' 
refused rewards.math_rule.remote.url=http://127.0.0.1:$port/v2 'answered 404: no such path'
refused rewards.math_rule.remote.url=ftp://h 'rewards.math_rule.remote: a URL is expected'
refused rewards.math_rule.judge=http://h 'remote and a judge exclude each other'
refused rewards.math_rule.worker_cls=roll.x.MathRuleRewardWorker 'remote and another worker_cls'
refused rewards.math_rule.remote.url=http://127.0.0.1:1 reward_timeout=1 'cannot connect'
