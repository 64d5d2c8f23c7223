#!/bin/bash
# croll serve with several adapters beside one base: requests for the base and for adapters of other ranks and Linears, all at the same time, have
# the answers of a server that has this one alone, byte for byte, on 1 and 2 ranks; log-probs and samples are those of croll logprobs and generate
# --adapter; names, digests, /v1/models, what is in the cache for one is not for another; names that are not there, and what is refused.
# Not covered: the engine by itself (unit/engine_adapters).
# also on cuda, long
. tests/e2e/serve.inc
. tests/e2e/adapters.inc
make_model
model=$tmp/home/model
export LONG=20 # tokens
all_ranks="1 2"
[ "${CROLL_DEVICE:-}" != cuda ] || { LONG=2 all_ranks=1; } # simulated
all="q_proj k_proj v_proj o_proj gate_proj up_proj down_proj"
python3 $tmp/adapter.py $model $tmp/all 3 0.1 $all
python3 $tmp/adapter.py $model $tmp/some 5 0.2 v_proj down_proj
SAVED="model.norm model.layers.0.mlp.up_proj model.layers.1.input_layernorm" python3 $tmp/adapter.py $model $tmp/full 2 0.1 q_proj

cat >$tmp/ask.py <<'PY' # FOLDER NAME ..: answers of all kinds for each of these models at the same time, without what is of the moment: FOLDER/NAME
import concurrent.futures, json, os, sys, urllib.request
url, folder, names = sys.argv[1], sys.argv[2], sys.argv[3:]
long = int(os.environ["LONG"])
def post(path, body):
    r = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    return urllib.request.urlopen(r, timeout=1200).read().decode()
def without(x): # number of the request, seconds, name of the model, what was in the cache
    if isinstance(x, dict):
        return {k: without(v) for k, v in x.items() if k not in ("id", "created", "model", "usage", "croll", "request_id", "cached_tokens", "e2e_latency")}
    return [without(v) for v in x] if isinstance(x, list) else x
def answer(path, body):
    text = post(path, body)
    chunks = [line[6:] for line in text.split("\n") if line.startswith("data: {")] if body.get("stream") else [text]
    assert chunks, text
    return "".join(json.dumps(without(json.loads(c, parse_float=str))) + "\n" for c in chunks)
start = [7 * t % 250 for t in range(130)]
prompts = [start + [k, 40 + k] for k in range(3)][:long]
sampled = {"max_tokens": long, "temperature": 1, "seed": 3, "ignore_eos": True}
kinds = [("/v1/completions", {"prompt": p, "n": 2, "logprobs": 2, "return_token_ids": True, **sampled}) for p in prompts]
kinds += [("/v1/completions", {"prompt": prompts, "max_tokens": 0, "prompt_logprobs": 1}),
          ("/v1/completions", {"prompt": prompts[0][:40], "max_tokens": 1, "temperature": 1, "seed": 5, "logprobs": 1, "echo": True}),
          ("/v1/completions", {"prompt": prompts[-1], "stream": True, "logprobs": 1, **sampled}),
          ("/v1/chat/completions", {"messages": [{"role": "user", "content": "3+4="}], "logprobs": True, "top_logprobs": 2, **sampled}),
          ("/inference/v1/generate", {"token_ids": prompts[-1], "sampling_params": {"logprobs": 1, **sampled}}),
          ("/generate", {"input_ids": prompts[0], "return_logprob": True, "sampling_params": {"max_new_tokens": 9, "temperature": 0}})]
with concurrent.futures.ThreadPoolExecutor(24) as pool:
    found = {name: [] for name in names}
    for path, body in kinds: # names in turns
        for name in names:
            found[name].append(pool.submit(answer, path, {**body, "lora_path" if path == "/generate" else "model": name}))
    os.makedirs(folder, exist_ok=True)
    for name in names:
        with open(f"{folder}/{os.path.basename(name)}", "w") as f:
            f.write("".join(x.result() for x in found[name]))
PY
ask() { python3 $tmp/ask.py $url "$@" || fail "$*: $(tail -n 5 $tmp/err)"; }
start() { launch $model --allow-random --access-log none model_args.dtype=fp32 "$@"; }
digest() { sed -n "s|^ready: $1, weights \([0-9a-f]*\),.*|\1|p" $tmp/out; }

start --served-model-name base # one at a time
ask $tmp/alone base
digests=("$(digest base)")
stop
start --adapter a=$tmp/all
ask $tmp/alone a
ask $tmp/again $model # the name of the base is the base
cmp $tmp/again/model $tmp/alone/base || fail "the base beside an adapter"
stop
start --adapter $tmp/some
ask $tmp/alone $tmp/some
stop
start --served-model-name base --adapter full=$tmp/full # what is trained in full is not the base's
ask $tmp/full_too base full
cmp $tmp/full_too/base $tmp/alone/base || fail "the base beside modules in full"
! cmp -s $tmp/full_too/full $tmp/alone/base || fail "modules in full without effect"
PYTHONPATH=$tmp python3 - $url $tmp "$CROLL" <<'PY' || fail "modules in full: other log-probs than croll logprobs --adapter"
import json, sys, urllib.request
from logprobs import numbers
url, tmp = sys.argv[1:3]
prompts = [[9, 20 + i, 31] for i in range(3)]
for p, line in zip(prompts, numbers(prompts, "--adapter", tmp + "/full")):
    body = {"model": "full", "prompt": [p], "max_tokens": 0, "prompt_logprobs": 0}
    x = json.load(urllib.request.urlopen(urllib.request.Request(url + "/v1/completions", json.dumps(body).encode()), timeout=1200))
    assert [next(iter(y.values()))["logprob"] for y in x["choices"][0]["prompt_logprobs"][1:]] == line["logprobs"], x
