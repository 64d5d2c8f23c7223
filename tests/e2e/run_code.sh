#!/bin/bash
# A run whose reward runs programs (ROLL's CodeSandboxRewardWorker) in 6 steps: verdicts are those of the tests, also while workers,
# scorers and their slots are killed: each sample once. code_url: a service with errors and delays, each case answered once.
# What is refused: no namespaces, a wrong row, an unknown interpreter. CROLL_KILLS=all: 50 kills. Not covered: attacks
# (e2e/score_code_attacks), fidelity (e2e/score_code_tasks).
. tests/e2e/run.inc
reason=$("$CROLL" score code </dev/null 2>&1) || { echo "skipped: $reason"; exit 77; }
quick_model
server=
trap 'kill -9 $server $(jobs -p) 2>/dev/null || true; rm -rf $tmp' EXIT
# the model writes texts like "\boxed{12}": a row asks for a digit in it, or for a program that prints nothing
python3 - $tmp/home/sums.train.jsonl >$tmp/code.jsonl <<'END'
import json, sys
for i, line in enumerate(open(sys.argv[1])):
    row = json.loads(line)
    if i % 2:
        row.update(case_type="input", test_cases=json.dumps([{"stdin": "1\n", "expected_stdout": ""}] * 2), ground_truth=str(i))
    else:
        row.update(case_type="text", test_cases=json.dumps([{"assert_code": "assert any(d in {response} for d in '12345')"}]), ground_truth=str(i))
    print(json.dumps(row))
END
keys=("actor_train.data_args.file_name=[$tmp/code.jsonl]" rollout_batch_size=8 num_return_sequences_in_group=8 validation=null
    actor_train.training_args.per_device_train_batch_size=16 actor_train.training_args.gradient_accumulation_steps=1
    reward_timeout=$((20 * slower))
    "rewards.math_rule={worker_cls: roll.pipeline.rlvr.rewards.code_sandbox_reward_worker.CodeSandboxRewardWorker, use_local: true, tag_included: [sums], world_size: 2, case_timeout: 2}")
cat >$tmp/check.py <<'END'
import json, sys
num = right = 0
for step in range(int(sys.argv[2])):
    rows = [json.loads(line) for line in open(f"{sys.argv[1]}/rollouts/step-{step:06d}.jsonl")]
    assert len({r["id"] for r in rows}) == len(rows) == 64
    for r in rows:
        num += 1
        text = r["response"]
        code = text.replace("<|im_end|>", "").replace("<|endoftext|>", "")
        if int(r["ground_truth"]) % 2 == 0:
            want = any(d in text for d in "12345")
        else:
            try:
                compile(code, "x", "exec")
                want = bool(code.strip()) and not any(c.isalpha() for c in code)  # a number: nothing is printed
            except SyntaxError:
                want = False
        assert r["status"] == "ok" and r["score"] == want, (r, want)
        right += r["score"]
assert num == 64 * int(sys.argv[2]) and 0 < right < num, (num, right)
print(num, "samples,", right, "right")
END
kills=8 steps=6
[ "${CROLL_KILLS:-}" != all ] || kills=50 steps=40
job quiet "${keys[@]}" max_steps=$steps
[ $code = 0 ] || fail "quiet: exit code $code"
python3 $tmp/check.py $tmp/quiet $steps || fail "other verdicts"

# killed: workers, scorers, slots, in turn
words killed "${keys[@]}" max_steps=$steps
log=$tmp/killed.log code=0
"${words[@]}" >$log 2>&1 </dev/null &
run=$!
steps killed 1
for n in $(seq $kills); do
    kill -0 $run 2>/dev/null || break
    case $((n % 3)) in
    0) victims=$(pgrep -f "croll reward $tmp/killed/config.yaml" || true) ;;
    *) victims=$(pgrep -f "croll score math_rule --config $tmp/killed/config.yaml" || true) ;;
    esac
    victim=$(echo "$victims" | shuf -n 1 --random-source=<(yes $n))
    [ -z "$victim" ] || kill -9 $victim 2>/dev/null && killed=$((${killed:-0} + 1))
    sleep 0.3
done
wait $run || code=$?
[ $code = 0 ] || fail "killed: exit code $code"
python3 $tmp/check.py $tmp/killed $steps || fail "killed: other verdicts"
echo "${killed:-0} kills"
for k in $(seq 0 $((steps - 1))); do
    diff <(sed 's/"detail":"[^"]*"//' $tmp/quiet/rollouts/step-$(printf %06d $k).jsonl) <(sed 's/"detail":"[^"]*"//' $tmp/killed/rollouts/step-$(printf %06d $k).jsonl) >/dev/null || fail "other samples"
done
until_true '! pgrep -f "croll score math_rule --config $tmp/" >/dev/null'

