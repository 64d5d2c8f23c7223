#!/bin/bash
# Three steps of rlvr with 2 trainers and 2 engines of their own on the device ($CROLL_DEVICE) against cpu: rewards, loss and
# gradient of each step; generation's log-probs are those of training, bit for bit. The same with trainers that are offloaded.
# Not covered: engines on the trainers' ranks (the other tests of runs).
# also on far
# also on cuda, long
. tests/e2e/run.inc
quick_model
few="max_steps=3 rollout_batch_size=4 num_return_sequences_in_group=4 validation=null actor_infer.device_mapping=[2,3]
    actor_train.training_args.per_device_train_batch_size=8 actor_train.training_args.gradient_accumulation_steps=1"
CROLL_DEVICE=cpu job cpu $few
[ $code = 0 ] || fail "cpu: exit code $code"
learned cpu 3
for where in device offloaded; do
    [ $where = device ] && how= || how="actor_train.strategy_args.strategy_config.offload_policy=true"
    job $where $few $how
    [ $code = 0 ] || fail "$where: exit code $code"
    for metric in critic/score/mean actor/total_loss actor_train/grad_norm; do
        same cpu $where $metric 3
    done
    for tokens in $(values actor/train_infer_compared_tokens $tmp/$where/metrics.jsonl); do
        [ "$tokens" -gt 20 ] || fail "$where: only $tokens tokens compared"
    done
    [ "$(values actor/train_infer_diff_max $tmp/$where/metrics.jsonl | tr '\n' ' ')" = "0 0 0 " ] || fail "$where: log-probs differ"
done
echo ok
