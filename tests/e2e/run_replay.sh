#!/bin/bash
# croll replay: steps of runs with a reference and filters, with a critic, with adapters and several rewards are trained again from
# their files to the bit, weights included; a changed reward and a changed key count in that step alone, and are what a run on
# changed samples gives; what cannot be replayed. rollouts_from: a run on another run's samples, without engines.
# Not covered: another machine.
. tests/e2e/run.inc
quick_model
small="max_steps=4 save_steps=2 eval_steps=100 rollout_batch_size=8 actor_train.training_args.gradient_accumulation_steps=1
    actor_train.training_args.warmup_steps=0"
# replayed CODE NAME STEP ARG ..: JSON in $tmp/said, folder $tmp/again
replayed() {
    local want=$1 name=$2 step=$3 code=0
    shift 3
    rm -rf $tmp/again
    log=$tmp/again.log
    "$CROLL" replay $tmp/$name --step $step --out $tmp/again --json "$@" >$tmp/said 2>$log </dev/null || code=$?
    [ $code = $want ] || fail "replay of $name, step $step $*: exit code $code"
}
# equal WEIGHTS: all numbers are the recorded ones
equal() { python3 -c '
import json, sys
r = json.load(open(sys.argv[1]))
assert r["changed"] == {} and r["equal"] > 50 and str(r["weights"]) == sys.argv[2], r' $tmp/said $1 || fail "not as recorded: $(cat $tmp/said)"
    ! grep -q warning $log || fail "a warning: $(grep warning $log)"; }

job grpo $small use_kl_loss=true kl_loss_coef=0.01 ppo_epochs=2 actor_infer.generating_args.top_p=0.9 \
    "reference={model_args: {dtype: fp32}, strategy_args: {strategy_name: fsdp2_infer}, device_mapping: [0], infer_batch_size: 32}"
[ $code = 0 ] || fail "grpo: exit code $code"
learned grpo 4
before=$(cd $tmp/grpo && find . -type f | sort | xargs sha256sum)
replayed 0 grpo 0
equal None
replayed 0 grpo 3
equal equal
[ "$(cd $tmp/grpo && find . -type f | sort | xargs sha256sum)" = "$before" ] || fail "a replay has changed the run"
! grep -q 'actor_infer' $log || fail "an engine was started"

# a reward that is another: the same as training on samples whose file says so; the steps before it are as they were
id=$(sed -n 5p $tmp/grpo/rollouts/step-000001.jsonl | grep -o '"id":"[0-9a-f]*"' | grep -o '[0-9a-f]\{16\}')
cp -r $tmp/grpo $tmp/edited
python3 - $tmp/edited/rollouts/step-000001.jsonl $id <<'PYTHON'
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
for row in rows:
    if row["id"] == sys.argv[2]:
        assert row["score"] == 0 or row["score"] == 1
        row["score"] = row["reward"] = 2.5
open(sys.argv[1], "w").writelines(json.dumps(row) + "\n" for row in rows)
PYTHON
replayed 1 edited 1
cp $tmp/again/metrics.jsonl $tmp/edited.metrics
cp -r $tmp/again/checkpoint-1 $tmp/edited.weights
replayed 0 grpo 1 --set reward.$id=2.5
cmp <(timeless $tmp/again/metrics.jsonl 1) <(timeless $tmp/edited.metrics 1) || fail "a changed reward is not a changed sample"
cmp $tmp/again/checkpoint-1/actor_train/model.safetensors $tmp/edited.weights/actor_train/model.safetensors || fail "other weights after a changed reward"
python3 - $tmp <<'PYTHON' || fail "what a changed reward changes"
import json, math, sys
tmp = sys.argv[1]
said, rows = json.load(open(f"{tmp}/said")), [json.loads(line) for line in open(f"{tmp}/again/rollouts/step-000001.jsonl")]
assert said["from_checkpoint"] == -1 and "actor_train/grad_norm" in said["changed"] and "critic/score/mean" in said["changed"], said
group = [row for row in rows if row["group"] == 0]
rewards = [row["reward"] for row in group]
assert rewards[4] == 2.5, rewards
mean = sum(rewards) / len(rewards)
std = math.sqrt(sum((x - mean) ** 2 for x in rewards) / (len(rewards) - 1))
for row in group: # as the estimator of the file, grpo, has it
    for a in row["advantage"] if isinstance(row["advantage"], list) else [row["advantage"]]:
        assert abs(a - (row["reward"] - mean) / (std + 1e-6)) < 1e-5, (a, row["reward"], mean, std)
PYTHON
replayed 0 grpo 3 --set actor_train.training_args.learning_rate=1.0e-3
python3 -c '
import json, sys
r = json.load(open(sys.argv[1]))
assert "actor/lr" in r["changed"] and r["weights"] == "differ" and r["from_checkpoint"] == 2, r' $tmp/said || fail "another key: $(cat $tmp/said)"
[ $(wc -l <$tmp/again/metrics.jsonl) = 1 ] || fail "a replay of more than its step"

# several rewards, adapters
cat >$tmp/third <<'PYTHON'
import json, sys
for line in sys.stdin:
    id = json.loads(line)["id"]
    print(json.dumps({"id": id, "score": (int(id[12:16], 16) if id[0] in "0123456789abcdef" else 1) % 4 / 3, "metrics": {"thirds": 1}}), flush=True)
PYTHON
job lora $small actor_train.model_args.lora_target=all-linear actor_train.model_args.lora_rank=4 actor_train.training_args.learning_rate=5.0e-3 \
    "rewards.math_rule.exec=python3 $tmp/third" \
    "rewards.second={worker_cls: roll.pipeline.rlvr.rewards.ifeval_rule_reward_worker.GeneralRuleRewardWorker, tag_included: [sums], reward_weight: 0.3,
    exec: python3 $tmp/third}"
