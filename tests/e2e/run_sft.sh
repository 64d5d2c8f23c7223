#!/bin/bash
# run_sft.sh -- `croll run` of sft: validation, chats of several turns, arrays, shuffled rows.
# Not covered: which tokens of a chat are learnt (unit/data_prompts).
# also on far
. tests/e2e/run.inc
scripts/make_sums $tmp/home
"$CROLL" init $tmp/home/model >/dev/null

# sft NAME [key=value ..]
sft() {
    local name=$1
    shift
    log=$tmp/$name.log code=0
    "$CROLL" run configs/quickstart/sft.yaml pretrain=$tmp/home/model output_dir=$tmp/$name track_with=none \
        sft_train.training_args.per_device_train_batch_size=8 sequence_length=128 sft_train.training_args.warmup_steps=0 \
        sft_train.training_args.num_train_epochs=2 "$@" >>$log 2>&1 </dev/null || code=$?
}
near() { awk -v a="$1" -v b="$2" -v tol=$3 'BEGIN { d = a - b; if (d < 0) d = -d; exit !(a != "" && b != "" && d <= tol) }'; }
metric() { values $1 $tmp/$2/metrics.jsonl | sed -n ${3:-1}p; }

head -n 72 $tmp/home/sft.jsonl >$tmp/rows.jsonl
head -n 16 $tmp/rows.jsonl >$tmp/first.jsonl
# the same rows as chats of one turn, and as an array of chats of two
sed 's|{"instruction":\("[^"]*"\),"output":\("[^"]*"\)}|{"chat":[{"role":"user","content":\1},{"role":"assistant","content":\2}]}|' \
    $tmp/rows.jsonl >$tmp/chats.jsonl
awk 'BEGIN { print "[" } { sub(/^{"chat":\[/, ""); sub(/\]}$/, "")
    if (NR % 2) first = $0; else print (NR > 2 ? "," : "") "{\"chat\":[" first "," $0 "]}" } END { print "]" }' \
    $tmp/chats.jsonl >$tmp/twice.json

# the loss of the rows of step 0 before it, as training computes it; columns and chats of one turn are the same
sft columns "sft_train.data_args.file_name=[$tmp/rows.jsonl]" "validation.data_args.file_name=[$tmp/first.jsonl]" max_steps=1
[ $code = 0 ] || fail "columns: exit code $code"
grep -q "max_steps ends the run after 1 steps; the schedule of the learning rate goes over the 8 of" $log || fail "nothing is said of the schedule"
near "$(metric sft_train/val_loss columns)" "$(metric sft_train/loss columns)" 1e-5 || fail "validation is not the loss of the same rows"
val=$(metric final/sft_train/val_loss columns)
near "$val" "$(metric sft_train/loss columns)" 0 && fail "nothing was learnt between the validations"
sft chats "sft_train.data_args={file_name: [$tmp/chats.jsonl], messages: chat}" "validation.data_args.file_name=[$tmp/chats.jsonl]" max_steps=1
[ $code = 0 ] || fail "chats: exit code $code"
[ "$(metric sft_train/loss chats)" = "$(metric sft_train/loss columns)" ] || fail "chats of one turn are not the columns"

# rates are those of the schedule over the 8 updates of two epochs; an eps far above the gradients stops AdamW
min_lr=(sft_train.training_args.lr_scheduler_type=cosine_with_min_lr 'sft_train.training_args.lr_scheduler_kwargs={min_lr_rate: 0.2}'
    "sft_train.data_args.file_name=[$tmp/rows.jsonl]" "validation.data_args.file_name=[$tmp/first.jsonl]" max_steps=2)
sft rates "${min_lr[@]}"
[ $code = 0 ] || fail "rates: exit code $code"
echo '{"lr_scheduler_type":"cosine_with_min_lr","lr_scheduler_kwargs":{"min_lr_rate":0.2},"learning_rate":0.003,"max_steps":8}' |
    "$CROLL" formula schedule | tr -d '{}[]"lr:' | tr , '\n' | head -n 2 >$tmp/expected
