#!/bin/bash
# plan.sh -- croll plan against closed formulas: bytes of shards and traffic of FSDP, HSDP, with and
# without reshard, accumulation and offload; the largest micro-batch for a memory; a 70B model planned in
# seconds; what is not there is named. Needs python3.
# Not covered: bytes of a real run beside the plan's (tests/mesh/plan.c), a cache that is cut by gpu_memory_utilization on a device.
set -u
: "${CROLL:?the binary}"
command -v python3 >/dev/null || { echo "no python3: scripts/setup --check installs it"; exit 1; }
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
fail() { echo "FAIL: $*" >&2; cat "$dir/err" >&2; exit 1; }

mkdir "$dir/tiny" "$dir/big"
cat > "$dir/tiny/config.json" <<'JSON'
{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 512, "hidden_size": 64,
 "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
 "head_dim": 16, "rms_norm_eps": 1e-6, "max_position_embeddings": 512, "tie_word_embeddings": false}
JSON
cat > "$dir/big/config.json" <<'JSON'
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128256, "hidden_size": 8192,
 "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8,
 "head_dim": 128, "rms_norm_eps": 1e-5, "max_position_embeddings": 8192, "tie_word_embeddings": false}
JSON
cat > "$dir/sft.yaml" <<YAML
exp_name: plan
pretrain: $dir/tiny
output_dir: $dir/out
sequence_length: 64
sft_train:
  model_args: {dtype: bf16, disable_gradient_checkpointing: false}
  training_args: {learning_rate: 1.0e-5, per_device_train_batch_size: 2, gradient_accumulation_steps: 3}
  data_args: {file_name: [none.jsonl]}
  strategy_args: {strategy_name: fsdp2_train, strategy_config: {param_dtype: bf16}}
  device_mapping: list(range(0,4))
YAML
cat > "$dir/rlvr.yaml" <<YAML
exp_name: plan
pretrain: $dir/tiny
output_dir: $dir/out
rollout_batch_size: 16
num_return_sequences_in_group: 4
prompt_length: 16
response_length: 48
init_kl_coef: 0.1
adv_estimator: grpo
ppo_epochs: 2
enable_old_logprobs_recompute: true
actor_train:
  model_args: {dtype: bf16}
  training_args: {learning_rate: 1.0e-5, per_device_train_batch_size: 2, gradient_accumulation_steps: 4}
  data_args: {file_name: [none.jsonl], messages: messages, domain_interleave_probs: {ifeval: 1.0}}
  strategy_args: {strategy_name: fsdp2_train, strategy_config: {fsdp_size: 2, param_dtype: bf16}}
  device_mapping: list(range(0,4))
  infer_batch_size: 4
actor_infer:
  model_args: {dtype: bf16}
  strategy_args: {strategy_name: fsdp2_infer}
  device_mapping: list(range(0,4))
reference:
  model_args: {dtype: bf16}
  strategy_args: {strategy_name: fsdp2_infer, strategy_config: {param_dtype: bf16}}
  device_mapping: list(range(0,4))
  infer_batch_size: 4
rewards:
  ifeval:
    worker_cls: roll.pipeline.rlvr.rewards.ifeval_rule_reward_worker.GeneralRuleRewardWorker
    tag_included: [ifeval]
transfer_backend: any
YAML

number=0
plan() { # what python checks, then arguments; the plan is `p`, its first role `r`
    local check=$1
    shift
    number=$((number + 1))
    "$CROLL" plan "$@" --json > "$dir/plan$number" 2> "$dir/err" || fail "plan $*: exit $?"
    python3 - "$dir/plan$number" > "$dir/err" 2>&1 <<PY || fail "plan $*"
import json, sys
p = json.load(open(sys.argv[1]))
r = p["roles"][0]
s, peak = r["step"], r["peak_bytes"]
def pad(n, to): return (n + to - 1) // to * to
def flat(sizes, shards):                     # starts at multiples of 32, cut evenly
    at = 0
    for n in sizes: at = pad(at, 32) + n
    return at
h, i, v, q, k, d, layers = 64, 96, 512, 64, 32, 16, 3
layer = [q * h, k * h, k * h, h * q, d, d, 3 * i * h, h, h]
embed, root = v * h, v * h + h               # norm and head are the root's
all = embed + root + layers * sum(layer)
def near(x, want, part=0.02):                # padding of the cut
    assert want <= x <= want * (1 + part), (x, want)
def equal(x, want): assert x == want, (x, want)
$check
PY
}

