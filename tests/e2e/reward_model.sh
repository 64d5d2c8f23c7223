#!/bin/bash
# also on far
# A reward model (ForSequenceClassification) as a reward: scores of tiny Llama, Qwen2, Qwen3 against Transformers in float64 (made by
# tests/parity/reward_model.py), with the same bits alone and among others; a run whose samples get a rule's and a model's reward, the scores of
# `croll score` to the bit, and their weighted sum; croll eval and croll plan with it; a second process for a second device; what is refused.
# Not covered: experts, models of other vocabularies, a GPU.
. tests/e2e/run.inc
quick_model
mkdir $tmp/models
log=$tmp/log
python3 tests/parity/reward_model.py --make $tmp/models || fail "the models"
file() { # NAME MODEL [key=value ..]: $tmp/NAME.yaml, a run with the rule and the model
    local name=$1 model=$2
    shift 2
    words $name max_steps=2 rollout_batch_size=8 num_return_sequences_in_group=8 actor_train.training_args.per_device_train_batch_size=16 \
        actor_train.training_args.gradient_accumulation_steps=1 "rewards.rm={worker_cls: roll.pipeline.base_worker.RewardWorker, tag_included: [sums],
        model_args: {model_name_or_path: $model, model_type: auto_sequence_classification, dtype: fp32}, device_mapping: '[2,3]', infer_batch_size: 5, reward_weight: 0.3}" "$@"
    words[1]=config
    "${words[@]}" >$tmp/$name.yaml 2>$log
}
golden() { # MODEL: its lines
    python3 -c 'import json, sys
for x in map(json.loads, open("tests/parity/reward_model.json")):
    if x["model"] == sys.argv[1]: print(json.dumps(x["line"]))' $1
}
for model in llama qwen2 qwen3; do
    file $model $tmp/models/$model || fail "$model: croll config"
    golden $model >$tmp/lines
    "$CROLL" score rm --config $tmp/$model.yaml <$tmp/lines >$tmp/answers 2>$log || fail "$model: exit code $?"
    while read -r line; do "$CROLL" score rm --config $tmp/$model.yaml --judge 1 <<<"$line"; done <$tmp/lines 2>$log | cmp - $tmp/answers || fail "$model: a line alone"
    python3 - $model $tmp/answers <<'PY' || fail "$model: scores"
import json, sys
want = [x for x in map(json.loads, open("tests/parity/reward_model.json")) if x["model"] == sys.argv[1]]
for got, x in zip(map(json.loads, open(sys.argv[2])), want, strict=True):
    assert got["id"] == x["line"]["id"] and got["status"] == "ok" and got["score"] == float("%.9g" % got["reward"]), got
    assert abs(got["reward"] - x["score"]) < 2e-5, (got, x["score"])
PY
done
# a wrong line is answered in its place
last='{"id":5,"response":"","prompt_ids":[3],"response_ids":[5,6]}' code=0
printf '%s\n' '{"id":1,"response":"","prompt_ids":[3],"response_ids":[4]}' '{"id":2,"response":"x"}' '{"id":3,"response":"","prompt_ids":[3],"response_ids":[97]}' \
    '{"id":4,"response":"","prompt_ids":[],"response_ids":[]}' "$last" |
    "$CROLL" score rm --config $tmp/llama.yaml >$tmp/answers 2>$log || code=$?
[ $code = 2 ] && [ "$(grep -c '"status":"ok"' $tmp/answers)" = 2 ] || fail "wrong lines: exit code $code"
cmp <(tail -n 1 $tmp/answers) <("$CROLL" score rm --config $tmp/llama.yaml <<<"$last" 2>$log) || fail "a line after wrong ones"
for says in 'no list prompt_ids' 'response_ids\[0\] is no id of a vocabulary of 97' 'without a token has no score'; do grep -q "$says" $tmp/answers || fail "not said: $says"; done

