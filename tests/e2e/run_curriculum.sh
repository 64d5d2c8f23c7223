#!/bin/bash
# run_curriculum.sh -- `croll run` with a curriculum: the pools of all rows after each step are recomputed from the samples, rows that were
# solved leave, easy and hard ones come less often than in a run without; groups that the query filter rejects count; on 1 and 2 ranks, with
# rollouts a step ahead, killed and resumed: the same rows; run.html, validation of keys.
# Not covered: which rows of a pool an epoch draws (unit/data_curriculum).
. tests/e2e/run.inc
quick_model
head -n 48 $tmp/home/sums.train.jsonl >$tmp/rows.jsonl
keys=(max_steps=12 save_steps=100 validation=null rollout_batch_size=8 num_return_sequences_in_group=4 actor_infer.generating_args.temperature=0.5
    actor_train.training_args.per_device_train_batch_size=8 actor_train.training_args.gradient_accumulation_steps=2
    actor_train.training_args.learning_rate=1e-4 "actor_train.data_args.file_name=[$tmp/rows.jsonl]")
pools="curriculum={max_solved: 2, easy_threshold: 0.75, easy_fraction: 0.5, hard_threshold: 0.25, hard_fraction: 0.2}"

# recomputed NAME: pools after each step, of the samples in rollouts/; who has left stays away
recomputed() {
    python3 - $tmp/$1 <<'PY' || fail "$1: pools"
import collections, json, sys
run = sys.argv[1]
seen, left = {}, set()
drawn = collections.Counter()
for step, line in enumerate(open(run + "/metrics.jsonl")):
    groups = collections.OrderedDict()
    for x in map(json.loads, open(f"{run}/rollouts/step-{step:06d}.jsonl")):
        groups.setdefault(x["group"], []).append(x)
    for samples in groups.values():
        row = samples[0]["row"]["id"] # ids of rows that are twice in the file would be one here
        assert row not in left, (step, row)
        drawn[row] += 1
        score = sum(x["score"] for x in samples) / len(samples)
        num, solved, mean = seen.get(row, (0, 0, 0))
        num += 1
        seen[row] = (num, solved + 1 if score >= 1 else 0, mean + (score - mean) / min(num, 4))
    left = {r for r, (_, solved, _) in seen.items() if solved >= 2}
    easy = {r for r, (_, _, mean) in seen.items() if mean >= 0.75} - left
    hard = {r for r, (_, _, mean) in seen.items() if mean <= 0.25} - left
    m = {k.split("/")[-1]: v for k, v in json.loads(line).items() if k.startswith("scheduler/curriculum/")}
    want = dict(solved=len(left), easy=len(easy), hard=len(hard), normal=48 - len(left) - len(easy) - len(hard))
    assert {k: m[k] for k in want} == want, (step, m, want)
assert left and easy and hard and m["skipped"] > 0, m
PY
}
[ $(sed 's/.*"id": *"\([^"]*\)".*/\1/' $tmp/rows.jsonl | sort -u | wc -l) = 48 ] || fail "rows with the same id"

# rows NAME: what each step drew, and scores
rows() { cat $tmp/$1/rollouts/step-*.jsonl | sed 's/"log_probs":[^]]*]//g; s/"version":[0-9]*//; s/"advantage":[^,]*,//'; }
scheduled() { grep -o '"step":[0-9]*\|"scheduler/curriculum/[a-z]*":[0-9]*' $tmp/$1/metrics.jsonl; }

job whole "${keys[@]}" "$pools"
[ $code = 0 ] || fail "exit code $code"
recomputed whole
grep -q 'scheduler/curriculum/solved' $tmp/whole/run.html || fail "no curve in run.html"
job plain "${keys[@]}"
[ $code = 0 ] && ! grep -q curriculum/ $tmp/plain/metrics.jsonl && [ ! -e $tmp/plain/latest/state/curriculum.json ] || fail "without the block: exit code $code"
! cmp -s <(rows whole) <(rows plain) || fail "the curriculum changes nothing"

# one rank; a step ahead: its own, and killed and resumed
job one "${keys[@]}" "$pools" actor_train.device_mapping=[0] actor_infer.device_mapping=[0] actor_train.strategy_args.strategy_config.fsdp_size=1 \
    actor_infer.strategy_args.strategy_config.fsdp_size=1 actor_train.training_args.gradient_accumulation_steps=4
[ $code = 0 ] || fail "one rank: exit code $code"
diff <(scheduled whole) <(scheduled one) || fail "one rank draws other rows"
killed killed 8 "${keys[@]}" "$pools" save_steps=3
job killed "${keys[@]}" "$pools" save_steps=3 resume_from_checkpoint=true
[ $code = 0 ] || fail "resumed: exit code $code"
diff <(scheduled whole) <(scheduled killed) || fail "resumed: other rows"
cmp <(rows whole) <(rows killed) || fail "resumed: other samples"
cmp $tmp/whole/latest/state/curriculum.json $tmp/killed/latest/state/curriculum.json || fail "resumed: other records"
ahead=("${keys[@]}" "$pools" async_generation_ratio=1 "actor_infer.device_mapping=[2, 3]")
for name in ahead again; do
    job $name "${ahead[@]}"
    [ $code = 0 ] || fail "$name: exit code $code"
done
diff <(scheduled ahead) <(scheduled again) || fail "a step ahead: other rows the second time"
cmp <(rows ahead) <(rows again) || fail "a step ahead: other samples the second time"

# groups that are all right are rejected, and seen
job filtered "${keys[@]}" "curriculum={max_solved: 1}" "rewards.math_rule.query_filter_config={type: mean_filter, filter_args: {threshold_up: 0.99, threshold_down: 0.01}}" max_steps=3
[ $code = 0 ] || fail "filtered: exit code $code"
[ "$(values scheduler/curriculum/solved $tmp/filtered/metrics.jsonl | tail -1)" -gt 0 ] || fail "rejected groups are not seen"
log=$tmp/replay.log
"$CROLL" replay $tmp/killed --step 7 --out $tmp/replayed >$log 2>&1 </dev/null || fail "replay: exit code $?"

# keys
wrong() {
    local pattern=${@: -1}
    log=$tmp/wrong.log
    words wrong "${keys[@]}" "${@:1:$#-1}"
    "$CROLL" config "${words[@]:2}" >$log 2>&1 && [ "$say" = error ] && fail "$*: accepted"
    grep -q "$say: .*$pattern" $log || fail "$*: another sentence"
}
say=error
wrong "curriculum={easy_threshold: 0.2, hard_threshold: 0.5}" 'curriculum.hard_threshold is 0.5: it must be below easy_threshold 0.2'
wrong "curriculum={max_solved: 0}" 'max_solved'
wrong "curriculum={solved: 1}" 'solved'
say=note
wrong "curriculum={easy_fraction: 0.5}" 'curriculum.easy_fraction.*there is no easy_threshold'
wrong "curriculum={easy_threshold: 0.5, solved_score: 0.5}" 'curriculum.solved_score.*there is no max_solved'
echo ok