sft() { local check=$1; shift; plan "$check" "$dir/sft.yaml" "$@"; }
config=sft_train.strategy_args.strategy_config

# 12 bytes for each element of a shard and 4 for its gradient; every unit twice per micro-batch (tables
# once), the root once a step, one reduction per micro-batch
shards='
n = r["shard_elements"]
near(n * r["mesh"]["fsdp"], all)
equal(r["parameters"], all)
equal([peak["masters"], peak["gradients"], peak["moments"]], [4 * n, 4 * n, 8 * n])
equal(peak["total"], sum(x for name, x in peak.items() if name != "total"))'
sft "$shards"'
equal(r["mesh"], dict(ranks=4, ddp=1, fsdp=4, dp=4, ulysses=1))
equal(p["batch"]["samples"], 24)
equal(r["most_units_alive"], 2)
equal(s["all_gather"]["num"], 3 * (2 * layers + 1) + 1)
near(s["all_gather"]["bytes"], 2 * (3 * (2 * layers * sum(layer) + embed) + root))
equal(s["reduce_scatter"]["num"], 3 * (layers + 2))
near(s["reduce_scatter"]["bytes"], 4 * 3 * all)
equal(s["all_reduce"], dict(num=0, bytes=0))'
sft "$shards"'
equal(s["all_gather"]["num"], layers + 2)
near(s["all_gather"]["bytes"], 2 * all)
near(s["reduce_scatter"]["bytes"], 4 * 3 * all)' $config.reshard_after_forward=false
sft "$shards"'
equal(s["all_gather"]["num"], 3 * (2 * layers + 1 + 1))
near(s["all_gather"]["bytes"], 3 * 2 * (2 * layers * sum(layer) + all - layers * sum(layer)))' \
    $config.reshard_after_forward=true
