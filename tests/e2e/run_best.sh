#!/bin/bash
# run_best.sh -- `croll run` with metric_for_best_model: the link best leads to the checkpoint of the best validation, which
# max_ckpt_to_keep leaves; a run without progress ends early and stays ended; killed and resumed it is the same; sft and dpo likewise.
. tests/e2e/run.inc
quick_model
head -n 24 $tmp/home/sums.val.jsonl >$tmp/val.jsonl
keys="max_steps=7 eval_steps=2 save_steps=100 rollout_batch_size=8 actor_train.training_args.gradient_accumulation_steps=1"
val="validation.data_args.file_name=[$tmp/val.jsonl]"
# best NAME GREATER: where the link should lead, by metrics.jsonl: a validation of step s is of checkpoint s - 1
best() {
    python3 - $tmp/$1 $2 <<'PY' || fail "$1: the best checkpoint"
import json, os, sys
folder, sign = sys.argv[1], 1 if sys.argv[2] == "true" else -1
best, at = None, None
for line in open(folder + "/metrics.jsonl"):
    m = json.loads(line)
    for head, step in (("", m["step"] - 1), ("final/", m["step"])):
        x = m.get(head + "val_score/all/mean")
        if x is not None and (best is None or sign * x > sign * best): best, at = x, step
link = folder + "/best"
if at < 0: assert not os.path.lexists(link), "the beginning is the best"
else: assert os.readlink(link) == f"checkpoint-{at}" and os.path.exists(link + "/manifest.json"), (os.readlink(link), at)
kept = sorted(n for n in os.listdir(folder) if n.startswith("checkpoint-"))
assert kept == sorted({f"checkpoint-{s}" for s in (at, 6) if s >= 0}), kept
PY
}
for greater in true false; do
    job $greater $keys "$val" metric_for_best_model=val_score/all/mean greater_is_better=$greater max_ckpt_to_keep=1
    [ $code = 0 ] || fail "exit code $code"
    best $greater $greater
done
# nothing is learned: the second validation is no better than the first, and step 2 is the last
still="actor_train.training_args.learning_rate=1e-30 validation.generating_args.do_sample=false early_stopping_patience=1"
job still $keys "$val" $still
[ $code = 0 ] && [ $(wc -l <$tmp/still/metrics.jsonl) = 3 ] && grep -q 'this is the last step (early_stopping_patience)' $log ||
    fail "early stop: exit code $code, $(wc -l <$tmp/still/metrics.jsonl) steps"
[ ! -L $tmp/still/best ] && [ "$(readlink $tmp/still/latest)" = checkpoint-2 ] || fail "early stop: links"
job still $keys "$val" $still resume_from_checkpoint=true
[ $code = 0 ] && [ $(wc -l <$tmp/still/metrics.jsonl) = 3 ] && grep -q 'nothing is trained' $log || fail "resumed after an early stop"
# killed and resumed: the same numbers, and the same early stop
late="${still/patience=1/patience=2}"
job whole $keys "$val" $late
[ $code = 0 ] && [ $(wc -l <$tmp/whole/metrics.jsonl) = 5 ] || fail "patience 2: exit code $code, $(wc -l <$tmp/whole/metrics.jsonl) steps"
killed killed 4 $keys "$val" $late
job killed $keys "$val" $late resume_from_checkpoint=true
[ $code = 0 ] || fail "resumed: exit code $code"
diff <(timeless $tmp/whole/metrics.jsonl) <(timeless $tmp/killed/metrics.jsonl) >$tmp/diff || { log=$tmp/diff; fail "the resumed run differs"; }

