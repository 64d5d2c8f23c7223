#!/bin/bash
# A judge that the run starts (judge_model_type: inference), in ROLL's form, on two devices: each verdict is the one that
# `croll serve` with the same model gives to `croll score`, the verdicts are what training sees, a judge that is killed is started
# again, nothing is left; what is refused before anything starts; its part of the plan. Not covered: what a reply says
# (unit/scorers_judge), a judge elsewhere (e2e/run_judge).
# mostly waits
. tests/e2e/run.inc
quick_model
server= runner= freezer= port=$(port_pair)
trap 'kill -TERM $freezer 2>/dev/null || true; kill -9 $server $runner 2>/dev/null || true; rm -rf $tmp' EXIT
small="max_steps=2 validation=null rollout_batch_size=8 actor_train.training_args.per_device_train_batch_size=16
    actor_train.training_args.gradient_accumulation_steps=1"
# the model of sums says a sum; which one depends on the response: the verdict is whether its last digit is even
ask="worker_cls: roll.pipeline.rlvr.rewards.llm_judge_reward_worker.LLMJudgeRewardWorker, tag_included: [sums], judge_prompt: '{question}{response}',
    judge_answer: {pattern: '(?:(?<yes>[02468])|(?<no>[13579]))[^0-9]*\$'}"
own="rewards.math_rule={$ask, judge_model_type: inference, model_args: {model_name_or_path: $tmp/home/sft_model, dtype: fp32},
    generating_args: {max_new_tokens: 24, temperature: 0.9, top_p: 0.9, do_sample: false}, data_args: {template: native}, infer_batch_size: 4,
    strategy_args: {strategy_name: hf_infer, strategy_config: null}, device_mapping: 'list(range(2,4))'}"
# freezes: a judge that freezes again and again, beside what follows
freezes() {
    local runner code=0
    words freezes $small max_steps=1000 collective_timeout=$((5 * slower)) reward_timeout=1000 "$own"
    log=$tmp/freezes.log
    "${words[@]}" >$log 2>&1 </dev/null &
    runner=$!
    trap 'kill -9 $runner 2>/dev/null || true' EXIT
    trap exit TERM
    steps freezes 1
    for try in $(seq $((600 * slower))); do
        kill -0 $runner 2>/dev/null || break
        pkill -STOP -f "serve $tmp/freezes/config.yaml.*judges/0-0.sock" || true
        sleep 0.5
    done
    wait $runner || code=$?
    [ $code = 1 ] || fail "a judge that freezes again and again: exit code $code"
    grep -q '^croll run: .*judge 0 of math_rule has given no sign of life for [0-9]* s; it is killed, 5 times in a row soon after its start' $log || fail "another sentence"
    nothing_left freezes
}
freezes &
freezer=$!
job judged $small "$own"
[ $code = 0 ] || fail "exit code $code"
[ "$(grep -c '^ready: rewards.math_rule, weights' $log)" = 2 ] || fail "not two judges"
grep -q 'world_size: 2' $tmp/judged/config.yaml || fail "not a worker for each judge"
grep -q 'template of its model' $log || fail "no note on the template"
nothing_left judged
[ ! -e $tmp/judged/judges ] || fail "its sockets are left"
learned judged 2

"$CROLL" serve $tmp/home/sft_model --listen 127.0.0.1:$port --access-log none model_args.dtype=fp32 >$tmp/out 2>$tmp/serve.err &
server=$!
until_true 'grep -q ^ready $tmp/out'
"$CROLL" config configs/quickstart/rlvr.yaml pretrain=$tmp/home/sft_model \
    "rewards.math_rule={$ask, judge: {url: http://127.0.0.1:$port, extra_body: {temperature: 0, max_tokens: 24}}}" >$tmp/other.yaml 2>/dev/null
cat $tmp/judged/rollouts/step-*.jsonl | python3 -c '
import json, sys
for line in sys.stdin:
    r = json.loads(line)
    print(json.dumps({"id": r["id"], "ground_truth": r["ground_truth"], "response": r["response"], "messages": [{"role": "user", "content": r["prompt"]}]}))' >$tmp/lines
"$CROLL" score math_rule --config $tmp/other.yaml <$tmp/lines >$tmp/verdicts || fail "croll score: exit code $?"
cat >$tmp/check.py <<'END'
import json, sys
rows = [json.loads(line) for step in range(2) for line in open(f"{sys.argv[1]}/judged/rollouts/step-{step:06d}.jsonl")]
other = {v["id"]: v for v in map(json.loads, open(f"{sys.argv[1]}/verdicts"))}
assert len(rows) == 256 == len(other), (len(rows), len(other))
for r in rows:
    assert (r["status"], r["score"] or 0) == (other[r["id"]]["status"], other[r["id"]]["score"]), (r, other[r["id"]])
scores = [r["score"] for r in rows if r["status"] == "ok"]
assert len(scores) > 200 and 40 < sum(scores) < len(scores) - 40, (len(scores), sum(scores))
for step, line in enumerate(open(f"{sys.argv[1]}/judged/metrics.jsonl")):
    mine = [r["score"] for r in rows[128 * step:128 * step + 128] if r["status"] == "ok"]
    assert abs(json.loads(line)["critic/score/mean"] - sum(mine) / len(mine)) < 1e-6, step
END
python3 $tmp/check.py $tmp || fail "the verdicts are others"
kill -9 $server
wait $server 2>/dev/null || true
server=

