#!/bin/bash
# croll run with three rewards for a sample: sums, normalisation, metrics and advantages against float64, blocks that
# abstain, blocks that fail, rewards of tokens, workers that are killed; what croll config says of blocks that share a
# tag. Not here: one reward (run_rewards.sh, run_verdicts.sh); the rules format, length and repetition (unit/rewards_rules.c).
. tests/e2e/run.inc
quick_model

# a reward that abstains now and then and gives tokens rewards of their own; as "fails" it has no verdict on some
cat >$tmp/style.py <<'PY'
import json, sys
how = sys.argv[1]
for line in sys.stdin:
    r = json.loads(line)
    i, n = (int(r["id"][:16][-4:], 16), r["response_tokens"]) if "probe" not in r else (0, 0)
    out = {"id": r["id"], "score": i % 2, "reward": (i * 7 + r["step"]) % 5 / 2 - 1, "metrics": {"place": i}}
    if how == "tokens":
        out["token_rewards"] = [0.5 * (t + 1) if t % 3 == i % 3 else 0 for t in range(n)]
    if (how in ("abstains", "tokens") and i % 4 == 3) or how == "never":
        out = {"id": r["id"], "score": None, "detail": "not mine"}
    if (how == "fails" and i % 4 == 1) or (how == "broken" and "probe" not in r):
        out = {"id": r["id"], "status": "error", "detail": "no judge"}
    print(json.dumps(out), flush=True)
PY
several() { # HOW: three rewards for the tag sums
    words=(rewards.math_rule.reward_weight=2 rewards.math_rule.world_size=2
        "rewards.style={exec: python3 '$tmp/style.py' $1, tag_included: [sums], reward_weight: 0.5, world_size: 2}"
        "rewards.length={tag_included: [sums], reward_weight: 1.5, overlong_buffer: {len: 13, penalty_factor: 0.5}}")
}
small=(rollout_batch_size=4 num_return_sequences_in_group=8 validation=null
    actor_train.training_args.per_device_train_batch_size=16 actor_train.training_args.gradient_accumulation_steps=1)

# ---- what is said before the start ----
several abstains
config() { "$CROLL" config configs/quickstart/rlvr.yaml "${words[@]}" "$@" 2>&1 >/dev/null || true; }
config >$tmp/said
grep -q "note: tag sums: each sample has 3 rewards, math_rule (weight 2), style (0.5), length (1.5); its domain, and its score, are math_rule's" $tmp/said ||
    { log=$tmp/said; fail "blocks that share a tag are not told"; }
while IFS=@ read -r says change; do
    IFS=';' read -ra changes <<<"$change"
    config "${changes[@]}" >$tmp/said
    grep -qF "$says" $tmp/said || { log=$tmp/said; fail "$change: '$says' is not told"; }
done <<'LIST'
an infinity or NaN is not a useful value@rewards.style.reward_weight=.nan
error: reward_weight: a number of at least -1e6@rewards.style.reward_weight=-2e6
error: reward_weight: a number of at most 1e6@rewards.style.reward_weight=2e6
error: on_failure: "zero" is none of no_verdict|abstain@rewards.style.on_failure=zero
error: rewards.length.overlong_buffer.len is 17, and a response has at most 16@rewards.length.overlong_buffer.len=17
error: rewards.length: the rule length needs overlong_buffer@rewards.length.overlong_buffer=null
error: rewards.f.format_pattern: it is empty@rewards.f={worker_cls: FormatRuleRewardWorker, format_pattern: ""}
error: rewards.f.format_pattern: character@rewards.f={worker_cls: FormatRuleRewardWorker, format_pattern: "(a"}
error: rewards.f: format_pattern and format_tags exclude@rewards.f={worker_cls: FormatRuleRewardWorker, format_pattern: a, format_tags: [b]}
note: rewards.math_rule.format_pattern has no effect: only FormatRuleRewardWorker@rewards.math_rule.format_pattern=a
note: rewards.math_rule.reward_type has no effect: only CrossThinkQARuleRewardWorker reads@rewards.math_rule.reward_type=soft
note: rewards.length.reward_type has no effect@rewards.length.reward_type=soft
note: rewards.math_rule.response_length_penalty_coef has no effect: only CrossThinkQARuleRewardWorker or LengthRuleRewardWorker reads@rewards.math_rule.response_length_penalty_coef=0.1
note: rewards.style.query_filter_config has no effect@rewards.style.query_filter_config={type: std_filter, filter_args: {std_threshold: 0}}
warning: domain_interleave_probs gives style a share@actor_train.data_args.domain_interleave_probs={math_rule: 1, style: 1}
error: multi_objective_aggregation: normalize_then_sum needs@multi_objective_aggregation=normalize_then_sum;adv_estimator=reinforce
error: repetition_max_penalty: a number of at most 0@rewards.length.repetition_max_penalty=1
LIST
words=()
config rewards.length.response_length_penalty_coef=0.1 \
    "rewards.c={worker_cls: CrossThinkQARuleRewardWorker, reward_type: soft, response_length_penalty_coef: 0.1}" >$tmp/said
