#!/bin/bash
# C48: a disk that is full when a checkpoint is due, and a file that may not grow: the run ends with exit
# code 1 and a sentence (what, where, how many bytes, what to do), the last checkpoint is whole, nothing
# unfinished lies beside it, and with room again the run goes on from it.
# Not covered: quotas, a disk that fills up between the look and the write (unit/pipelines_checkpoint.c).
# also on far
. tests/e2e/run.inc
scripts/make_sums $tmp/home
model=$tmp/home/model # 1.9 MB of weights: 7.6 MB a checkpoint
"$CROLL" init $model >/dev/null

# words OUTPUT_DIR [key=value ..]
words() {
    local folder=$1
    shift
    words=("$CROLL" run configs/quickstart/sft.yaml pretrain=$model output_dir=$folder track_with=none
        "sft_train.data_args.file_name=[$tmp/home/sft.jsonl]" sequence_length=48 save_steps=1
        sft_train.training_args.per_device_train_batch_size=2 sft_train.training_args.lr_scheduler_type=constant "$@")
}

# ends_whole FOLDER CODE PATTERN: how the run ended, and what it left
ends_whole() {
    [ $code = $2 ] || fail "$1: exit code $code"
    tail -n 1 $log | grep -Eq "$3" || fail "$1: another sentence"
    ! ls -d $1/*.tmp 2>/dev/null || fail "$1: something unfinished is left"
    nothing_left ${1##*/}
    rm -rf $tmp/${1##*/}.model
    [ ! -L $1/latest ] || "$CROLL" export $1/latest $tmp/${1##*/}.model >/dev/null || fail "$1: latest is damaged"
}

# a limit of 1 MB a file comes over the ranks while they train: the weights have 1.9 MB
log=$tmp/limit.log code=0
words $tmp/limit max_steps=100000 max_ckpt_to_keep=1
"${words[@]}" >$log 2>&1 </dev/null &
pid=$!
steps limit 3
for rank in $(pgrep -f "actor $tmp/limit/config.yaml"); do
    prlimit --fsize=1000000 --pid $rank || fail "prlimit"
done
wait $pid || code=$?
ends_whole $tmp/limit 1 'checkpoint-[0-9]+ is not saved.*cannot write [0-9]+ bytes of .*: File too large'
tail -n 1 $log

mkdir $tmp/disk
trap 'umount $tmp/disk 2>/dev/null; rm -rf $tmp' EXIT
mount -t tmpfs -o size=26m none $tmp/disk 2>$tmp/mount.log || { echo "full disk: skipped: $(cat $tmp/mount.log)"; echo ok; exit 0; }
log=$tmp/full.log code=0
words $tmp/disk/full max_steps=6
"${words[@]}" >$log 2>&1 </dev/null || code=$?
ends_whole $tmp/disk/full 1 'checkpoint-3 is not saved.*no room for .*disk/full/checkpoint-3.*the checkpoint has [0-9]+ bytes, [0-9]+ are free'
tail -n 1 $log
[ "$(readlink $tmp/disk/full/latest)" = checkpoint-2 ] || fail "latest is $(readlink $tmp/disk/full/latest)"
mount -o remount,size=100m $tmp/disk
code=0
"${words[@]}" resume_from_checkpoint=true >$log 2>&1 </dev/null || code=$?
ends_whole $tmp/disk/full 0 'step +5/6'
[ "$(sed 's/^{"step":\([0-9]*\).*/\1/' $tmp/disk/full/metrics.jsonl | tr '\n' ' ')" = "0 1 2 3 4 5 " ] || fail "steps are missing"
echo ok