# a judge is killed, with chats under way
words killed $small max_steps=12 reward_timeout=$((20 * slower)) "$own"
log=$tmp/killed.log
"${words[@]}" >$log 2>&1 </dev/null &
runner=$!
steps killed 2
kill -9 $(pgrep -f "serve $tmp/killed/config.yaml" | head -1)
wait $runner || fail "exit code $?"
grep -q 'judge [01] of math_rule was killed by signal 9; it is started again in 0.5 s' $log || fail "the run has not noticed it"
[ "$(grep -c '^ready: rewards.math_rule, weights' $log)" = 3 ] || fail "it is not started again"
! values scheduler/reward_errors $tmp/killed/metrics.jsonl | grep -qvx 0 || fail "samples have no verdict"
nothing_left killed
runner=

# one is frozen
words frozen $small max_steps=12 collective_timeout=$((5 * slower)) reward_timeout=1000 "$own"
log=$tmp/frozen.log
"${words[@]}" >$log 2>&1 </dev/null &
runner=$!
steps frozen 2
kill -STOP $(pgrep -f "serve $tmp/frozen/config.yaml" | head -1)
wait $runner || fail "exit code $?"
grep -q 'judge [01] of math_rule has given no sign of life for [0-9]* s; it is killed' $log || fail "the run has not noticed it"
! values scheduler/reward_timeouts $tmp/frozen/metrics.jsonl | grep -qvx 0 || fail "samples have no verdict"
nothing_left frozen
runner=

# by hand, on a machine of its own
: >$tmp/out # which has the line of the one before
"$CROLL" serve $tmp/killed/config.yaml --role rewards.math_rule --listen unix:$tmp/hand --access-log none >$tmp/out 2>$tmp/serve.err &
server=$!
until_true 'grep -q ^ready $tmp/out'
curl -sf --unix-socket $tmp/hand http://h/v1/chat/completions -d '{"messages":[{"role":"user","content":"3+4="}],"max_tokens":8}' | grep -q '"choices"' || fail "no judge by hand"
kill -TERM $server
wait $server || true
server=

# its share of the memory, which bounds its cache
share=rewards.math_rule.strategy_args.strategy_config
"$CROLL" serve $tmp/killed/config.yaml --role rewards.math_rule --listen unix:$tmp/hand "$share={gpu_memory_utilization: 0.000001}" >$tmp/out 2>$tmp/serve.err &&
    fail "a share without room: exit code 0"
grep -q 'gpu_memory_utilization 1e-06 of [0-9]* bytes of memory leaves nothing for the cache beside [0-9]* bytes of weights' $tmp/serve.err ||
    fail "a share without room: $(tail -1 $tmp/serve.err)"
planned() { # GPU_MEMORY_UTILIZATION: bytes of the judge on a device
    "$CROLL" plan configs/quickstart/rlvr.yaml pretrain=$tmp/home/sft_model "$own" "$share={gpu_memory_utilization: $1}" --memory 64MB --json 2>$tmp/plan.err >$tmp/plan || return
    python3 -c 'import json, sys; print([r for r in json.load(open(sys.argv[1]))["roles"] if r["name"] == "math_rule"][0]["peak_bytes"]["total"])' $tmp/plan
}
[ $(planned 0.1) -lt $(planned 0.9) ] || fail "the plan does not read the share"
! planned 0.00001 && grep -q 'rewards.math_rule: gpu_memory_utilization 1e-05 of .* leaves nothing' $tmp/plan.err || fail "the plan of a share without room"

# refused before anything starts: CODE KEY=VALUE .. PATTERN
refused() {
    local pattern=${@: -1}
    job refused $small "$own" "${@:2:$#-2}"
    [ $code = $1 ] || fail "$*: exit code $code"
    grep -Eq "$pattern" $log || { cat $log; fail "$*: another sentence"; }
    rm -rf $log $tmp/refused
}
refused 2 rewards.math_rule.model_args.model_name_or_path=$tmp/absent 'rewards.math_rule: .*absent'
refused 2 rewards.math_rule.model_args=null 'rewards.math_rule.model_args.model_name_or_path is missing'
refused 2 rewards.math_rule.device_mapping=null 'rewards.math_rule.device_mapping is missing'
refused 2 rewards.math_rule.judge=http://h 'inference and a judge elsewhere exclude each other'
refused 2 rewards.math_rule.judge_model_type=cluster 'judge_model_type: cluster is not available yet'
refused 2 rewards.math_rule.model_args.dtyp=bf16 "unknown key 'dtyp'"
refused 2 output_dir=$tmp/$(printf %090d 0) 'output_dir: a path of [0-9]* characters has no room'
cp -r $tmp/home/sft_model $tmp/home/dumb
sed -i 's/"chat_template"/"no_template"/' $tmp/home/dumb/tokenizer_config.json
refused 2 rewards.math_rule.model_args.model_name_or_path=$tmp/home/dumb 'rewards.math_rule.judge: .*template'
nothing_left refused

# its part of the plan
"$CROLL" plan configs/quickstart/rlvr.yaml pretrain=$tmp/home/sft_model "$own" --json >$tmp/plan 2>/dev/null || fail "plan"
python3 - $tmp/plan <<'END' || fail "the plan has no judge"
import json, sys
roles = json.load(open(sys.argv[1]))["roles"]
assert [r["name"] for r in roles][-1] == "math_rule" and roles[-1]["mesh"]["ranks"] == 2, roles[-1]
END
wait $freezer || exit 1 # it has said why
