#!/bin/bash
# run_lora.sh -- LoRA through `croll run`: sft and rlvr train adapters on 1 and 2 ranks with the same numbers; the base is never
# written and stays as it is; checkpoints are PEFT's folders with the state, resumed exactly and on another number of ranks, and
# refused with another base; the engine has the bits of training, and the policy those of its base before the first update.
# Not covered: PEFT itself (tests/parity/peft_folder.py).
# also on far, long
. tests/e2e/run.inc
quick_model
lora=(lora_target=all-linear lora_rank=8)
digests() { (cd $1 && sha256sum *); }
base=$(digests $tmp/home/model) base_rl=$(digests $tmp/home/sft_model)

# sft NAME RANKS [key=value ..]
sft() {
    local name=$1 ranks=$2
    shift 2
    log=$tmp/$name.log code=0
    "$CROLL" run configs/quickstart/sft.yaml pretrain=$tmp/home/model output_dir=$tmp/$name track_with=none max_steps=12 save_steps=6 \
        "sft_train.data_args.file_name=[$tmp/home/sft.jsonl]" ${lora[@]/#/sft_train.model_args.} sft_train.training_args.learning_rate=0.01 \
        sft_train.training_args.per_device_train_batch_size=8 sft_train.training_args.gradient_accumulation_steps=$((4 / ranks)) \
        sft_train.training_args.lr_scheduler_type=constant sft_train.training_args.warmup_steps=0 \
        "sft_train.device_mapping=list(range(0,$ranks))" sft_train.strategy_args.strategy_config.fsdp_size=$ranks "$@" >>$log 2>&1 </dev/null || code=$?
}
# went_on NAME: from checkpoint-6, as if the run had been killed after it
went_on() {
    rm -rf $tmp/$1/checkpoint-11
    ln -sfn checkpoint-6 $tmp/$1/latest
}
falls() { values $1 $tmp/$2/metrics.jsonl | awk 'NR == 1 { first = $1 } { last = $1 } END { exit !(NR > 1 && last < first - '$3') }' || fail "$2: $1 does not fall"; }

sft one 1
[ $code = 0 ] || fail "one: exit code $code"
sft two 2
[ $code = 0 ] || fail "two: exit code $code"
falls sft_train/loss one 0.5
for metric in sft_train/loss sft_train/grad_norm; do same one two $metric 12; done

# PEFT's folder, and no weights of the base
saved=$tmp/two/checkpoint-11/sft_train
[ ! -e $saved/model.safetensors ] && [ ! -e $saved/config.json ] || fail "the base is in the checkpoint"
grep -q '"peft_type": *"LORA"' $saved/adapter_config.json && grep -q '"r": *8\b' $saved/adapter_config.json && grep -q '"lora_alpha": *16\b' $saved/adapter_config.json || fail "adapter_config.json"
"$CROLL" inspect $saved/adapter_model.safetensors >$tmp/tensors 2>&1 || fail "inspect: $(cat $tmp/tensors)"
layers=$(grep -o '"num_hidden_layers": *[0-9]*' $tmp/home/model/config.json | grep -o '[0-9]*$')
[ $(grep -c 'base_model.model.model.layers.[0-9]*.[a-z_.]*_proj.lora_[AB].weight' $tmp/tensors) = $((layers * 14)) ] || fail "names of tensors"
"$CROLL" export $tmp/two/latest $tmp/adapter >/dev/null 2>&1 && cmp $tmp/adapter/adapter_model.safetensors $saved/adapter_model.safetensors ||
    fail "the exported adapter"

"$CROLL" inspect $tmp/two/latest | grep -q "^$((layers * 14)) tensors" && "$CROLL" inspect $tmp/adapter | grep -q "^$((layers * 14)) tensors" || fail "inspect"

# exact on as many ranks, the same numbers on another number; another base is refused
numbers=$(timeless $tmp/two/metrics.jsonl)
cp $saved/adapter_model.safetensors $tmp/end
went_on two
sft two 2 resume_from_checkpoint=true
[ $code = 0 ] && grep -q resuming $log || fail "resume: exit code $code"
[ "$(timeless $tmp/two/metrics.jsonl)" = "$numbers" ] || fail "a resumed run has other numbers"
cmp $saved/adapter_model.safetensors $tmp/end || fail "a resumed run ends with other adapters"
cp -r $tmp/one $tmp/wide
went_on wide
sft wide 2 resume_from_checkpoint=true
[ $code = 0 ] || fail "resume on 2 ranks: exit code $code"
for metric in sft_train/loss sft_train/grad_norm; do same one wide $metric 12; done
went_on wide
sft wide 2 resume_from_checkpoint=true pretrain=$tmp/home/sft_model
[ $code != 0 ] && grep -q 'has adapters of another base than' $log || fail "another base: exit code $code"
for change in lora_alpha=4 lora_rank=4 lora_target=q_proj use_rslora=true lora_target=null; do
    went_on wide
    sft wide 2 resume_from_checkpoint=true sft_train.model_args.$change
    [ $code != 0 ] && grep -q 'croll run: .* as \(they were\|it was\))' $log || fail "resumed with $change: exit code $code"
    rm $log
done
[ "$(digests $tmp/home/model)" = "$base" ] || fail "the base has changed"

# from an adapter: the loss begins where it ended, the folder says rank and scale, and what the file says beside it is not otherwise
start=(sft_train.model_args.lora_target=null sft_train.model_args.lora_rank=null sft_train.model_args.adapter_name_or_path=$tmp/adapter)
sft on 2 ${start[@]} seed=7
[ $code = 0 ] || fail "from an adapter: exit code $code"
for run in one on; do values sft_train/loss $tmp/$run/metrics.jsonl >$tmp/$run.loss; done
awk 'FNR == 1 { run++ } run == 1 { end = $1 } run == 2 && FNR == 1 { exit !($1 < end + 0.5) }' $tmp/one.loss $tmp/on.loss || fail "a run from an adapter begins anew"
grep -q '"r": *8\b' $tmp/on/latest/sft_train/adapter_config.json || fail "from an adapter: its rank"
log=$tmp/otherwise
"$CROLL" config configs/quickstart/sft.yaml --deep pretrain=$tmp/home/model "sft_train.data_args.file_name=[$tmp/home/sft.jsonl]" ${start[@]} \
    sft_train.model_args.lora_rank=4 >$log 2>&1 && fail "another rank than the adapter's is accepted"
grep -q 'has an adapter of rank 8, not 4' $log || fail "another rank: $(cat $log)"

# dropout: the same elements on 1 and 2 ranks, in micro-batches of other samples
sft dropped 1 sft_train.model_args.lora_dropout=0.2 max_steps=4
sft dropped2 2 sft_train.model_args.lora_dropout=0.2 max_steps=4 sft_train.training_args.per_device_train_batch_size=4 \
    sft_train.training_args.gradient_accumulation_steps=4
for metric in sft_train/loss sft_train/grad_norm; do same dropped dropped2 $metric 4; done
[ "$(values sft_train/loss $tmp/dropped/metrics.jsonl | sed -n 3p)" != "$(values sft_train/loss $tmp/one/metrics.jsonl | sed -n 3p)" ] || fail "dropout changes nothing"
grep -q '"lora_dropout": *0\.2' $tmp/dropped/latest/sft_train/adapter_config.json || fail "dropout in adapter_config.json"

# norms are trained in full beside adapters: synced, saved, resumed; with adapters off they are what they were
full=("${lora[@]}" additional_target=norm)
# rlvr NAME [key=value ..]
rlvr() {
    job "$@" ${full[@]/#/actor_train.model_args.} max_steps=4 save_steps=2 eval_steps=100 rollout_batch_size=8 \
        actor_train.training_args.gradient_accumulation_steps=1 actor_train.training_args.learning_rate=5.0e-3 actor_train.training_args.warmup_steps=0
    [ $code = 0 ] || fail "$1: exit code $code"
    learned $1 4
    [ "$(values actor/train_infer_diff_max $tmp/$1/metrics.jsonl | sort -u)" = 0 ] || fail "$1: generation and training differ"
}
# synced NAME BYTES [key=value ..]: each sync but the first brought what is trained alone, of BYTES an element, as the plan says
synced() {
    local name=$1 bytes=$2
    shift 2
    "$CROLL" plan configs/quickstart/rlvr.yaml --json pretrain=$tmp/home/sft_model ${full[@]/#/actor_train.model_args.} "$@" >$tmp/plan 2>&1 || fail "plan: $(cat $tmp/plan)"
    python3 - $tmp/plan $tmp/$name/metrics.jsonl $tmp/$name/latest/actor_train/adapter_model.safetensors $bytes <<'PYTHON' || fail "$name: bytes of a sync"
import json, os, struct, sys
step = json.load(open(sys.argv[1]))["roles"][1]["step"]
planned, first = step["weight_sync"]["bytes"], step["first_weight_sync_bytes"]
got = [json.loads(line)["system/actor_infer/sync_bytes"] for line in open(sys.argv[2])]
with open(sys.argv[3], "rb") as file:
    head, = struct.unpack("<Q", file.read(8))
adapters = (os.path.getsize(sys.argv[3]) - 8 - head) // 4 * int(sys.argv[4])
print(got, planned, first, adapters)
assert len(got) == 4 and got[0] == first and set(got[1:]) == {planned} and planned == adapters and first > 5 * adapters
PYTHON
}
rlvr policy
bf16=(actor_train.model_args.dtype=bf16 actor_infer.model_args.dtype=bf16 actor_train.strategy_args.strategy_config.param_dtype=bf16
    actor_infer.strategy_args.strategy_config.param_dtype=bf16)
synced policy 4
rlvr bf16 "${bf16[@]}"
rlvr policy_dropped actor_train.model_args.lora_dropout=0.2 # what generation is compared with has no dropout
grep -q 'enable_old_logprobs_recompute: true' $tmp/policy_dropped/config.yaml || fail "old log-probs of a run with dropout"
"$CROLL" inspect $tmp/bf16/latest/actor_train/adapter_model.safetensors | grep lora_ >$tmp/tensors && ! grep -v F32 $tmp/tensors >/dev/null || fail "bf16: adapters are not in float32"
synced bf16 2 "${bf16[@]}"
# one trainer for two engines
rlvr thin "actor_train.device_mapping=[0]" actor_train.strategy_args.strategy_config.fsdp_size=1 actor_train.training_args.gradient_accumulation_steps=2
synced thin 4 "actor_train.device_mapping=[0]" actor_train.strategy_args.strategy_config.fsdp_size=1
# the reference is the base: no distance at step 0, to the bit, and one afterwards
kl=(use_kl_loss=true kl_loss_coef=0.01)
own="reference={model_args: {dtype: bf16}, strategy_args: {strategy_name: fsdp2_infer, strategy_config: {param_dtype: bf16}}, device_mapping: [0], infer_batch_size: 32}"
rlvr kl "${bf16[@]}" "${kl[@]}" "$own"
values actor/kl_loss $tmp/kl/metrics.jsonl >$tmp/distances
awk 'NR == 1 { first = $1 } NR == 4 { last = $1 } END { exit !(NR == 4 && first == 0 && last > 0) }' $tmp/distances || fail "distances from the base: $(tr '\n' ' ' <$tmp/distances)"
# so has actor_train with adapters off, which takes its place: no rank and no second model
rlvr off "${bf16[@]}" "${kl[@]}"
said_of() { timeless $tmp/$1/metrics.jsonl | sed -E 's/"memory\/[^"]*":[^,}]*,?//g'; }
cmp <(said_of kl) <(said_of off) || fail "adapters off are another reference"
cmp <(cat $tmp/kl/rollouts/*) <(cat $tmp/off/rollouts/*) || fail "adapters off give other samples or advantages"
grep -q '"memory/reference/compute_log_probs' $tmp/kl/metrics.jsonl && ! grep -q '"memory/reference/' $tmp/off/metrics.jsonl || fail "where the reference was computed"
numbers=$(timeless $tmp/policy/metrics.jsonl)
rm -rf $tmp/policy/checkpoint-3
ln -sfn checkpoint-2 $tmp/policy/latest
rlvr policy resume_from_checkpoint=true
[ "$(timeless $tmp/policy/metrics.jsonl)" = "$numbers" ] || fail "a resumed policy has other numbers"
[ "$(digests $tmp/home/sft_model)" = "$base_rl" ] || fail "the base of the policy has changed"
rm -rf $tmp/policy/checkpoint-3
ln -sfn checkpoint-2 $tmp/policy/latest
code=0
job policy ${lora[@]/#/actor_train.model_args.} max_steps=4 resume_from_checkpoint=true
[ $code != 0 ] && grep -q 'lora_target and additional_target must be as they were' $log || fail "resumed without additional_target: exit code $code"
saved=$tmp/kl/latest/actor_train
grep -q '"modules_to_save": *\["norm"\]' $saved/adapter_config.json && [ $("$CROLL" inspect $saved/adapter_model.safetensors | grep -c 'norm.weight.*F32') = $((layers * 4 + 1)) ] ||
    fail "norms in PEFT's folder"

# what is said
"$CROLL" plan configs/quickstart/sft.yaml pretrain=$tmp/home/model ${lora[@]/#/sft_train.model_args.} >$tmp/plan 2>&1 || fail "plan: $(cat $tmp/plan)"
grep -q "of them trained ([0-9.]* %): adapters of $((layers * 7)) modules in $((layers * 14)) tensors" $tmp/plan || fail "the plan: $(grep trained $tmp/plan)"
log=$tmp/said
"$CROLL" config configs/quickstart/sft.yaml --deep pretrain=$tmp/home/model "sft_train.data_args.file_name=[$tmp/home/sft.jsonl]" \
    sft_train.model_args.lora_target=q_prj >$log 2>&1 && fail "a target without a match is accepted"
grep -q "target 'q_prj' matches no Linear of the model (is it '.*q_proj'?)" $log || fail "a target without a match"
# said TEXT key=value ..
said() {
    local text=$1
    shift
    "$CROLL" config configs/quickstart/sft.yaml "$@" >$log 2>&1 || true
    grep -q -- "$text" $log || fail "$*: '$text' is not said"
}
said "error: lora_target: all but the adapters is frozen (leave freeze_module_prefix out)" sft_train.model_args.lora_target=q_proj \
    sft_train.model_args.freeze_module_prefix=model.norm
said "note: lora_rank has no effect (there is no lora_target beside it)" sft_train.model_args.lora_rank=4
said "note: additional_target has no effect (there is no lora_target beside it)" sft_train.model_args.additional_target=norm
# where a reference is, by the file; the same again from what was resolved
# reference_is TEXT key=value ..
reference_is() {
    local text=$1
    shift
    "$CROLL" config configs/quickstart/rlvr.yaml pretrain=$tmp/home/sft_model "$@" >$tmp/resolved.yaml 2>$log || true
    grep -q -- "$text" $log || fail "$*: '$text' is not said"
    grep -q error: $log || { "$CROLL" config $tmp/resolved.yaml >$tmp/again.yaml 2>$log && cmp $tmp/resolved.yaml $tmp/again.yaml && grep -q -- "$text" $log; } ||
        fail "$*: another reference from the resolved file"
}
kl=(use_kl_loss=true actor_train.model_args.lora_target=all-linear)
here='note: reference: actor_train computes its log-probs with adapters off'
reference_is "$here" "${kl[@]}"
reference_is "$here" use_kl_loss=true actor_train.model_args.adapter_name_or_path=$tmp/adapter
reference_is "$here" "${kl[@]}" 'reference={model_args: {dtype: fp32}}'
reference_is "$here" "${kl[@]}" 'reference={model_args: {dtype: fp32}, device_mapping: "list(range(0,2))", strategy_args: {strategy_name: hf_infer}}'
reference_is 'of its own: its device_mapping is not' "${kl[@]}" 'reference={model_args: {dtype: fp32}, device_mapping: [1]}'
reference_is 'of its own: its device_mapping is not' "${kl[@]}" 'reference={model_args: {dtype: fp32}, device_mapping: [2, 3]}'
reference_is 'of its own: its dtype is not' "${kl[@]}" 'reference={model_args: {dtype: bf16}, device_mapping: [0, 1]}'
reference_is 'of its own: its model is not' "${kl[@]}" "reference={model_args: {dtype: fp32, model_name_or_path: $tmp/home/model}, device_mapping: [0, 1]}"
reference_is 'error: use_kl_loss needs a reference model' use_kl_loss=true
reference_is 'error: reference.device_mapping is missing' use_kl_loss=true 'reference={model_args: {dtype: fp32}}'
# planned key=value ..: bytes of the fullest device
planned() {
    "$CROLL" plan configs/quickstart/rlvr.yaml pretrain=$tmp/home/sft_model "${kl[@]}" "$@" --json 2>$log >$tmp/plan || fail "plan $*"
    sed 's/.*"device_peak_bytes":\([0-9]*\).*/\1/' $tmp/plan
}
alone=$(planned 'reference={model_args: {dtype: fp32}, device_mapping: [0, 1]}')
! grep -q '"name":"reference"' $tmp/plan && grep -q '"reference_forwards":4' $tmp/plan || fail "the plan without ranks of the reference"
beside=$(planned 'reference={model_args: {dtype: fp32}, device_mapping: [0]}')
grep -q '"name":"reference"' $tmp/plan && ! grep -q '"reference_forwards"' $tmp/plan && [ "$alone" -lt "$beside" ] || fail "the plan with them: $beside bytes, without $alone"
for key in use_dora=true init_lora_weights=pissa; do
    said "error: ${key%=*}: .*${key#*=}.* is not available yet" sft_train.model_args.lora_target=q_proj sft_train.model_args.$key
done
echo ok
