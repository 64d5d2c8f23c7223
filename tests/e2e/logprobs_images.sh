#!/bin/bash
# also on far
# croll logprobs of chats with 0 to 3 images, with videos, and with both, on tiny Qwen2.5-VL, Qwen3-VL and Qwen3-VL-MoE with random weights: numbers of Transformers in float64
# (made by tests/parity/logprobs_images.py); a line alone, among others, on two ranks has the same text, also where only one of them has
# images; chats that do not fit are answered in place. croll grad of the same chats, on one rank and on two: loss, and of every parameter but
# experts the norm and a projection of its gradient.
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
    if line["model"] == sys.argv[1] and "request" in line:
        print(json.dumps(line["request"]))
PY
    ask $model <$tmp/requests >$tmp/answers || fail "$model: exit code $?"
    python3 - $model $tmp/answers <<'PY' || fail "$model: numbers"
import json, sys
wanted = [line for line in map(json.loads, open("tests/parity/logprobs_images.json")) if line["model"] == sys.argv[1] and "request" in line]
answers = list(map(json.loads, open(sys.argv[2])))
assert len(answers) == len(wanted) == 8, answers
for got, want in zip(answers, wanted):
    assert got["input_ids"] == want["input_ids"], got
    off = max(abs(a - b) for a, b in zip(got["logprobs"], want["logprobs"], strict=True))
    assert off <= 2e-5, (want["request"]["id"], off)
PY
    while read -r line; do ask $model <<<"$line" || fail "a line alone"; done <$tmp/requests | cmp - $tmp/answers || fail "$model: a line alone"
    for ranks in 0 0,1; do
        "$CROLL" grad $tmp/models/$model --out $tmp/grad.$ranks --image-folder tests/parity/images model_args.dtype=fp32 "device_mapping=[$ranks]" \
            <$tmp/requests >$tmp/loss.$ranks 2>$log || fail "$model: grad on ranks $ranks"
        python3 - $model $tmp/loss.$ranks $tmp/grad.$ranks <<'PY' || fail "$model: gradient on ranks $ranks"
import array, json, math, struct, sys
model, said, path = sys.argv[1:]
want = next(line for line in map(json.loads, open("tests/parity/logprobs_images.json")) if line["model"] == model and "grads" in line)
said = json.load(open(said))
assert said["tokens"] == want["tokens"] and abs(said["loss"] - want["loss"]) < 1e-5, (said, want["loss"])
data = open(path, "rb").read()
begin = 8 + struct.unpack("<Q", data[:8])[0]
header = json.loads(data[8:begin])
scale = math.sqrt(sum(norm ** 2 for norm, _ in want["grads"].values()))
for name, (norm, projection) in want["grads"].items():
    if model == "qwen2_5_vl":
        name = name.replace("model.visual.", "visual.").replace("model.language_model.", "model.")
    first, end = header[name]["data_offsets"]
    grad = array.array("f", data[begin + first:begin + end])
    got = math.sqrt(sum(x * x for x in grad)), sum(x * (i % 7 - 3) for i, x in enumerate(grad))
    assert abs(got[0] - norm) < 2e-5 * (norm + 0.01 * scale) and abs(got[1] - projection) < 2e-4 * (norm + 0.01 * scale), (name, got, norm, projection)
PY
    done
    ask $model infer_batch_size=2 'device_mapping=[0,1]' <$tmp/requests | cmp - $tmp/answers || fail "$model: two ranks"
done

# alpha over white: other numbers for an image that has some, and for no other
chat() { echo "{\"id\":1,\"messages\":[{\"role\":\"user\",\"content\":[$1]}]}"; }
for image in png_rgba png_rgb; do
    for alpha in drop white; do chat '{"type":"image","image":"'$image'.png"}' | ask qwen3_vl --image-alpha $alpha >$tmp/$image.$alpha || fail "$image over $alpha"; done
done
cmp -s $tmp/png_rgba.drop $tmp/png_rgba.white && fail "--image-alpha has no effect"
cmp $tmp/png_rgb.drop $tmp/png_rgb.white || fail "--image-alpha without alpha"
chat '{"type":"text","text":"a"}' | ask qwen3_vl --image-alpha black >$tmp/answers && fail "an alpha that is not known"
grep -q 'drop or white, not black' $log || fail "$(cat $log)"

# what does not fit
bad() { # WHAT, a line, options ..
    local what=$1 line=$2
    shift 2
    ask qwen3_vl "$@" <<<"$line" >$tmp/answers && fail "$line: taken"
    grep -q -e "$what" $tmp/answers || fail "$line: $(cat $tmp/answers $log)"
}
bad 'message 1, image 1: none.png: No such file' "$(chat '{"type":"image","image":"none.png"}')"
bad 'message 1, video 1: frame 2: it has 9 x 30 pixels' "$(chat '{"type":"video","video":["png_gray.png","png_rgb.png"]}')"
bad 'a video of 1 frame' "$(chat '{"type":"video","video":["png_gray.png"]}')"
bad 'a video is a list of frames' "$(chat '{"type":"video","video":"clip.mp4"}')"
bad 'a video without frames' "$(chat '{"type":"video","video":[]}')"
bad 'with its 10000 frames the chat has more than 1024' "$(chat "{\"type\":\"video\",\"video\":[$(yes '"png_gray.png",' | head -n 9999 | tr -d '\n')\"png_gray.png\"]}")"
bad 'has 2 placeholders' "$(chat '{"type":"image","image":"png_rgb.png"},{"type":"text","text":"<|image_pad|>"}')"
bad 'not available yet with --logits' "$(chat '{"type":"image","image":"png_rgb.png"}')" --logits $tmp/logits
sed -i.bak 's/"min_pixels": 1024, "max_pixels": 4096/"min_pixels": 8000000, "max_pixels": 16000000/' $tmp/models/qwen3_vl/preprocessor_config.json
bad 'more than 32768 tokens' "$(chat '{"type":"image","image":"png_rgb.png"}')"
mv $tmp/models/qwen3_vl/preprocessor_config.json.bak $tmp/models/qwen3_vl/preprocessor_config.json
sed -i 's/"patch_size": 4/"patch_size": 2/' $tmp/models/qwen3_vl/preprocessor_config.json
bad 'its processor is another' "$(chat '{"type":"image","image":"png_rgb.png"}')"
echo '{"id":1,"input_ids":[1,2,3]}' | ask qwen3_vl >$tmp/answers || fail "ids: $(cat $tmp/answers)"
