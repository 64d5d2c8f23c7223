#!/bin/bash
# croll run on a model with experts: on two training ranks with a unit for each expert, on two with the experts
# dealt to them, and on four with experts dealt to two and held twice, a step of RLVR (three updates on its
# samples) has the metrics of one training rank (sums differ in order); the checkpoints hold the same weights,
# expert by expert, and training goes on from them on every mesh; log-probs of generation are those of training,
# after weight sync, too. Runs are compared where they have the same samples: weights that differ by rounding now
# and then draw another token. The task is one that random weights solve half of the time: answers without a comma.
# Not covered: SFT, Transformers, more ranks (tests/mesh/cut_matrix.c).
. tests/e2e/run.inc
scripts/make_sums $tmp/home
make_experts $tmp/home/sft_model

run() {
    local name=$1
    shift
    job $name max_steps=1 validation=null save_steps=100 ppo_epochs=3 rollout_batch_size=8 num_return_sequences_in_group=8 \
        response_length=64 "actor_train.data_args.file_name=[$tmp/rows.jsonl]" "${no_commas[@]}" \
        actor_train.training_args.per_device_train_batch_size=8 "$@"
    [ $code = 0 ] || fail "exit code $code of the run on $name"
}

train=actor_train.strategy_args.strategy_config half=actor_train.training_args.gradient_accumulation_steps=2
one=("actor_train.device_mapping=list(range(0,1))" $train.fsdp_size=1)
units=($half $train.apply_expert_patch=true "$train.wrap_policy.moe_experts=[Qwen3MoeMLP]")
dealt=($half $train.ep_size=2 "$train.wrap_policy.moe_experts=[Qwen3MoeExperts]")
twice=(actor_train.training_args.gradient_accumulation_steps=1 $train.ep_size=2 "$train.wrap_policy.moe_experts=[Qwen3MoeMLP]"
    $train.fsdp_size=4 "actor_train.device_mapping=list(range(0,4))")
run one "${one[@]}"
learned one 1
run units "${units[@]}"
run dealt "${dealt[@]}"
run twice "${twice[@]}"
for other in units dealt twice; do
    for name in actor/total_loss actor/approxkl token/response_length/mean critic/score/mean; do
        same one $other $name 1
    done
done
# same_weights RUN OTHER STEP: its checkpoints have the same tensors, and log-probs of a text
same_weights() {
    for name in $1 $2; do
        "$CROLL" inspect $tmp/$name/checkpoint-$3/actor_train | sed 's/[^ ]*$//' >$tmp/$name.tensors
        echo '{"id":1,"input_ids":[1,203,207,200,161,102,17,250,88,123]}' |
            "$CROLL" logprobs $tmp/$name/checkpoint-$3/actor_train model_args.dtype=fp32 | grep -o -- '-[0-9.]*' >$tmp/$name.logprobs
    done
    cmp $tmp/$1.tensors $tmp/$2.tensors || fail "$2: other tensors in the checkpoint"
    paste $tmp/$1.logprobs $tmp/$2.logprobs |
        awk '{ d = $1 - $2; if (d * d > 1e-6) { print; bad = 1 } } END { exit bad || NR != 9 }' ||
        fail "$2: the checkpoint has other weights"
}
for other in units dealt twice; do
    same_weights one $other 0
done

# on RUN NAME [key=value ..]: on from that run's checkpoint
on() {
    local from=$1 name=$2
    shift 2
    run $name max_steps=3 resume_from_checkpoint=$tmp/$from/checkpoint-0 "$@"
    values actor/train_infer_diff_max $tmp/$name/metrics.jsonl | grep -vx 0 && fail "$name: generation and training differ"
    true
}
# from one rank's on every mesh
on one on_one "${one[@]}"
learned on_one 2
for mesh in units dealt twice; do
    declare -n keys=$mesh
    on one on_$mesh "${keys[@]}"
    for metric in actor/total_loss actor_train/grad_norm; do
        same on_one on_$mesh $metric 1 2
    done
done
# from that of expert-parallel ranks on one rank: answers of two tokens teach next to nothing, weights move by AdamW's moments
on one from_one "${one[@]}" max_steps=2 response_length=2
on twice from_twice "${one[@]}" max_steps=2 response_length=2
same_weights from_one from_twice 1
