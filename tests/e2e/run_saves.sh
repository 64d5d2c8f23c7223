#!/bin/bash
# C48: croll run killed with all its processes at random moments while checkpoints are written in the
# background. After each kill every folder with a final name is complete, by its manifest; the next start
# takes the newest one and cleans up; in the end the numbers are those of an undisturbed run.
# CROLL_SAVES_KILLS: how many kills (6); CROLL_SAVES_SEED: of the moments. Every single call of a commit:
# unit/pipelines_checkpoint.c.
. tests/e2e/run.inc
command -v python3 >/dev/null || { echo "no python3: scripts/setup --check installs it"; exit 1; }
kills=${CROLL_SAVES_KILLS:-6} RANDOM=${CROLL_SAVES_SEED:-1}
scripts/make_sums $tmp/home
# some 60 MB a save: longer than a step, so that one is nearly always under way
sed -i 's/"hidden_size": 128/"hidden_size": 256/; s/"intermediate_size": 256/"intermediate_size": 1024/' $tmp/home/model/config.json
"$CROLL" init $tmp/home/model >/dev/null

# words NAME [key=value ..]
words() {
    local name=$1
    shift
    words=("$CROLL" run configs/quickstart/sft.yaml pretrain=$tmp/home/model output_dir=$tmp/$name track_with=none
        "sft_train.data_args.file_name=[$tmp/home/sft.jsonl]" sequence_length=48
        sft_train.training_args.per_device_train_batch_size=2 sft_train.training_args.lr_scheduler_type=constant "$@")
}
last_step() { tail -n 1 $tmp/$1/metrics.jsonl 2>/dev/null | sed -n 's/^{"step":\([0-9]*\),.*/\1/p'; }

cat >$tmp/look.py <<'PY'
"""Every checkpoint-N is what its manifest says, nothing less and nothing more; prints the newest one and
whether something unfinished lies beside it."""
import hashlib, json, os, sys
root, least = sys.argv[1], int(sys.argv[2])
steps, partial = [], 0
for name in os.listdir(root):
    if not name.startswith("checkpoint-"):
        continue
    if name.endswith(".tmp"):
        partial = 1
        continue
    folder = os.path.join(root, name)
    manifest = json.load(open(os.path.join(folder, "manifest.json")))
    assert name == f"checkpoint-{manifest['step']}", name
    there = {os.path.relpath(os.path.join(d, f), folder) for d, _, fs in os.walk(folder) for f in fs}
    assert there == set(manifest["files"]) | {"manifest.json"}, (name, there)
    assert {"state/sft_train.json", "state/sft_train.master", "sft_train/model.safetensors"} <= there, there
    for f, want in manifest["files"].items():
        data = open(os.path.join(folder, f), "rb").read()
        assert len(data) == want["size"] and hashlib.sha256(data).hexdigest() == want["sha256"], (name, f)
    steps.append(manifest["step"])
link = os.path.join(root, "latest")
newest = int(os.readlink(link).split("-")[1]) if os.path.lexists(link) else -1
assert newest in steps or not os.path.lexists(link), (newest, steps)
assert newest >= least, f"checkpoint-{least} was there, now latest is {newest}"
assert len(steps) <= 3, steps                     # two are kept, and one may be waiting for its end
print(newest, partial)
PY

newest=-1 partials=0
for ((i = 0; i < kills; i++)); do
    words saves max_steps=100000 save_steps=1 max_ckpt_to_keep=2 sft_train.strategy_args.strategy_config.async_save_ckpt=true
    resume=
    [ $i = 0 ] || resume=resume_from_checkpoint=true
    log=$tmp/saves.$i.log
    : >$log
    "${words[@]}" $resume >$log 2>&1 </dev/null &
    pid=$!
    wanted=$((3 + RANDOM % 3)) seen=0 # steps of this life, each of which begins a save
    while [ $seen -lt $wanted ]; do
        now=$(grep -c '^step' $log || true)
        [ $now = $seen ] || { took=$((${EPOCHREALTIME/./} - ${since:-0})) since=${EPOCHREALTIME/./} seen=$now; }
        kill -0 $pid 2>/dev/null || fail "kill $i: the run ended by itself"
        sleep 0.01
    done
    late=$((took * (RANDOM % 1000) / 1000)) # within the time of a step
    [ $late -lt 5000000 ] || late=5000000
    sleep $((late / 1000000)).$(printf %06d $((late % 1000000)))
    kill -9 $(pgrep -f "$tmp/saves/|output_dir=$tmp/saves ") 2>/dev/null || true
    wait $pid 2>/dev/null || true
    nothing_left saves
    before=$(last_step saves)
    found=$(python3 $tmp/look.py $tmp/saves $newest 2>&1) || { echo "$found"; fail "kill $i, in step $before"; }
    newest=${found% *} partials=$((partials + ${found#* }))
done
echo "$kills kills, $partials of them in the middle of a save, the last one in step $before"
[ $partials -ge $((kills / 4)) ] || fail "too few kills met a save: the test tests nothing"

log=$tmp/last.log code=0
words saves max_steps=$((before + 4)) save_steps=1 max_ckpt_to_keep=2 resume_from_checkpoint=true
"${words[@]}" >$log 2>&1 </dev/null || code=$?
[ $code = 0 ] || fail "in the end: exit code $code"
[ "$(cd $tmp/saves && echo checkpoint-*)" = "checkpoint-$((before + 2)) checkpoint-$((before + 3))" ] ||
    fail "left over: $(cd $tmp/saves && echo checkpoint-*)"
words quiet max_steps=$((before + 4)) save_steps=100000
"${words[@]}" >$log 2>&1 </dev/null || fail "undisturbed: exit code $?"
diff <(timeless $tmp/quiet/metrics.jsonl) <(timeless $tmp/saves/metrics.jsonl) >$tmp/diff || { log=$tmp/diff; fail "the numbers differ"; }
for f in sft_train/model.safetensors state/sft_train.master state/sft_train.m state/sft_train.v; do
    cmp $tmp/quiet/latest/$f $tmp/saves/latest/$f || fail "$f differs"
done
echo ok
