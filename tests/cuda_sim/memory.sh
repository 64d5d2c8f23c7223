#!/bin/bash
# Memory is the GPU's: `croll plan --device cuda --gpus 1 --memory` and a run on one simulated GPU of that size refuse and accept alike, with the
# same sentence, for 1, 2 and 4 numbers of device_mapping on it, just below and above the limit, of a small model and of Qwen3 8B; a run of the
# small one with little more than what is accepted makes its step. What others have of a GPU; croll generate. Not covered: memory that several
# processes take of one GPU, which the simulation counts for each.
. tests/e2e/run.inc
export CROLL_DEVICE=cuda CROLL_SIM_GPUS=1
scripts/make_sums $tmp/home
sed -i 's/"hidden_size": 128/"hidden_size": 64/; s/"intermediate_size": 256/"intermediate_size": 72/; s/"head_dim": 32/"head_dim": 16/
    s/"num_hidden_layers": 3/"num_hidden_layers": 2/' $tmp/home/model/config.json
CROLL_DEVICE=cpu "$CROLL" init $tmp/home/model >/dev/null
mv $tmp/home/model $tmp/home/sft_model

# keys N: of a run whose roles have N numbers of device_mapping each, the same ones
keys() {
    words run "actor_train.device_mapping=list(range(0,$1))" "actor_infer.device_mapping=list(range(0,$1))" \
        actor_train.strategy_args.strategy_config.fsdp_size=$1 actor_infer.strategy_args.strategy_config.fsdp_size=$1 \
        actor_infer.strategy_args.strategy_config.gpu_memory_utilization=0.5 max_steps=1 validation=null \
        rollout_batch_size=4 num_return_sequences_in_group=2 actor_train.training_args.per_device_train_batch_size=1 \
        actor_train.infer_batch_size=1 actor_train.training_args.gradient_accumulation_steps=$((8 / $1)) collective_timeout=600
    words=("${words[@]:2}")
}

# reason FILE: why there is no room for the cache, or a line "states"
reason() {
    grep -o 'actor_infer: gpu_memory_utilization .*' $1 || { grep -q 'croll run refuses it\|the run needs at least' $1 && echo states; } || true
}

# compare N MIB: both, with N devices on one GPU of MIB; whether they accept in $code, and why not in $tmp/wanted
compare() {
    local plan=0
    "$CROLL" plan "${words[@]}" --gpus 1 --device cuda --memory $2MiB >$tmp/plan 2>&1 || plan=$?
    reason $tmp/plan >$tmp/wanted
    [ $plan = 0 ] || grep -q "gpu_memory_utilization 0.5 of $(($2 * 1048576 / $1)) bytes" $tmp/wanted || fail "a plan with $2 MiB for $1: exit code $plan"
    code=0
    CROLL_SIM_MEMORY_MIB=$2 "$CROLL" config --deep "${words[@]}" >$tmp/stdout 2>$log || code=$?
    reason $log | cmp -s - $tmp/wanted || fail "$1 devices, $2 MiB: a plan says $(cat $tmp/wanted), a run $(reason $log)"
    [ $((code == 0)) = $((! $(wc -l <$tmp/wanted))) ] || fail "$1 devices, $2 MiB: exit code $code"
}

# limits N REFUSED ACCEPTED: the largest size that is refused and, one MiB above, the smallest one that is accepted, as $last and $least
limits() {
    last=$2 least=$3
    compare $1 $last
    [ $code != 0 ] || fail "$1 devices: accepted with $last MiB"
    compare $1 $least
    [ $code = 0 ] || fail "$1 devices: refused with $least MiB: $(cat $tmp/wanted)"
    while [ $((least - last)) -gt 1 ]; do
        compare $1 $(((last + least) / 2))
        [ $code = 0 ] && least=$(((last + least) / 2)) || last=$(((last + least) / 2))
    done
    echo "$1 devices of a GPU: refused with $last MiB, accepted with $least"
}

room=16 # MiB, for activations and scratch, which the plan counts or estimates and no run is refused for
log=$tmp/deep
for n in 1 2 4; do
    keys $n
    limits $n 1 16
    [ $n = 4 ] && break
    log=$tmp/run.log
    CROLL_SIM_MEMORY_MIB=$last "$CROLL" run "${words[@]}" >$log 2>&1 </dev/null && fail "$n devices: a run with $last MiB starts"
    [ ! -e $tmp/run ] || fail "a run that is refused has written"
    CROLL_SIM_MEMORY_MIB=$((least + room)) "$CROLL" run "${words[@]}" >$log 2>&1 </dev/null || fail "$n devices: a run with $least + $room MiB: exit code $?"
    [ $(wc -l <$tmp/run/metrics.jsonl) = 1 ] || fail "$n devices: not one step"
    rm -r $tmp/run
