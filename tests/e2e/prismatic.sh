#!/bin/bash
# prismatic.sh -- a Prismatic folder in the commands: the examples of docs/vision.md as they are written there, the long one for 10 steps; after its steps the tensors
# of the towers have the bytes of `croll init`, all others but the projector's (text alone) have not; a folder that has the tensors which Prismatic
# does not use gives the same log-probs, one with another tensor is refused; RLVR in bf16 with a trained backbone, which is float32 in every role:
# what was sampled is what is trained on; a stage that trains the projector alone is refused for text; plans of all stages: elements that
# train, bytes of masters and of frozen weights, dtypes of units. With pictures (scripts/make_pictures): the projector is aligned, then all but the
# backbone is trained until colours of pictures that were never shown are named, in greedy answers and by RLVR, whose log-probs of generation and training
# are the same bits; the gradient of `croll grad` is how the loss changes along it. Needs python3.
. tests/e2e/run.inc
command -v python3 >/dev/null || { echo "no python3: scripts/setup --check installs it"; exit 1; }
mkdir $tmp/output $tmp/bin $tmp/scripts
cp -r configs $tmp/configs
ln -s "$PWD/scripts/make_sums" "$PWD/scripts/make_pictures" $tmp/scripts
ln -s "$(realpath "$CROLL")" $tmp/bin/croll
log=$tmp/example.log
sed -n '/^```sh/,/^```/p' docs/vision.md | grep -v '^```' | sed 's/max_steps=150/max_steps=10/' >$tmp/example # 150 steps: e2e/run_images_seeds
[ -s $tmp/example ] || fail "docs/vision.md has no example"
(cd $tmp && PATH=$tmp/bin:$PATH sh -e example >$log 2>&1 </dev/null) || fail "the example: exit code $?"
grep -q 'FSDP\[VisionTransformer\] unit #1' $log && grep -q 'FSDP\[FusedMLPProjector\]' $log || fail "units: $(cat $log)"
model=$tmp/output/prismatic/model trained=$tmp/output/prismatic/trained
cat >$tmp/stages.py <<'PY'
import struct, sys
sys.path.insert(0, "tests/e2e")
from tensors import read, write

what, a = sys.argv[1], read(sys.argv[2])
if what == "more":  # as the hub has it, or with one that is not known
    for k in sys.argv[3:]:
        a[k] = ("F32", [2], struct.pack("<2f", 1, 2))
    write(sys.argv[2], a)
elif what == "dtypes":
    wrong = [k for k, t in a.items() if t[0] != ("F32" if k.startswith("vision_backbone.") else "BF16")]
    sys.exit(f"wrong: {wrong[:3]}" if wrong else 0)
else:
    b = read(sys.argv[3])
    wrong = [k for k in {*a, *b} if (a.get(k) == b.get(k)) != k.startswith(("vision_backbone.", "projector."))]
    sys.exit(f"wrong: {sorted(wrong)[:3]}" if wrong else 0)
PY
python3 $tmp/stages.py stage $model $trained || fail "tensors of the stage"
scores() { echo '{"id":1,"input_ids":[51,43,52,61,55,10]}' | "$CROLL" logprobs $1; }
scores $trained >$tmp/want
cp -r $trained $tmp/more
python3 $tmp/stages.py more $tmp/more vision_backbone.featurizer.blocks.2.norm1.weight vision_backbone.featurizer.norm.weight \
    vision_backbone.fused_featurizer.blocks.2.mlp.fc1.bias vision_backbone.fused_featurizer.attn_pool.latent
scores $tmp/more >$tmp/got && [ "$(cat $tmp/got)" = "$(cat $tmp/want)" ] && grep -q logprobs $tmp/want || fail "tensors that are not used: $(cat $tmp/got)"
python3 $tmp/stages.py more $tmp/more vision_backbone.featurizer.blocks.3.norm1.weight
! scores $tmp/more >$tmp/got 2>&1 && grep -q 'blocks.3.norm1.weight' $tmp/got || fail "a block that is not there: $(cat $tmp/got)"

# what a plan of each stage trains, keeps frozen, and in which dtype
cat >$tmp/plan.py <<'PY'
import json, math, sys
sys.path.insert(0, "tests/e2e")
from tensors import read

stage, parts, model, plan = sys.argv[1:]
size = dict(V=0, P=0, L=0, l=0)
for name, (_, shape, _) in read(model).items():
    part = "V" if name.startswith("vision_backbone.") else "P" if name.startswith("projector.") else "L" if ".layers.2." in name else "l"
    size[part] += math.prod(shape)
