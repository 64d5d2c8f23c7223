#!/bin/bash
# C50: what croll export writes, read by a reader of safetensors that shares nothing with croll's: header,
# order and sums of bytes; a tied head is left out, an untied one is there; weights that were read from two
# shards with an index come back bit for bit after a step with learning rate 0, in fp32 and rounded to bf16.
. tests/e2e/run.inc
command -v python3 >/dev/null || { echo "no python3: scripts/setup --check installs it"; exit 1; }
scripts/make_sums $tmp/home
cp -r $tmp/home/model $tmp/home/untied
sed -i 's/"tie_word_embeddings": true/"tie_word_embeddings": false/' $tmp/home/untied/config.json
cat >$tmp/files.py <<'PY'
import json, os, struct, sys

def read(path):
    """name -> (dtype, shape, bytes); every byte of the file belongs to exactly one tensor"""
    data = open(path, "rb").read()
    n = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + n])
    assert (8 + n) % 8 == 0 and header.pop("__metadata__", {}).get("format", "pt") == "pt"
    at, out = 0, {}
    for name, t in sorted(header.items(), key=lambda x: x[1]["data_offsets"]):
        begin, end = t["data_offsets"]
        size = {"F32": 4, "BF16": 2, "F16": 2}[t["dtype"]]
        for d in t["shape"]:
            size *= d
        assert begin == at and end - begin == size, name
        out[name] = (t["dtype"], t["shape"], data[8 + n + begin:8 + n + end])
        at = end
    assert 8 + n + at == len(data), "bytes that belong to nothing"
    return out

def split(folder):
    """model.safetensors into two shards and an index"""
    tensors = read(folder + "/model.safetensors")
    names, index = sorted(tensors), {"metadata": {"total_size": 0}, "weight_map": {}}
    for k in range(2):
        header, data = {}, b""
        for name in names[k::2]:
            dtype, shape, b = tensors[name]
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(b)]}
            data += b
            index["weight_map"][name] = f"model-{k + 1:05d}-of-00002.safetensors"
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        open(f"{folder}/model-{k + 1:05d}-of-00002.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + data)
        index["metadata"]["total_size"] += len(data)
    json.dump(index, open(folder + "/model.safetensors.index.json", "w"))
    os.rename(folder + "/model.safetensors", folder + "/../whole.safetensors")

def rounded(b):
    """float32 to bfloat16, to nearest, ties to even"""
    words = struct.unpack(f"<{len(b) // 4}I", b)
    return struct.pack(f"<{len(words)}H", *((w + 0x7FFF + (w >> 16 & 1)) >> 16 for w in words))

if sys.argv[1] == "split":
    split(sys.argv[2])
else:
    folder, dtype, tied = sys.argv[2:]
    want, have = read(folder + "/../whole.safetensors"), read(sys.argv[1] + "/model.safetensors")
    if tied == "tied":
        want.pop("lm_head.weight", None)
    assert ("lm_head.weight" in have) == (tied == "untied"), "the head"
    assert sorted(want) == sorted(have), set(want) ^ set(have)
    for name, (d, shape, b) in have.items():
        assert d == dtype and shape == want[name][1], name
        assert b == (want[name][2] if d == "F32" else rounded(want[name][2])), name + " has other numbers"
    config = json.load(open(sys.argv[1] + "/config.json"))
    assert config.get("torch_dtype", config.get("dtype")) == {"F32": "float32", "BF16": "bfloat16"}[dtype]
    assert not os.path.exists(sys.argv[1] + "/model.safetensors.index.json"), "an index of other files"
    assert os.path.exists(sys.argv[1] + "/tokenizer.json"), "no tokenizer"
PY
# check MODEL tied|untied DTYPE NAME
check() {
    log=$tmp/$3.log
    "$CROLL" run configs/quickstart/sft.yaml pretrain=$1 output_dir=$tmp/$3.$2 track_with=none max_steps=1 \
        "sft_train.data_args.file_name=[$tmp/home/sft.jsonl]" sft_train.strategy_args.strategy_config.param_dtype=$3 \
        >$log 2>&1 </dev/null || fail "$2 $3: exit code $?"
    "$CROLL" export $tmp/$3.$2/latest $tmp/$3.$2.model >$log || fail "$2 $3: export"
    grep -qx "$tmp/$3.$2.model holds the model of $tmp/$3.$2/latest/sft_train" $log || fail "$2 $3: another sentence"
    python3 $tmp/files.py $tmp/$3.$2.model $1 $4 $2 >$log 2>&1 || fail "$2 $3"
}
for kind in tied untied; do
    model=$tmp/home/model
    [ $kind = tied ] || model=$tmp/home/untied
    "$CROLL" init $model >/dev/null
    mkdir $tmp/$kind && mv $model $tmp/$kind/model
    python3 $tmp/files.py split $tmp/$kind/model
    check $tmp/$kind/model $kind fp32 F32
    check $tmp/$kind/model $kind bf16 BF16
done
# never over something, never from something damaged
"$CROLL" export $tmp/fp32.tied/latest $tmp/fp32.tied.model >$tmp/log 2>&1 && fail "over a folder that is there"
printf 'x' | dd of=$tmp/fp32.tied/latest/sft_train/model.safetensors bs=1 seek=5000 conv=notrunc 2>/dev/null
code=0
"$CROLL" export $tmp/fp32.tied/latest $tmp/damaged >$tmp/log 2>&1 || code=$?
[ $code = 2 ] && grep -q 'model.safetensors is not what' $tmp/log || { log=$tmp/log; fail "a damaged checkpoint: exit code $code"; }
! ls -d $tmp/damaged* 2>/dev/null || fail "a damaged checkpoint left files"
echo ok
