#!/bin/bash
# What goes wrong around a run is said at once and as it is: a closed terminal saves (SIGHUP, not under nohup), a folder that
# vanishes, a resume of nothing, weights that are cut off, limits of open files and of /dev/shm, no network, a full disk, odd
# folder names, samples that never come (rpc_timeout).
# Not covered: a disk that fails with EIO.
. tests/e2e/run.inc
trap 'kill -9 $(jobs -p) 2>/dev/null || true; rm -rf $tmp' EXIT
scripts/make_sums $tmp/home
"$CROLL" init $tmp/home/model >/dev/null

# sft FOLDER [key=value ..]: two ranks, log in $tmp/log; exit code in $code
sft_words() {
    words=("$CROLL" run configs/quickstart/sft.yaml pretrain=$tmp/home/model track_with=none max_steps=1
        "sft_train.data_args.file_name=[$tmp/home/sft.jsonl]" output_dir="$1" "${@:2}")
}
sft() {
    sft_words "$@"
    log=$tmp/log code=0
    "${words[@]}" >$log 2>&1 </dev/null || code=$?
}
said() { grep -Eq -- "$1" $log || fail "$2: another sentence"; }

# odd names of the folder end up in redis.conf
sft "$tmp/a \"b\\c' d"
[ $code = 0 ] && [ -L "$tmp/a \"b\\c' d/latest" ] || fail "odd folder: exit code $code"

sft $tmp/new resume_from_checkpoint=true
[ $code = 0 ] || fail "resume of nothing: exit code $code"
said "there is no checkpoint in $tmp/new: starting at step 0" "resume of nothing"
[ $(grep -c 'no checkpoint in' $log) = 1 ] || fail "resume of nothing: said twice"
"$CROLL" export $tmp/new $tmp/exported 2>$log && fail "export of a run's folder"
said "it is a run's folder: $tmp/new/latest is its newest checkpoint" export

# SIGHUP: saved like SIGTERM; ignored where nohup ignores it
sft_words $tmp/hup max_steps=100000 save_steps=100000
log=$tmp/hup.log
"${words[@]}" >$log 2>&1 </dev/null &
steps hup 1
[ "$(cat /proc/$!/comm)" = "$(basename $CROLL)" ] || fail "the process has the name $(cat /proc/$!/comm)"
kill -HUP $!
code=0
wait $! || code=$?
[ $code = 130 ] || fail "SIGHUP: exit code $code"
said 'stopped by signal 1 after step [0-9]+, which is saved' SIGHUP
[ -L $tmp/hup/latest ] && [ ! -e $tmp/hup/exchange/redis.sock ] || fail "SIGHUP: no checkpoint, or a socket is left"
sft_words $tmp/nohup max_steps=100000 save_steps=100000
log=$tmp/nohup.log
nohup "${words[@]}" >$log 2>&1 </dev/null &
steps nohup 1
kill -HUP $!
steps nohup 3
# and its folder vanishes
rm -rf $tmp/nohup 2>/dev/null || rm -rf $tmp/nohup
code=0
wait $! || code=$?
[ $code = 1 ] || fail "output_dir removed: exit code $code"
said 'output_dir .* was removed|metrics.jsonl was removed' "output_dir removed"

# weights that are cut off or not there: before anything is written
cp -r $tmp/home/model $tmp/cut
truncate -s -100 $tmp/cut/model.safetensors
sft $tmp/not_made pretrain=$tmp/cut
[ $code = 2 ] && [ ! -e $tmp/not_made ] || fail "cut weights: exit code $code"
said 'sft_train: .*model.safetensors' "cut weights"
rm $tmp/cut/model.safetensors
sft $tmp/not_made pretrain=$tmp/cut
[ $code = 2 ] && [ ! -e $tmp/not_made ] || fail "no weights: exit code $code"

# a weight that is not a number: the tensor is named, whatever reads it
cp -r $tmp/home/model $tmp/nan
name=model.layers.0.mlp.up_proj.weight
python3 - $tmp/nan/model.safetensors $name <<'END'
import json, struct, sys
with open(sys.argv[1], "r+b") as f:
    num = struct.unpack("<Q", f.read(8))[0]
    tensor = json.loads(f.read(num))[sys.argv[2]]
    f.seek(8 + num + tensor["data_offsets"][0])
    f.write(b"\xff\xff\xff\xff")
END
sft $tmp/nan_run pretrain=$tmp/nan
[ $code = 2 ] || fail "NaN in a run: exit code $code"
said "^croll run: .*$name has a number that is not finite in" "NaN in a run"
[ $(grep -c '^sft_train rank' $log) -le 2 ] && ! grep -q '.sft_train rank.*sft_train rank' $log || fail "two ranks in one line"
for reads in logprobs generate "grad --out $tmp/grads"; do
    echo '{"id":1,"input_ids":[1,2,3,4]}' | "$CROLL" ${reads%% *} $tmp/nan $(echo $reads | cut -d' ' -f2- -s) >$tmp/out 2>$log && fail "NaN, $reads: exit code 0"
    said "$name has a number that is not finite in" "NaN, $reads"
done

(ulimit -n 100; sft $tmp/files "sft_train.device_mapping=list(range(0,16))"; [ $code = 2 ] || fail "few files: exit code $code"
    said "ulimit -n is 100, a run of 16 ranks needs at least 120 open files" "few files") || exit 1
(ulimit -s 64; sft $tmp/stack; [ $code = 2 ] && [ ! -e $tmp/stack ] || fail "a small stack: exit code $code"
    said "^croll: ulimit -s is 64, at least 2048 KiB are needed" "a small stack") || exit 1

