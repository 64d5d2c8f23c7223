#!/bin/bash
# deploy/croll.sbatch under Debian's Slurm on four hosts (tests/tools/slurm_on_rig; h1 has the controller): a job starts on two of
# them, is stopped by `scancel --signal=INT`, loses a host, and then the host of its launcher. Each time it is queued again
# and resumes; its metrics are those of an undisturbed run on one host. A cancelled job leaves no process. Allocations
# that are too small are refused.
# only in scripts/check_long
. tests/e2e/run.inc
. tests/e2e/rig.inc
for tool in slurmctld slurmd sbatch munged; do
    PATH=$PATH:/usr/sbin command -v $tool >/dev/null || skip "there is no $tool (apt-get install slurmctld slurmd slurm-client munge)"
done
quick_model
rig_up 4
RIG_STATE=$rig_state RIG_SHARED=$tmp tests/tools/slurm_on_rig 4 || fail "Slurm does not start"
steps_wanted=12 shared=/mnt/shared
job=(configs/quickstart/rlvr.yaml pretrain=$shared/home/sft_model track_with=none validation=null
    "actor_train.data_args.file_name=[$shared/home/sums.train.jsonl]" collective_timeout=30)
slurm() { rig in h1 env SLURM_CONF=/run/slurm/slurm.conf PATH="$(dirname "$CROLL"):$PATH" timeout 60 "$@"; }
submit() { # NAME TASKS WORDS ..: on two of h2, h3, h4; sets $id
    local name=$1 tasks=$2
    shift 2
    log=$tmp/$name.log
    id=$(slurm sbatch --parsable --exclude=h1 --nodes=2 --ntasks-per-node=$tasks --cpus-per-task=1 --gpus-per-node=0 --exclusive \
        --time=30 --output=$shared/$name.log --chdir=$PWD deploy/croll.sbatch "${job[@]}" output_dir=$shared/$name "$@")
}
state() { slurm scontrol show job $id | sed -nE "s/.*\b$1=([^ ]*).*/\1/p"; }
await() { # STATE: of the job
    until_true "[ \"\$(state JobState)\" = $1 ]"
}
restarted() { # N: it runs again
    until_true "[ \"\$(state Restarts)\" = $1 ]"
    await RUNNING
}
hosts_of() { slurm scontrol show hostnames "$(state NodeList)"; }

rig in h1 "$CROLL" run "${job[@]}" output_dir=$shared/one max_steps=$steps_wanted save_steps=4 >$tmp/one.log 2>&1 </dev/null ||
    fail "one host: exit code $?"

submit two 2 max_steps=$steps_wanted save_steps=4
steps two 2
slurm scancel --signal=INT --batch $id
restarted 1
grep -q 'stopped by signal 2 after step .*, which is saved' $log || fail "scancel --signal=INT: not saved"
grep -q 'croll.sbatch: exit code 130, queued again' $log || fail "scancel --signal=INT: not queued again"
steps two 5
set -- $(hosts_of)
rig kill $2
restarted 2
grep -qE "croll run: step .*on $2|croll run: .*$2" $log || fail "the log does not name $2, which was killed"
case " $(echo $(hosts_of)) " in *" $2 "*) fail "it runs on $2, which is dead" ;; esac
steps two 8
rig start $2
RIG_STATE=$rig_state RIG_SHARED=$tmp tests/tools/slurm_on_rig start $2
set -- $(hosts_of)
rig kill $1
restarted 3
await COMPLETED
! grep -i 'aborted' $log || fail "Slurm speaks of aborted steps"
cmp <(timeless $tmp/one/metrics.jsonl) <(timeless $tmp/two/metrics.jsonl) || fail "other metrics than one host"
last=checkpoint-$((steps_wanted - 1))
sums() { (cd $tmp/$1/$last && find . -name '*.safetensors' -o -name '*.master' | sort | xargs sha256sum); }
[ "$(sums one | wc -l)" -gt 0 ] && cmp <(sums one) <(sums two) || fail "another checkpoint"
learned two $steps_wanted

submit few 1 max_steps=1
await FAILED
grep -q "^croll run: Slurm job $id (--ntasks-per-node) has room for 2 ranks, the device_mapping of all roles asks for 4" $log ||
    fail "an allocation that is too small"
submit gone 2 max_steps=1000
steps gone 1
set -- $(hosts_of)
slurm scancel $id
await CANCELLED
for try in $(seq 100); do
    left=$(for h in $1 $2; do rig in $h pgrep -l '^(croll|orted|redis-server|mpirun)$' || true; done)
    [ -n "$left" ] || break
    sleep 0.2
done
[ -z "$left" ] || fail "a cancelled job leaves processes: $left"
! grep 'queued again' $log || fail "a cancelled job is queued again"
# what Slurm kills may leave Open MPI's folder; the next run on the host removes it, once it is a minute old
for h in $1 $2; do rig in $h mkdir -p /dev/shm/croll.killed; done
sleep 61
submit next 2 max_steps=1
await COMPLETED
for try in $(seq 50); do
    left=$(for h in $1 $2; do rig in $h ls /dev/shm; done)
    [ -n "$left" ] || break
    sleep 0.2
done
[ -z "$left" ] || fail "a run after the cancelled one leaves files: $left"
echo ok
