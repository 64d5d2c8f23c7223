#!/bin/bash
# only in scripts/check_long
# run_images_seeds.sh -- GRPO on drawn pictures (scripts/make_pictures), from a model that knows the form of an answer and nothing of colours: of three
# seeds the score of pictures that were never shown rises from chance (1 of 4) to at least 0.9 within 150 steps on 2 ranks; the log-probs of generation are
# those of training, bit for bit, in every step. Needs python3.
# Not covered: rows without images among them, killed runs (run_images_rlvr.sh).
. tests/e2e/run.inc
command -v python3 >/dev/null || { echo "no python3: scripts/setup --check installs it"; exit 1; }
scripts/make_pictures $tmp/home
"$CROLL" init $tmp/home/model >/dev/null
log=$tmp/warm.log
"$CROLL" run configs/quickstart/sft.yaml pretrain=$tmp/home/model output_dir=$tmp/warm track_with=none sequence_length=128 max_steps=60 \
    "sft_train.data_args={file_name: [$tmp/home/warm.jsonl], messages: messages, image_folder: $tmp/home/pictures}" \
    sft_train.training_args.num_train_epochs=20 sft_train.training_args.per_device_train_batch_size=8 >$log 2>&1 </dev/null || fail "warm: exit code $?"
"$CROLL" export $tmp/warm/latest $tmp/home/warm_model >/dev/null

# rlvr NAME [key=value ..]
rlvr() {
    local name=$1
    shift
    words=("$CROLL" run configs/quickstart/rlvr.yaml pretrain=$tmp/home/warm_model output_dir=$tmp/$name track_with=none prompt_length=64 response_length=12
        "actor_train.data_args={file_name: [$tmp/home/train.jsonl], messages: messages, image_folder: $tmp/home/pictures, domain_interleave_probs: {math_rule: 1.0}}"
        "validation.data_args={file_name: [$tmp/home/val.jsonl]}" rollout_batch_size=16 num_return_sequences_in_group=8
        "rewards.math_rule.tag_included=[colour]"
        actor_train.training_args.per_device_train_batch_size=32 actor_train.training_args.gradient_accumulation_steps=2 logging_steps=1000 "$@")
    log=$tmp/$name.log code=0
    "${words[@]}" >$log 2>&1 </dev/null || code=$?
}
exact() { # NAME: sampled log-probs are those of the trained weights in every step
    values actor/train_infer_diff_max $tmp/$1/metrics.jsonl | awk '$1 != 0 { bad = 1 } END { exit bad || NR != 150 }' || fail "$1: log-probs differ"
}
score() { values $1val_correct/all/mean $tmp/$2/metrics.jsonl | sed -n ${3:-1}p; }
below() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a != "" && b != "" && a < b) }'; }

for seed in 1 2 3; do
    rlvr learns$seed seed=$seed max_steps=150 eval_steps=50
    [ $code = 0 ] || fail "learns: exit code $code"
    exact learns$seed
    echo "seed $seed: $(values val_correct/all/mean $tmp/learns$seed/metrics.jsonl | tr '\n' ' ')then $(score final/ learns$seed)"
    below "$(score "" learns$seed)" 0.45 && below 0.8999 "$(score final/ learns$seed)" ||
        fail "seed $seed: the score goes from $(score "" learns$seed) to $(score final/ learns$seed)"
done

echo "ok"
