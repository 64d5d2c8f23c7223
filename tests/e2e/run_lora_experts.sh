#!/bin/bash
# run_lora_experts.sh -- rlvr with adapters of attention, experts and routers: generation has the bits of training; on two ranks with
# the experts dealt to them the numbers of one rank; the checkpoint has PEFT's tensors of all experts, from which training goes on, also
# on the other mesh, and the same adapter starts a run.
# Not covered: PEFT (tests/parity/peft_folder.py), more ranks (tests/mesh/experts.c).
. tests/e2e/run.inc
scripts/make_sums $tmp/home
make_experts $tmp/home/sft_model
lora=(lora_target=all-linear,all-router lora_rank=2)
run() {
    local name=$1
    shift
    job $name max_steps=3 validation=null save_steps=1 ppo_epochs=2 rollout_batch_size=8 num_return_sequences_in_group=8 response_length=32 \
        "actor_train.data_args.file_name=[$tmp/rows.jsonl]" "${no_commas[@]}" actor_train.training_args.per_device_train_batch_size=8 \
        actor_train.training_args.learning_rate=1.0e-3 ${lora[@]/#/actor_train.model_args.} "$@"
    [ $code = 0 ] || fail "exit code $code of the run on $name"
    values actor/train_infer_diff_max $tmp/$name/metrics.jsonl | grep -vx 0 && fail "$name: generation and training differ"
    true
}
train=actor_train.strategy_args.strategy_config
one=("actor_train.device_mapping=list(range(0,1))" $train.fsdp_size=1)
dealt=(actor_train.training_args.gradient_accumulation_steps=2 $train.ep_size=2 "$train.wrap_policy.moe_experts=[Qwen3MoeExperts]")
run one "${one[@]}"
run dealt "${dealt[@]}"
for name in actor/total_loss critic/score/mean; do same one dealt $name 1 3; done
saved=$tmp/one/checkpoint-1/actor_train
"$CROLL" inspect $saved/adapter_model.safetensors >$tmp/tensors
for name in mlp.experts.base_layer.lora_A mlp.experts.base_layer.lora_B mlp.experts.lora_A mlp.experts.lora_B mlp.gate.lora_A; do
    grep -q "base_model.model.model.layers.0.$name.weight" $tmp/tensors || fail "no $name in the checkpoint"
done
for key in target_parameters rank_pattern alpha_pattern; do grep -q "\"$key\": [[{]\"" $saved/adapter_config.json || fail "$key: $(cat $saved/adapter_config.json)"; done
run on "${dealt[@]}" resume_from_checkpoint=$tmp/one/checkpoint-1
for name in actor/total_loss critic/score/mean; do
    [ "$(values $name $tmp/one/metrics.jsonl | tail -1 | cut -c1-6)" = "$(values $name $tmp/on/metrics.jsonl | tail -1 | cut -c1-6)" ] || fail "on from one: $name"
done
lora=(adapter_name_or_path=$tmp/one/checkpoint-2/actor_train)
run started "${one[@]}"
echo ok
