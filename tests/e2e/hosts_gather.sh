#!/bin/bash
# Checkpoints of a run on two hosts (tests/tools/rig). A folder of the launcher's host alone: the parts of the other host are
# gathered, by bits those of one host. A shared folder that another one takes the place of on a host while the run
# goes on, with all that was in it and that will be asked for: the save is an error that names the host, none is wrong.
# Not covered: a part on each host, more hosts, rlvr (hosts_runs.sh).
. tests/e2e/run.inc
. tests/e2e/rig.inc
scripts/make_sums $tmp/home
"$CROLL" init $tmp/home/model >/dev/null
rig_up 2
shared=/mnt/shared
sft() { # NAME WORDS ..: on h1; exit code in $code
    local name=$1
    shift
    log=$tmp/$name.log code=0
    rig in h1 "$CROLL" run configs/quickstart/sft.yaml pretrain=$shared/home/model track_with=none output_dir=$shared/$name \
        "sft_train.data_args.file_name=[$shared/home/sft.jsonl]" max_steps=2 sft_train.training_args.warmup_steps=0 "$@" >$log 2>&1 </dev/null || code=$?
}
sums() { rig in h1 sh -c "cd $1/checkpoint-1 && find . -name '*.safetensors' -o -name '*.master' -o -name '*.[mv]' | sort | xargs sha256sum"; }

sft one
[ $code = 0 ] || fail "one host: exit code $code"
sft private --hosts h1:1,h2:1 output_dir=/mnt/own/private checkpoint_config.hosts=gather
[ $code = 0 ] || fail "gathered: exit code $code"
[ "$(sums $shared/one | wc -l)" = 4 ] && cmp <(sums $shared/one) <(sums /mnt/own/private) || fail "gathered: another checkpoint"
rig in h2 test ! -e /mnt/own/private/checkpoint-1 || fail "a checkpoint on h2"

# whatever h2 is made to see from step 1 on
cat >$tmp/replace <<'END'
cp -r /mnt/shared/planted /mnt/own/planted
for step in $(seq 100); do
    mkdir -p /mnt/own/planted/checkpoint-$step.tmp/state /mnt/own/planted/checkpoint-$step.tmp/sft_train
    cp /mnt/own/planted/.croll-run /mnt/own/planted/checkpoint-$step.tmp/
    touch /mnt/own/planted/checkpoint-$step.tmp/sft_train/model.safetensors /mnt/own/planted/checkpoint-$step.tmp/state/sft_train.{master,m,v}
done
mount --bind /mnt/own/planted /mnt/shared/planted
END
sft planted --hosts h1:1,h2:1 max_steps=4000 save_steps=4 max_ckpt_to_keep=2 &
steps planted 2
rig in h2 bash /mnt/shared/replace
wait %1
log=$tmp/planted.log
grep -Eq '^croll run: checkpoint-[0-9]+ is not saved .*checkpoint-[0-9]+.tmp on h2 .*is (not|no longer) the folder that the launcher has made' $log || fail "a folder in the place of another"
for folder in $(find $tmp/planted -maxdepth 1 -name "checkpoint-*"); do
    "$CROLL" export $folder $tmp/exported >/dev/null && rm -r $tmp/exported || fail "$folder is not whole"
done
echo ok