PY
stop
! cmp -s $tmp/alone/a $tmp/alone/base && ! cmp -s $tmp/alone/some $tmp/alone/base && ! cmp -s $tmp/alone/a $tmp/alone/some || fail "an adapter without effect"

cat >$tmp/client.py <<'PY'
import json, os, subprocess, sys, urllib.error, urllib.request
from logprobs import numbers
url, tmp, croll = sys.argv[1:4]
long = os.environ["LONG"]
def post(path, body):
    r = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(r, timeout=1200))
def absent(path, body=None):
    try:
        urllib.request.urlopen(urllib.request.Request(url + path, body and json.dumps(body).encode()), timeout=1200)
    except urllib.error.HTTPError as e:
        return e.code, json.load(e)["error"]["message"]
models = json.load(urllib.request.urlopen(url + "/v1/models"))["data"]
some = tmp + "/some"
assert [(m["id"], m["root"], m["parent"]) for m in models] == [
    ("base", tmp + "/home/model", None), ("a", tmp + "/all", "base"), (some, some, "base")], models
sha = {m["id"]: m["croll"]["weights_sha256"] for m in models}
assert len(set(sha.values())) == 3 and len({m["croll"]["self_check"] for m in models}) == 3, models
there = f"the model b does not exist; there is base, a, {some}"
assert absent("/v1/models/b") == absent("/v1/completions", {"model": "b", "prompt": [1]}) == (404, there)
for name, folder in ("a", tmp + "/all"), (some, some): # croll logprobs and croll generate
    prompts = [[9, 20 + i, 31] for i in range(3)]
    for p, line in zip(prompts, numbers(prompts, "--adapter", folder)):
        x = post("/v1/completions", {"model": name, "prompt": [p], "max_tokens": 0, "prompt_logprobs": 0})
        assert [next(iter(y.values()))["logprob"] for y in x["choices"][0]["prompt_logprobs"][1:]] == line["logprobs"], (name, x)
        assert x["model"] == name and x["croll"]["weights_sha256"] == sha[name], x
    lines = "".join(json.dumps({"id": i, "input_ids": p}) + "\n" for i, p in enumerate(prompts))
    done = subprocess.run([croll, "generate", tmp + "/home/model", "--adapter", folder, "--json", "--max-new-tokens", long, "--temperature", "0",
                           "model_args.dtype=fp32"], input=lines, capture_output=True, text=True, check=True)
    for line in map(json.loads, done.stdout.splitlines()):
        x = post("/v1/completions", {"model": name, "prompt": [line["prompt_ids"]], "max_tokens": int(long), "temperature": 0, "logprobs": 0, "return_token_ids": True})["choices"][0]
        assert x["token_ids"] == line["output_ids"] and x["logprobs"]["token_logprobs"] == line["logprobs"], (name, x, line)
prompt = [11 * t % 240 for t in range(130)] # new to all
cached = lambda name: post("/v1/completions", {"model": name, "prompt": [prompt], "max_tokens": 2})["usage"]["prompt_tokens_details"]["cached_tokens"]
got = [cached(name) for name in ("base", "a", some, "a", "base")]
assert got == [0, 0, 0, 128, 128], got
assert post("/v1/completions", {"prompt": [prompt], "max_tokens": 1})["model"] == "base" # of requests without a name
PY
for ranks in $all_ranks; do # all at the same time
    start --served-model-name base --adapter a=$tmp/all --adapter $tmp/some "device_mapping=list(range(0,$ranks))" strategy_args.strategy_config.fsdp_size=$ranks
    ask $tmp/together base a $tmp/some
    for name in base a some; do
        cmp $tmp/together/$name $tmp/alone/$name || fail "$name on $ranks ranks: other answers than alone"
    done
    python3 $tmp/client.py $url $tmp "$CROLL" || fail "$ranks ranks: $(tail -n 5 $tmp/err)"
    now=("$(digest base)" "$(digest a)" "$(digest $tmp/some)")
    stop
    [ "${now[0]}" = "${digests[0]}" ] || fail "the digest of the base: ${now[*]}, alone ${digests[*]}"
done
sed -i 's/"lora_alpha": 6/"lora_alpha": 7/' $tmp/all/adapter_config.json
start --adapter a=$tmp/all
[ "$(digest a)" != "${now[1]}" ] && [ -n "$(digest a)" ] || fail "another scale has the digest ${now[1]}, too"
stop

refused() { # SENTENCE OPTION ..
    local code=0 sentence=$1
    shift
    timeout 300 "$CROLL" serve "$@" --listen 127.0.0.1:0 </dev/null >$tmp/refused 2>&1 || code=$?
    [ $code != 0 ] && grep -qF -- "$sentence" $tmp/refused || fail "$*: exit code $code, $(cat $tmp/refused)"
}
refused "--adapter is for one MODEL" a=$model b=$model --adapter $tmp/all
refused "--adapter is for a MODEL" configs/quickstart/rlvr.yaml --adapter $tmp/all
refused "--allow-updates replaces whole models" $model --adapter $tmp/all --allow-updates --no-auth
refused "$tmp/full: an adapter with modules in full (modules_to_save: model.norm," $model --adapter $tmp/full --adapter $tmp/all
refused "$tmp/full: an adapter with modules in full" $model --adapter $tmp/all --adapter $tmp/full
refused "two models have the name a" $model --adapter a=$tmp/all --adapter a=$tmp/some
refused "two models have the name a" $model --served-model-name a --adapter a=$tmp/all
refused "/no/such" $model --adapter $tmp/some --adapter b=/no/such
sed -i 's/"bias": "none"/"bias": "all"/' $tmp/some/adapter_config.json
refused "bias is not available" $model --adapter $tmp/all --adapter $tmp/some