# rows with their answers: sft and dpo
# answers KIND NAME [key=value ..]: a run of configs/quickstart/KIND.yaml; validations every 2 steps
answers() {
    local kind=$1 name=$2 role=$(sed -n 's/^\(sft_train\|actor_train\):/\1/p' configs/quickstart/$1.yaml) file=sft
    local model=model
    [ $kind = sft ] || { file=pairs.train model=sft_model; }
    shift 2
    words=("$CROLL" run configs/quickstart/$kind.yaml pretrain=$tmp/home/$model output_dir=$tmp/$name track_with=none eval_steps=2 save_steps=100 max_steps=7
        "$role.data_args.file_name=[$tmp/home/$file.jsonl]" "validation.data_args.file_name=[$tmp/$kind.val.jsonl]" max_ckpt_to_keep=1 $role.training_args.warmup_steps=0 "$@")
    log=$tmp/$name.log code=0
}
head -n 8 $tmp/home/sft.jsonl >$tmp/sft.val.jsonl
head -n 8 $tmp/home/pairs.train.jsonl >$tmp/dpo.val.jsonl
# link NAME METRIC: to the least of its validations
link() {
    python3 - $tmp/$1 $2 <<'PY' || fail "$1: the best checkpoint"
import json, os, sys
folder, metric = sys.argv[1:]
best, at = None, None
for line in open(folder + "/metrics.jsonl"):
    m = json.loads(line)
    for head, step in (("", m["step"] - 1), ("final/", m["step"])):
        x = m.get(head + metric)
        if x is not None and (best is None or x < best): best, at = x, step
assert at >= 0, "nothing was learnt"
assert os.readlink(folder + "/best") == f"checkpoint-{at}" and os.path.exists(folder + "/best/manifest.json"), (os.readlink(folder + "/best"), at)
PY
}
for kind in sft dpo; do
    metric=sft_train/val_loss rate="sft_train.training_args.warmup_steps=10 sft_train.training_args.learning_rate=0.06" # too high from the fifth step on
    [ $kind = sft ] || metric=val/loss rate=
    answers $kind $kind metric_for_best_model=$metric $rate
    "${words[@]}" >$log 2>&1 </dev/null || fail "$kind: exit code $?"
    [ $(wc -l <$tmp/$kind/metrics.jsonl) = 7 ] || fail "$kind: $(wc -l <$tmp/$kind/metrics.jsonl) steps"
    link $kind $metric
    [ $kind = dpo ] || [ "$(readlink $tmp/sft/best)" = checkpoint-3 ] || fail "sft: the best is not in the middle"
    # it gets worse from the beginning: two validations, and the step after them; the count is in the checkpoint
    worse="early_stopping_patience=2 greater_is_better=true"
    answers $kind $kind-worse $worse max_steps=20
    "${words[@]}" >$log 2>&1 </dev/null || fail "$kind, worse: exit code $?"
    [ $(wc -l <$tmp/$kind-worse/metrics.jsonl) = 5 ] && [ ! -L $tmp/$kind-worse/best ] && [ "$(readlink $tmp/$kind-worse/latest)" = checkpoint-4 ] &&
        grep -q "$metric has not been better" $log || fail "$kind, worse: $(wc -l <$tmp/$kind-worse/metrics.jsonl) steps"
    answers $kind $kind-worse $worse max_steps=20 resume_from_checkpoint=true
    "${words[@]}" >$log 2>&1 </dev/null && [ $(wc -l <$tmp/$kind-worse/metrics.jsonl) = 5 ] && grep -q 'nothing is trained' $log || fail "$kind, worse: goes on"
    answers $kind $kind-killed $worse max_steps=20
    killed_at $kind-killed "steps $kind-killed 3"
    answers $kind $kind-killed $worse max_steps=20 resume_from_checkpoint=true
    "${words[@]}" >>$log 2>&1 </dev/null || fail "$kind, resumed: exit code $?"
    diff <(timeless $tmp/$kind-worse/metrics.jsonl) <(timeless $tmp/$kind-killed/metrics.jsonl) >$tmp/diff || { log=$tmp/diff; fail "$kind: the resumed run differs"; }
done
echo ok
