#!/bin/bash
# roll_examples.sh EXAMPLES -- croll plan takes ROLL's own example files for text models as they are, without their
# models: EXAMPLES is the folder `examples` of a ROLL checkout; CROLL the binary (build/release/croll).
# The plan is printed, what croll does not have is named, so is what ROLL itself ignores. Numbers of parameters are
# those that the models publish. Files about images, and one with a judge whose model is not here, end with an error.
# tests/e2e/plan_roll.sh does the same with files of our own.
set -u
CROLL=${CROLL:-build/release/croll}
[ $# = 1 ] && [ -d "$1" ] || { sed -n '2,3p' "$0"; exit 2; }
data=$1
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
fail() { echo "FAILED: $*"; tail -n 5 "$dir/err"; exit 1; }

# plan FILE ABSENT IGNORED PARAMETERS N..: for each number of devices
plan() {
    local file=$1 absent=$2 ignored=$3 parameters=$4 n
    shift 4
    for n in "$@"; do
        "$CROLL" plan $data/$file --world $n --json >"$dir/plan" 2>"$dir/err" </dev/null || fail "$file on $n: exit code $?"
        python3 - "$dir/plan" "$absent" "$parameters" 2>>"$dir/err" <<'PY' || fail "$file on $n"
import json, re, sys
p = json.load(open(sys.argv[1]))
absent, parameters = sys.argv[2:]
assert p["roles"] and p["roles"][0]["parameters"] == int(parameters), p["roles"][0]["parameters"]
assert p["device_peak_bytes"] > 0
for want in absent.split("|") if absent else []:
    assert any(want in x for x in p["not_available"]), (want, p["not_available"])
if not absent:
    assert not p["not_available"], p["not_available"]
PY
        [ -z "$ignored" ] || grep -q "note: .*\b$ignored\b.* no effect (ROLL ignores it, too)" "$dir/err" || fail "$file: $ignored is not named"
    done
}
q7=7615616512 q8=8190735360 a3=30532122624
plan qwen3-8B-rlvr_fsdp2/rlvr_config.yaml "" interleave_probs $q8 8 16 64
plan qwen3-8B-rlvr_fsdp2/rlvr_config_wo_cpuoffload.yaml "" interleave_probs $q8 16
plan qwen2.5-7B-rlvr_megatron/rlvr_fsdp2_sp2.yaml "" interleave_probs $q7 8 32
plan ascend_examples/qwen3_8b_rlvr_fsdp2.yaml "" pg_variant $q8 8 16
plan ascend_examples/qwen3_30b_rlvr_fsdp2.yaml "" use_remove_padding $a3 16
plan qwen3-30BA3B-rlvr_fsdp2/rlvr_config.yaml "" use_remove_padding $a3 16 32
plan qwen3-30BA3B-rlvr_fsdp2/rlvr_config_ep.yaml "" use_remove_padding $a3 32
plan qwen3-30BA3B-sft_fsdp2/sft_config.yaml "" "" $a3 16
plan qwen3-30BA3B-sft_fsdp2/sft_config_ep.yaml "" "" $a3 32
plan docs_examples/example_ppo.yaml "" interleave_probs $q7 16
plan qwen3-30BA3B-agentic_fsdp2/agentic_val_sokoban_30a3.yaml "train_env_manager" val_batch_size $a3 16
plan qwen2.5-7B-agentic_megatron/agentic_val_webshop_amd.yaml "train_env_manager" val_batch_size $q7 16

for file in qwen2.5-vl-7B-distill/distill_vl_fsdp2.yaml qwen2_5-vl-3B-rlvr_fsdp2/rlvr_fsdp2_offload.yaml \
    qwen3.5-35BA3-sft_fsdp2/sft_config.yaml qwen3.5-35BA3-sft_fsdp2/sft_config_ep.yaml qwen2.5-7B-rlvr_megatron/rlvr_lora_fsdp2.yaml; do
    code=0
    "$CROLL" plan $data/$file --world 8 >"$dir/plan" 2>"$dir/err" </dev/null || code=$?
    [ $code = 2 ] && [ ! -s "$dir/plan" ] || fail "$file: exit code $code"
    grep -Eq "not available|is not a folder|there is no folder" "$dir/err" || fail "$file: no sentence"
done
file=qwen2.5-7B-rlvr_megatron/rlvr_lora_fsdp2.yaml # LoRA: with a judge of a known model; the reference has no ranks
"$CROLL" plan $data/$file rewards.llm_judge.model_args.model_name_or_path=Qwen/Qwen2.5-7B >"$dir/plan" 2>"$dir/err" </dev/null || fail "$file: exit code $?"
grep -q "adapters of 112 modules in 224 tensors, the reference with them off" "$dir/plan" && ! grep -q "^reference " "$dir/plan" || fail "$file: the plan"
echo ok
