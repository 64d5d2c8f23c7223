#!/bin/bash
# What croll serve looks at before it is ready: tensors that are missing or not finite, log-probs of a fixed line that no
# weights could explain, on one and on two ranks; the digest of that line is the same on 1, 2 and 4 ranks and another one for
# another dtype; the reference and the actor_infer of a run's file. Not covered: the service itself (e2e/serve.sh).
. tests/e2e/serve.inc
make_model

# start WORD ..: $ready is the digest
start() {
    launch "$@" --access-log none
    ready=$(sed -n 's/^ready: .* self-check //p' $tmp/out)
    [ ${#ready} = 12 ] || fail "$*: no digest: $(cat $tmp/out)"
}
get() { curl -sS -m 60 http://127.0.0.1:$(cat $tmp/port)$1; }
# refuse PATTERN WORD ..
refuse() {
    local pattern=$1 code=0
    shift
    timeout $deadline "$CROLL" serve "$@" --listen 127.0.0.1:0 --access-log none >$tmp/out 2>$tmp/err || code=$?
    [ $code = 2 ] && tail -n 1 $tmp/err | grep -q -- "$pattern" || fail "$*: exit code $code, no $pattern"
}
two='device_mapping=list(range(0,2))'

start $tmp/home/model model_args.dtype=fp32
one=$ready
get /v1/models | grep -q "\"self_check\":\"$one" || fail "/v1/models: $(get /v1/models)"
stop
start $tmp/home/model model_args.dtype=fp32 --score-only "$two"
[ $ready = $one ] || fail "two ranks: $ready instead of $one"
stop
start $tmp/home/model model_args.dtype=fp32 --score-only 'device_mapping=list(range(0,4))' model_args.ulysses_size=2
[ $ready = $one ] || fail "four ranks: $ready instead of $one"
stop
start $tmp/home/model model_args.dtype=bf16
[ $ready != $one ] || fail "bf16 has the digest of fp32"
stop

# blocks of a run's file
cat configs/quickstart/rlvr.yaml - >$tmp/run.yaml <<'YAML'
reference:
  model_args: {dtype: fp32, model_name_or_path: other}
  strategy_args: {strategy_name: fsdp2_infer, strategy_config: {fsdp_size: 2}}
  device_mapping: list(range(0,2))
YAML
sed -i "s|model_name_or_path: other|model_name_or_path: $tmp/home/model|; s|^init_kl_coef: 0.0|init_kl_coef: 0.1|" $tmp/run.yaml
run=($tmp/run.yaml pretrain=$tmp/home/model)
start "${run[@]}" --served-model-name r
[ $ready = $one ] && pgrep -f "serve $tmp/run.yaml" | wc -l | grep -qx 4 || fail "not the reference on two ranks: $ready"
get /v1/models | grep -q "\"id\":\"r\".*\"root\":\"$tmp/home/model\"" || fail "/v1/models: $(get /v1/models)"
stop
start "${run[@]}" --role actor_infer --score-only 'actor_infer.device_mapping=[0]' actor_infer.model_args.dtype=bf16 actor_infer.strategy_args.strategy_config.param_dtype=bf16
[ $ready != $one ] || fail "not the dtype of actor_infer"
stop
refuse "unknown key 'modle_args'\|1 error in $tmp/run.yaml" "${run[@]}" reference.modle_args.dtype=bf16
refuse "configs/quickstart/rlvr.yaml has no block reference" configs/quickstart/rlvr.yaml
refuse "reference, teacher, actor_infer or rewards.DOMAIN, not actor_train" "${run[@]}" --role actor_train
refuse "reference is a service already, at http://127.0.0.1:1" "${run[@]}" 'reference={service: http://127.0.0.1:1}'
refuse "for a run's FILE" $tmp/home/model --role reference

# models with one damage each
cat >$tmp/damage.py <<'PY'
import json, os, shutil, struct, sys
source, target, what = sys.argv[1:]
shutil.copytree(source, target)
path = os.path.join(target, "model.safetensors")
data = bytearray(open(path, "rb").read())
num = struct.unpack("<Q", data[:8])[0]
head = json.loads(data[8:8 + num])
at = lambda name: [8 + num + x for x in head[name]["data_offsets"]]
if what == "missing":
    head["model.norm.other"] = head.pop("model.norm.weight")
elif what == "nan": # of the last id, which the line does not have
    begin, end = at("model.embed_tokens.weight")
    size = {"BF16": 2, "F32": 4}[head["model.embed_tokens.weight"]["dtype"]]
    data[end - size:end] = b"\xff" * size
else: # logits of equal size
    begin, end = at("model.norm.weight")
    data[begin:end] = bytes(end - begin)
text = json.dumps(head).encode()
text += b" " * (-len(text) % 8)
open(path, "wb").write(struct.pack("<Q", len(text)) + text + data[8 + num:])
PY
for what in missing nan zero; do python3 $tmp/damage.py $tmp/home/model $tmp/$what $what; done
refuse 'model.norm.weight' $tmp/missing
for ranks in "" "$two"; do
    refuse 'model.embed_tokens.weight has a number that is not finite' $tmp/nan $ranks
    refuse 'self-check: .*--allow-random' $tmp/zero $ranks
done
start $tmp/zero --allow-random
stop
echo "done"
