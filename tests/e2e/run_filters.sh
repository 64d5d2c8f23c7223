#!/bin/bash
# croll run with a scoring program that gives some samples no verdict: which groups the query filter takes, which samples
# the masks keep, their advantages, the metrics of the step and the numbers of a validation are those of the judged
# samples alone, computed here from what the program answers.
# Not here: time-outs and errors themselves (run_verdicts.sh); the filters' formulas (unit/rl_advantage.c).
# mostly waits
. tests/e2e/run.inc
scripts/make_sums $tmp/home
mv $tmp/home/model $tmp/home/sft_model && "$CROLL" init $tmp/home/sft_model >/dev/null
head -n 6 $tmp/home/sums.val.jsonl >$tmp/home/val && mv $tmp/home/val $tmp/home/sums.val.jsonl

# What a sample gets, from its id alone: group `draw` of the step (or row of the validation), place `index` in it.
cat >$tmp/rule.py <<'PY'
def verdict(id):
    """A score, "timeout" or "error"."""
    draw, index = id >> 16 & 0xffffff, id & 0xffff
    if index in ((1, 4, 6), (2,))[draw % 2]:
        return "timeout" if draw < 2 else "error"
    return float((True, index % 2, False, index in (0, 3, 5), index == 0)[draw % 5])
PY
cat >$tmp/program.py <<'PY'
import json, sys
from rule import verdict
for line in sys.stdin:
    r = json.loads(line)
    v = 0.0 if "probe" in r else verdict(int(r["id"].split(".")[0], 16))
    if v != "timeout":
        out = {"id": r["id"], "status": "error"} if v == "error" else {"id": r["id"], "score": v}
        print(json.dumps(dict(out, detail=str(r["prompt_ids"]))), flush=True)
PY
cat >$tmp/check.py <<'PY'
import json, sys
from math import comb
from statistics import mean, stdev
from rule import verdict
folder, kind = sys.argv[1:]
GROUP, WANTED, STEP = 8, 8, 0
near = lambda got, want, what: abs(got - want) < 1e-6 or sys.exit(f"{what} is {got}, not {want}")
judged = lambda base, draw, n: {i: v for i in range(n) if not isinstance(v := verdict(base | draw << 16 | i), str)}
passes = dict(std_filter=lambda r: len(r) > 1 and stdev(r) > 0.1, mean_filter=lambda r: 0 < mean(r) < 0.9)[kind]
rows = [json.loads(l) for l in open(f"{folder}/rollouts/step-000000.jsonl")]
metrics = json.loads(open(f"{folder}/metrics.jsonl").readline())

# groups are drawn until enough pass, in order
kept, drawn = [], 0
while len(kept) < WANTED:
    if passes(list(judged(STEP << 40, drawn, GROUP).values())):
        kept.append(drawn)
    drawn += 1
got = list(dict.fromkeys(int(r["id"], 16) >> 16 & 0xffffff for r in rows))
got == kept or sys.exit(f"the filter took the groups {got}, not {kept}")
near(metrics["scheduler/filtered_groups"], drawn - WANTED, "filtered_groups")

# advantages of the judged alone; a difficulty mask on their mean
scores, advantages, used = [], [], 0
for r in rows:
    id = int(r["id"], 16)
    alone = judged(0, id >> 16 & 0xffffff, GROUP)
    m, value = mean(alone.values()), alone.get(id & 0xffff)
    is_masked = kind == "mean_filter" and not 0.4 < m < 1
    want = 0 if value is None or is_masked else (value - m) / (stdev(alone.values()) + 1e-6)
    near(r["advantage"], want, f"the advantage of {r['id']}")
    (r["score"] is None) == (value is None) or sys.exit(f"{r['id']} has the score {r['score']}")
    if value is not None:
        r["detail"] == str(r["prompt_ids"]) or sys.exit(f"the program got of the prompt {r['detail']}")
        scores.append(value)
        used += not is_masked
        advantages += [] if is_masked else [want] * len(r["ids"])
near(metrics["critic/score/mean"], mean(scores), "critic/score/mean")
near(metrics["critic/advantages/mean"], mean(advantages), "critic/advantages/mean")
near(metrics["actor/valid_samples"], used, "actor/valid_samples")
num = dict(timeout=0, error=0)
for draw in range(drawn):
    for i in range(GROUP):
        v = verdict(draw << 16 | i)
        if isinstance(v, str):
            num[v] += 1
near(metrics["scheduler/reward_timeouts"], num["timeout"], "reward_timeouts")
near(metrics["scheduler/reward_errors"], num["error"], "reward_errors")

# validation: 6 rows of 5 samples
if kind == "mean_filter":
    groups = [list(judged(1 << 63, row, 5).values()) for row in range(6)]
    alone = [v for g in groups for v in g]
    near(metrics["val_score/all/mean"], mean(alone), "val_score")
    near(metrics["val_correct/all/mean"], mean(v == 1 for v in alone), "val_correct")
    for k in (2, 4):
        at = [1 - comb(len(g) - g.count(1), k) / comb(len(g), k) for g in groups if len(g) >= k]
        near(metrics[f"val_pass@{k}/all"], mean(at), f"val_pass@{k}")
    val = [json.loads(l) for l in open(f"{folder}/rollouts/val-000000.jsonl")]
    len(val) == 30 and sum(r["score"] is None for r in val) == 30 - len(alone) or sys.exit("val-000000.jsonl")
PY

common=(max_steps=1 rollout_batch_size=8 num_return_sequences_in_group=8 reward_timeout=2 "rewards.math_rule.exec=python3 '$tmp/program.py'"
    rewards.math_rule.max_in_flight=64 actor_train.training_args.per_device_train_batch_size=16
    actor_train.training_args.gradient_accumulation_steps=2)
job std "${common[@]}" validation=null "rewards.math_rule.query_filter_config={type: std_filter, filter_args: {std_threshold: 0.1}}"
[ $code = 0 ] || fail "std: exit code $code"
python3 $tmp/check.py $tmp/std std_filter || fail "std_filter"
job mean "${common[@]}" difficulty_mask=true difficulty_low_threshold=0.4 validation.generating_args.num_return_sequences=5 \
    "rewards.math_rule.query_filter_config={type: mean_filter, filter_args: {threshold_down: 0, threshold_up: 0.9}}"
[ $code = 0 ] || fail "mean: exit code $code"
python3 $tmp/check.py $tmp/mean mean_filter || fail "mean_filter, difficulty_mask or validation"