role = json.load(open(plan))["roles"][0]
trained = sum(size[p] for p in parts)
b = role["peak_bytes"]
if role["trained"] != trained or role["parameters"] != sum(size.values()):
    sys.exit(f"{role['trained']} of {role['parameters']} trained, want {trained} of {sum(size.values())}")
for what, got, want in (("masters", b["masters"], 4 * trained), ("values", b["values"], 2 * (sum(size.values()) - trained))):
    if not want / 2 <= got <= want / 2 * 1.02 + 8192:  # a shard of two, padded
        sys.exit(f"{what}: {got}, want about {want // 2}")
towers = [line for line in role["tree"].split("\n") if "FSDP[VisionTransformer]" in line or "FSDP[Block]" in line]
others = [line for line in role["tree"].split("\n") if "FSDP[" in line and line not in towers]
if not towers or any(("gathered in fp32" in line) != ("V" in parts) for line in towers) or any("gathered in bf16" not in line for line in others):
    sys.exit("dtypes of units:\n" + role["tree"])
PY
for stage in align:P finetune:PLl vla-train:PLl full-finetune:VPLl vla-full-train:VPLl last-layer-finetune:L vla-sandwich-train:VPL; do
    "$CROLL" plan configs/quickstart/sft.yaml --json --tree pretrain=$model sft_train.model_args.stage=${stage%:*} sft_train.model_args.dtype=bf16 \
        sft_train.strategy_args.strategy_config.param_dtype=bf16 >$tmp/plan.json 2>$log || fail "plan of $stage: exit code $?"
    python3 $tmp/plan.py ${stage%:*} ${stage#*:} $model $tmp/plan.json || fail "plan of $stage"
done

code=0
"$CROLL" run configs/quickstart/sft.yaml pretrain=$model output_dir=$tmp/align sft_train.model_args.stage=align \
    "sft_train.data_args.file_name=[$tmp/output/prismatic/sft.jsonl]" >$tmp/align.log 2>&1 </dev/null || code=$?
[ $code -eq 2 ] && grep -q 'stage align trains the projector alone' $tmp/align.log || fail "align with text: $(cat $tmp/align.log)"

mv $tmp/output/prismatic $tmp/home
job rlvr pretrain=$tmp/home/trained max_steps=2 validation=null \
    actor_train.model_args.dtype=bf16 actor_infer.model_args.dtype=bf16 \
    actor_train.strategy_args.strategy_config.param_dtype=bf16 actor_infer.strategy_args.strategy_config.param_dtype=bf16
[ $code -eq 0 ] || fail "rlvr: exit code $code"
[ "$(values actor/train_infer_diff_max $tmp/rlvr/metrics.jsonl | tr '\n' ' ')" = "0 0 " ] || fail "log-probs differ"
"$CROLL" export $tmp/rlvr/latest $tmp/rlvr.export >/dev/null
python3 $tmp/stages.py dtypes $tmp/rlvr.export || fail "dtypes of the export"

# pictures
pictures=$tmp/pictures
scripts/make_pictures $pictures prismatic
"$CROLL" init $pictures/model >/dev/null
sft() { # NAME MODEL [key=value ..]
    local name=$1 model=$2
    shift 2
    log=$tmp/$name.log code=0
    "$CROLL" run configs/quickstart/sft.yaml pretrain=$model output_dir=$tmp/$name track_with=none sequence_length=128 logging_steps=1000 \
        "sft_train.data_args={file_name: [$pictures/sft.jsonl], messages: messages, image_folder: $pictures/pictures}" \
        sft_train.training_args.num_train_epochs=20 sft_train.training_args.per_device_train_batch_size=4 \
        sft_train.training_args.gradient_accumulation_steps=4 "$@" >$log 2>&1 </dev/null || code=$?
    [ $code -eq 0 ] || fail "$name: exit code $code"
    "$CROLL" export $tmp/$name/latest $tmp/$name.export >/dev/null
}
"$CROLL" plan configs/quickstart/sft.yaml --json pretrain=$pictures/model sequence_length=64 sft_train.model_args.stage=align --images-per-row 1 >$tmp/plan.json 2>$log ||
    fail "plan with images: exit code $?"
python3 -c "import json, sys; got = json.load(open(sys.argv[1]))['roles'][0]['pixel_bytes']; sys.exit(got != 32 * 16 * 300 * 4)" $tmp/plan.json ||
    fail "plan: patches of 32 images"
! "$CROLL" plan configs/quickstart/sft.yaml pretrain=$pictures/model --images-per-row 2 >$log 2>&1 && grep -q 'takes one' $log || fail "plan of two images a row"
# the gradient of chats with pictures: the loss along it changes as its norm says, and towers and projector have a part of it
head -n 6 $pictures/sft.jsonl | sed 's/^{/{"id": 1, /' >$tmp/chats
grad() { mkdir -p $tmp/$2 && "$CROLL" grad $1 --image-folder $pictures/pictures --out $tmp/$2/model.safetensors model_args.dtype=fp32 <$tmp/chats >$tmp/$2/loss; }
grad $pictures/model along
for side in above below; do cp -r $pictures/model $tmp/$side; done
python3 - $pictures/model $tmp <<'PY' || fail "gradient: its parts"
import json, struct, sys
sys.path.insert(0, "tests/e2e")
from tensors import read, write
model, tmp = sys.argv[1:]
floats = lambda t: struct.unpack(f"<{len(t[2]) // 4}f", t[2])
w, g = read(model), read(tmp + "/along")
norm = json.load(open(tmp + "/along/loss"))["grad_norm"]
part = {p: sum(x * x for k, t in g.items() if k.startswith(p) for x in floats(t)) for p in ("vision_backbone.featurizer.", "vision_backbone.fused_featurizer.", "projector.", "language_model.")}
assert abs(sum(part.values()) ** 0.5 - norm) < 1e-4 * norm and min(part.values()) > 1e-6 * norm * norm, (part, norm)
for side, step in (("above", 5e-4), ("below", -5e-4)):
    moved = {k: (t[0], t[1], struct.pack(f"<{len(t[2]) // 4}f", *(a + step * b / norm for a, b in zip(floats(t), floats(g[k]))))) if k in g else t for k, t in w.items()}
    write(f"{tmp}/{side}", moved)
PY
grad $tmp/above grad_above
grad $tmp/below grad_below
python3 -c "
import json, sys
a, b, g = (json.load(open(f'{sys.argv[1]}/{n}/loss')) for n in ('grad_above', 'grad_below', 'along'))
slope = (a['loss'] - b['loss']) / 1e-3
sys.exit(0 if abs(slope / g['grad_norm'] - 1) < 1e-3 else f'{slope}, the norm is {g}')" $tmp || fail "gradient: the loss along it"

sft aligned $pictures/model max_steps=5 sft_train.model_args.stage=align
python3 - $pictures/model $tmp/aligned.export <<'PY' || fail "tensors of stage align"
import sys
sys.path.insert(0, "tests/e2e")
from tensors import read
a, b = map(read, sys.argv[1:])
sys.exit(any((a[k] == b[k]) == k.startswith("projector.") for k in b))
PY
sft sees $tmp/aligned.export max_steps=60 sft_train.model_args.stage=finetune
python3 - $pictures/sft.val.jsonl <<'PY' >$tmp/asked
import json, sys
for i, line in enumerate(open(sys.argv[1])):
    print(json.dumps(dict(id=i, messages=json.loads(line)["messages"][:1])))
PY
"$CROLL" generate $tmp/sees.export --image-folder $pictures/pictures --temperature 0 --max-new-tokens 12 --json <$tmp/asked >$tmp/answers
python3 - $pictures/sft.val.jsonl $tmp/answers <<'PY' || fail "answers"
import json, sys
want = [json.loads(line)["messages"][1]["content"] for line in open(sys.argv[1])]
got = [json.loads(line)["text"] for line in open(sys.argv[2])]
right = sum(a.strip() == b for a, b in zip(got, want))
sys.exit(f"{right} of {len(want)}" if len(got) != len(want) or right < 0.8 * len(want) else 0)
PY
log=$tmp/draws.log
"$CROLL" run configs/quickstart/rlvr.yaml pretrain=$tmp/sees.export output_dir=$tmp/draws track_with=none prompt_length=100 response_length=12 max_steps=2 \
    "actor_train.data_args={template: native, messages: messages, image_folder: $pictures/pictures, file_name: [$pictures/train.jsonl], domain_interleave_probs: {math_rule: 1.0}}" \
    validation=null "rewards.math_rule.tag_included=[colour]" rollout_batch_size=8 num_return_sequences_in_group=4 \
    actor_train.training_args.per_device_train_batch_size=16 actor_train.training_args.gradient_accumulation_steps=1 actor_train.infer_batch_size=16 \
    logging_steps=1000 >$log 2>&1 </dev/null || fail "rlvr with pictures: exit code $?"
[ "$(values actor/train_infer_diff_max $tmp/draws/metrics.jsonl | tr '\n' ' ')" = "0 0 " ] || fail "log-probs with pictures differ"
values critic/score/mean $tmp/draws/metrics.jsonl | awk '$1 < 0.7 { exit 1 }' || fail "scores with pictures: $(values critic/score/mean $tmp/draws/metrics.jsonl)"
echo "ok"
