#!/bin/bash
# Runs of rlvr on the device ($CROLL_DEVICE) against cpu: rewards, loss and gradient of each step; generation's log-probs are
# those of training, bit for bit. Three steps with 2 trainers and 2 engines of their own, also with trainers that are
# offloaded; five of the quickstart's file, whose engines are on the trainers' ranks; three in bf16 with heads of 128, there without cpu, whose
# roundings draw other samples. Few samples a step: all those of the
# quickstart with CROLL_DEVICE_RUN=whole (hours on the simulated GPU).
# also on far
# also on cuda, long
. tests/e2e/run.inc
quick_model
few="collective_timeout=600 rollout_batch_size=4 num_return_sequences_in_group=4 actor_train.training_args.per_device_train_batch_size=8
    actor_train.training_args.gradient_accumulation_steps=1"
apart="max_steps=3 $few validation=null actor_infer.device_mapping=[2,3]"
[ "${CROLL_DEVICE_RUN:-}" = whole ] && few=collective_timeout=600
quickstart="max_steps=5 $few validation=null"

# agrees NAME STEPS: generation's log-probs are those of training
agrees() {
    local tokens
    for tokens in $(values actor/train_infer_compared_tokens $tmp/$1/metrics.jsonl); do
        [ "$tokens" -gt 20 ] || fail "$1: only $tokens tokens compared"
    done
    [ "$(values actor/train_infer_diff_max $tmp/$1/metrics.jsonl | sort -u)" = 0 ] || fail "$1: log-probs differ"
    [ "$(values actor/train_infer_diff_max $tmp/$1/metrics.jsonl | wc -l)" = $2 ] || fail "$1: steps without log-probs"
}

# against NAME CPU STEPS KEYS: the run NAME on the device, beside the run CPU that is there already
against() {
    local name=$1 cpu=$2 steps=$3 metric
    shift 3
    job $name "$@"
    [ $code = 0 ] || fail "$name: exit code $code"
    for metric in critic/score/mean actor/total_loss actor_train/grad_norm; do
        same $cpu $name $metric $steps
    done
    agrees $name $steps
}

CROLL_DEVICE=cpu job cpu $apart
[ $code = 0 ] || fail "cpu: exit code $code"
learned cpu 3
against device cpu 3 $apart
against offloaded cpu 3 $apart actor_train.strategy_args.strategy_config.offload_policy=true
CROLL_DEVICE=cpu job cpu_quickstart $quickstart
[ $code = 0 ] || fail "cpu, quickstart: exit code $code"
learned cpu_quickstart 5
against quickstart cpu_quickstart 5 $quickstart

wide_model $tmp/heads
task_of_commas
job heads $apart "${no_commas[@]}" "actor_train.data_args.file_name=[$tmp/rows.jsonl]" pretrain=$tmp/heads num_return_sequences_in_group=8 actor_train.training_args.learning_rate=2e-5 \
    $(printf '%s ' actor_{train,infer}.{model_args.dtype,strategy_args.strategy_config.param_dtype}=bf16)
[ $code = 0 ] || fail "heads: exit code $code"
learned heads 3
agrees heads 3
echo ok
