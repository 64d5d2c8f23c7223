#!/bin/bash
# Where things of a run go and what its processes see: checkpoint_config.output_dir (written, resumed, locked,
# never shared by accident), logging_dir, system_envs of the run and of a role, gpu_memory_utilization.
# also on far
. tests/e2e/run.inc
scripts/make_sums $tmp/home
"$CROLL" init $tmp/home/model >/dev/null

# sft NAME [key=value ..]: a run of two steps in $tmp/NAME
sft() {
    local name=$1
    shift
    log=$tmp/$name.log code=0
    "$CROLL" run configs/quickstart/sft.yaml pretrain=$tmp/home/model output_dir=$tmp/$name track_with=none max_steps=2 \
        save_steps=1 "sft_train.data_args.file_name=[$tmp/home/sft.jsonl]" "$@" >$log 2>&1 </dev/null || code=$?
}
apart=checkpoint_config.output_dir=$tmp/saves
sft first $apart logging_dir=$tmp/logs exp_name=sums
[ $code = 0 ] || fail "exit code $code"
[ -e $tmp/saves/latest/manifest.json ] || fail "checkpoint_config.output_dir has no checkpoint"
[ ! -e $tmp/first/latest ] || fail "output_dir has checkpoints, too"
[ -s $tmp/logs/sums/run.log ] || fail "logging_dir has no log"
cmp $tmp/logs/sums/run.log $tmp/first/run.log || fail "output_dir has no link to the log"
sft second $apart
[ $code = 2 ] && grep -q 'saves already holds checkpoints of a run' $log || fail "checkpoints of another run: exit code $code"
sft first $apart max_steps=3 resume_from_checkpoint=true
[ $code = 0 ] && [ $(wc -l <$tmp/first/metrics.jsonl) = 3 ] || fail "resumed from there: exit code $code"
echo mine | tee $tmp/saves/latest.txt $tmp/saves/checkpoint-2.tar $tmp/saves/checkpoint-notes.tmp >/dev/null
sft second $apart --overwrite
[ $(cat $tmp/saves/latest.txt $tmp/saves/checkpoint-2.tar $tmp/saves/checkpoint-notes.tmp | wc -l) = 3 ] || fail "--overwrite removes files of others"
[ $code = 0 ] && [ ! -e $tmp/saves/checkpoint-2 ] || fail "--overwrite leaves checkpoints of the other run"
exec 8<$tmp/saves
flock 8
sft third $apart resume_from_checkpoint=true
[ $code = 2 ] && grep -q 'saves: another run is using it' $log || fail "checkpoints in use: exit code $code"
exec 8<&-

# a variable that every process reads, and one of a role only
sft colour system_envs='{CROLL_CPU: nonsense}'
[ $code != 0 ] && grep -q nonsense $log || fail "system_envs of the run: exit code $code"
sft colour sft_train.system_envs='{CROLL_CPU: nonsense}' --overwrite
[ $code != 0 ] && grep -q 'sft_train.*nonsense' $log || fail "system_envs of a role: exit code $code"

# a reward program sees its block's variables, though it is started before anything else is
printf '#!/bin/sh\necho "$MARK $SHARED" >%s\n' $tmp/seen >$tmp/mark
chmod +x $tmp/mark
"$CROLL" run configs/quickstart/rlvr.yaml pretrain=$tmp/home/model output_dir=$tmp/mark_run track_with=none max_steps=1 \
    "actor_train.data_args.file_name=[$tmp/home/sums.train.jsonl]" "validation.data_args.file_name=[$tmp/home/sums.val.jsonl]" \
    system_envs='{SHARED: b, MARK: run}' rewards.math_rule.exec=$tmp/mark 'rewards.math_rule.system_envs={MARK: 7}' \
    >$tmp/mark.log 2>&1 </dev/null || true
[ "$(cat $tmp/seen)" = "7 b" ] || fail "a reward program sees '$(cat $tmp/seen)'"

# the engine's share of the memory leaves no place for its weights
log=$tmp/small.log code=0
"$CROLL" run configs/quickstart/rlvr.yaml pretrain=$tmp/home/model output_dir=$tmp/small track_with=none max_steps=1 \
    "actor_train.data_args.file_name=[$tmp/home/sums.train.jsonl]" "validation.data_args.file_name=[$tmp/home/sums.val.jsonl]" \
    "actor_infer.strategy_args={strategy_name: vllm, strategy_config: {gpu_memory_utilization: 0.00001}}" >$log 2>&1 </dev/null || code=$?
[ $code = 2 ] && [ ! -e $tmp/small ] && grep -q 'gpu_memory_utilization 1e-05 of .* leaves 0 beside' $log || fail "a small share: exit code $code"
echo ok