# ---- a run: both rewards, each from its workers; the score of croll score ----
python3 tests/parity/reward_model.py --convert $tmp/home/sft_model $tmp/home/rm
file both $tmp/home/rm || fail "croll config"
words[1]=run
log=$tmp/both.log
"${words[@]}" >$log 2>&1 </dev/null || fail "a run: exit code $?"
nothing_left both
learned both 2
"$CROLL" plan $tmp/both.yaml --json >$tmp/plan 2>$log || fail "plan"
python3 - $tmp <<'PY' || fail "rewards of the run, or its plan"
import json, subprocess, sys, os
tmp = sys.argv[1]
for step, metrics in enumerate(map(json.loads, open(f"{tmp}/both/metrics.jsonl"))):
    rows = [json.loads(line) for line in open(f"{tmp}/both/rollouts/step-{step:06d}.jsonl")]
    asked = "".join(json.dumps(dict(id=r["id"], response=r["response"], prompt_ids=r["prompt_ids"], response_ids=r["ids"])) + "\n" for r in rows)
    alone = subprocess.run([os.environ["CROLL"], "score", "rm", "--config", f"{tmp}/both.yaml"], input=asked, text=True, capture_output=True, check=True).stdout
    assert len(rows) == 64
    for r, a in zip(rows, map(json.loads, alone.splitlines()), strict=True):
        assert a["id"] == r["id"] and r["status"] == "ok" and r["rewards"]["rm"]["reward"] == a["reward"], (r["rewards"], a)
        assert abs(r["reward"] - (r["rewards"]["math_rule"]["reward"] + 0.3 * a["reward"])) < 1e-9, r
    assert len({r["rewards"]["rm"]["reward"] for r in rows}) > 32
    assert abs(metrics["math_rule/rewards/rm/mean"] - sum(r["rewards"]["rm"]["reward"] for r in rows) / 64) < 1e-6, sorted(metrics)
role = json.load(open(f"{tmp}/plan"))["roles"][-1]
size = sum(os.path.getsize(f"{tmp}/home/rm/{f}") for f in os.listdir(f"{tmp}/home/rm") if f.endswith(".safetensors"))
assert role["name"] == "rm" and role["mesh"]["ranks"] == 2 and abs(role["peak_bytes"]["values"] / size - 1) < 0.02, (role, size)
PY
grep -q 'scheduler/reward_errors":0' $tmp/both/metrics.jsonl || fail "a sample without a verdict"
head -n 12 $tmp/home/sums.val.jsonl >$tmp/rows.jsonl
"$CROLL" eval $tmp/home/sft_model --run $tmp/both.yaml --data $tmp/rows.jsonl --out $tmp/eval >$tmp/eval.out 2>$log </dev/null || fail "eval: exit code $?"
[ "$(sed 's/.*"reward":\([^,]*\),.*/\1/' $tmp/eval/samples.jsonl | sort -u | wc -l)" -gt 3 ] || fail "eval without the model's reward"

# ---- refused by name ----
refused() { # TEXT MODEL [key=value ..]: before anything starts
    local says=$1 model=$2
    shift 2
    file refused $model "$@" || true
    words[1]=run log=$tmp/refused.log code=0
    "${words[@]}" >$log 2>&1 </dev/null || code=$?
    [ $code = 2 ] && grep -Eq "$says" $log || fail "$says: exit code $code"
    [ ! -e $tmp/refused/metrics.jsonl ] || fail "$says: it was started"
}
labels() { # FOLDER TENSOR: a reward model with two labels, or without a head
    cp -r $tmp/home/rm $1
    python3 - $1 $2 <<'PY'
import sys
sys.path.insert(0, "tests/e2e")
import tensors
all = tensors.read(sys.argv[1])
dtype, shape, data = all.pop("score.weight")
if sys.argv[2] == "two": all["score.weight"] = (dtype, [2, shape[1]], data * 2)
tensors.write(sys.argv[1], all)
PY
}
cp $tmp/home/rm/tokenizer*.json $tmp/models/llama
labels $tmp/home/two two
labels $tmp/home/none none
refused 'rewards.rm: .*Qwen3ForCausalLM.* is not available \(Qwen3ForSequenceClassification is\)' $tmp/home/sft_model
refused 'rewards.rm: .*score.weight.*2' $tmp/home/two
refused 'rewards.rm: .*score.weight' $tmp/home/none
refused 'rewards: rm .*vocabulary has 97 ids, that of the run 264' $tmp/models/llama
refused 'rewards.rm: model_type: auto_sequence_classification is there for a reward model' $tmp/home/rm rewards.rm.model_args.model_type=trl
refused 'rewards.rm: a reward model is not trained' $tmp/home/rm rewards.rm.strategy_args.strategy_name=fsdp2_train
refused 'rewards.rm: fsdp_size.* not available yet' $tmp/home/rm rewards.rm.strategy_args.strategy_config.fsdp_size=2
refused 'rewards.rm: adapters of a reward model are not available yet' $tmp/home/rm rewards.rm.model_args.adapter_name_or_path=$tmp/home/rm
refused 'rewards.rm.device_mapping is missing' $tmp/home/rm rewards.rm.device_mapping=null
refused 'rewards.rm: world_size 3, and device_mapping has 2 devices' $tmp/home/rm rewards.rm.world_size=3
refused 'model_type: auto_sequence_classification is a reward model' $tmp/home/rm adv_estimator=gae "critic={model_args: {model_type: auto_sequence_classification, dtype: fp32}, device_mapping: '[0,1]',
    strategy_args: {strategy_name: fsdp2_train, strategy_config: {fsdp_size: 2}}}"
echo ok