values sft_train/lr $tmp/rates/metrics.jsonl | paste - $tmp/expected | awk '{ d = $1 - $2 } d * d > 1e-18 || NF != 2 { exit 1 } END { exit NR != 2 }' ||
    fail "the rates are not the schedule's"
sft eps "${min_lr[@]}" sft_train.training_args.adam_epsilon=1e6
near "$(metric final/sft_train/val_loss eps)" "$(metric sft_train/val_loss eps)" 1e-5 || fail "adam_epsilon has no effect"

# however the validation set is cut: the same bits
sft one "sft_train.data_args={file_name: [$tmp/chats.jsonl], messages: chat}" "validation.data_args.file_name=[$tmp/chats.jsonl]" max_steps=1 \
    sft_train.device_mapping=[0] sft_train.strategy_args.strategy_config.fsdp_size=1 sft_train.infer_batch_size=5
[ $code = 0 ] || fail "one: exit code $code"
[ "$(metric sft_train/val_loss one)" = "$(metric sft_train/val_loss chats)" ] || fail "the loss of validation depends on the cut"

# weights that stay: where the plan has room, with a note, in config.yaml, and the same numbers
sft kept "sft_train.data_args={file_name: [$tmp/chats.jsonl], messages: chat}" "validation.data_args.file_name=[$tmp/chats.jsonl]" max_steps=1 \
    sft_train.device_mapping=[0] "sft_train.strategy_args.strategy_config={fsdp_size: 1, reshard_after_forward: auto}" sft_train.infer_batch_size=5
[ $code = 0 ] || fail "kept: exit code $code"
grep -q 'sft_train: reshard_after_forward auto is false: with gathered weights' $log || fail "nothing is said of auto"
grep -q 'reshard_after_forward: false' $tmp/kept/config.yaml || fail "config.yaml has not what auto became"
[ "$(timeless $tmp/kept/metrics.jsonl)" = "$(timeless $tmp/one/metrics.jsonl)" ] || fail "other numbers with weights that stay"

# two turns: both are learnt. Rows in another order each epoch, also after a resume
sft two "sft_train.data_args={file_name: [$tmp/twice.json], messages: chat}" shuffle=true max_steps=4
[ $code = 0 ] || fail "two: exit code $code"
near "$(metric sft_train/tokens two)" 384 100 || fail "tokens of two turns: $(metric sft_train/tokens two)"
(head -n 17 $tmp/twice.json; echo ']') >$tmp/first_twice.json
sft plain "sft_train.data_args={file_name: [$tmp/twice.json], messages: chat}" "validation.data_args.file_name=[$tmp/first_twice.json]" max_steps=1
near "$(metric sft_train/val_loss plain)" "$(metric sft_train/loss plain)" 1e-5 || fail "training and validation learn other tokens of a chat"
[ "$(metric sft_train/loss plain)" != "$(metric sft_train/loss two)" ] || fail "shuffle has no effect"
sft part "sft_train.data_args={file_name: [$tmp/twice.json], messages: chat}" shuffle=true max_steps=4 save_steps=2
rm -rf $tmp/part/checkpoint-3 && ln -sfn checkpoint-2 $tmp/part/latest
sft part "sft_train.data_args={file_name: [$tmp/twice.json], messages: chat}" shuffle=true max_steps=4 resume_from_checkpoint=true
[ $code = 0 ] && grep -q resuming $log || fail "part: exit code $code"
[ "$(timeless $tmp/part/metrics.jsonl)" = "$(timeless $tmp/two/metrics.jsonl)" ] || fail "a resumed run takes other rows"

# rows that are cut are counted
sft cut "sft_train.data_args={file_name: [$tmp/twice.json], messages: chat}" max_steps=1 sequence_length=70
grep -q "sft_train: [0-9]* rows cut at sequence_length 70" $tmp/cut.log || fail "rows that are cut are not told"
echo ok