# ranks that refuse at their start: the folder is free for the next try
sft $tmp/again pretrain=$tmp/nan
[ $code = 2 ] && [ -e $tmp/again/config.yaml ] || fail "ranks that refuse: exit code $code"
# and what a run before left of its exchange is not needed
mkdir -p $tmp/again/exchange/appendonlydir
echo junk | tee $tmp/again/exchange/appendonlydir/appendonly.aof.{1.base.rdb,1.incr.aof,manifest} >/dev/null
sft $tmp/again save_steps=1 max_steps=2
[ $code = 0 ] || fail "a folder without any step: exit code $code"
sft $tmp/again
[ $code = 2 ] || fail "a folder with steps: exit code $code"
said "already holds a run" "a folder with steps"
sed -i s/REDIS/junk/ $tmp/again/exchange/appendonlydir/*
echo junk | tee -a $tmp/again/exchange/appendonlydir/* >/dev/null
sft $tmp/again save_steps=1 max_steps=3 resume_from_checkpoint=true
[ $code = 0 ] && [ $(wc -l <$tmp/again/metrics.jsonl) = 3 ] || fail "a damaged append-only file: exit code $code"
! grep -q 'warning\|keys that differ' <(grep -v max_steps $log) || fail "a resume that changes nothing warns"

# a resume tells what is not as it was
head -n 2000 $tmp/home/sft.jsonl >$tmp/fewer.jsonl
rm $tmp/again/metrics.jsonl
sft $tmp/again save_steps=1 max_steps=4 resume_from_checkpoint=true seed=7 sft_train.training_args.learning_rate=1e-5 "sft_train.data_args.file_name=[$tmp/fewer.jsonl]"
[ $code = 0 ] || fail "a resume with other keys: exit code $code"
for change in 'seed [0-9]+ -> 7' 'sft_train.training_args.learning_rate [-0-9.e]+ -> 1.*e-0*5' 'sft_train.data_args.file_name .*sft.jsonl"\] -> .*fewer.jsonl' 'max_steps 3 -> 4'; do
    said "keys that differ from those of the run before: .*$change" "a resume with other keys"
    grep -Eq -- "$change" $tmp/again/run.log || fail "run.log does not tell a resume with other keys"
done
said 'the data files hold something else than at .*then \{"rows":[0-9]+,"sum":"[0-9a-f]{16}"\}, now \{"rows":2000,' "a resume with other data"
said 'metrics.jsonl has lines of 0 of the 3 steps before this resume' "a resume without metrics"
rm $tmp/again/config.yaml
sft $tmp/again save_steps=1 max_steps=5 resume_from_checkpoint=true
[ $code = 0 ] || fail "a resume without config.yaml: exit code $code"
said 'again/config.yaml was not there .was it removed, or is it another folder..: which keys differ .* is not known' "a resume without config.yaml"
if unshare -mn true 2>/dev/null; then
    unshare -n bash -c '"$@"' x "$CROLL" run configs/quickstart/sft.yaml pretrain=$tmp/home/model track_with=none max_steps=1 \
        "sft_train.data_args.file_name=[$tmp/home/sft.jsonl]" output_dir=$tmp/net >$log 2>&1 && fail "no network: exit code 0"
    said 'croll run: .*no network interface: the loopback has to be up' "no network"
    begin=$(date +%s)
    unshare -m bash -c 'mount -t tmpfs -o size=1m tmpfs /dev/shm && "$@"' x "$CROLL" run configs/quickstart/sft.yaml \
        pretrain=$tmp/home/model track_with=none max_steps=1 "sft_train.data_args.file_name=[$tmp/home/sft.jsonl]" \
        output_dir=$tmp/shm >$log 2>&1 && fail "small /dev/shm: exit code 0"
    said 'croll run: .*no room for its files in shared memory' "small /dev/shm"
    [ $(($(date +%s) - begin)) -le $deadline ] || fail "small /dev/shm: after $(($(date +%s) - begin)) s"
    mkdir $tmp/disk
    unshare -m bash -c 'mount -t tmpfs -o size=300k tmpfs '$tmp/disk' && "$@"' x "$CROLL" run configs/quickstart/sft.yaml \
        pretrain=$tmp/home/model track_with=none max_steps=1 "sft_train.data_args.file_name=[$tmp/home/sft.jsonl]" \
        output_dir=$tmp/disk/out >$log 2>&1 && fail "full disk: exit code 0"
    said "croll run: .*flight.*No space left" "full disk"
else
    echo "no network, small /dev/shm, full disk: skipped: namespaces are not allowed here"
fi

# samples that never come: a reward worker that is stopped
limit_s=$((4 * slower))
quick_model_small() {
    words=("$CROLL" run configs/quickstart/rlvr.yaml pretrain=$tmp/home/model output_dir=$tmp/stopped track_with=none
        "actor_train.data_args.file_name=[$tmp/home/sums.train.jsonl]" "validation.data_args.file_name=[$tmp/home/sums.val.jsonl]"
        rollout_batch_size=4 num_return_sequences_in_group=4 actor_train.training_args.per_device_train_batch_size=4
        actor_train.training_args.gradient_accumulation_steps=2 max_steps=100000 rpc_timeout=$limit_s eval_steps=100000)
}
quick_model_small
log=$tmp/stopped.log
"${words[@]}" >$log 2>&1 </dev/null &
steps stopped 1
pkill -STOP -f "reward $tmp/stopped/config.yaml"
begin=$(date +%s) code=0
wait $! || code=$?
[ $code = 3 ] || fail "a reward worker stopped: exit code $code"
said "no sample was scored for $limit_s s \(rpc_timeout\): [0-9]+ wait for the reward workers of " "a reward worker stopped"
echo ok
