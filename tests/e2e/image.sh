#!/bin/bash
# croll image: a line for each file, also for a bad one; sizes, grids and values with a model's processor; options that are refused.
# croll tokenize: chats with images: their placeholders, and what is refused.
. tests/e2e/run.inc
mkdir $tmp/model
files=tests/parity/images
python3 - $tmp/model $files <<'PY'
import json, sys
model = json.load(open(sys.argv[2] + "/images.json"))["models"]["small"]
json.dump({"image_processor": model}, open(sys.argv[1] + "/processor_config.json", "w"))
PY
head -c 300 $files/png_rgb.png >$tmp/cut.png
code=0
"$CROLL" image $files/*.[jpw]* $tmp/cut.png $tmp/none >$tmp/said 2>$tmp/log || code=$?
[ $code = 2 ] || fail "bad files: exit code $code"
grep -q 'some files were bad' $tmp/log || fail "$(cat $tmp/log)"
for form in pil torchvision; do
    "$CROLL" image $files/*.[jpw]*g $files/*.webp --model $tmp/model --resize $form --values $tmp/values.$form >$tmp/said.$form || fail "exit code $?"
done
python3 - $tmp $files <<'PY' || fail "what it said"
import hashlib, json, sys
tmp, files = sys.argv[1:]
cases = {f"{files}/{c['file']}": c for c in json.load(open(f"{files}/images.json"))["cases"]}
lines = [json.loads(line) for line in open(f"{tmp}/said")]
bad = {line["file"]: line["error"] for line in lines if "error" in line and line["file"] not in (f"{files}/images.json",)}
assert list(bad) == [f"{tmp}/cut.png", f"{tmp}/none"], bad
assert "PNG: the file is cut off" in bad[f"{tmp}/cut.png"] and "cannot open" in bad[f"{tmp}/none"], bad
for form in ("pil", "torchvision"):
    values, num = open(f"{tmp}/values.{form}", "rb"), 0
    for line in map(json.loads, open(f"{tmp}/said.{form}")):
        case = cases[line["file"]]
        want = next(p for p in case["processed"] if p["model"] == "small" and p["form"] == form)
        t, h, w = line["grid"]
        assert (line["width"], line["height"], line["grid"], line["resize"]) == (case["width"], case["height"], want["grid"], form), line
        assert line["tokens"] == t * h * w // 4 and (line["to_width"], line["to_height"]) == (2 * w, 2 * h), line
        assert hashlib.sha256(values.read(4 * t * h * w * line["patch_dim"])).hexdigest() == want["values"], line
        num += 1
    assert num == len(cases) and not values.read(), num
PY
"$CROLL" image $files/*.[jpw]*g $files/*.webp --alpha white --values $tmp/values.white >$tmp/said.white || fail "exit code $?"
python3 - $tmp $files <<'PY' || fail "over white"
import hashlib, json, sys
tmp, files = sys.argv[1:]
cases = {f"{files}/{c['file']}": c for c in json.load(open(f"{files}/images.json"))["cases"]}
values, num = open(f"{tmp}/values.white", "rb"), 0
for line in map(json.loads, open(f"{tmp}/said.white")):
    case = cases[line["file"]]
    assert hashlib.sha256(values.read(3 * line["width"] * line["height"])).hexdigest() == case["white"], line
    num += case["white"] != case["pixels"]
assert num >= 7 and not values.read(), num
PY
refused() { # WHAT, options ..
    local what=$1
    shift
    if "$CROLL" image "$@" >$tmp/out 2>$tmp/log; then fail "$*: taken"; fi
    grep -q -e "$what" $tmp/log || fail "$*: $(cat $tmp/log)"
}
refused 'give a FILE'
refused 'without --model nothing is resized' $files/png_rgb.png --resize pil
refused 'pil or torchvision' $files/png_rgb.png --model $tmp/model --resize bicubic
refused 'images have at least 2000 pixels' $files/png_rgb.png --model $tmp/model --min-pixels 2000
refused 'cannot open' $files/png_rgb.png --model $tmp
refused 'drop or white, not black' $files/png_rgb.png --alpha black
refused 'from 1 to' $files/png_rgb.png --limit 0
"$CROLL" image $files/png_rgb.png --limit 269 >$tmp/out 2>$tmp/log && fail "a limit that is too small"
grep -q '9 x 30 pixels, more than the 269' $tmp/out || fail "$(cat $tmp/out)"

# chats: each placeholder as often as its image has tokens
scripts/make_sums $tmp/sums >/dev/null
mv $tmp/sums/model $tmp/words
cp $tmp/model/processor_config.json $tmp/words
cat >$tmp/words/chat_template.jinja <<'END'
{% for m in messages %}{{ m.role }}:{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{% if p.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %};{% endfor %}
END
python3 - $files >$tmp/chats <<'PY'
import base64, json, sys
data = base64.b64encode(open(sys.argv[1] + "/webp_lossy.webp", "rb").read()).decode()
image = lambda value: dict(type="image", image=value)
for id, parts in dict(one=[image("png_rgb.png"), dict(type="text", text="a")], two=[dict(type="text", text="b"), image("png_rgb.png"),
        dict(type="image_url", image_url=dict(url="data:image/webp;base64," + data))], missing=[image("none.png")], text="only text",
        outside=[image("../parquet_files.py")], none=[dict(type="text", text="<|image_pad|>")]).items():
    print(json.dumps(dict(id=id, messages=[dict(role="user", content=parts)])))
PY
"$CROLL" tokenize $tmp/words --text --image-folder $files <$tmp/chats >$tmp/ids 2>$tmp/log && fail "bad lines"
python3 - $tmp/ids $files <<'PY' || fail "$(cat $tmp/ids)"
import hashlib, json, sys
lines = {line["id"]: line for line in map(json.loads, open(sys.argv[1]))}
cases = {c["file"]: c for c in json.load(open(sys.argv[2] + "/images.json"))["cases"]}
def check(id, text, *names):
    line = lines[id]
    parts = text.split("@")
    for image, name in zip(line.get("images", []), names, strict=True):
        want = next(p["grid"] for p in cases[name]["processed"] if p["model"] == "small")
        assert image["grid"] == want and image["tokens"] == want[1] * want[2] // 4, line
        assert image["sha256"] == hashlib.sha256(open(f"{sys.argv[2]}/{name}", "rb").read()).hexdigest(), line
        parts[0] += "<|vision_start|>" + "<|image_pad|>" * image["tokens"] + "<|vision_end|>" + parts.pop(1)
    assert line["text"] == parts[0], line
check("one", "user:@a;", "png_rgb.png")
check("two", "user:b@@;", "png_rgb.png", "webp_lossy.webp")
check("text", "user:only text;")
for id, why in dict(missing="message 1, image 1: none.png: No such file", outside="it leads out of image_folder", none="has 1 placeholders").items():
    assert why in lines[id]["error"], lines[id]
PY
head -n 1 $tmp/chats | "$CROLL" tokenize $tmp/words >$tmp/ids 2>$tmp/log && fail "a path without a folder"
grep -q 'there is no image_folder' $tmp/ids || fail "$(cat $tmp/ids)"
