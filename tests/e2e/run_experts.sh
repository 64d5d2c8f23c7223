#!/bin/bash
# croll run on a model with experts: three steps of RLVR, with generation, weight sync and checkpoints, on two
# training ranks with a unit for each expert, on two with the experts dealt to them, and on four with
# experts dealt to two and held twice, have the metrics of one training rank (the samples are the same, sums
# differ in order); log-probs of generation are those of training; the checkpoints hold the same weights,
# expert by expert, and training goes on from them on another mesh. The task is one that random weights solve
# half of the time: answers without a comma.
# Not covered: SFT, Transformers, more ranks (tests/mesh/cut_matrix.c).
. tests/e2e/run.inc
scripts/make_sums $tmp/home
make_experts $tmp/home/sft_model

run() {
    local name=$1
    shift
    job $name max_steps=3 validation=null save_steps=3 rollout_batch_size=8 num_return_sequences_in_group=8 \
        response_length=64 "actor_train.data_args.file_name=[$tmp/rows.jsonl]" "${no_commas[@]}" \
        actor_train.training_args.per_device_train_batch_size=8 "$@"
    [ $code = 0 ] || fail "exit code $code of the run on $name"
}

train=actor_train.strategy_args.strategy_config
run one "actor_train.device_mapping=list(range(0,1))" $train.fsdp_size=1
half=actor_train.training_args.gradient_accumulation_steps=2
learned one 3
run units $half $train.apply_expert_patch=true "$train.wrap_policy.moe_experts=[Qwen3MoeMLP]"
run dealt $half $train.ep_size=2 "$train.wrap_policy.moe_experts=[Qwen3MoeExperts]"
run twice actor_train.training_args.gradient_accumulation_steps=1 $train.ep_size=2 \
    "$train.wrap_policy.moe_experts=[Qwen3MoeMLP]" $train.fsdp_size=4 \
    "actor_train.device_mapping=list(range(0,4))"
for other in units dealt twice; do
    for name in actor/total_loss actor/approxkl token/response_length/mean critic/score/mean; do
        same one $other $name 3
    done
done
for name in one units dealt twice; do
    values actor/train_infer_diff_max $tmp/$name/metrics.jsonl | grep -vx 0 && fail "$name: generation and training differ"
    "$CROLL" inspect $tmp/$name/checkpoint-2/actor_train | sed 's/[^ ]*$//' >$tmp/$name.tensors
    echo '{"id":1,"input_ids":[1,203,207,200,161,102,17,250,88,123]}' |
        "$CROLL" logprobs $tmp/$name/checkpoint-2/actor_train model_args.dtype=fp32 | grep -o -- '-[0-9.]*' >$tmp/$name.logprobs
done
for other in units dealt twice; do
    cmp $tmp/one.tensors $tmp/$other.tensors || fail "$other: other tensors in the checkpoint"
    paste $tmp/one.logprobs $tmp/$other.logprobs |
        awk '{ d = $1 - $2; if (d * d > 1e-6) { print; bad = 1 } } END { exit bad || NR != 9 }' ||
        fail "$other: the checkpoint has other weights"
done

# on from checkpoints of other meshes: from one rank's, from that of expert-parallel experts, and the other way round
more="max_steps=5 save_steps=100"
run from_one $more resume_from_checkpoint=$tmp/one/checkpoint-2 "actor_train.device_mapping=list(range(0,1))" $train.fsdp_size=1
run from_twice $more resume_from_checkpoint=$tmp/twice/checkpoint-2 "actor_train.device_mapping=list(range(0,1))" $train.fsdp_size=1
run to_dealt $more $half resume_from_checkpoint=$tmp/one/checkpoint-2 $train.ep_size=2 "$train.wrap_policy.moe_experts=[Qwen3MoeMLP]"
for other in from_twice to_dealt; do
    same from_one $other actor/total_loss 2
    same from_one $other actor_train/grad_norm 2
done
