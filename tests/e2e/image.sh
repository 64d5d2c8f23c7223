#!/bin/bash
# croll image: a line for each file, also for a bad one; sizes, grids and values with a model's processor; options that are refused.
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
refused() { # WHAT, options ..
    local what=$1
    shift
    if "$CROLL" image "$@" >$tmp/out 2>$tmp/log; then fail "$*: taken"; fi
    grep -q -e "$what" $tmp/log || fail "$*: $(cat $tmp/log)"
}
refused 'give a FILE'
refused 'without --model nothing is resized' $files/png_rgb.png --resize pil
refused 'pil or torchvision' $files/png_rgb.png --model $tmp/model --resize bicubic
refused 'give 1 to' $files/png_rgb.png --model $tmp/model --min-pixels 2000
refused 'cannot open' $files/png_rgb.png --model $tmp
refused 'from 1 to' $files/png_rgb.png --limit 0
"$CROLL" image $files/png_rgb.png --limit 269 >$tmp/out 2>$tmp/log && fail "a limit that is too small"
grep -q '9 x 30 pixels, more than the 269' $tmp/out || fail "$(cat $tmp/out)"
