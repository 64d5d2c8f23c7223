#!/bin/bash
# croll replay: 25 steps drawn at random, 5 of each of five runs (GRPO with a reference and filters, PPO with a critic, LoRA with two rewards,
# distillation from a teacher, samples a step ahead with a correction), trained again: the bytes of the line of metrics are the recorded ones, but for clocks, memory, counts of engines
# and rewards; and so are weights and moments where there is a checkpoint. $CROLL_REPLAYS: steps of each run; $SEED: of the draw. A few steps in a quick
# test: run_replay.sh.
# only in scripts/check_long
. tests/e2e/run.inc
quick_model
seed=${SEED:-$(date +%s)} each=${CROLL_REPLAYS:-5} num=0
RANDOM=$seed
echo "SEED=$seed"
small="max_steps=10 save_steps=3 validation=null rollout_batch_size=8 num_return_sequences_in_group=8 actor_train.training_args.warmup_steps=0
    actor_train.training_args.per_device_train_batch_size=8 actor_train.training_args.gradient_accumulation_steps=1"
reference="reference={model_args: {dtype: fp32}, strategy_args: {strategy_name: fsdp2_infer}, device_mapping: [0], infer_batch_size: 32}"
# numbers FILE STEP: what is compared of a line, as bytes
numbers() { grep "\"step\":$2," $1 | sed -E 's/"(time|system|memory|global_seqlen|scheduler)\/[^"]*":[^,}]*,?//g; s/,\}/}/'; }
replayed() { # NAME
    local name=$1 step
    [ $code = 0 ] || fail "$name: exit code $code"
    learned $name 10
    for step in $(shuf -i 0-9 -n $each --random-source=<(yes $RANDOM)); do
        log=$tmp/replay.log
        "$CROLL" replay $tmp/$name --step $step --out $tmp/again --overwrite --json >$tmp/said 2>$log </dev/null || fail "$name, step $step: exit code $?: $(cat $tmp/said)"
        ! grep -q warning $log || fail "$name, step $step: $(grep warning $log)"
        numbers $tmp/$name/metrics.jsonl $step >$tmp/was
        [ $(wc -c <$tmp/was) -gt 2000 ] || fail "$name, step $step: no line"
        cmp $tmp/was <(numbers $tmp/again/metrics.jsonl $step) || fail "$name, step $step: other bytes"
        [ ! -e $tmp/$name/checkpoint-$step ] || grep -q '"weights":"equal"' $tmp/said || fail "$name, step $step: other weights"
        num=$((num + 1))
    done
}

job grpo $small use_kl_loss=true kl_loss_coef=0.01 ppo_epochs=2 actor_infer.generating_args.top_p=0.9 "$reference"
replayed grpo
job ppo $small adv_estimator=gae init_kl_coef=0.05 add_token_level_kl=true target_kl=0.1 value_clip=0.2 whiten_advantages=true "$reference" \
    "critic={model_args: {dtype: fp32, disable_gradient_checkpointing: true}, training_args: {learning_rate: 1.0e-2, warmup_steps: 0,
    per_device_train_batch_size: 8, gradient_accumulation_steps: 2}, strategy_args: {strategy_name: fsdp2_train, strategy_config: {param_dtype: fp32}},
    device_mapping: [1], infer_batch_size: 8}"
replayed ppo
cat >$tmp/third <<'PYTHON'
import json, sys
for line in sys.stdin:
    id = json.loads(line)["id"]
    print(json.dumps({"id": id, "score": (int(id[12:16], 16) if id[0] in "0123456789abcdef" else 1) % 4 / 3, "metrics": {"thirds": 1}}), flush=True)
PYTHON
job lora $small actor_train.model_args.lora_target=all-linear actor_train.model_args.lora_rank=4 actor_train.training_args.learning_rate=5.0e-3 \
    multi_objective_aggregation=normalize_then_sum "rewards.second={worker_cls: roll.pipeline.rlvr.rewards.ifeval_rule_reward_worker.GeneralRuleRewardWorker,
    tag_included: [sums], reward_weight: 0.3, exec: python3 $tmp/third}"
replayed lora
job opd $small use_opd=true pretrain=$tmp/home/model "teacher={model_args: {model_name_or_path: $tmp/home/sft_model, dtype: fp32},
    strategy_args: {strategy_name: fsdp2_infer}, device_mapping: [1]}"
replayed opd
job ahead $small async_generation_ratio=1 actor_infer.device_mapping=[2] actor_infer.strategy_args.strategy_config.fsdp_size=1 \
    "train_infer_correction.is_weight={enabled: true, weight_type: token, upper_bound: 1.05}"
replayed ahead
echo "$num steps"
