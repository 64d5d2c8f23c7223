#!/bin/bash
# Runs of rlvr on the device ($CROLL_DEVICE) against cpu: rewards, loss and gradient of each step; generation's log-probs are
# those of training, bit for bit. Three steps with 2 trainers and 2 engines of their own, also with trainers that are
# offloaded; five of the quickstart's file, whose engines are on the trainers' ranks. Few samples a step: all those of the
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

# against NAME CPU STEPS KEYS: the run NAME on the device, beside the run CPU that is there already
against() {
    local name=$1 cpu=$2 steps=$3 metric tokens
    shift 3
    job $name "$@"
    [ $code = 0 ] || fail "$name: exit code $code"
    for metric in critic/score/mean actor/total_loss actor_train/grad_norm; do
        same $cpu $name $metric $steps
    done
    for tokens in $(values actor/train_infer_compared_tokens $tmp/$name/metrics.jsonl); do
        [ "$tokens" -gt 20 ] || fail "$name: only $tokens tokens compared"
    done
    [ "$(values actor/train_infer_diff_max $tmp/$name/metrics.jsonl | sort -u)" = 0 ] || fail "$name: log-probs differ"
    [ "$(values actor/train_infer_diff_max $tmp/$name/metrics.jsonl | wc -l)" = $steps ] || fail "$name: steps without log-probs"
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
echo ok
