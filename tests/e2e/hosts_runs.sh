#!/bin/bash
# Runs on 2 and 4 hosts (tests/tools/rig) have the bits of one host: SFT, GRPO with a reference, experts over hosts, Ulysses
# inside a host; checkpoints, and what goes on from them on another number of hosts; output_dir shared by all hosts, private
# with the parts of other hosts gathered, and private with a part on each host.
# only in scripts/check_hosts
. tests/e2e/run.inc
. tests/e2e/rig.inc
quick_model
rig_up 4
shared=/mnt/shared
two=h1:2,h2:2 four=h1:1,h2:1,h3:1,h4:1

# run CONFIG NAME HOSTS WORDS ..: on h1, HOSTS "" for it alone; exit code in $code
run() {
    local config=$1 name=$2 hosts=$3
    shift 3
    log=$tmp/$name.log code=0
    rig in h1 "$CROLL" run $config output_dir=$shared/$name track_with=none "$@" ${hosts:+--hosts $hosts} >$log 2>&1 </dev/null || code=$?
}
sft() {
    local name=$1 hosts=$2
    shift 2
    run configs/quickstart/sft.yaml $name "$hosts" pretrain=$shared/home/model "sft_train.data_args.file_name=[$shared/home/sft.jsonl]" \
        max_steps=4 save_steps=1 "sft_train.device_mapping=list(range(0,4))" sft_train.strategy_args.strategy_config.fsdp_size=4 \
        sft_train.training_args.warmup_steps=0 sft_train.training_args.per_device_train_batch_size=8 "$@"
}
grpo() {
    local name=$1 hosts=$2
    shift 2
    run configs/quickstart/rlvr.yaml $name "$hosts" pretrain=$shared/home/sft_model validation=null max_steps=4 save_steps=1 \
        "actor_train.data_args.file_name=[$shared/home/sums.train.jsonl]" rollout_batch_size=8 num_return_sequences_in_group=8 \
        actor_train.training_args.per_device_train_batch_size=8 actor_train.training_args.warmup_steps=0 "$@"
}
good() { [ $code = 0 ] || fail "$1: exit code $code"; }
files() { # CHECKPOINT: names and contents of what was learnt
    (cd $1 && find . -name '*.safetensors' -o -name '*.master' -o -name '*.m' -o -name '*.v' | sort | xargs sha256sum)
}
equal() { # NAME OTHER CHECKPOINT [STEP]: metrics from that step on, and a checkpoint
    [ "$(files $tmp/$1/$3 | wc -l)" -ge 4 ] && cmp <(files $tmp/$1/$3) <(files $tmp/$2/$3) || fail "$2: another $3 than $1"
    [ "$(timeless $tmp/$2/metrics.jsonl ${4:-0} | wc -l)" -ge 2 ] || fail "$2: too few steps"
    cmp <(timeless $tmp/$1/metrics.jsonl ${4:-0}) <(timeless $tmp/$2/metrics.jsonl ${4:-0}) || fail "$2: other metrics than $1"
}

echo "== SFT"
sft sft1 "" && good sft1
sft sft2 $two && good sft2
sft sft4 $four && good sft4
equal sft1 sft2 checkpoint-3
equal sft1 sft4 checkpoint-3

echo "== on from a checkpoint on another number of hosts"
sft sft2to1 "" resume_from_checkpoint=$shared/sft2/checkpoint-1 && good sft2to1
sft sft1to4 $four resume_from_checkpoint=$shared/sft1/checkpoint-1 && good sft1to4
sft sft4to2 $two resume_from_checkpoint=$shared/sft4/checkpoint-1 && good sft4to2
for name in sft2to1 sft1to4 sft4to2; do
    equal sft1 $name checkpoint-3 2
done

echo "== GRPO with a reference"
reference="init_kl_coef=0.1 use_kl_loss=true kl_loss_coef=0.1"
reference_words=($reference "reference={model_args: {dtype: fp32}, strategy_args: {strategy_name: fsdp2_infer, strategy_config: {fsdp_size: 2, param_dtype: fp32}}, device_mapping: 'list(range(0,2))', infer_batch_size: 16}")
grpo grpo1 "" "${reference_words[@]}" && good grpo1
grpo grpo2 h1:1,h2:5 "${reference_words[@]}" && good grpo2
grpo grpo4 h1:1,h2:2,h3:1,h4:2 "${reference_words[@]}" && good grpo4
learned grpo1 4
equal grpo1 grpo2 checkpoint-3
equal grpo1 grpo4 checkpoint-3

echo "== Ulysses inside a host"
train=actor_train.strategy_args.strategy_config
pairs=("actor_train.device_mapping=list(range(0,4))" actor_train.model_args.ulysses_size=2 $train.fsdp_size=4)
grpo pairs1 "" "${pairs[@]}" && good pairs1
grpo pairs2 h1:2,h2:4 "${pairs[@]}" && good pairs2
learned pairs1 4
equal pairs1 pairs2 checkpoint-3

echo "== experts over hosts"
mkdir $tmp/experts
cp $tmp/home/model/*.json $tmp/experts
cat >$tmp/experts/config.json <<'JSON'
{"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 264, "hidden_size": 48,
 "intermediate_size": 96, "moe_intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
 "num_key_value_heads": 2, "head_dim": 12, "num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": true,
 "mlp_only_layers": [1], "initializer_range": 0.15, "max_position_embeddings": 512, "eos_token_id": 258,
 "torch_dtype": "float32"}
JSON
log=$tmp/init.log
"$CROLL" init $tmp/experts --seed 3 >$log 2>&1 || fail "init"
sed 's/"ground_truth":"[0-9]*"/"ground_truth":"{\\"func_name\\": \\"validate_no_commas\\"}"/' $tmp/home/sums.train.jsonl >$tmp/rows.jsonl
dealt=(pretrain=$shared/experts response_length=64 "actor_train.data_args.file_name=[$shared/rows.jsonl]"
    "actor_train.data_args.domain_interleave_probs={ifeval: 1.0}"
    "rewards={ifeval: {worker_cls: roll.pipeline.rlvr.rewards.ifeval_rule_reward_worker.GeneralRuleRewardWorker, tag_included: [sums], world_size: 1}}"
    "actor_train.device_mapping=list(range(0,4))" actor_train.training_args.gradient_accumulation_steps=2 $train.fsdp_size=4 $train.ep_size=4 "$train.wrap_policy.moe_experts=[Qwen3MoeExperts]")
grpo experts1 "" "${dealt[@]}" && good experts1
grpo experts2 h1:2,h2:4 "${dealt[@]}" && good experts2
grpo experts4 h1:1,h2:1,h3:1,h4:3 "${dealt[@]}" && good experts4
learned experts1 4
equal experts1 experts2 checkpoint-3
equal experts1 experts4 checkpoint-3
echo ok
