#!/bin/bash
# `croll run` of rlvr on pictures (scripts/make_pictures), rows with and without mixed, on two ranks: the score rises from chance, log-probs of generation
# and training are the same bits at every step, in bfloat16 too; killed and resumed exactly; `croll eval` has the answers of the validation at step 0; run.html has the pictures of its samples,
# whose names are text and nothing else, and croll report writes it again; a file with the keys of ROLL's vision-language run (tests/roll)
# on Parquet rows of its form, scaled down: every tag is scored by its rule. With ROLL_EXAMPLES=FOLDER (`examples` of a checkout) ROLL's own file. Needs python3.
# Not covered: the whole way to 0.9 and its seeds (docs/vision.md).
. tests/e2e/run.inc
command -v python3 >/dev/null || { echo "no python3: scripts/setup --check installs it"; exit 1; }
scripts/make_pictures $tmp/home
"$CROLL" init $tmp/home/model >/dev/null
# taught NAME ROWS STEPS: the model after sft on these rows, in $tmp/home/NAME
taught() {
    log=$tmp/$1.log
    "$CROLL" run configs/quickstart/sft.yaml pretrain=$tmp/home/model output_dir=$tmp/$1 track_with=none sequence_length=160 max_steps=$3 \
        "sft_train.data_args={file_name: [$tmp/home/$2], messages: messages, image_folder: $tmp/home/pictures}" \
        sft_train.training_args.num_train_epochs=40 sft_train.training_args.per_device_train_batch_size=4 \
        sft_train.training_args.gradient_accumulation_steps=4 logging_steps=1000 >$log 2>&1 </dev/null || fail "sft: exit code $?"
    "$CROLL" export $tmp/$1/latest $tmp/home/$1 >/dev/null
}
taught warm warm.jsonl 60 # the form of an answer, and nothing of its picture
python3 - $tmp/home <<'PY'
import json, os, sys
rows = list(map(json.loads, open(sys.argv[1] + "/train.jsonl")))
for i in range(0, len(rows), 4): # every fourth a sum without a picture
    rows[i].pop("images")
    rows[i]["messages"] = [dict(role="user", content=f"{int(rows[i]['ground_truth']) - 1}+1=")]
for row in rows: # names that a page must not take for its own
    for i, name in enumerate(row.get("images", [])):
        row["images"][i] = f'"><script>alert("{name}")'
        os.link(f"{sys.argv[1]}/pictures/{name}", f"{sys.argv[1]}/pictures/{row['images'][i]}")
open(sys.argv[1] + "/mixed.jsonl", "w").write("".join(json.dumps(r) + "\n" for r in rows))
PY

# rlvr NAME [key=value ..]
rlvr() {
    local name=$1
    shift
    words=("$CROLL" run configs/quickstart/rlvr.yaml pretrain=$tmp/home/warm output_dir=$tmp/$name track_with=none prompt_length=100 response_length=12
        "actor_train.data_args={template: native, messages: messages, image_folder: $tmp/home/pictures, file_name: [$tmp/home/mixed.jsonl], domain_interleave_probs: {math_rule: 1.0}}"
        "validation.data_args={file_name: [$tmp/home/val.jsonl], image_folder: $tmp/home/pictures}" "rewards.math_rule.tag_included=[colour]"
        rollout_batch_size=16 num_return_sequences_in_group=8 actor_train.training_args.per_device_train_batch_size=32
        actor_train.training_args.gradient_accumulation_steps=2 actor_train.training_args.lr_scheduler_type=constant actor_train.infer_batch_size=16 logging_steps=1000 eval_steps=1000 "$@")
    log=$tmp/$name.log code=0
    "${words[@]}" >$log 2>&1 </dev/null || code=$?
}
exact() { # RUN N: all N steps
    [ "$(values actor/train_infer_diff_max $tmp/$1/metrics.jsonl | sort -u)" = 0 ] || fail "$1: generation and training differ"
    [ "$(values actor/train_infer_diff_max $tmp/$1/metrics.jsonl | wc -l)" = $2 ] || fail "$1: steps"
}

