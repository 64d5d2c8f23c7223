#!/bin/bash
# croll run while one of its processes is killed or frozen: it goes on, or ends with a sentence within its deadline and is
# resumed; in the end every sample is there once, with the numbers of a run that was left alone. A resume of nothing is
# told in run.log. A killed launcher and a killed rank also with LoRA, whose checkpoints are adapters and their state.
# CROLL_KILLS=all: also the cases that run_chaos.sh, run_verdicts.sh and run_resume.sh have.
# mostly waits
. tests/e2e/run.inc
trap 'kill -CONT $(jobs -p) 2>/dev/null || true; kill -9 $(jobs -p) 2>/dev/null || true; rm -rf $tmp' EXIT
quick_model
cat >$tmp/judge <<'END'
#!/bin/bash
while read -r l; do id=${l#*'"id":"'}; id=${id%%'"'*}; echo "{\"id\":\"$id\",\"score\":$((16#0${id:15:1} % 2))}"; done
END
chmod +x $tmp/judge
keys=(rollout_batch_size=4 num_return_sequences_in_group=8 max_steps=8 save_steps=2 validation=null
    actor_train.training_args.per_device_train_batch_size=16 actor_train.training_args.gradient_accumulation_steps=1
    rewards.math_rule.exec=$tmp/judge reward_timeout=3 collective_timeout=12 exchange.timeout=5)

# pids NAME VICTIM
pids() {
    case $2 in
    worker) pgrep -f "reward $tmp/$1/config.yaml" ;;
    program) pgrep -f "^/bin/bash $tmp/judge" ;;
    redis) pgrep -f "redis-server.*$tmp/$1/" ;;
    rank) rank_of $1 1 ;;
    launcher) pgrep -f "^$CROLL run .*output_dir=$tmp/$1 " ;;
    esac
}

# what a frozen program was asked twice is no other number
numbers() { timeless $tmp/$1/metrics.jsonl | sed 's/"scheduler.reward_retries":[0-9]*,//'; }

# try VICTIM SIGNAL CODE SECONDS [SENTENCE]: what the run ends with, and within which time of the signal
try() {
    local name=$kind$1_$2 begin took
    words $name "${keys[@]}" resume_from_checkpoint=true
    log=$tmp/$name.log code=0
    "${words[@]}" >$log 2>&1 </dev/null &
    run=$!
    steps $name $after
    kill -$2 $(pids $name $1) || fail "$name: no process"
    begin=$(date +%s)
    [ $1_$2 != launcher_STOP ] || { sleep 4; kill -CONT $run; }
    wait $run 2>/dev/null || code=$?
    took=$(($(date +%s) - begin))
    echo "$name: exit code $code after $took s: $(tail -n 1 $log | cut -c 1-150)"
    [ $code = $3 ] || fail "$name: exit code $code"
    [ $took -le $deadline ] || fail "$name: ended after $took s"
    grep -q -- "${4:-.}" $log || fail "$name: another sentence"
    nothing_left $name
    if [ $code != 0 ]; then
        job $name "${keys[@]}" resume_from_checkpoint=true
        [ $code = 0 ] || fail "$name, resumed: exit code $code"
        grep -q 'there is no checkpoint' $tmp/$name/run.log || fail "run.log does not tell a resume of nothing"
    fi
    for k in 0 1 2 3 4 5 6 7; do
        cmp $tmp/${kind}quiet/rollouts/step-00000$k.jsonl $tmp/$name/rollouts/step-00000$k.jsonl || fail "$name: other samples"
    done
    diff <(numbers ${kind}quiet) <(numbers $name) >/dev/null || fail "$name: other numbers"
}
kind= after=3
job quiet "${keys[@]}"
[ $code = 0 ] || fail "quiet: exit code $code"
try redis STOP 3 "Redis at .* gave no answer to .* within 5 s"
try program STOP 0
try launcher STOP 0
try launcher KILL 137
if [ "${CROLL_KILLS:-}" = all ]; then
    try worker KILL 0 "reward worker 0 of math_rule was killed by signal 9"
    try worker STOP 0 "has given no sign of life"
    try program KILL 0
    try redis KILL 0 "starting it again from its append-only file"
    try rank KILL 1 "rank 1 .*was killed"
    try rank STOP 3 "rank 1"
fi
kind=lora_ after=5 # there is a checkpoint
keys+=(actor_train.model_args.lora_target=all-linear actor_train.training_args.learning_rate=5.0e-3)
job lora_quiet "${keys[@]}"
[ $code = 0 ] || fail "lora_quiet: exit code $code"
learned lora_quiet 8
try launcher KILL 137
try rank KILL 1 "rank 1 .*was killed"
for name in lora_launcher_KILL lora_rank_KILL; do
    grep -q resuming $tmp/$name/run.log || fail "$name: not resumed"
    cmp $tmp/lora_quiet/latest/actor_train/adapter_model.safetensors $tmp/$name/latest/actor_train/adapter_model.safetensors || fail "$name: other adapters"
done
echo ok
