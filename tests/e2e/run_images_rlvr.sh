#!/bin/bash
# `croll run` of rlvr on pictures (scripts/make_pictures), rows with and without mixed, on two ranks: the score rises from chance, log-probs of generation
# and training are the same bits at every step, in bfloat16 too; killed and resumed exactly; `croll eval` of what was trained. Needs python3.
# Not covered: the whole way to 0.9 and its seeds (docs/vision.md).
. tests/e2e/run.inc
command -v python3 >/dev/null || { echo "no python3: scripts/setup --check installs it"; exit 1; }
scripts/make_pictures $tmp/home
"$CROLL" init $tmp/home/model >/dev/null
log=$tmp/warm.log # the form of an answer, and nothing of its picture
"$CROLL" run configs/quickstart/sft.yaml pretrain=$tmp/home/model output_dir=$tmp/warm track_with=none sequence_length=128 max_steps=60 \
    "sft_train.data_args={file_name: [$tmp/home/warm.jsonl], messages: messages, image_folder: $tmp/home/pictures}" \
    sft_train.training_args.num_train_epochs=20 sft_train.training_args.per_device_train_batch_size=4 \
    sft_train.training_args.gradient_accumulation_steps=4 logging_steps=1000 >$log 2>&1 </dev/null || fail "sft: exit code $?"
"$CROLL" export $tmp/warm/latest $tmp/home/warm >/dev/null
python3 - $tmp/home <<'PY'
import json, sys
rows = list(map(json.loads, open(sys.argv[1] + "/train.jsonl")))
for i in range(0, len(rows), 4): # every fourth a sum without a picture
    rows[i].pop("images")
    rows[i]["messages"] = [dict(role="user", content=f"{int(rows[i]['ground_truth']) - 1}+1=")]
open(sys.argv[1] + "/mixed.jsonl", "w").write("".join(json.dumps(r) + "\n" for r in rows))
PY

# rlvr NAME [key=value ..]
rlvr() {
    local name=$1
    shift
    words=("$CROLL" run configs/quickstart/rlvr.yaml pretrain=$tmp/home/warm output_dir=$tmp/$name track_with=none prompt_length=100 response_length=12
        "actor_train.data_args={template: native, messages: messages, image_folder: $tmp/home/pictures, file_name: [$tmp/home/mixed.jsonl], domain_interleave_probs: {math_rule: 1.0}}"
        "validation.data_args={file_name: [$tmp/home/val.jsonl], image_folder: $tmp/home/pictures}" "rewards.math_rule.tag_included=[colour]"
        rollout_batch_size=16 num_return_sequences_in_group=8 actor_train.training_args.per_device_train_batch_size=32
        actor_train.training_args.gradient_accumulation_steps=2 actor_train.training_args.lr_scheduler_type=constant actor_train.infer_batch_size=16 logging_steps=1000 eval_steps=1000 "$@")
    log=$tmp/$name.log code=0
    "${words[@]}" >$log 2>&1 </dev/null || code=$?
}
exact() { # RUN N: all N steps
    [ "$(values actor/train_infer_diff_max $tmp/$1/metrics.jsonl | sort -u)" = 0 ] || fail "$1: generation and training differ"
    [ "$(values actor/train_infer_diff_max $tmp/$1/metrics.jsonl | wc -l)" = $2 ] || fail "$1: steps"
}

rlvr learns max_steps=80
[ $code = 0 ] || fail "learns: exit code $code"
exact learns 80
values critic/score/mean $tmp/learns/metrics.jsonl | awk 'NR <= 5 { first += $1 / 5 } { last[NR % 10] = $1 }
    END { for (i in last) end += last[i] / 10; print first, end; exit !(first < 0.4 && end > first + 0.25) }' || fail "learns"
rlvr half max_steps=3 actor_train.model_args.dtype=bf16 actor_train.strategy_args.strategy_config.param_dtype=bf16 \
    actor_infer.model_args.dtype=bf16 actor_infer.strategy_args.strategy_config.param_dtype=bf16
[ $code = 0 ] || fail "half: exit code $code"
exact half 3

# killed in the middle of a step, and resumed
rlvr whole max_steps=12 save_steps=3
[ $code = 0 ] || fail "whole: exit code $code"
killed_like whole
exact killed 12
echo "ok"