rlvr learns max_steps=80
[ $code = 0 ] || fail "learns: exit code $code"
exact learns 80
values critic/score/mean $tmp/learns/metrics.jsonl | awk 'NR <= 5 { first += $1 / 5 } { last[NR % 10] = $1 }
    END { for (i in last) end += last[i] / 10; print first, end; exit !(first < 0.4 && end > first + 0.25) }' || fail "learns"
# `croll eval` before it: the validation of step 0; bytes in rows are what paths are
python3 - $tmp/home <<'PY'
import base64, json, sys
with open(sys.argv[1] + "/val.bytes.jsonl", "w") as out:
    for row in map(json.loads, open(sys.argv[1] + "/val.jsonl")):
        row["images"] = [dict(bytes=base64.b64encode(open(f"{sys.argv[1]}/pictures/{row['images'][0]}", "rb").read()).decode(), path=None)]
        print(json.dumps(row), file=out)
PY
evaluate() { # NAME [OPTION ..]: of the file of the run before it
    local name=$1
    shift
    log=$tmp/$name.log code=0
    "$CROLL" eval $tmp/home/warm --run $tmp/learns/config.yaml --out $tmp/$name --json "$@" >$tmp/$name.json 2>$log </dev/null || code=$?
    [ $code = 0 ] || fail "$name: exit code $code"
}
evaluate evaluated --data $tmp/home/val.jsonl --image-folder $tmp/home/pictures
evaluate evaluated_bytes --data $tmp/home/val.bytes.jsonl
python3 - $tmp <<'PY' || fail "croll eval: not the validation of step 0"
import json, sys
tmp = sys.argv[1]
first = json.loads(open(f"{tmp}/learns/metrics.jsonl").readline())
ran = sorted((r["group"], r["response"], r["score"]) for r in map(json.loads, open(f"{tmp}/learns/rollouts/val-000000.jsonl")))
for name in ("evaluated", "evaluated_bytes"):
    table = json.load(open(f"{tmp}/{name}.json"))["all"]
    assert table["prompts"] == 80 and table["right"]["value"] == first["val_correct/all/mean"], (table, first["val_correct/all/mean"])
    lines = list(map(json.loads, open(f"{tmp}/{name}/samples.jsonl")))
    assert ran == sorted((r["row"], r["text"], r["score"]) for r in lines), name
    assert all(len(r["images"]) == 1 and len(r["images"][0]["sha256"]) == 64 for r in lines), name
    assert open(f"{tmp}/{name}/eval.html").read().count('<img src="data:image/webp;base64,') >= 2, name
PY
rlvr half max_steps=3 actor_train.model_args.dtype=bf16 actor_train.strategy_args.strategy_config.param_dtype=bf16 \
    actor_infer.model_args.dtype=bf16 actor_infer.strategy_args.strategy_config.param_dtype=bf16
[ $code = 0 ] || fail "half: exit code $code"
exact half 3
python3 - $tmp/half/run.html $tmp/learns/run.html <<'PY' || fail "run.html"
import base64, os, re, sys, xml.etree.ElementTree as tree
for path in sys.argv[1:]:
    text = open(path, encoding="utf-8").read()
    pictures = []
    for e in tree.fromstring(text).iter():
        name = e.tag.split("}")[1]
        assert name not in ("script", "link", "iframe", "object", "embed"), name
        assert not any(key.startswith("on") or key == "href" for key in e.attrib), e.attrib
        if name == "img":
            pictures.append(e.attrib["src"])
            assert re.fullmatch(r"\"><script>alert\(\"\d+\.png\"\)", e.attrib["alt"]), e.attrib["alt"]
        else:
            assert "src" not in e.attrib, e.attrib
    for src in pictures:
        head, data = src.split(",")
        assert head == "data:image/webp;base64" and base64.b64decode(data)[8:12] == b"WEBP", head
    assert len(pictures) >= 2 and sum(map(len, pictures)) < 100_000, (len(pictures), sum(map(len, pictures)))
    assert 1 <= len(os.listdir(os.path.dirname(path) + "/thumbnails")) <= 48
    assert "default-src 'none'" in text
