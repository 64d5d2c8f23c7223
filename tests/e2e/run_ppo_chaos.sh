#!/bin/bash
# run_ppo_chaos.sh -- `croll run` with a critic on ranks of its own, one of which dies in each life of the run, after a number of steps that grows:
# each time the run ends, names the rank and leaves nothing; resumed to the end it has the numbers, samples and weights of one that was
# left alone. Not covered: deaths of other processes (run_chaos, run_deaths), a critic on the actor's devices (run_ppo).
. tests/e2e/run.inc
quick_model
keys=(adv_estimator=gae save_steps=1 validation=null rollout_batch_size=8 num_return_sequences_in_group=2 response_length=12
    actor_train.training_args.lr_scheduler_type=constant actor_train.training_args.per_device_train_batch_size=8 actor_train.training_args.gradient_accumulation_steps=1
    "critic={model_args: {model_type: trl, dtype: fp32, disable_gradient_checkpointing: true}, training_args: {learning_rate: 1.0e-3, lr_scheduler_type: constant, warmup_steps: 0,
    per_device_train_batch_size: 8, gradient_accumulation_steps: 1}, strategy_args: {strategy_name: fsdp2_train, strategy_config: {fsdp_size: 2, param_dtype: fp32}},
    device_mapping: [2, 3], infer_batch_size: 8}")

# numbers FILE: a line each, in an order of their own: a critic that trains beside the actor is heard later
numbers() {
    timeless $1 | grep -o '"[^"]*":[^,}]*' | grep -v '^"memory/' | awk '/^"step"/ { step = $0 } { print step, $0 }' | sort
}

resume=()
for life in 1 2 3 4; do
    words killed "${keys[@]}" max_steps=100000 "${resume[@]}"
    log=$tmp/killed$life.log code=0
    "${words[@]}" >$log 2>&1 </dev/null &
    pid=$!
    steps killed $((2 * life - 1))
    kill -9 $(rank_of killed $((4 + life % 2))) # the critic's are the last two
    wait $pid || code=$?
    [ $code != 0 ] && grep -q "critic rank $((life % 2))" $log || fail "life $life: exit code $code"
    nothing_left killed
    resume=(resume_from_checkpoint=true)
done
last=$(($(wc -l <$tmp/killed/metrics.jsonl) + 2))
job killed "${keys[@]}" max_steps=$last resume_from_checkpoint=true
[ $code = 0 ] || fail "the last life: exit code $code"
job whole "${keys[@]}" max_steps=$last
[ $code = 0 ] || fail "exit code $code"
[ "$(values critic/grad_norm $tmp/whole/metrics.jsonl | wc -l)" = $last ] || fail "steps without a critic"
diff <(numbers $tmp/whole/metrics.jsonl) <(numbers $tmp/killed/metrics.jsonl) >$tmp/diff || { log=$tmp/diff; fail "other numbers"; }
diff -r $tmp/whole/rollouts $tmp/killed/rollouts >$tmp/diff || { log=$tmp/diff; fail "other samples"; }
for f in actor_train/model.safetensors critic/model.safetensors state/critic.master state/critic.m state/critic.v; do
    cmp $tmp/whole/latest/$f $tmp/killed/latest/$f || fail "another $f"
done
echo ok
