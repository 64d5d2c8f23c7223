#!/bin/bash
# croll plan takes a file in ROLL's form as it is, without the model: a name of the hub that croll knows the shape of,
# blocks of vllm and megatron, rewards that it does not have (named), keys that ROLL ignores (named, too). Numbers of
# parameters are those that the models publish. What cannot be is exit code 2.
# Not covered: ROLL's own examples (tests/parity/roll_examples.sh, by hand).
. tests/e2e/run.inc
log=$tmp/err

cat >$tmp/roll.yaml <<'END'
hydra:
  run: {dir: .}
  output_subdir: null
exp_name: in-the-form-of-roll
seed: 7
logging_dir: ./output/logs
output_dir: ./output
system_envs: {USE_MODELSCOPE: '1'}
num_gpus_per_node: 8
reward_shift: false
track_with: tensorboard
tracker_kwargs: {log_dir: ./output/tensorboard}
checkpoint_config: {type: file_system, output_dir: "./models/${exp_name}"}
max_steps: 100
rollout_batch_size: 64
prompt_length: 1024
response_length: 2048
num_return_sequences_in_group: 8
adv_estimator: reinforce
whiten_advantages: true
pretrain: Qwen/Qwen3-8B
reward_pretrain: ${pretrain}
actor_train:
  model_args: {disable_gradient_checkpointing: false, dtype: bf16, model_type: ~}
  training_args: {learning_rate: 1.0e-6, per_device_train_batch_size: 1, gradient_accumulation_steps: 32, num_train_epochs: 9}
  data_args:
    template: qwen3
    file_name: [data/sums.jsonl, data/code.jsonl]
    domain_interleave_probs: {math_rule: 0.5, code_sandbox: 0.3, llm_judge: 0.2}
    dataset_dir: data
    messages: messages
    interleave_probs: "1.0"
    preprocessing_num_workers: 4
  strategy_args:
    strategy_name: fsdp2_train
    strategy_config: {fsdp_size: 8, param_dtype: bf16, reduce_dtype: float32, reshard_after_forward: true}
  device_mapping: list(range(0,8))
  infer_batch_size: 4
actor_infer:
  model_args: {disable_gradient_checkpointing: true, dtype: bf16}
  generating_args: {max_new_tokens: "${response_length}", top_p: 0.99, top_k: 100, num_beams: 1, temperature: 0.99}
  strategy_args:
    strategy_name: vllm
    strategy_config: {gpu_memory_utilization: 0.8, block_size: 16, max_model_len: 4096}
  device_mapping: list(range(0,6))
reference:
  model_args: {dtype: bf16}
  strategy_args:
    strategy_name: megatron_infer
    strategy_config: {tensor_model_parallel_size: 1, expert_model_parallel_size: 1}
  device_mapping: list(range(0,8))
rewards:
  math_rule:
    worker_cls: roll.pipeline.rlvr.rewards.math_rule_reward_worker.MathRuleRewardWorker
    tag_included: [sums]
    world_size: 8
  code_sandbox:
    worker_cls: roll.pipeline.rlvr.rewards.code_sandbox_reward_worker.CodeSandboxRewardWorker
    use_local: true
    tag_included: [code]
    world_size: 8
  llm_judge:
    worker_cls: roll.pipeline.rlvr.rewards.llm_judge_reward_worker.LLMJudgeRewardWorker
    judge_model_type: inference
    tag_included: [judged]
    model_args: {model_name_or_path: Qwen/Qwen2.5-7B-Instruct, dtype: bf16}
    strategy_args: {strategy_name: vllm, strategy_config: {load_format: auto}}
    device_mapping: list(range(6,8))
END

# plan PARAMETERS TEXT WORLD [key=value ..]: planned; TEXT is in the messages beside the plan
plan() {
    local parameters=$1 said=$2 world=$3 code=0
    shift 3
    "$CROLL" plan $tmp/roll.yaml --world $world --json "$@" >$tmp/plan 2>$log </dev/null || code=$?
    [ $code = 0 ] || fail "$*: exit code $code"
    grep -q "\"parameters\":$parameters[,}]" $tmp/plan || fail "$*: not $parameters parameters"
    cat $log $tmp/plan | grep -q -- "$said" || fail "$*: '$said' is not said"
    grep -q "note: reward_shift.* no effect (ROLL ignores it, too)" $log || fail "$*: reward_shift is not named"
}
# refuse TEXT [key=value ..]: exit code 2 and no plan
refuse() {
    local said=$1 code=0
    shift
    "$CROLL" plan $tmp/roll.yaml --json "$@" >$tmp/plan 2>$log </dev/null || code=$?
    [ $code = 2 ] && [ ! -s $tmp/plan ] || fail "$*: exit code $code"
    grep -q -- "$said" $log || fail "$*: '$said' is not said"
}
q8=8190735360 a3=30532122624
for world in 8 64; do
    plan $q8 llm_judge $world
done
plan 7615616512 llm_judge 32 pretrain=Qwen/Qwen2.5-7B-Instruct actor_train.model_args.ulysses_size=2
plan 8234382336 '"trained":43646976,"trained_tensors":504,"adapters":252' 16 actor_train.model_args.lora_target=all-linear actor_train.model_args.lora_rank=16
plan $a3 llm_judge 32 pretrain=Qwen/Qwen3-30B-A3B actor_train.strategy_args.strategy_config.ep_size=8 \
    "actor_train.strategy_args.strategy_config.wrap_policy={moe_experts: [Qwen3MoeExperts]}"
# the judge on devices of actor_train: who is on the fullest devices, what helps, and what runs instead of the engines of the file
"$CROLL" plan $tmp/roll.yaml --memory 80GB >$tmp/plan 2>$log || fail "--memory"
for line in '^actor_train  fsdp2_train on 8 ranks' '^actor_infer  engine (for vllm) on 6 ranks' '^reference  fsdp2_infer (for megatron_infer) on 8 ranks' '^rewards.llm_judge  engine (for vllm) on 2 ranks' \
    '^fullest device: [0-9.]* GiB on devices 6-7 ' '^    actor_train  *[0-9.]* GiB  at work: backward' '^    reference  *[0-9.]* GiB  kept while another one works' \
    '^    rewards.llm_judge  *[0-9.]* GiB  always' '^it does NOT fit in 74.51 GiB' \
    "^rewards.llm_judge keeps [0-9.]* GiB on devices 6-7, which other roles have, too: with rewards.llm_judge.device_mapping='list(range(8,10))' .* which fits"; do
    grep -q -- "$line" $tmp/plan || { cat $tmp/plan; fail "no line: $line"; }
done
"$CROLL" plan $tmp/roll.yaml --memory 80GB --json "rewards.llm_judge.device_mapping='list(range(8,10))'" >$tmp/plan 2>$log || fail "with the advice"
grep -q '"fits":true' $tmp/plan || fail "the advice does not help"
python3 - $tmp/plan <<'PY' || fail "the fullest device"
import json, sys
p = json.load(open(sys.argv[1]))
full = p["fullest_device"]
assert sum(r["bytes"] for r in full["roles"]) == p["device_peak_bytes"] and len(full["roles"]) > 1, full
PY
refuse "there is no folder" pretrain=Nowhere/Unknown-3B
refuse "M2: " actor_train.model_args.ulysses_size=3
refuse "rollout_batch_sise" rollout_batch_sise=3
echo ok
