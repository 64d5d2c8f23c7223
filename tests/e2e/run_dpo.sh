#!/bin/bash
# run_dpo.sh -- `croll run` of pairs of answers: 20 steps are those of TRL's DPOTrainer (tests/parity/dpo.py makes dpo.json) for three
# losses, on 2, 1 and 4 ranks; the same numbers however pairs are cut into ranks and micro-batches; each key of the loss counts; rows as
# texts, as messages, and with the prompt inside the answers; the reference computed once or in each step: the same bits; what a killed run
# left of its log-probs is read; SIGTERM and resume; validation over all pairs; with adapters the reference is the base.
# Not covered: the losses by themselves (unit/rl_pairs), which ids a pair has (unit/data_pairs).
. tests/e2e/run.inc
scripts/make_sums $tmp/home
"$CROLL" init $tmp/home/model >/dev/null
golden=tests/parity/dpo.json
python3 - $golden $tmp <<'PY'
import json, sys
rows, folder = json.load(open(sys.argv[1]))["rows"], sys.argv[2]
def chat(role, text): return [dict(role=role, content=text)]
def write(name, f): open(f"{folder}/{name}.jsonl", "w").write("".join(json.dumps(f(x)) + "\n" for x in rows))
write("rows", lambda x: x)
write("chats", lambda x: dict(prompt=chat("user", x["instruction"]), chosen=chat("assistant", x["chosen"]), rejected=chat("assistant", x["rejected"])))
write("implicit", lambda x: {k: chat("user", x["instruction"]) + chat("assistant", x[k]) for k in ("chosen", "rejected")})
PY

# dpo NAME RANKS [key=value ..]: 20 steps of 4 pairs, in order
dpo() {
    local name=$1 ranks=$2
    shift 2
    words=("$CROLL" run configs/quickstart/dpo.yaml pretrain=$tmp/home/model output_dir=$tmp/$name track_with=none shuffle=false
        "actor_train.data_args.file_name=[$tmp/rows.jsonl]" validation=null max_steps=20 actor_train.training_args.num_train_epochs=1
        actor_train.training_args.learning_rate=1e-3 actor_train.training_args.lr_scheduler_type=constant actor_train.training_args.warmup_steps=0
        actor_train.training_args.adam_epsilon=1e-6 actor_train.training_args.per_device_train_batch_size=$((4 / ranks))
        "actor_train.device_mapping=list(range(0,$ranks))" actor_train.strategy_args.strategy_config.fsdp_size=$ranks
        "reference.device_mapping=list(range(0,$ranks))" "$@")
    log=$tmp/$name.log code=0
}
# go NAME RANKS [key=value ..]: to its end
go() {
    dpo "$@"
    "${words[@]}" >$log 2>&1 </dev/null || code=$?
    [ $code = 0 ] || fail "$1: exit code $code"
}
metric() { values $1 $tmp/$2/metrics.jsonl | sed -n ${3:-1}p; }
is_same() { [ "$(timeless $tmp/$1/metrics.jsonl | head -n $3)" = "$(timeless $tmp/$2/metrics.jsonl | head -n $3)" ] || fail "$1: other numbers than $2"; }

# trl NAME: loss, rewards and gradient of each step, and the weights at the end, are TRL's
trl() {
    python3 - $golden $tmp/$1 $1 <<'PY' || fail "$1: not the numbers of TRL"
import json, struct, sys
want, folder = json.load(open(sys.argv[1]))["trl"][sys.argv[3]], sys.argv[2]
steps = [json.loads(x) for x in open(folder + "/metrics.jsonl")]
assert len(steps) == 20
for key, name in dict(loss="actor/loss", margins="rewards/margins", chosen="rewards/chosen", accuracies="rewards/accuracies", grad_norm="actor_train/grad_norm").items():
    for i, (x, y) in enumerate(zip(want[key], steps)):
        assert abs(x - y[name]) <= 1e-4, (name, i, x, y[name])
file = open(folder + "/latest/actor_train/model.safetensors", "rb").read()
size = struct.unpack("<Q", file[:8])[0]
head = json.loads(file[8:8 + size])
num = 0
for name, (noise, norm) in want["weights"].items():
    begin, end = head[name]["data_offsets"]
    x = struct.unpack(f"<{(end - begin) // 4}f", file[8 + size + begin:8 + size + end])
    got = sum(v * (i * 2654435761 % 4294967296 / 4294967296 - 0.5) for i, v in enumerate(x)), sum(v * v for v in x) ** 0.5
    assert abs(got[0] - noise) <= 1e-4 * norm and abs(got[1] - norm) <= 1e-4 * norm, (name, got, noise, norm)
    num += 1
assert num > 30
PY
}
go sigmoid 2
trl sigmoid
go robust 1 loss_type=robust label_smoothing=0.1
trl robust
go ipo 4 loss_type=ipo
trl ipo

