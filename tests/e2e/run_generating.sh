#!/bin/bash
# run_generating.sh -- domains that are sampled in ways of their own (domain_generating_args), tokens that end a sample
# (stop_token_ids), and a chat template by tag (tag_to_template): what training computes has the bits of generation for samples of
# all domains together, the samples end where their domain says, prompts have the template of their tag, and a validation follows.
. tests/e2e/run.inc
quick_model
sed '1~2s/"tag":"sums"/"tag":"other"/' $tmp/home/sums.train.jsonl >$tmp/two.jsonl
head -n 8 $tmp/two.jsonl >$tmp/val.jsonl
rule=roll.pipeline.rlvr.rewards.math_rule_reward_worker.MathRuleRewardWorker
# two NAME [key=value ..]: the byte 10 (a newline) and all digits but 0 to 4 are ends for the domain other
two() {
    local name=$1
    shift
    job $name "actor_train.data_args.file_name=[$tmp/two.jsonl]" "actor_train.data_args.domain_interleave_probs={math_rule: 0.5, other: 0.5}" \
        "rewards.other={worker_cls: $rule, tag_included: [other], world_size: 1}" "validation.data_args.file_name=[$tmp/val.jsonl]" \
        "actor_infer.generating_args.temperature=0.7" \
        "actor_infer.domain_generating_args={other: {temperature: 1.3, top_k: 20, stop_token_ids: [53, 54, 55, 56, 57]}}" \
        "validation.domain_generating_args={other: {stop_token_ids: 92, do_sample: false}}" validation.generating_args.num_return_sequences=2 \
        "tag_to_template={other: longcot_V3}" rollout_batch_size=8 max_steps=2 save_steps=1 prompt_length=48 response_length=16 sequence_length=null eval_steps=2 ppo_epochs=2 \
        actor_train.training_args.per_device_train_batch_size=16 actor_train.training_args.gradient_accumulation_steps=4 "$@"
    [ $code = 0 ] || fail "$name: exit code $code"
    [ "$(values actor/train_infer_diff_max $tmp/$name/metrics.jsonl | tr '\n' ' ')" = "0 0 " ] || fail "$name: log-probs differ"
}
# check FILE ENDS FILTERED: rows of both tags
check() {
    python3 - "$@" <<'PY' || fail "$1"
import json, sys
path, ends, is_filtered = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3] == "1"
seen = {"other": 0, "sums": 0}
ended = inner = 0
row = None
for line in open(path):
    x = json.loads(line)
    if "row" in x: row, prompt = x["row"], x["prompt_ids"]
    tag = row["tag"]
    seen[tag] += 1
    ids = x["ids"]
    if tag == "other":
        assert not any(i in ends for i in ids[:-1]), "a sample goes on after an end"
        ended += ids[-1] in ends
        if ids[-1] in ends: assert x["finish"] == "stop"
        assert ("log_mass" in x) == is_filtered, "filter of other"
    else:
        inner += any(i in ends for i in ids[:-1])
        assert "log_mass" not in x, "filter of math_rule"
assert min(seen.values()) > 0 and ended > 0 and inner > 0, (seen, ended, inner)
PY
}
two whole
check $tmp/whole/rollouts/step-000001.jsonl "[53, 54, 55, 56, 57]" 1
check $tmp/whole/rollouts/val-000000.jsonl "[92]" 0
two one actor_train.strategy_args.strategy_config.fsdp_size=1 "actor_train.device_mapping=[0]" actor_train.training_args.gradient_accumulation_steps=8
timeless_rollouts() { sed 's/"seconds":[0-9.e-]*/"seconds":0/g' $tmp/$1/rollouts/step-00000$2.jsonl; }
cmp <(timeless_rollouts whole 0) <(timeless_rollouts one 0) || fail "other samples of one rank"
# chats of that tag alone have another template
python3 - $tmp/whole/rollouts/step-000000.jsonl <<'PY' || fail "templates"
import json, sys
heads = {}
for line in open(sys.argv[1]):
    x = json.loads(line)
    if "row" in x: heads.setdefault(x["row"]["tag"], set()).add(tuple(x["prompt_ids"][-3:]))
assert len(heads["other"]) == 1 and len(heads["sums"]) == 1 and heads["other"] == {(107, 62, 10)} != heads["sums"], heads  # "<think>" and a newline
PY
# a step again from its files
log=$tmp/replay.log; "$CROLL" replay $tmp/whole --step 1 --out $tmp/again --json >$tmp/said 2>$log </dev/null || fail "replay: exit code $? $(cat $tmp/said)"
echo ok