PY
# pictures as frames of videos
python3 - $tmp/home <<'PY'
import json, sys
with open(sys.argv[1] + "/videos.jsonl", "w") as out:
    for i, row in enumerate(map(json.loads, open(sys.argv[1] + "/mixed.jsonl"))):
        if i % 4 != 1 and "images" in row: # pictures, videos and sums
            row["videos"] = [row.pop("images") * (1 + i % 3)]
            row["messages"][0]["content"] = row["messages"][0]["content"].replace("<image>", "<video>")
        print(json.dumps(row), file=out)
PY
rlvr videos max_steps=2 "actor_train.data_args.file_name=[$tmp/home/videos.jsonl]" validation=null
[ $code = 0 ] || fail "videos: exit code $code"
exact videos 2
grep -q '"num_frames":3,' $tmp/videos/rollouts/step-000000.jsonl || fail "videos: no reference in the rollouts"

mv $tmp/half/run.html $tmp/before.html
"$CROLL" report $tmp/half
cmp $tmp/half/run.html $tmp/before.html || fail "report writes another page"

# killed in the middle of a step, and resumed
rlvr whole max_steps=12 save_steps=3
[ $code = 0 ] || fail "whole: exit code $code"
killed_like whole
exact killed 12

# ROLL's file, and its rows in Parquet with the pictures inside
taught boxes roll/warm.jsonl 100
file=tests/roll/rlvr_vision.yaml files="[$tmp/home/roll/detection.parquet,$tmp/home/roll/math.parquet]"
[ -z "${ROLL_EXAMPLES:-}" ] || file=$ROLL_EXAMPLES/qwen2_5-vl-3B-rlvr_fsdp2/rlvr_fsdp2_offload.yaml
log=$tmp/roll.log code=0
"$CROLL" run $file pretrain=$tmp/home/boxes output_dir=$tmp/roll checkpoint_config.output_dir=$tmp/roll.saved logging_dir=$tmp/logs tracker_kwargs.log_dir=$tmp/curves \
    max_steps=3 rollout_batch_size=16 num_return_sequences_in_group=4 prompt_length=64 response_length=96 actor_train.training_args.gradient_accumulation_steps=16 \
    actor_train.device_mapping=[0,1] actor_infer.device_mapping=[0,1] reference.device_mapping=[0,1] rewards.math.world_size=1 rewards.cv_detection.world_size=1 \
    "actor_train.data_args.file_name=$files" "validation.data_args.file_name=$files" >$log 2>&1 </dev/null || code=$?
[ $code = 0 ] || fail "ROLL's file: exit code $code"
exact roll 3
python3 - $tmp/roll <<'PY' || fail "ROLL's file: samples, or metrics"
import collections, json, sys
scores, metrics = collections.defaultdict(set), list(map(json.loads, open(f"{sys.argv[1]}/metrics.jsonl")))
for step in range(3):
    samples = list(map(json.loads, open(f"{sys.argv[1]}/rollouts/step-{step:06d}.jsonl")))
    assert len(samples) == 64 and all(s["status"] == "ok" for s in samples), samples
    group = {s["group"]: s["tag"] for s in samples if "tag" in s}
    for s in samples: scores[s["domain"], group[s["group"]]].add(s["score"])
assert scores.keys() == {("math", "mm_math"), ("math", "megabench_math"), ("cv_detection", "v3det_train"), ("cv_detection", "object365_train"), ("cv_detection", "coco_val_multi_test")}, scores
assert all(len(s) > 1 for s in scores.values()) and any(0 < x < 1 for s in scores.values() for x in s), scores
assert all(m["actor_train/grad_norm"] > 0 for m in metrics) and {"math/val_score/mean", "cv_detection/val_score/mean"} <= metrics[0].keys(), metrics
assert metrics[0]["actor/kl_loss"] == 0 < metrics[2]["actor/kl_loss"], metrics # the reference is another process, and the policy moves
PY
echo "ok"
