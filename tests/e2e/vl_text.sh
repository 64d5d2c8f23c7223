#!/bin/bash
# vl_text.sh -- a vision-language checkpoint as a text model: Qwen3-VL with the text weights of a Qwen3 learns
# from text alone, on two ranks, exactly what the Qwen3 learns; the tower, trained as the rest or frozen by
# its name on the hub, keeps its bits; the export has both, and generates the same. Then Qwen3-VL-MoE, whose
# files have the experts of a layer transposed in two tensors, beside a Qwen3-MoE. Needs python3.
# Not covered: images (run_images.sh).
. tests/e2e/run.inc
command -v python3 >/dev/null || { echo "no python3: scripts/setup --check installs it"; exit 1; }
scripts/make_sums $tmp/home
cat >$tmp/vl.py <<'PY'
import array, json, re, sys
sys.path.insert(0, "tests/e2e")
from tensors import read, write

def vl_name(name):
    return name.replace("model.", "model.language_model.", 1) if name.startswith("model.") else name

def transposed(data, rows, cols):
    a = array.array("I", data)
    return b"".join(a[c::cols].tobytes() for c in range(cols))

def stacked(tensors):
    """Experts one by one -> gate_up_proj [E, h, 2 m] and down_proj [E, m, h]."""
    out, layers = {}, {}
    for name, t in tensors.items():
        expert = re.fullmatch(r"(.*mlp\.experts)\.(\d+)\.(\w+)\.weight", name)
        if expert:
            layers.setdefault(expert[1], {})[int(expert[2]), expert[3]] = t
        else:
            out[name] = t
    for at, parts in layers.items():
        num = len(parts) // 3
        m, h = parts[0, "gate_proj"][1]
        both = [parts[e, "gate_proj"][2] + parts[e, "up_proj"][2] for e in range(num)]
        out[at + ".gate_up_proj"] = ("F32", [num, h, 2 * m], b"".join(transposed(d, 2 * m, h) for d in both))
        out[at + ".down_proj"] = ("F32", [num, m, h], b"".join(transposed(parts[e, "down_proj"][2], h, m) for e in range(num)))
    return out

what, text, vl = sys.argv[1:4]
if what == "moe":
    c = json.load(open(text + "/config.json"))
    c.update(model_type="qwen3_moe", architectures=["Qwen3MoeForCausalLM"], num_experts=4, num_experts_per_tok=2,
             moe_intermediate_size=20, norm_topk_prob=True, mlp_only_layers=[0])
    json.dump(c, open(vl + "/config.json", "w"))
