#!/bin/bash
# A step on 2 ranks of the device ($CROLL_DEVICE) against one rank of cpu: loss and gradient tensor by tensor, and sft from its
# loss over three updates to the next one; and what generation says of its tokens are the bits of logprobs, in fp32, in bf16 and in bf16
# with heads of 128, there also after 700 tokens (two stretches of keys, several tiles of rows).
# Arguments choose of gradient, sft, generation. Not covered: rlvr (device_run.sh).
# also on far
# also on cuda, long
. tests/e2e/run.inc
parts=" ${*:-gradient sft generation} "
wants() { [[ $parts == *" $1 "* ]]; }
scripts/make_sums $tmp/home
model=$tmp/home/model
sed -i 's/"hidden_size": 128/"hidden_size": 64/; s/"intermediate_size": 256/"intermediate_size": 72/; s/"head_dim": 32/"head_dim": 16/
    s/"num_hidden_layers": 3/"num_hidden_layers": 2/' $model/config.json
"$CROLL" init $model >/dev/null
head -n 12 $tmp/home/sft.jsonl >$tmp/rows.jsonl

# gradient NAME [key=value ..]: of lines of 3 to 40 tokens
for n in 3 17 33 40; do echo "{\"id\":$n,\"input_ids\":[$(seq -s, $n $((2 * n - 1)))]}"; done >$tmp/lines
gradient() {
    local name=$1
    shift
    log=$tmp/$name.log
    "$CROLL" grad $model --out $tmp/$name.safetensors model_args.dtype=fp32 training_args.per_device_train_batch_size=1 "$@" \
        <$tmp/lines >$tmp/$name.out 2>$log || fail "$name: exit code $?"
}
if wants gradient; then
    CROLL_DEVICE=cpu gradient whole
    gradient cut "device_mapping=list(range(0,2))"
    python3 - $tmp/whole $tmp/cut <<'PY' || fail "gradients"
import array, json, math, struct, sys
def read(path):
    data = open(path + ".safetensors", "rb").read()
    end = 8 + struct.unpack("<Q", data[:8])[0]
    return {name: array.array("f", data[end + t["data_offsets"][0]:end + t["data_offsets"][1]])
            for name, t in json.loads(data[8:end]).items() if name != "__metadata__"}
whole, cut = (read(path) for path in sys.argv[1:])
loss, other = (json.load(open(path + ".out"))["loss"] for path in sys.argv[1:])
assert len(whole) > 20 and whole.keys() == cut.keys(), whole.keys() ^ cut.keys()
assert abs(loss - other) <= 1e-6 * loss, (loss, other)
for name, want in whole.items():
    size = math.sqrt(sum(x * x for x in want))
    far = math.sqrt(sum((x - y) ** 2 for x, y in zip(want, cut[name])))
    assert len(want) == len(cut[name]) and 0 < size and far <= 2e-6 * size, (name, far, size)
PY
fi

# sft NAME [key=value ..]: three updates, validation before and after them
sft() {
    local name=$1
    shift
    log=$tmp/$name.log
    "$CROLL" run configs/quickstart/sft.yaml pretrain=$model output_dir=$tmp/$name track_with=none max_steps=3 \
        sft_train.training_args.per_device_train_batch_size=2 sft_train.training_args.gradient_accumulation_steps=1 \
        "sft_train.data_args.file_name=[$tmp/rows.jsonl]" "validation.data_args.file_name=[$tmp/rows.jsonl]" \
        sft_train.training_args.warmup_steps=0 "$@" >$log 2>&1 </dev/null || fail "$name: exit code $?"
}
if wants sft; then
    CROLL_DEVICE=cpu sft cpu
    sft device
    for metric in sft_train/loss sft_train/grad_norm; do
        same cpu device $metric 3
    done
    for metric in sft_train/val_loss final/sft_train/val_loss; do
        same cpu device $metric 1
    done
fi

# generation NAME KEY: what it says of its tokens are the bits of logprobs, one call a line
generation() {
    log=$tmp/$1.log
    "$CROLL" generate $model "$2" --json --max-new-tokens 5 --temperature 1 --top-p 1 --top-k 0 --seed 7 <$tmp/prompts >$tmp/$1.all 2>$log ||
        fail "generate, $1: exit code $?"
    [ "$(wc -l <$tmp/$1.all)" = "$(wc -l <$tmp/prompts)" ] || fail "generate, $1: another number of lines"
    while read -r line; do
        prompt=$(sed 's/.*"prompt_ids":\[\([0-9,]*\)\].*/\1/' <<<"$line") output=$(sed 's/.*"output_ids":\[\([0-9,]*\)\].*/\1/' <<<"$line")
        want=$(sed 's/.*"logprobs":\[\([^]]*\)\].*/\1/' <<<"$line")
        got=$(echo "{\"id\":1,\"input_ids\":[$prompt,$output]}" | "$CROLL" logprobs $model "$2")
        [[ $got == *",$want]"* ]] || fail "log-probs, $1: $got, generation said $want"
    done <$tmp/$1.all
}
if wants generation; then
    printf '{"id":"a","input_ids":[1,200,117]}\n{"id":"b","input_ids":[5%s]}\n' "$(printf ',%d' $(seq 70 99))" >$tmp/prompts
    generation fp32 model_args.dtype=fp32
    generation bf16 model_args.dtype=bf16
    model=$tmp/heads
    wide_model $model
    echo "{\"id\":\"c\",\"input_ids\":[$(seq -s, 1 250),$(seq -s, 1 250),$(seq -s, 31 230)]}" >>$tmp/prompts
    generation heads model_args.dtype=bf16
fi
echo ok
