#!/bin/bash
# croll generate of chats with 0 to 3 images, with videos, and with both, on tiny Qwen2.5-VL, Qwen3-VL and Qwen3-VL-MoE with random weights: greedy answers are those of
# Transformers in float64 (made by tests/parity/logprobs_images.py); three samples a line have the same text for a line alone, among others, few
# samples at a time, on two ranks; lines that do not fit are answered in place.
. tests/e2e/run.inc
mkdir $tmp/models
log=$tmp/log
python3 tests/parity/logprobs_images.py --make $tmp/models || fail "the models"
ask() { local model=$1; shift; "$CROLL" generate $tmp/models/$model model_args.dtype=fp32 --image-folder tests/parity/images --max-new-tokens 16 --json "$@" 2>$log; }
for model in qwen2_5_vl qwen3_vl qwen3_vl_moe; do
    "$CROLL" init $tmp/models/$model --seed 5 >$log || fail "init"
    python3 - $model >$tmp/requests <<'PY'
import json, sys
for i, line in enumerate(map(json.loads, open("tests/parity/logprobs_images.json"))):
    if line["model"] == sys.argv[1] and "request" in line:
        print(json.dumps(dict(line["request"], id=i)))
PY
    ask $model --temperature 0 <$tmp/requests >$tmp/answers || fail "$model: exit code $?: $(cat $log)"
    python3 - $model $tmp/answers <<'PY' || fail "$model: greedy answers"
import json, sys
wanted = [line for line in map(json.loads, open("tests/parity/logprobs_images.json")) if line["model"] == sys.argv[1] and "request" in line]
answers = list(map(json.loads, open(sys.argv[2])))
assert len(answers) == len(wanted) == 8, answers
for got, want in zip(answers, wanted):
    assert got["prompt_ids"] == want["input_ids"], got
    assert got["output_ids"] == want["greedy"], (got, want["greedy"])
PY
    ask $model --n 3 <$tmp/requests >$tmp/answers || fail "$model: three samples"
    [ "$(wc -l <$tmp/answers)" = 24 ] || fail "$model: $(wc -l <$tmp/answers) samples"
    while read -r line; do ask $model --n 3 <<<"$line" || fail "a line alone"; done <$tmp/requests | cmp - $tmp/answers || fail "$model: a line alone"
    ask $model --n 3 infer_batch_size=2 <$tmp/requests | cmp - $tmp/answers || fail "$model: two at a time"
    ask $model --n 3 infer_batch_size=2 'device_mapping=[0,1]' <$tmp/requests | cmp - $tmp/answers || fail "$model: two ranks"
done

# another image is another answer; a file and its bytes in a data URI are the same
chat() { echo "{\"id\":1,\"messages\":[{\"role\":\"user\",\"content\":[$1]}]}"; }
ask qwen3_vl <<<"$(chat '{"type":"image","image":"png_rgb.png"}')" >$tmp/a
ask qwen3_vl <<<"$(chat '{"type":"image","image":"png_gray.png"}')" >$tmp/b
ask qwen3_vl <<<"$(chat "{\"type\":\"image_url\",\"image_url\":{\"url\":\"data:image/png;base64,$(base64 -w0 tests/parity/images/png_rgb.png)\"}}")" >$tmp/c
cmp -s $tmp/a $tmp/b && fail "two images with one answer: $(cat $tmp/a)"
cmp $tmp/a $tmp/c || fail "a data URI"

# what does not fit
bad() { # WHAT, a line
    ask qwen3_vl <<<"$2" >$tmp/answers && fail "$2: taken"
    grep -q -e "$1" $tmp/answers || fail "$2: $(cat $tmp/answers $log)"
}
bad 'message 1, image 1: none.png: No such file' "$(chat '{"type":"image","image":"none.png"}')"
bad 'has 2 placeholders' "$(chat '{"type":"image","image":"png_rgb.png"},{"type":"text","text":"<|image_pad|>"}')"
"$CROLL" generate $tmp/models/qwen3_vl --max-new-tokens 4 --json <<<"$(chat '{"type":"image","image":"png_rgb.png"}')" >$tmp/answers 2>$log && fail "a path without a folder"
grep -q 'image 1' $tmp/answers || fail "a path without a folder: $(cat $tmp/answers)"
sed -i 's/"patch_size": 4/"patch_size": 2/' $tmp/models/qwen3_vl/preprocessor_config.json
bad 'its processor is another' "$(chat '{"type":"image","image":"png_rgb.png"}')"
echo '{"id":1,"input_ids":[1,2,3]}' | ask qwen3_vl >$tmp/answers || fail "ids: $(cat $tmp/answers)"