done

# Qwen3 8B, as a file with holes: what is refused with 80 GB, and from where on it is accepted
mkdir $tmp/8b
cp $tmp/home/sft_model/*.json $tmp/8b
python3 - $tmp/8b <<'PY' || fail "no model"
import json, struct, sys
folder, h, m, V, n, heads = sys.argv[1], 4096, 12288, 151936, 36, (32, 8, 128)
c = json.load(open(f"{folder}/config.json"))
c.pop("layer_types", None)
c.update(hidden_size=h, intermediate_size=m, vocab_size=V, num_hidden_layers=n, num_attention_heads=heads[0], num_key_value_heads=heads[1],
         head_dim=heads[2], max_position_embeddings=40960, tie_word_embeddings=False, torch_dtype="bfloat16")
json.dump(c, open(f"{folder}/config.json", "w"))
q, kv = heads[0] * heads[2], heads[1] * heads[2]
shapes = {"model.embed_tokens.weight": [V, h], "model.norm.weight": [h], "lm_head.weight": [V, h]}
for i in range(n):
    for name, shape in {"self_attn.q_proj": [q, h], "self_attn.k_proj": [kv, h], "self_attn.v_proj": [kv, h], "self_attn.o_proj": [h, q],
                        "self_attn.q_norm": [heads[2]], "self_attn.k_norm": [heads[2]], "mlp.gate_proj": [m, h], "mlp.up_proj": [m, h],
                        "mlp.down_proj": [h, m], "input_layernorm": [h], "post_attention_layernorm": [h]}.items():
        shapes[f"model.layers.{i}.{name}.weight"] = shape
at, head = 0, {}
for name, shape in shapes.items():
    size = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
    head[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
    at += size
text = json.dumps(head).encode()
text += b" " * (-len(text) % 8)
with open(f"{folder}/model.safetensors", "wb") as f:
    f.write(struct.pack("<Q", len(text)) + text)
    f.truncate(8 + len(text) + at)
PY
log=$tmp/deep
for n in 1 2 4; do
    keys $n
    words+=(pretrain=$tmp/8b actor_train.model_args.dtype=bf16 actor_infer.model_args.dtype=bf16
        actor_train.strategy_args.strategy_config.param_dtype=bf16 actor_infer.strategy_args.strategy_config.param_dtype=bf16)
    compare $n 76293 # 80 GB
    [ $code != 0 ] || fail "8B with 80 GB on $n devices: accepted"
    limits $n 76293 262144
    # masters, gradients and moments in fp32, and what each engine keeps in bf16 while the others train
    [ $least = $(((16 + 2 * n) * 8190735360 / 1048576 + 1)) ] || fail "8B on $n devices: accepted with $least MiB"
done

# a rank that finds less than was looked at before divides as well
keys 2
log=$tmp/run.log
"$CROLL" run "${words[@]}" 'actor_infer.system_envs={CROLL_SIM_MEMORY_MIB: 1}' >$log 2>&1 </dev/null && fail "a rank with half a MiB"
grep -q 'actor_infer rank . .*gpu_memory_utilization 0.5 of 524288 bytes (the memory of the device, divided by 2 that share it) leaves nothing' $log ||
    fail "a rank with half a MiB"

# generate: a quarter of a rank's part of the GPU. 64 tokens have 2 layers x K and V x 64 x 2 heads of 16 in fp32: 32 KiB
log=$tmp/generate
sed -i 's/"max_position_embeddings": 256/"max_position_embeddings": 4096/' $tmp/home/sft_model/config.json
printf '{"id":%d,"input_ids":[1,2,3]}\n' 1 2 3 4 >$tmp/lines
for n in 2 4; do
    CROLL_SIM_MEMORY_MIB=4 "$CROLL" generate $tmp/home/sft_model --json --max-new-tokens 2 "device_mapping=list(range(0,$n))" \
        <$tmp/lines >$tmp/stdout 2>$log || fail "generate on $n ranks: exit code $?"
    grep -q "at most $((2048 / n)) tokens: the memory of a rank" $log || fail "generate on $n ranks: another length"
done
CROLL_SIM_MEMORY_MIB=1 "$CROLL" generate $tmp/home/sft_model --json "device_mapping=list(range(0,9))" <$tmp/lines >$tmp/stdout 2>$log &&
    fail "a cache of nothing"
grep -q 'the GPU has [0-9]* bytes left for this rank, of 116508: [0-9]* for a cache hold no block of 32768' $log || fail "a cache of nothing"
echo ok