# auto: kept where nine tenths of a device's memory are enough for it, else as null; searched is the largest micro-batch without it
sft "$shards"'
equal(s["all_gather"]["num"], layers + 2)
auto = p["reshard_after_forward"]
equal(auto, {"auto": False, "kept_bytes": p["device_peak_bytes"]})
print(auto["kept_bytes"], file=open("'"$dir"'/kept", "w"))' $config.reshard_after_forward=auto --memory 80GB
kept=$(cat "$dir/kept")
sft 'equal(p["reshard_after_forward"]["auto"], False)' $config.reshard_after_forward=auto --memory $((kept * 10 / 9 + 10))
sft 'equal(p["reshard_after_forward"], {"auto": None, "kept_bytes": '$kept'})
equal(s["all_gather"]["num"], 3 * (2 * layers + 1) + 1)' $config.reshard_after_forward=auto --memory $((kept * 10 / 9 - 10))
sft 'equal(p["reshard_after_forward"], {"auto": None, "kept_bytes": 0})' $config.reshard_after_forward=auto
"$CROLL" plan "$dir/sft.yaml" $config.reshard_after_forward=auto --memory 80GB > "$dir/out" 2> "$dir/err" || fail "auto"
grep -q '^reshard_after_forward auto: false, .* within nine tenths' "$dir/out" || fail "auto is not shown"
"$CROLL" plan "$dir/rlvr.yaml" reference.strategy_args.strategy_config.reshard_after_forward=auto > "$dir/out" 2> "$dir/err" && fail "auto of a reference"
grep -q 'U8: reshard_after_forward is true, false, null or a number of ranks from 1$' "$dir/err" || fail "auto of a reference"
sft "$shards"'
equal((r["mesh"]["ddp"], r["mesh"]["fsdp"]), (32, 2))
equal(s["all_reduce"], dict(num=1, bytes=4 * n))
near(s["reduce_scatter"]["bytes"], 2 * 3 * all)' --world 64 $config.fsdp_size=2 $config.reduce_dtype=bf16
sft '
n = r["shard_elements"]
equal((peak["masters"], peak["gradients"], peak["moments"]), (0, 0, 0))
equal(r["host_bytes"], 16 * n)' $config.offload_policy=true
sft '
equal(s["all_gather"]["num"], 0)
equal(p["batch"]["dp"], 1)' --world 1
# no recompute keeps more; ulysses cuts it and moves 4 all-to-alls a layer and direction
sft '
equal(s["all_to_all"]["num"], 3 * layers * 4 * 2)
equal(s["all_to_all"]["bytes"], 3 * layers * 2 * (2 * 64 // 2 * d * (2 * 4 + 2 * 2) // 2 * 2))' \
    sft_train.model_args.ulysses_size=2 sft_train.model_args.disable_gradient_checkpointing=true

# the step of rlvr: 64 samples, 16 per rank, 2 updates of 8 in each of 2 epochs
plan '
b = p["batch"]
equal((b["samples"], b["dp"], b["samples_per_rank"], b["updates"], b["log_prob_forwards"]), (64, 4, 16, 4, 4))
equal([x["name"] for x in p["roles"]], ["actor_train", "actor_infer", "reference"])
equal(s["all_reduce"]["num"], 4)
equal(s["reduce_scatter"]["num"], 4 * 4 * (layers + 2))
t, g, f = p["roles"]
near(g["peak_bytes"]["values"], 2 * all)
packed = 2 * (layers * (sum(layer) - 2 * d - 2 * h) + v * h)   # products, and not the table of embeddings
equal((g["peak_bytes"]["kept"] - packed) % (128 * layers), 0)
near(f["peak_bytes"]["values"], 2 * all / 4)
equal(f["step"]["reduce_scatter"]["num"], 0)
idle = [sum(x["peak_bytes"][k] for k in ("masters", "moments", "values")) for x in p["roles"]]
equal(p["device_peak_bytes"], max(x["peak_bytes"]["total"] + sum(idle) - i for x, i in zip(p["roles"], idle)))
assert len(p["not_available"]) == 1 and "transfer_backend" in p["not_available"][0], p["not_available"]' "$dir/rlvr.yaml"

# the cache takes what gpu_memory_utilization of the memory leaves beside the weights, in whole blocks
utilization=actor_infer.strategy_args.strategy_config.gpu_memory_utilization
plan '
g = p["roles"][1]["peak_bytes"]
packed = 2 * (layers * (sum(layer) - 2 * d - 2 * h) + v * h)
block = layers * 16 * 2 * k * 4   # a cpu keeps float32
budget = 0.5 * 4 * 2 ** 20 - g["values"] - packed
left = budget - (g["kept"] - packed)
assert 0 <= left < block + 64 * 4 * layers, (budget, g["kept"], packed, block)
assert g["kept"] - packed < 128 * 4 * block' "$dir/rlvr.yaml" --memory 4MiB $utilization=0.5
"$CROLL" plan "$dir/rlvr.yaml" --memory 4MiB $utilization=0.1 > "$dir/out" 2> "$dir/err" && fail "a cache of nothing"
grep -q 'gpu_memory_utilization 0.1 of 4194304 bytes leaves 0 beside' "$dir/err" || fail "a cache of nothing"

# more ranks than samples: a run is refused, the plan is of one sample a rank
plan '
equal((p["batch"]["samples_per_rank"], p["batch"]["updates"], s["all_reduce"]["num"]), (1, 2, 2))
assert s["reduce_scatter"]["num"] > 0' "$dir/rlvr.yaml" --world 128
# roles side by side stay so on any number of devices
for world in 9 15 2; do
    plan '
t, g, f = p["roles"]
equal(t["mesh"]["ranks"] + g["mesh"]["ranks"], '$world')' "$dir/rlvr.yaml" --world $world \
        actor_train.strategy_args.strategy_config.fsdp_size=1 "actor_infer.device_mapping=list(range(4,8))"
done
"$CROLL" plan "$dir/rlvr.yaml" --memory 100kB > "$dir/out" 2> "$dir/err" || fail "100kB"
grep -q 'no micro-batch fits: actor_infer alone needs' "$dir/out" || fail "100kB: $(cat "$dir/out")"

# the sampler's log-probs are the old ones, unless the file asks for a pass
# 500 steps of 2 x 4 updates; the rates of the first update, after the warm-up, half-way and of the last one
plan 'equal(p["schedule"], {"lr_scheduler_type": "cosine_with_min_lr", "warmup_steps": 100, "max_steps": 2000})' "$dir/rlvr.yaml" \
    actor_train.training_args.lr_scheduler_type=cosine_with_min_lr 'actor_train.training_args.lr_scheduler_kwargs={min_lr: 1e-6}' \
    actor_train.training_args.warmup_ratio=0.05
"$CROLL" plan "$dir/rlvr.yaml" actor_train.training_args.lr_scheduler_type=cosine_with_min_lr \
    'actor_train.training_args.lr_scheduler_kwargs={min_lr: 1e-6}' actor_train.training_args.warmup_ratio=0.05 2>"$dir/err" |
    grep -qx 'rate     cosine_with_min_lr, learning_rate 1e-05; update 0: 0, update 100: 1e-05, update 1000: 5.87e-06, update 1999: 1e-06' ||
    fail "the plan's rates"
plan 'equal(p["batch"]["log_prob_forwards"], 0)' "$dir/rlvr.yaml" enable_old_logprobs_recompute=false
plan 'equal(p["batch"]["log_prob_forwards"], 4)' "$dir/rlvr.yaml" enable_old_logprobs_recompute=false \
    actor_infer.model_args.dtype=fp32

# the largest micro-batch: its plan fits, the next one does not
size=2MiB
sft 'print(p["largest_per_device_train_batch_size"], file=open("'"$dir"'/most", "w"))
assert p["fits"]' --memory $size
most=$(cat "$dir/most")
batch=sft_train.training_args.per_device_train_batch_size
sft 'assert p["fits"]' --memory $size $batch="$most"
sft 'assert not p["fits"]' --memory $size $batch=$((most + 1))
sft 'equal(p["largest_per_device_train_batch_size"], 0)' --memory 100kB
# and by tokens: from a number of samples to one more; what fits, fits, and a sample more does not
sft 'n = p["batch"]["sequence_length"]; most = p["largest_max_tokens_per_microbatch_in_train"]
assert p["largest_per_device_train_batch_size"] * n <= most < (p["largest_per_device_train_batch_size"] + 1) * n
print(most, most + n // 64 + 1, file=open("'"$dir"'/most", "w"))' --memory $size
read -r most more < "$dir/most"
tokens="sft_train.use_dynamic_batching_in_train=true sft_train.max_tokens_per_microbatch_in_train"
sft 'assert p["fits"]; equal(p["batch"]["micro_batch_tokens"], '$most')' --memory $size $tokens="$most"
sft 'assert not p["fits"]' --memory $size $tokens="$more"

# 70B on 8 ranks, planned in 2 s of one core and 100 MB
python3 - "$CROLL" plan "$dir/sft.yaml" pretrain="$dir/big" sequence_length=4096 --world 8 --memory 80GB --tree \
    > "$dir/out" 2> "$dir/err" <<'PY' || fail "70B"
import resource, subprocess, sys
code = subprocess.call(sys.argv[1:])
r = resource.getrusage(resource.RUSAGE_CHILDREN)
if r.ru_utime + r.ru_stime > 2 or r.ru_maxrss > 100e3: sys.exit(f"{r.ru_utime + r.ru_stime} s, {r.ru_maxrss} kB")
sys.exit(code)
PY
grep -q 'does NOT fit' "$dir/out" || fail "70B fits in 8 x 80 GB: $(cat "$dir/out")"
grep -q '80 x FSDP\[LlamaDecoderLayer\]' "$dir/out" || fail "no tree: $(cat "$dir/out")"
grep -Eq '^    backward +\|M+G+O+U+R+T+S?' "$dir/out" || fail "no timeline: $(cat "$dir/out")"
sft 'assert any("the root keeps" in w for w in r["warnings"]), r["warnings"]' \
    "$config.wrap_policy={wrap_embeddings: false, transformer_layer_cls_to_wrap: [Qwen3Model]}"

# a model of 671 billion parameters: indices pass 2^31 (the shard of 64 ranks; of 1,024 ranks the logits of 32,768 tokens)
mkdir "$dir/moe671"
sed 's/8192,/7168,/; s/28672/18432/; s/128256/129280/; s/: 80,/: 61,/; s/: 64,/: 128,/; s/: 8,/: 16,/; s/Llama/Qwen3Moe/
    s/"llama"/"qwen3_moe", "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "mlp_only_layers": [0, 1, 2]/' \
    "$dir/big/config.json" > "$dir/moe671/config.json"
most='
h, i, v, l, q, k, e, m = 7168, 18432, 129280, 61, 16384, 2048, 256, 2048
most = 2 * v * h + h + l * (2 * q * h + 2 * k * h + 2 * 128 + 2 * h) + 3 * 3 * i * h + (l - 3) * (e * h + e * 3 * m * h)
equal(r["parameters"], most)
largest = r["largest_array"]["elements"]
assert largest > 2 ** 31, largest'
sft "$most; equal(largest, n := r['shard_elements']); near(n, most // 64)" pretrain="$dir/moe671" --world 64
sft "$most; equal((r['largest_array']['operation'], largest), ('head', 32767 * v))" pretrain="$dir/moe671" --world 1024 \
    sequence_length=32768 sft_train.training_args.per_device_train_batch_size=1

# policies from the YAML: the tree's units, and names that match nothing
tree() { # number of units, a line of the tree, then the policy
    "$CROLL" plan "$dir/sft.yaml" --tree "$config.wrap_policy=$3" > "$dir/out" 2> "$dir/err" || fail "$3"
    grep -q "^$1 units on 4 shards: 158240 elements" "$dir/out" || fail "$3: no $1 units: $(cat "$dir/out")"
    grep -qF "$2" "$dir/out" || fail "$3: $(cat "$dir/out")"
}
tree 5 '3 x FSDP[Qwen3DecoderLayer] 3 units from #2' '{}'
tree 7 '(mlp): FSDP[Qwen3MLP] 3 units from #2' '{transformer_layer_cls_to_wrap: [Qwen3Attention, Qwen3MLP], nested: true}'
tree 5 '(norm): FSDP[Qwen3RMSNorm] unit #4' '{modules: [model.layers.*.mlp, model.norm]}'
tree 6 '(lm_head): FSDP[Linear] unit #5' '{min_num_params: 20000}'
tree 12 '3 x FSDP[Qwen3DecoderLayer] 3 units from #2' \
    '{transformer_layer_cls_to_wrap: [Qwen3DecoderLayer], min_num_params: 10000, nested: true}'
mkdir "$dir/moe"
sed 's/Qwen3ForCausalLM/Qwen3MoeForCausalLM/; s/"qwen3"/"qwen3_moe", "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32/' \
    "$dir/tiny/config.json" > "$dir/moe/config.json"
"$CROLL" plan "$dir/sft.yaml" --tree pretrain="$dir/moe" > "$dir/out" 2> "$dir/err" || fail "moe"
grep -qF '(0-5): 6 x Qwen3MoeMLP' "$dir/out" || fail "experts that are alike are not one line: $(cat "$dir/out")"
unpatched="$config.wrap_policy={transformer_layer_cls_to_wrap: [Linear]}"
"$CROLL" plan "$dir/sft.yaml" pretrain="$dir/moe" "$unpatched" > "$dir/out" 2> "$dir/err" || fail "linear"
grep -q 'warning: experts are units.*apply_expert_patch' "$dir/out" || fail "no warning: $(cat "$dir/out")"
"$CROLL" plan "$dir/sft.yaml" pretrain="$dir/moe" "$unpatched" $config.apply_expert_patch=true > "$dir/out" 2> "$dir/err" ||
    fail "linear with the patch"
grep -q 'warning' "$dir/out" && fail "a warning for nothing: $(cat "$dir/out")"
says() { # exit code, a part of the message, then keys
    local code=$1 part=$2
    shift 2
    "$CROLL" plan "$dir/sft.yaml" "$@" > "$dir/out" 2> "$dir/err"
    [ $? = "$code" ] || fail "$*: exit code"
    grep -qF "$part" "$dir/err" || fail "$*: no word of: $part"
}
says 2 'no module has the class Qwen3Layer (there are Qwen3Model' \
    "$config.wrap_policy={transformer_layer_cls_to_wrap: [Qwen3Layer]}"
says 2 'no module has 20000000 elements' "$config.wrap_policy={min_num_params: 20000000}"
says 0 'output_dtype: bf16 is not available: log-probs' $config.output_dtype=bf16
says 0 'buffer_dtype: fp16 is not available' $config.buffer_dtype=fp16
says 0 'cast_forward_inputs has no effect' $config.cast_forward_inputs=false
"$CROLL" config "$dir/sft.yaml" $config.output_dtype=bf16 > "$dir/out" 2> "$dir/err"
[ $? = 2 ] || fail "output_dtype: bf16 is accepted"
"$CROLL" config "$dir/sft.yaml" $config.output_dtype=fp32 $config.buffer_dtype=float32 \
    > "$dir/out" 2> "$dir/err" || fail "output_dtype: fp32"

"$CROLL" plan "$dir/sft.yaml" --memory 80furlongs > "$dir/out" 2> "$dir/err"
[ $? = 2 ] || fail "a size of furlongs is exit 2"
"$CROLL" plan "$dir/sft.yaml" pretrain="$dir/none" > "$dir/out" 2> "$dir/err"
[ $? = 2 ] || fail "no config.json is exit 2"
echo "$number plans"