elif what == "config":
    c = json.load(open(text + "/config.json"))
    half, v = c["head_dim"] // 2, c["vocab_size"]
    kind = "_moe" if c["model_type"] == "qwen3_moe" else ""
    json.dump({"model_type": "qwen3_vl" + kind, "architectures": [f"Qwen3VL{kind[1:].title()}ForConditionalGeneration"],
               "tie_word_embeddings": c.get("tie_word_embeddings", False), "torch_dtype": c.get("torch_dtype", "float32"),
               "image_token_id": v - 1, "video_token_id": v - 2, "vision_start_token_id": v - 3,
               "text_config": {**c, "rope_scaling": {"mrope_section": [half - 2 * (half // 3), half // 3, half // 3]}},
               "vision_config": dict(depth=2, hidden_size=32, intermediate_size=48, num_heads=2, patch_size=4,
                                     out_hidden_size=c["hidden_size"], num_position_embeddings=16, deepstack_visual_indexes=[0])},
              open(vl + "/config.json", "w"))
elif what == "weights":
    tensors = {k: t for k, t in read(vl).items() if ".visual." in k}
    write(vl, {**tensors, **stacked({vl_name(k): t for k, t in read(text).items()})})
else:  # the text as `text` has it, the tower as `first` had it
    first, a, b = read(sys.argv[4]), read(text), read(vl)
    want = {**{k: t for k, t in first.items() if ".visual." in k}, **stacked({vl_name(k): t for k, t in a.items()})}
    wrong = sorted(k for k in {*want, *b} if want.get(k) != b.get(k))
    sys.exit(f"not the same: {wrong[:3]}" if wrong else 0)
PY
# sft NAME MODEL [key=value ..]: 6 steps, the export in $tmp/NAME.export. Nothing is clipped: sums of other units
# would give a norm that differs in its last digit.
sft() {
    local name=$1 model=$2
    shift 2
    log=$tmp/$name.log
    "$CROLL" run configs/quickstart/sft.yaml pretrain=$model output_dir=$tmp/$name track_with=none max_steps=6 max_grad_norm=1000 \
        "sft_train.data_args.file_name=[$tmp/home/sft.jsonl]" "$@" >$log 2>&1 </dev/null || fail "$name: exit code $?"
    "$CROLL" export $tmp/$name/latest $tmp/$name.export >/dev/null
}
losses() { values "[a-z_]*/loss" $tmp/$1/metrics.jsonl; }

answer() {
    "$CROLL" generate $tmp/$1.export --prompt 'What is 3 + 4?' --temperature 0 --max-new-tokens 8 --json |
        sed 's/.*"output_ids"/"output_ids"/; s/"finish.*//'
}

# both KIND: the text model is $tmp/KIND
both() {
    local kind=$1 name
    cp -r $tmp/$kind $tmp/$kind.model
    "$CROLL" init $tmp/$kind.model >/dev/null
    cp -r $tmp/$kind $tmp/$kind.vl
    python3 $tmp/vl.py config $tmp/$kind.model $tmp/$kind.vl
    "$CROLL" init $tmp/$kind.vl >/dev/null
    python3 $tmp/vl.py weights $tmp/$kind.model $tmp/$kind.vl
    sft $kind-text $tmp/$kind.model
    sft $kind-vl $tmp/$kind.vl
    sft $kind-frozen $tmp/$kind.vl sft_train.model_args.freeze_module_prefix=visual
    for name in $kind-vl $kind-frozen; do
        [ -n "$(losses $kind-text)" ] && [ "$(losses $kind-text)" = "$(losses $name)" ] ||
            fail "$name: $(losses $name) instead of $(losses $kind-text)"
        python3 $tmp/vl.py same $tmp/$kind-text.export $tmp/$name.export $tmp/$kind.vl || fail "$name: the export"
    done
    [ -n "$(answer $kind-text)" ] && [ "$(answer $kind-text)" = "$(answer $kind-vl)" ] ||
        fail "$(answer $kind-vl) instead of $(answer $kind-text)"
}

cp -r $tmp/home/model $tmp/dense
cp -r $tmp/home/model $tmp/experts
python3 $tmp/vl.py moe $tmp/dense $tmp/experts
both dense
both experts
grep -q 'Qwen3VLVisionBlock' < <("$CROLL" plan configs/quickstart/sft.yaml pretrain=$tmp/dense.vl --tree) ||
    fail "no vision blocks in the plan's tree"

# RLVR in bf16 with a trained tower, which is float32 in every role: what was sampled is what is trained on
job rlvr pretrain=$tmp/dense-vl.export max_steps=2 validation=null \
    actor_train.model_args.dtype=bf16 actor_infer.model_args.dtype=bf16 \
    actor_train.strategy_args.strategy_config.param_dtype=bf16 actor_infer.strategy_args.strategy_config.param_dtype=bf16
[ $code -eq 0 ] || fail "rlvr: exit code $code"
[ "$(values actor/train_infer_diff_max $tmp/rlvr/metrics.jsonl | tr '\n' ' ')" = "0 0 " ] || fail "log-probs differ"
"$CROLL" export $tmp/rlvr/latest $tmp/rlvr.export >/dev/null
python3 - $tmp/rlvr.export <<'PY' || fail "dtypes of the export"
import sys
sys.path.insert(0, "tests/e2e")
from tensors import read

wrong = [k for k, t in read(sys.argv[1]).items() if t[0] != ("F32" if ".visual." in k else "BF16")]
sys.exit(f"wrong: {wrong[:3]}" if wrong else 0)
PY
echo "ok"
