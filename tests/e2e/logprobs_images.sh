#!/bin/bash
# also on far
# croll logprobs of chats with 0 to 3 images, on tiny Qwen2.5-VL, Qwen3-VL and Qwen3-VL-MoE with random weights: numbers of Transformers in float64
# (made by tests/parity/logprobs_images.py); a line alone, among others, on two ranks has the same text, also where only one of them has
# images; chats that do not fit are answered in place.
. tests/e2e/run.inc
mkdir $tmp/models
log=$tmp/log
python3 tests/parity/logprobs_images.py --make $tmp/models || fail "the models"
ask() { local model=$1; shift; "$CROLL" logprobs $tmp/models/$model model_args.dtype=fp32 --image-folder tests/parity/images "$@" 2>$log; }
for model in qwen2_5_vl qwen3_vl qwen3_vl_moe; do
    "$CROLL" init $tmp/models/$model --seed 5 >$log || fail "init"
    python3 - $model >$tmp/requests <<'PY'
import json, sys
for line in map(json.loads, open("tests/parity/logprobs_images.json")):
    if line["model"] == sys.argv[1]:
        print(json.dumps(line["request"]))
PY
    ask $model <$tmp/requests >$tmp/answers || fail "$model: exit code $?"
    python3 - $model $tmp/answers <<'PY' || fail "$model: numbers"
import json, sys
wanted = [line for line in map(json.loads, open("tests/parity/logprobs_images.json")) if line["model"] == sys.argv[1]]
answers = list(map(json.loads, open(sys.argv[2])))
assert len(answers) == len(wanted) == 5, answers
for got, want in zip(answers, wanted):
    assert got["input_ids"] == want["input_ids"], got
    off = max(abs(a - b) for a, b in zip(got["logprobs"], want["logprobs"], strict=True))
    assert off <= 2e-5, (want["request"]["id"], off)
PY
    while read -r line; do ask $model <<<"$line" || fail "a line alone"; done <$tmp/requests | cmp - $tmp/answers || fail "$model: a line alone"
    ask $model infer_batch_size=2 'device_mapping=[0,1]' <$tmp/requests | cmp - $tmp/answers || fail "$model: two ranks"
done

# what does not fit
chat() { echo "{\"id\":1,\"messages\":[{\"role\":\"user\",\"content\":[$1]}]}"; }
bad() { # WHAT, a line, options ..
    local what=$1 line=$2
    shift 2
    ask qwen3_vl "$@" <<<"$line" >$tmp/answers && fail "$line: taken"
    grep -q -e "$what" $tmp/answers || fail "$line: $(cat $tmp/answers $log)"
}
bad 'message 1, image 1: none.png: No such file' "$(chat '{"type":"image","image":"none.png"}')"
bad 'has 2 placeholders' "$(chat '{"type":"image","image":"png_rgb.png"},{"type":"text","text":"<|image_pad|>"}')"
bad 'not available yet with --logits' "$(chat '{"type":"image","image":"png_rgb.png"}')" --logits $tmp/logits
sed -i.bak 's/"min_pixels": 1024, "max_pixels": 4096/"min_pixels": 8000000, "max_pixels": 16000000/' $tmp/models/qwen3_vl/preprocessor_config.json
bad 'more than 32768 tokens' "$(chat '{"type":"image","image":"png_rgb.png"}')"
mv $tmp/models/qwen3_vl/preprocessor_config.json.bak $tmp/models/qwen3_vl/preprocessor_config.json
sed -i 's/"patch_size": 4/"patch_size": 2/' $tmp/models/qwen3_vl/preprocessor_config.json
bad 'its processor is another' "$(chat '{"type":"image","image":"png_rgb.png"}')"
echo '{"id":1,"input_ids":[1,2,3]}' | ask qwen3_vl >$tmp/answers || fail "ids: $(cat $tmp/answers)"