! grep -E "(reward_type|penalty_coef) has no effect" $tmp/said || fail "a note on a key that is read"
config rewards.math_rule.reward_weight=0 rewards.format.tag_included=[sums] rewards.format.reward_weight=0 >$tmp/said
grep -q "warning: tag sums: all its rewards have reward_weight 0" $tmp/said || { log=$tmp/said; fail "no weight is not told"; }

# ---- sums, normalisation, metrics: recomputed from rollouts/ ----
cat >$tmp/check.py <<'PY'
import json, math, sys
folder, how, gamma = sys.argv[1], sys.argv[2], float(sys.argv[3])
WEIGHTS, GROUP = {"math_rule": 2, "style": 0.5, "length": 1.5}, 8
rows = [json.loads(l) for l in open(folder + "/rollouts/step-000001.jsonl")]
metrics = [json.loads(l) for l in open(folder + "/metrics.jsonl")][1]
def near(a, b, tolerance, what):
    assert abs(a - b) <= tolerance * max(1, abs(b)), (what, a, b)
def moments(xs):
    mean = math.fsum(xs) / len(xs) if xs else 0
    return mean, math.sqrt(math.fsum((x - mean) ** 2 for x in xs) / (len(xs) - 1)) if len(xs) > 1 else 0
def normalised(values): # of a group; None: none
    mean, std = moments([v for v in values if v is not None])
    return [0 if v is None else (v - mean) / (std + 1e-6) for v in values]
assert len(rows) == 32
for i, r in enumerate(rows):
    assert list(r["rewards"]) == list(WEIGHTS) and r["status"] == "ok", r
    assert r["rewards"]["math_rule"]["score"] == r["score"] in (0, 1)
    n, index = len(r["ids"]), i % GROUP
    style, length = r["rewards"]["style"], r["rewards"]["length"]
    near(length["reward"], -0.5 * max(0, n - 3) / 13, 1e-12, "length")
    if index % 4 == 3:
        assert style["status"] == "abstain" and style["reward"] is None and style["detail"] == "not mine", style
    else:
        assert style["reward"] == (index * 7 + 1) % 5 / 2 - 1 and style["metrics"] == {"place": index}, style
    r["values"] = {k: x["reward"] for k, x in r["rewards"].items()}
    near(r["reward"], math.fsum(WEIGHTS[k] * v for k, v in r["values"].items() if v is not None), 1e-12, "sum")
want = []
for first in range(0, 32, GROUP):
    group = rows[first:first + GROUP]
    if how == "sum_then_normalize":
        want += normalised([r["reward"] for r in group])
    elif how == "normalize_then_sum":
        kinds = {k: normalised([r["values"][k] for r in group]) for k in WEIGHTS}
        want += [math.fsum(WEIGHTS[k] * kinds[k][j] for k in WEIGHTS) for j in range(GROUP)]
    else:
        want += [r["reward"] for r in group]
if how == "normalize_then_sum":
    want = [x / (moments(want)[1] + 1e-6) for x in want]
