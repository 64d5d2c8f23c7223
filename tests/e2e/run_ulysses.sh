#!/bin/bash
# croll run with sequence parallel and tiled MLPs: three steps of RLVR on two training ranks that share
# each batch have the metrics of one training rank (the samples are the same, sums differ in order).
# Not covered: SFT, more ranks (tests/mesh/cut_matrix.c).
. tests/e2e/run.inc
quick_model
run() {
    local name=$1
    shift
    job $name max_steps=3 validation=null save_steps=100 rollout_batch_size=8 num_return_sequences_in_group=8 \
        actor_train.training_args.per_device_train_batch_size=8 "$@"
    [ $code = 0 ] || fail "exit code $code of the run on $name"
}

# what cannot be is refused by the name of its rule (docs/rules.md), and nothing starts
refuse() {
    local id=$1
    shift
    job $id "$@"
    [ $code = 2 ] && grep -q "error: $id: " $log && [ ! -e $tmp/$id ] || fail "$id: exit code $code"
}
refuse M2 actor_train.model_args.ulysses_size=3
refuse M3 actor_train.model_args.ulysses_size=4 "actor_train.device_mapping=list(range(0,4))"
refuse M4 actor_train.model_args.ulysses_size=3 "actor_train.device_mapping=list(range(0,3))" \
    actor_train.strategy_args.strategy_config.fsdp_size=3
mkdir $tmp/experts # of a vision-language model: its text_config counts
echo '{"text_config":{"num_experts":3}}' >$tmp/experts/config.json
refuse M8 pretrain=$tmp/experts actor_train.strategy_args.strategy_config.ep_size=2 \
    "actor_train.strategy_args.strategy_config.wrap_policy={moe_experts: [Qwen3MoeMLP]}"
refuse M11 actor_infer.model_args.ulysses_size=2

train=actor_train.strategy_args.strategy_config
run one "actor_train.device_mapping=list(range(0,1))" $train.fsdp_size=1
run two "actor_train.device_mapping=list(range(0,2))" $train.fsdp_size=2 \
    actor_train.model_args.ulysses_size=2 $train.apply_tiled_mlp=true $train.tiled_num_shards=3
learned one 3
for name in actor/total_loss actor/approxkl token/response_length/mean critic/score/mean; do
    same one two $name 3
done
