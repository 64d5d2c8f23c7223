#!/bin/bash
# Runs on 2 and 4 hosts (tests/tools/rig) have the bits of one host: SFT, GRPO with a reference, experts over hosts, Ulysses
# inside a host; checkpoints, and what goes on from them on another number of hosts; output_dir shared by all hosts, private
# with the parts of other hosts gathered, and private with a part on each host.
# only in scripts/check_long
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
metrics() { timeless $tmp/$1/metrics.jsonl ${2:-0} | sed -E 's/"memory\/[^"]*":[^,}]*,?//g'; } # threads of a rank: cores by its ranks on the host
equal() { # NAME OTHER CHECKPOINT [STEP]: metrics from that step on, and a checkpoint
    [ "$(files $tmp/$1/$3 | wc -l)" -ge 4 ] && cmp <(files $tmp/$1/$3) <(files $tmp/$2/$3) || fail "$2: another $3 than $1"
    [ "$(metrics $2 ${4:-0} | wc -l)" -ge 1 ] || fail "$2: too few steps"
    cmp <(metrics $1 ${4:-0}) <(metrics $2 ${4:-0}) || fail "$2: other metrics than $1"
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

# the folder of the run on h1 alone; what h1 has at its end is put beside the others
own() { # RUNNER NAME HOSTS HOW WORDS ..
    local runner=$1 name=$2 hosts=$3 how=$4
    shift 4
    $runner $name "$hosts" output_dir=/mnt/own/$name checkpoint_config.hosts=$how "$@"
    rm -rf $tmp/$name
    rig in h1 cp -r /mnt/own/$name $shared/$name
}
echo "== SFT, private folders, gathered"
own sft gather2 $two gather && good gather2
equal sft1 gather2 checkpoint-3
own sft gather4 $four gather && good gather4
equal sft1 gather4 checkpoint-3
for host in h2 h3 h4; do
    [ -z "$(rig in $host sh -c 'ls -d /mnt/own/gather*/checkpoint* 2>/dev/null')" ] || fail "$host has checkpoints"
done
[ "$(ls $tmp/gather4/flight)" = rank-00.bin ] && rig in h4 test -s /mnt/own/gather4/flight/rank-03.bin || fail "flight files"
for name in rollouts run.log metrics.jsonl run.html config.yaml; do
    [ $name = rollouts ] || [ -s $tmp/gather4/$name ] || fail "gather4: no $name"
done
own sft gather2to4 $four gather resume_from_checkpoint=/mnt/own/gather2/checkpoint-1 && good gather2to4
equal sft1 gather2to4 checkpoint-3 2
own sft gather4to2 $two gather resume_from_checkpoint=/mnt/own/gather4/checkpoint-1 && good gather4to2
equal sft1 gather4to2 checkpoint-3 2
own sft gather2to1 "" gather resume_from_checkpoint=/mnt/own/gather2/checkpoint-1 && good gather2to1
equal sft1 gather2to1 checkpoint-3 2

echo "== SFT, private folders, a part on each host"
own sft each2 $two each max_ckpt_to_keep=2 && good each2
[ "$(ls $tmp/each2/checkpoint-3/state | grep -c 'shard$')" = 2 ] || fail "each2: parts on h1"
[ "$(rig in h2 sh -c 'cd /mnt/own/each2 && ls -d checkpoint*' | tr '\n' ' ')" = "checkpoint-1 checkpoint-2 checkpoint-3 " ] || fail "each2: folders on h2"
own sft each2again $two each resume_from_checkpoint=/mnt/own/each2/checkpoint-2 && good each2again
cmp <(metrics sft1 3) <(metrics each2again 3) || fail "each2again: other metrics"
own sft each2to4 $four gather resume_from_checkpoint=/mnt/own/each2/checkpoint-2 && good each2to4
equal sft1 each2to4 checkpoint-3 3
own sft each2to1 "" each resume_from_checkpoint=/mnt/own/each2/checkpoint-2
[ $code != 0 ] && grep -q 'checkpoint-2/state/sft_train.rank-02.*shard is missing: it was written on host h2' $log || fail "each2to1: exit code $code"
export_each() {
    log=$tmp/export.log code=0
    rm -rf $tmp/exported
    rig in h1 "$CROLL" export /mnt/own/each2/latest $shared/exported >$log 2>&1 || code=$?
}
export_each
[ $code != 0 ] && grep -q 'is missing: it is on host h2' $log && [ ! -e $tmp/exported ] || fail "export without the parts of h2: exit code $code"
rig in h2 tar -C /mnt/own -cf - each2 | rig in h1 tar -C /mnt/own --exclude flight -xf -
export_each
[ $code = 0 ] && cmp $tmp/exported/model.safetensors $tmp/sft1/checkpoint-3/sft_train/model.safetensors || fail "export: exit code $code"
own sft each2to1 "" gather resume_from_checkpoint=/mnt/own/each2/checkpoint-2 --overwrite && good each2to1
equal sft1 each2to1 checkpoint-3 3

echo "== GRPO with a reference"
kl=(init_kl_coef=0.1 use_kl_loss=true kl_loss_coef=0.1 "actor_train.device_mapping=list(range(0,4))" actor_train.strategy_args.strategy_config.fsdp_size=4
    actor_train.training_args.gradient_accumulation_steps=2 "actor_infer.device_mapping=[0]" actor_infer.strategy_args.strategy_config.fsdp_size=1
    "reference={model_args: {dtype: fp32}, strategy_args: {strategy_name: fsdp2_infer, strategy_config: {fsdp_size: 1, param_dtype: fp32}}, device_mapping: [0], infer_batch_size: 16}")
grpo grpo1 "" "${kl[@]}" && good grpo1
grpo grpo2 h1:3,h2:3 "${kl[@]}" && good grpo2
grpo grpo4 h1:1,h2:2,h3:1,h4:2 "${kl[@]}" && good grpo4
learned grpo1 4
equal grpo1 grpo2 checkpoint-3
equal grpo1 grpo4 checkpoint-3
own grpo grpo4gather h1:1,h2:2,h3:1,h4:2 gather "${kl[@]}" && good grpo4gather
equal grpo1 grpo4gather checkpoint-3
grpo elsewhere h1:1,h2:5 output_dir=/mnt/own/elsewhere checkpoint_config.hosts=gather "${kl[@]}"
[ $code = 2 ] && grep -q 'no rank of actor_train is on h1' $log || fail "elsewhere: exit code $code"

echo "== Ulysses inside a host"
train=actor_train.strategy_args.strategy_config
pairs=("actor_train.device_mapping=list(range(0,4))" actor_train.model_args.ulysses_size=2 $train.fsdp_size=4)
grpo pairs1 "" "${pairs[@]}" && good pairs1
grpo pairs2 h1:3,h2:3 "${pairs[@]}" && good pairs2
learned pairs1 4
equal pairs1 pairs2 checkpoint-3

echo "== experts over hosts"
make_experts $tmp/experts
dealt=(pretrain=$shared/experts response_length=64 "actor_train.data_args.file_name=[$shared/rows.jsonl]"
    "${no_commas[@]}" "actor_train.device_mapping=list(range(0,4))" actor_train.training_args.gradient_accumulation_steps=2 $train.fsdp_size=4 $train.ep_size=4 "$train.wrap_policy.moe_experts=[Qwen3MoeExperts]")
grpo experts1 "" "${dealt[@]}" && good experts1
grpo experts2 h1:3,h2:3 "${dealt[@]}" && good experts2
grpo experts4 h1:1,h2:1,h3:1,h4:3 "${dealt[@]}" && good experts4
learned experts1 4
equal experts1 experts2 checkpoint-3
equal experts1 experts4 checkpoint-3
own grpo experts4gather h1:1,h2:1,h3:1,h4:3 gather "${dealt[@]}" && good experts4gather
equal experts1 experts4gather checkpoint-3
own grpo experts4to2 h1:3,h2:3 gather "${dealt[@]}" resume_from_checkpoint=/mnt/own/experts4gather/checkpoint-1 && good experts4to2
equal experts1 experts4to2 checkpoint-3 2
echo ok
