#!/bin/bash
# vl_plan.sh -- croll plan of vision-language checkpoints by stage (C40): what is trained, in which dtype units
# are gathered, bytes of masters and of frozen weights; a stage beside freeze_module_prefix is refused.
# Not covered: images in the planned batch.
set -u
: "${CROLL:?the binary}"
command -v python3 >/dev/null || { echo "no python3: scripts/setup --check installs it"; exit 1; }
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
fail() { echo "FAIL: $*" >&2; exit 1; }

mkdir "$dir/vl"
cat >"$dir/vl/config.json" <<'JSON'
{"architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl", "tie_word_embeddings": true,
 "image_token_id": 90, "video_token_id": 91, "vision_start_token_id": 92,
 "text_config": {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
  "num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-6, "max_position_embeddings": 512,
  "rope_scaling": {"mrope_section": [4, 2, 2]}},
 "vision_config": {"depth": 3, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "patch_size": 4, "out_hidden_size": 64,
  "num_position_embeddings": 36, "deepstack_visual_indexes": [0, 2]}}
JSON
cat >"$dir/sft.yaml" <<YAML
exp_name: plan
pretrain: $dir/vl
output_dir: $dir/out
sequence_length: 64
sft_train:
  model_args: {dtype: bf16}
  training_args: {per_device_train_batch_size: 2, gradient_accumulation_steps: 2}
  data_args: {file_name: [$dir/none.jsonl]}
  device_mapping: list(range(0,2))
  strategy_args: {strategy_name: fsdp2_train, strategy_config: {fsdp_size: 2}}
YAML
cat >"$dir/check.py" <<'PY'
import json, re, sys

# elements of the tower without its projector, of the projector, of a layer, of the rest of the language model
vision = 32 * 3 * 2 * 4 * 4 + 32 + 36 * 32 + 3 * (4 * 32 + 3 * 32 * 32 + 3 * 32 + 32 * 32 + 32 + 2 * 32 * 48 + 48 + 32)
merger = 128 * 128 + 128 + 64 * 128 + 64
projector = 3 * merger + 2 * 32 + 2 * 2 * 128
layer = 64 * 16 * (4 + 2 + 2 + 4) + 3 * 64 * 96 + 2 * 64 + 2 * 16
rest = 512 * 64 + 64 + 2 * layer
stage, plan = sys.argv[1], json.load(open(sys.argv[2]))
role = plan["roles"][0]
parts = {"align": "P", "finetune": "PLl", "full-finetune": "VPLl", "last-layer-finetune": "L", "vla-sandwich-train": "VPL"}[stage]
size = dict(V=vision, P=projector, L=layer, l=rest)
trained = sum(size[p] for p in parts)
bytes_of = dict(V=4, P=4, L=2, l=2) if "V" in parts else dict(V=2, P=2, L=2, l=2)
frozen = sum(size[p] * bytes_of[p] for p in size if p not in parts)
b = role["peak_bytes"]

def near(got, want, what):
    if not want / 2 <= got <= want / 2 + want / 40 + 8192:  # a shard of two, padded
        sys.exit(f"{stage}: {what}: {got}, want about {want // 2}")

if role["trained"] != trained or role["parameters"] != sum(size.values()):
    sys.exit(f"{stage}: {role['trained']} of {role['parameters']} trained, want {trained} of {sum(size.values())}")
near(b["masters"], 4 * trained, "masters")
near(b["moments"], 8 * trained, "moments")
near(b["values"], frozen, "values")
blocks = re.search(r"\(blocks\).*\n *\(0-2\): 3 x FSDP\[Qwen3VLVisionBlock\].* gathered in (\w+)", role["tree"])
layers = re.search(r"\(layers\).*\n *\(0-1\): 2 x FSDP\[Qwen3VLTextDecoderLayer\].* gathered in (\w+)", role["tree"])
layers = layers or re.search(r"\(layers\).*\n *\(0-2\): 3 x FSDP\[Qwen3VLTextDecoderLayer\].* gathered in (\w+)", role["tree"])
want = "fp32" if "V" in parts else "bf16"
if not blocks or blocks[1] != want or not layers or layers[1] != "bf16":
    sys.exit(f"{stage}: blocks of the tower in {want}, layers in bf16:\n{role['tree']}")
if ("FSDP[Qwen3VLVisionModel]" in role["tree"]) != ("V" in parts):
    sys.exit(f"{stage}: the tower as a unit:\n{role['tree']}")
PY
for stage in align finetune full-finetune last-layer-finetune vla-sandwich-train; do
    "$CROLL" plan $dir/sft.yaml --json --tree sft_train.model_args.stage=$stage >$dir/$stage.json 2>$dir/err || fail "$stage: $(cat $dir/err)"
    python3 $dir/check.py $stage $dir/$stage.json || fail "$stage"
done
refused() {
    local want=$1
    shift
    "$CROLL" plan $dir/sft.yaml "$@" >$dir/out 2>&1
    [ $? -eq 2 ] && grep -q "$want" $dir/out || fail "$*: $(cat $dir/out)"
}
refused "stage: freeze_module_prefix says what is frozen, too" sft_train.model_args.stage=align sft_train.model_args.freeze_module_prefix=visual
refused "finetune" sft_train.model_args.stage=fine-tune
echo "ok"