assert max(want) - min(want) > 0.5
for r, reward in zip(rows, want):
    n, own = len(r["ids"]), [0.0] * len(r["ids"])
    if "token_rewards" in r:
        own = [0.5 * x for x in r["rewards"]["style"]["token_rewards"]]
        near(max(abs(a - b) for a, b in zip(own, r["token_rewards"])), 0, 1e-6, "tokens")
    got = r["advantage"] if isinstance(r["advantage"], list) else [r["advantage"]] * n
    carry = 0
    for t in reversed(range(n)):
        carry = own[t] + (reward if t == n - 1 else 0) + gamma * carry
        near(got[t], carry, 2e-6, "advantage")
for k in WEIGHTS:
    xs = [r["values"][k] for r in rows if r["values"][k] is not None]
    near(metrics[f"math_rule/rewards/{k}/mean"], moments(xs)[0], 1e-12, k)
    near(metrics[f"math_rule/rewards/{k}/std"], moments(xs)[1], 1e-12, k)
    near(metrics[f"math_rule/rewards/{k}/max"], max(xs), 1e-12, k)
    near(metrics[f"math_rule/rewards/{k}/min"], min(xs), 1e-12, k)
    near(metrics[f"math_rule/rewards/{k}/abstain_ratio"], 1 - len(xs) / 32, 1e-12, k)
    assert metrics[f"math_rule/rewards/{k}/failures"] == 0
near(metrics["critic/raw_rewards/mean"], moments([r["reward"] for r in rows])[0], 1e-12, "raw rewards")
near(metrics["critic/rewards/mean"], moments(want)[0], 1e-9, "rewards")
near(metrics["critic/score/mean"], moments([r["score"] for r in rows])[0], 1e-12, "score")
near(metrics["style/reward/place"], moments([i % GROUP for i in range(32) if i % 4 != 3])[0], 1e-12, "its own metric")
assert metrics["scheduler/reward_abstained"] == metrics["scheduler/reward_errors"] == 0
PY
several abstains
blocks=("${words[@]}")
job sum max_steps=2 "${small[@]}" "${blocks[@]}"
[ $code = 0 ] || fail "sum: exit code $code"
python3 $tmp/check.py $tmp/sum sum_then_normalize 1 || fail "sum_then_normalize"
grep -q "math_rule/rewards/style/mean" $tmp/sum/run.html || fail "run.html has no curve of a reward"
job gdpo max_steps=2 "${small[@]}" "${blocks[@]}" multi_objective_aggregation=normalize_then_sum
[ $code = 0 ] || fail "gdpo: exit code $code"
python3 $tmp/check.py $tmp/gdpo normalize_then_sum 1 || fail "normalize_then_sum"

# ---- rewards of tokens: with gamma 0 those that are named, with gamma 1 those before them, too ----
several tokens
blocks=("${words[@]}")
for gamma in 0 1; do
    job tokens$gamma max_steps=2 "${small[@]}" "${blocks[@]}" adv_estimator=reinforce gamma=$gamma
    [ $code = 0 ] || fail "tokens, gamma $gamma: exit code $code"
    grep -q '"token_rewards":\[' $tmp/tokens$gamma/rollouts/step-000001.jsonl || fail "no rewards of tokens"
    python3 $tmp/check.py $tmp/tokens$gamma none $gamma || fail "rewards of tokens, gamma $gamma"
done

# ---- the example ----
log=$tmp/example.log
"$CROLL" run configs/quickstart/several.yaml pretrain=$tmp/home/sft_model output_dir=$tmp/example track_with=none max_steps=2 \
    "actor_train.data_args.file_name=[$tmp/home/sums.train.jsonl]" "validation.data_args.file_name=[$tmp/home/sums.val.jsonl]" >$log 2>&1 ||
    fail "the example: exit code $?"
[ "$(values math_rule/rewards/format/mean $tmp/example/metrics.jsonl | awk '$1 > 0.5' | wc -l)" = 2 ] || fail "the example's formats are not kept"