# a service: what it says is the verdict, and it is asked again where that helps
port=$(port_pair)
cat >$tmp/service.py <<'END'
import sys, threading, time
from mock_service import Handler, Server
seen, lock, tries = {}, threading.Lock(), [0]
class Sandbox(Handler):
    def do_GET(self):
        self.answer(200, [sorted(seen.values()), tries[0]])
    def do_POST(self):
        body = self.read()
        with lock:
            tries[0] += 1
            n = tries[0]
        if sorted(body) != ["code", "compile_timeout", "expected_stdout", "language", "run_timeout", "stdin"] or self.path != "/run_code":
            return self.answer(400, {"error": "not as agreed"})
        if n % 5 == 2:
            return self.answer(503, {})
        if n % 7 == 3:
            self.close_connection = True
            return
        key = body["code"] + body["stdin"]
        with lock:
            seen[key] = seen.get(key, 0) + 1
        time.sleep(0.01)
        out = str(eval(body["code"].split("print(")[1].split(")")[0], {"x": int(body["stdin"])}))
        if body["language"] == "cpp":
            return self.answer(200, {"accepted": True})
        if "odd" in body["code"]:
            return self.answer(200, {"status": "SandboxError"})
        self.answer(200, {"status": "Success", "run_result": {"stdout": out + "\n"}})
Server(Sandbox, int(sys.argv[1])).serve_forever()
END
PYTHONPATH=tests/e2e python3 $tmp/service.py $port &
server=$!
until_true 'curl -sf http://127.0.0.1:$port/ >/dev/null'
"$CROLL" config configs/quickstart/rlvr.yaml pretrain=$tmp reward_timeout=$((20 * slower)) \
    "rewards.math_rule={worker_cls: CodeSandboxRewardWorker, code_url: http://127.0.0.1:$port/run_code}" >$tmp/far.yaml 2>/dev/null
python3 - >$tmp/far.jsonl <<'END'
import json
for n in range(60):
    fence = "cpp" if n % 10 == 7 else "python"
    code = f"x = int(input())  # {n} {'odd' if n % 10 == 3 else ''}\nprint(x + {n})"
    cases = [{"stdin": str(k), "expected_stdout": str(k + n + (n % 4 == 0 and k == 1))} for k in range(3)]
    print(json.dumps({"id": n, "case_type": "input", "test_cases": cases, "response": f"```{fence}\n{code}\n```"}))
END
"$CROLL" score math_rule --config $tmp/far.yaml <$tmp/far.jsonl >$tmp/far.out 2>$tmp/err || fail "code_url: exit code $?"
python3 - $tmp/far.out <<END || fail "code_url: other verdicts"
import json, sys, urllib.request
answers = [json.loads(line) for line in open(sys.argv[1])]
assert len(answers) == 60
for a in answers:
    n = a["id"]
    if n % 10 == 3: assert a["status"] == "error", a
    else: assert a["status"] == "ok" and a["score"] == (n % 10 == 7 or n % 4 != 0), a
times, tries = json.load(urllib.request.urlopen("http://127.0.0.1:$port/"))
assert set(times) == {1} and tries > len(times), (times, tries)
END

# refused before anything starts
job row "${keys[@]}" "actor_train.data_args.file_name=[$tmp/home/sums.train.jsonl]"
[ $code = 2 ] && grep -q "test_cases" $log || fail "rows without test_cases: exit code $code"
job interpreter "${keys[@]}" rewards.math_rule.interpreter=python-7
[ $code = 2 ] && grep -q "rewards.math_rule: the interpreter python-7 cannot be used" $log || fail "interpreter: exit code $code"
head -n 1 $tmp/far.jsonl | unshare -Ur sh -c "echo 0 >/proc/sys/user/max_user_namespaces; exec '$CROLL' score code" >$tmp/out 2>$log && fail "no namespaces, but no error"
grep -q "the kernel forbids it" $log && [ ! -s $tmp/out ] || fail "no namespaces: no reason"
if unshare -m true 2>/dev/null && mknod -m 600 $tmp/null c 1 3; then # a host whose /dev/null is not for everyone
    unshare -m bash -c 'mount --bind '$tmp/null' /dev/null && exec "$@"' x "$CROLL" score code <$tmp/far.jsonl >$tmp/out 2>$log && fail "no /dev/null, but no error"
    grep -q "cannot open /dev/null there: Permission denied" $log || fail "no /dev/null: no reason: $(cat $log)"
fi
"$CROLL" config configs/quickstart/rlvr.yaml pretrain=$tmp "rewards.math_rule={worker_cls: CodeSandboxRewardWorker, sandbox: none}" 2>&1 >/dev/null |
    grep -q "warning: .*sandbox: none" || fail "sandbox: none without a warning"
echo ok