[ $code = 0 ] || fail "lora: exit code $code"
replayed 0 lora 3
equal equal

# the reward of one block: the sum by weight, as a file that says so has it
id=$(sed -n 5p $tmp/lora/rollouts/step-000003.jsonl | grep -o '"id":"[0-9a-f]*"' | grep -o '[0-9a-f]\{16\}')
cp -r $tmp/lora $tmp/edited_block
python3 - $tmp/edited_block/rollouts/step-000003.jsonl $id <<'PYTHON'
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
for row in rows:
    if row["id"] == sys.argv[2]:
        row["rewards"]["second"]["score"] = row["rewards"]["second"]["reward"] = 4
        row["reward"] = 1 * row["rewards"]["math_rule"]["reward"] + 0.3 * 4
open(sys.argv[1], "w").writelines(json.dumps(row) + "\n" for row in rows)
PYTHON
replayed 1 edited_block 3
cp $tmp/again/metrics.jsonl $tmp/edited.metrics
replayed 0 lora 3 --set reward.$id.second=4
cmp <(timeless $tmp/again/metrics.jsonl 3) <(timeless $tmp/edited.metrics 3) || fail "a changed reward of one block is not a changed sample"

# several updates a step, whose old log-probs are the sampler's: the written configuration means the same. A filter that rejects
# prompts: the replay's checkpoint has the place in the data, too
job minis $small rollout_batch_size=16 actor_train.training_args.per_device_train_batch_size=16 max_steps=2 \
    "rewards.math_rule.query_filter_config={type: std_filter, filter_args: {std_threshold: 0.1}}"
[ $code = 0 ] || fail "minis: exit code $code"
values scheduler/filtered_groups $tmp/minis/metrics.jsonl | awk '$1 > 0 { num++ } END { exit !num }' || fail "the filter rejects nothing"
replayed 0 minis 1
equal equal
[ "$(values actor/old_log_probs_recomputed $tmp/again/metrics.jsonl | sort -u)" = 0 ] || fail "old log-probs are not the sampler's"

# what cannot be
refused() { # TEXT ARG ..
    local text=$1 code=0
    shift
    log=$tmp/refused
    "$CROLL" replay "$@" >$log 2>&1 </dev/null || code=$?
    [ $code = 2 ] && grep -q -- "$text" $log || fail "replay $*: exit code $code"
}
refused 'is not a folder of a run' $tmp --step 0
refused 'the run has no samples of step 9' $tmp/grpo --step 9
cp -r $tmp/grpo $tmp/ended
sed -i '$d' $tmp/ended/metrics.jsonl
refused 'metrics.jsonl has no line of step 3: the run ended while it trained it' $tmp/ended --step 3
refused '.--step N is needed\|--step N is needed' $tmp/grpo
refused 'is neither reward.ID=X' $tmp/grpo --step 1 --out $tmp/x --set reward.7=1
refused 'within +-' $tmp/grpo --step 1 --out $tmp/x --set reward.0123456789abcdef.=1
refused "unknown key 'lr'" $tmp/grpo --step 1 --out $tmp/x --set lr=1
refused 'is there (--overwrite replaces a replay' $tmp/grpo --step 1 --out $tmp/again
refused 'is not the folder of a replay' $tmp/grpo --step 1 --out $tmp/lora --overwrite
[ -e $tmp/lora/config.yaml ] || fail "a run was removed"
rm -rf $tmp/again
log=$tmp/absent
"$CROLL" replay $tmp/grpo --step 1 --out $tmp/again --set reward.0123456789abcdef=1 >$log 2>&1 </dev/null && fail "a sample that is not there" || true
grep -q 'the step has no such sample' $log || fail "a sample that is not there"
cannot() { # TEXT NAME CHANGE
    local code=0
    log=$tmp/cannot
    rm -rf $tmp/again
    "$CROLL" replay $tmp/$2 --step 3 --out $tmp/again --set $3=1 >$log 2>&1 </dev/null || code=$?
    [ $code != 0 ] && grep -q "$1" $log || fail "$3: exit code $code"
}
cannot 'several blocks of rewards scored it (math_rule, second)' lora reward.$id
cannot "no block of rewards 'third' scored it (math_rule, second did)" lora reward.$id.third
python3 - $tmp/lora/rollouts/step-000003.jsonl <<'PYTHON'
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
for row in rows:
    row["token_rewards"] = row["rewards"]["second"]["token_rewards"] = [0] * len(row["ids"])
open(sys.argv[1], "w").writelines(json.dumps(row) + "\n" for row in rows)
PYTHON
cannot 'it has token_rewards, which another reward would leave' lora reward.$id.second

# samples of another run, with other keys and no engine
job other $small actor_infer.generating_args.top_p=0.9 validation=null rollouts_from=$tmp/grpo actor_train.training_args.learning_rate=1.0e-4
[ $code = 0 ] || fail "rollouts_from: exit code $code"
[ "$(values critic/score/mean $tmp/other/metrics.jsonl)" = "$(values critic/score/mean $tmp/grpo/metrics.jsonl)" ] || fail "other samples"
! grep -q 'actor_infer\|reward worker' $log || fail "rollouts_from: an engine or a reward worker"
job more $small actor_infer.generating_args.top_p=0.9 max_steps=6 validation=null rollouts_from=$tmp/grpo
[ $code != 0 ] && grep -q 'it has no samples of step 4' $log && [ ! -s $tmp/more/metrics.jsonl ] || fail "steps without samples: exit code $code"
job both $small rollouts_from=$tmp/grpo
[ $code = 2 ] && grep -q 'there is no validation' $log || fail "rollouts_from with a validation: exit code $code"
echo ok