# ---- failures: no verdict, or left out where the block says so ----
several fails
blocks=("${words[@]}")
job fails max_steps=1 "${small[@]}" "${blocks[@]}"
[ $code = 0 ] || fail "fails: exit code $code"
grep -q "8 samples have no verdict (0 time-outs, 8 errors; 8 were asked twice, 0 groups drawn again); the first: error of style, sample .*: no judge" $log ||
    fail "failures of one reward are not told"
job left_out max_steps=1 "${small[@]}" "${blocks[@]}" rewards.style.on_failure=abstain
[ $code = 0 ] || fail "left_out: exit code $code"
grep -q "8 rewards of samples failed and are left out (on_failure: abstain); the first: error of style, sample .*: no judge" $log ||
    fail "failures that are left out are not told"
python3 - $tmp <<'PY' || fail "failures"
import json, sys
for name in ("fails", "left_out"):
    rows = [json.loads(l) for l in open(f"{sys.argv[1]}/{name}/rollouts/step-000000.jsonl")]
    m = json.loads(open(f"{sys.argv[1]}/{name}/metrics.jsonl").readline())
    for i, r in enumerate(rows):
        bad = i % 8 % 4 == 1
        assert r["rewards"]["style"]["status"] == ("error" if bad else "ok")
        assert r["rewards"]["math_rule"]["status"] == "ok"
        if bad and name == "fails":
            assert r["status"] == "error" and r["score"] is None and r["reward"] is None and r["advantage"] == 0, r
        else:
            kinds = [(2, "math_rule"), (1.5, "length")] + ([] if bad else [(0.5, "style")])
            want = sum(w * r["rewards"][k]["reward"] for w, k in kinds)
            assert r["status"] == "ok" and abs(r["reward"] - want) < 1e-12, r
    assert m["math_rule/rewards/style/failures"] == 8 and m["math_rule/rewards/length/failures"] == 0
    assert m["scheduler/reward_errors"] == (8 if name == "fails" else 0) and m["scheduler/reward_retries"] == 8
PY

# ---- a reward that never says anything, alone; one that always fails, among others ----
job never max_steps=9 max_failed_reward_steps=2 "${small[@]}" "rewards.math_rule.exec=python3 '$tmp/style.py' never"
[ $code = 1 ] || fail "never: exit code $code"
grep -q "step 1: 2 steps in a row trained nothing (max_failed_reward_steps): no sample has a verdict: math_rule, sample .*: no reward has anything to say" $log ||
    fail "that all abstain is not told"
several broken
job broken max_steps=9 max_failed_reward_steps=1 "${small[@]}" "${words[@]}"
[ $code = 1 ] || fail "broken: exit code $code"
grep -q "no sample has a verdict: error of style, sample .*: no judge" $log || fail "a reward that always fails is not told"

# ---- workers of all three are killed: every sample once, and the same numbers ----
several abstains
blocks=("${words[@]}")
words killed max_steps=25 "${small[@]}" "${blocks[@]}"
log=$tmp/killed.log code=0
"${words[@]}" >$log 2>&1 </dev/null &
pid=$!
steps killed 1
for k in 1 2 3 4 5 6; do
    sleep 0.$((RANDOM % 5 + 1))
    pkill -9 -f "reward $tmp/killed/config.yaml" || true
    pkill -9 -f "^python3 $tmp/style.py" || true
done
wait $pid || code=$?
[ $code = 0 ] || fail "killed: exit code $code"
cat $tmp/killed/rollouts/*.jsonl >$tmp/all
[ "$(wc -l <$tmp/all)" = 800 ] || fail "$(wc -l <$tmp/all) samples"
[ "$(cut -d, -f1 $tmp/all | sort -u | wc -l)" = 800 ] || fail "a sample came twice"
nothing_left killed
job quiet max_steps=25 "${small[@]}" "${blocks[@]}"
diff <(timeless $tmp/quiet/metrics.jsonl) <(timeless $tmp/killed/metrics.jsonl) >$tmp/diff || { log=$tmp/diff; fail "killed workers changed the numbers"; }
