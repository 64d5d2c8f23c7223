#!/bin/bash
# --adapter of croll generate and logprobs, and croll export --merge: the log-probs of what was sampled are those of croll logprobs, bit for bit, in
# fp32 and bf16, on 1 and 2 ranks; with B = 0 all answers are those of the base, byte for byte; other adapters give other
# answers; what does not go together is refused.
# also on far
# also on cuda, long
. tests/e2e/run.inc
. tests/e2e/adapters.inc
quick_model
model=$tmp/home/sft_model
all="q_proj k_proj v_proj o_proj gate_proj up_proj down_proj"
python3 $tmp/adapter.py $model $tmp/all 3 0.1 $all
python3 $tmp/adapter.py $model $tmp/some 1 0.2 v_proj down_proj
python3 $tmp/adapter.py $model $tmp/zero 4 0 $all
for i in 1 2 3 4 5 6; do echo "{\"id\":\"l$i\",\"input_ids\":[1,20$i,1${i}7]}"; done >$tmp/prompts
generate() { "$CROLL" generate $model --json --max-new-tokens 24 --temperature 1 --seed 3 --n 2 "$@" <$tmp/prompts; }

cat >$tmp/sequences.py <<'PY' # completions to lines for logprobs
import json, sys
for i, line in enumerate(map(json.loads, sys.stdin)):
    print(json.dumps({"id": i, "input_ids": line["prompt_ids"] + line["output_ids"]}))
PY
cat >$tmp/same.py <<'PY' # COMPLETIONS LOGPROBS: numbers as they are written, which read back as the same float32
import json, sys
read = lambda path: [json.loads(line, parse_float=str) for line in open(path)]
completions, scored = map(read, sys.argv[1:])
assert len(completions) == len(scored) == 12
for c, s in zip(completions, scored):
    assert c["logprobs"] == s["logprobs"][len(c["prompt_ids"]) - 1:] and len(c["logprobs"]) == len(c["output_ids"]) > 0, (c, s)
PY

for dtype in fp32 bf16; do
    generate model_args.dtype=$dtype >$tmp/base
    for adapter in all some; do
        generate --adapter $tmp/$adapter model_args.dtype=$dtype >$tmp/$adapter.out
        python3 $tmp/sequences.py <$tmp/$adapter.out >$tmp/sequences
        for ranks in 1 2; do
            "$CROLL" logprobs $model --adapter $tmp/$adapter model_args.dtype=$dtype "device_mapping=list(range(0,$ranks))" \
                strategy_args.strategy_config.fsdp_size=$ranks <$tmp/sequences >$tmp/scored
            python3 $tmp/same.py $tmp/$adapter.out $tmp/scored || fail "$adapter, $dtype, $ranks ranks: other log-probs than generation's"
        done
        "$CROLL" logprobs $model model_args.dtype=$dtype <$tmp/sequences | cmp -s - $tmp/scored && fail "$adapter has no effect on log-probs"
        cmp -s $tmp/base $tmp/$adapter.out && fail "$adapter, $dtype: the answers of the base"
    done
    generate --adapter $tmp/all model_args.dtype=$dtype "device_mapping=list(range(0,2))" | cmp - $tmp/all.out || fail "generate on 2 ranks, $dtype"
    cmp -s $tmp/all.out $tmp/some.out && fail "both adapters give the same answers"
    generate --adapter $tmp/zero model_args.dtype=$dtype | cmp - $tmp/base || fail "B = 0, $dtype: not the answers of the base"
    "$CROLL" logprobs $model --entropy model_args.dtype=$dtype <$tmp/sequences >$tmp/scored
    "$CROLL" logprobs $model --entropy --adapter $tmp/zero model_args.dtype=$dtype <$tmp/sequences | cmp - $tmp/scored || fail "B = 0, $dtype: not the log-probs of the base"
done

# merged: near the unmerged one in fp32, the base's weights with B = 0
cat >$tmp/near.py <<'PY'
import json, sys
read = lambda path: [x for line in open(path) for x in json.loads(line)["logprobs"]]
one, two, base = map(read, sys.argv[1:])
far = lambda x: max(abs(a - b) for a, b in zip(x, one, strict=True))
print(f"merged: {far(two):.2g} from the unmerged, which is {far(base):.2g} from the base")
sys.exit(not far(two) < 1e-4 < 100 * 1e-4 < far(base))
PY
"$CROLL" export $model $tmp/merged --merge $tmp/all >/dev/null
"$CROLL" export $model $tmp/same --merge $tmp/zero >/dev/null
cmp $tmp/same/tokenizer.json $model/tokenizer.json
python3 $tmp/sequences.py <$tmp/all.out >$tmp/sequences
logprobs() { "$CROLL" logprobs "$@" model_args.dtype=fp32 <$tmp/sequences; }
logprobs $model --adapter $tmp/all >$tmp/scored
logprobs $tmp/merged >$tmp/merged.out
logprobs $model >$tmp/base
python3 $tmp/near.py $tmp/scored $tmp/merged.out $tmp/base || fail "the merged model"
logprobs $tmp/same | cmp - $tmp/base || fail "merged with B = 0"

# the base that an adapter says it has: warned of once, by the last part of its name
for base in "org/$(basename $model)" "org/other"; do
    cp -r $tmp/some $tmp/named
    sed -i "s|^{|{\"base_model_name_or_path\": \"$base\", |" $tmp/named/adapter_config.json
    "$CROLL" logprobs $model --adapter $tmp/named "device_mapping=list(range(0,2))" <$tmp/sequences 2>$tmp/err >/dev/null || fail "$base"
    echo "$(grep -c "is an adapter of $base (adapter_config.json), and the model is $model: " $tmp/err)"
    rm -r $tmp/named
done >$tmp/warned
[ "$(cat $tmp/warned)" = "$(printf '0\n1')" ] || fail "warnings of another base: $(cat $tmp/warned $tmp/err)"

refused() { # SENTENCE COMMAND ..
    local code=0 sentence=$1
    shift
    timeout 60 "$CROLL" "$@" </dev/null >$tmp/refused 2>&1 || code=$?
    [ $code != 0 ] && grep -qF -- "$sentence" $tmp/refused || fail "$*: exit code $code, $(cat $tmp/refused)"
}
refused "has no adapter_config.json" generate $model --adapter $model
refused "/no/such" logprobs $model --adapter /no/such
refused "is there already" export $model $tmp/merged --merge $tmp/all
refused "--role is for a checkpoint" export $model $tmp/new --merge $tmp/all --role actor_train
refused "has no adapter_config.json" export $model $tmp/new --merge $model
[ ! -e $tmp/new ] && [ ! -e $tmp/new.tmp ] || fail "a refused export leaves a folder"
sed -i 's/"bias": "none"/"bias": "all"/' $tmp/all/adapter_config.json
refused "bias is not available" generate $model --adapter $tmp/all
cp $tmp/some/adapter_config.json $tmp/zero
refused "the adapter has" generate $model --adapter $tmp/zero