# however it is cut: micro-batches by samples, by tokens; ranks of ulysses
go micro 1 max_steps=5 actor_train.training_args.per_device_train_batch_size=1 actor_train.training_args.gradient_accumulation_steps=4
go tokens 2 max_steps=5 actor_train.use_dynamic_batching_in_train=true actor_train.max_tokens_per_microbatch_in_train=128
go ulysses 2 max_steps=5 actor_train.model_args.ulysses_size=2 actor_train.training_args.per_device_train_batch_size=4
for metric in actor/loss rewards/margins actor_train/grad_norm; do
    for name in micro tokens ulysses; do same $name sigmoid $metric 5 20; done
done

# each key of the loss, and each column, counts in step 1; in step 0 policy and reference are equal: the loss is known
[ "$(metric actor/loss sigmoid)" = 0.69314718055994529 ] && [ "$(metric rewards/margins sigmoid)" = 0 ] || fail "step 0"
for words_of in beta=0.5 label_smoothing=0.2 ipo=true rpo_alpha=0.5 "chosen_key=rejected rejected_key=chosen" sequence_length=38; do
    rm -rf $tmp/key
    go key 1 max_steps=2 $words_of
    [ "$(metric actor/loss key 2)" != "$(metric actor/loss sigmoid 2)" ] || fail "$words_of has no effect"
done
grep -q "actor_train: [0-9]* pairs left out: longer than sequence_length 38" $log || fail "pairs that are left out are not told"

# the same ids as messages and with the prompt in the answers; the reference live: the same bits
go chats 2 max_steps=3 prompt_key=prompt "actor_train.data_args.file_name=[$tmp/chats.jsonl]"
go implicit 2 max_steps=3 "actor_train.data_args.file_name=[$tmp/implicit.jsonl]"
go live 2 max_steps=3 cache_reference_log_probs=false
for name in chats implicit live; do is_same $name sigmoid 3; done
[ -z "$(ls $tmp/live/reference-*.bin 2>/dev/null)" ] || fail "a file of the reference, which is asked in each step"

# SIGTERM, a file of the reference that ends in the middle of a pair, resume: the same numbers, and only the pairs that are missing are computed.
# Validation is over all pairs, also where they are cut into parts and the last is not full: the loss of a step's rows before its update
head -n 16 $tmp/rows.jsonl | tail -n 12 >$tmp/val.jsonl
val=("validation={data_args: {file_name: [$tmp/val.jsonl]}}" actor_train.infer_batch_size=1)
dpo part 2 "${val[@]}" eval_steps=5
"${words[@]}" >$log 2>&1 </dev/null &
pid=$!
steps part 2
kill -TERM $pid
wait $pid || code=$?
[ $code = 130 ] || fail "after SIGTERM: exit code $code"
for file in $tmp/part/reference-*.bin; do truncate -s -5 $file; done
go part 2 "${val[@]}" eval_steps=5 resume_from_checkpoint=true
grep -q "the reference's log-probs of [1-9][0-9]* of 80 pairs are in" $log || fail "the file of the reference is not read"
sed -E 's/"(final\/)?val\/[^,]*,//g' $tmp/part/metrics.jsonl >$tmp/part/without && mv $tmp/part/without $tmp/part/metrics.jsonl.plain
[ "$(timeless $tmp/part/metrics.jsonl.plain)" = "$(timeless $tmp/sigmoid/metrics.jsonl)" ] || fail "a resumed run has other numbers"
go rest 1 max_steps=3 eval_steps=1 "${val[@]}" "actor_train.data_args.file_name=[$tmp/val.jsonl]" actor_train.training_args.per_device_train_batch_size=12 actor_train.training_args.num_train_epochs=3
for metric in loss rewards/margins rewards/accuracies logps/chosen nll_loss; do
    name=${metric/#loss/actor\/loss}
    paste <(values val/$metric $tmp/rest/metrics.jsonl) <(values $name $tmp/rest/metrics.jsonl) |
        awk '{ d = $1 - $2; if (d * d > 1e-12) exit 1 } END { exit NR != 3 }' || fail "validation: $metric is not that of the same rows"
done

# adapters: the reference is the base, on the same ranks or on its own
lora=(max_steps=3 actor_train.model_args.lora_target=all-linear actor_train.model_args.lora_rank=4)
go base 2 "${lora[@]}" reference=null
go apart 2 "${lora[@]}" "reference.device_mapping=[2]"
is_same apart base 3
[ "$(metric actor/loss base)" = 0.69314718055994529 ] && [ "$(metric rewards/margins base 3)" != 0 ] || fail "adapters: step 0, or nothing is learnt"
echo ok
