#!/bin/bash
# croll serve whose weights are replaced while it is used: each answer has the numbers of one version and names it, a
# sample that has begun goes on with its own; what is refused before anything changes (no such folder, another shape, damaged
# or other weights than were asked for, too little memory, a frozen service, keys without the scope); pause and resume; on
# one rank and on two. Not covered: several models (e2e/serve_models.sh).
. tests/e2e/serve.inc
make_model
"$CROLL" init $tmp/home/model --seed 1 --overwrite >/dev/null
cp -r $tmp/home/model $tmp/new
"$CROLL" init $tmp/new --seed 2 --overwrite >/dev/null
cp -r $tmp/new $tmp/wide
sed -i 's/"intermediate_size": 256/"intermediate_size": 320/' $tmp/wide/config.json
"$CROLL" init $tmp/wide --overwrite >/dev/null
cp -r $tmp/new $tmp/zero
cp -r $tmp/new $tmp/nan
python3 - $tmp <<'PY'
import json, struct, sys
for what in ("zero", "nan"): # the last norm: logits of equal size, and NaN
    path = f"{sys.argv[1]}/{what}/model.safetensors"
    data = bytearray(open(path, "rb").read())
    num = struct.unpack("<Q", data[:8])[0]
    begin, end = [8 + num + x for x in json.loads(data[8:8 + num])["model.norm.weight"]["data_offsets"]]
    data[begin:end] = (b"\0" if what == "zero" else b"\xff") * (end - begin)
    open(path, "wb").write(data)
PY
printf 'alice sk-alice-1 score,generate\nroot sk-root-1 score,generate,admin\n' >$tmp/keys
chmod 600 $tmp/keys
cat >$tmp/client.py <<'PY'
import concurrent.futures, json, os, subprocess, sys, threading, time, urllib.error, urllib.request
from logprobs import numbers as logprobs_of
url, tmp, _, pid, samples = *sys.argv[1:5], "--score-only" not in sys.argv
deadline = 60 * int(os.environ.get("CROLL_TESTS_SLOWER", 1))
def call(path, body=None, key="alice", method=None):
    r = urllib.request.Request(url + path, None if body is None else json.dumps(body).encode(),
                               {"Content-Type": "application/json", "X-Api-Key": f"sk-{key}-1"}, method=method)
    try:
        with urllib.request.urlopen(r, timeout=deadline) as answer:
            return answer.status, json.load(answer), answer.headers
    except urllib.error.HTTPError as e:
        return e.code, json.load(e)["error"], e.headers
def refused(code, error, *args, **more):
    got = call(*args, **more)
    assert (got[0], got[1].get("code")) == (code, error), got
    return got[1]["message"]
prompts = [[(37 * i + 11 * t) % 256 for t in range(4 + 7 * i)] for i in range(8)]
wanted = lambda folder: [line["logprobs"] for line in logprobs_of(prompts, model=folder)]
old, new = tmp + "/home/model", tmp + "/new"
numbers = {old: wanted(old), new: wanted(new)}
model = lambda: call("/v1/models")[1]["data"][0]
sha = {old: model()["croll"]["weights_sha256"]}
def score(folders=(old, new)):
    """All prompts in one request: numbers of one version, which the answer names."""
    status, answer, headers = call("/v1/completions", {"prompt": prompts, "max_tokens": 0, "prompt_logprobs": 0})
    assert status == 200, (status, answer)
    got = [[next(iter(x.values()))["logprob"] for x in c["prompt_logprobs"][1:]] for c in answer["choices"]]
    folder = [f for f in folders if got == numbers[f]]
    assert folder, "numbers of no version"
    assert sha.setdefault(folder[0], answer["croll"]["weights_sha256"]) == answer["croll"]["weights_sha256"] == headers["x-croll-weights"], answer["croll"]
    return folder[0], answer["croll"]["weight_version"]
update = lambda folder, key="root", **more: ("/update_weights_from_disk", dict(more, model_path=folder), key)

# refused: nothing changes
refused(403, "not_allowed", *update(new, "alice"))
refused(403, "not_allowed", "/pause", None, "alice", method="POST")
refused(400, "missing_required_parameter", *update(""))
refused(404, "model_not_found", *update(new, model="other"))
refused(400, "invalid_value", *update(tmp + "/absent"))
assert "shape" in refused(400, "invalid_value", *update(tmp + "/wide"))
assert "finite" in refused(400, "invalid_value", *update(tmp + "/nan"))
assert "self-check" in refused(400, "invalid_value", *update(tmp + "/zero"))
refused(409, "weights_mismatch", *update(new, weights_sha256=sha[old]))
refused(409, "weights_mismatch", *update(new, croll={"expect_weights": "0" * 64}))
if "CROLL_TESTS_SLOWER" not in os.environ: # a sanitizer ends the process when it gets no memory
    size = int(next(l for l in open(f"/proc/{pid}/status") if l.startswith("VmSize")).split()[1]) * 1024
    subprocess.run(["prlimit", "--pid", pid, f"--as={size + (1 << 20)}:unlimited"], check=True)
    refused(503, "insufficient_memory", *update(new))
    subprocess.run(["prlimit", "--pid", pid, "--as=unlimited"], check=True)
assert score() == (old, "1") and call("/weight_info")[1]["weight_version"] == "1"

# replaced under load
stop, seen = threading.Event(), []
def load():
    while not stop.is_set():
        seen.append(score())
def sample(begun=None): # seed: the same tokens from the same weights; begun: set when the first tokens are there
    body = {"prompt": prompts[1], "max_tokens": 100, "n": 8, "seed": 1, "ignore_eos": True, "return_token_ids": True, "stream": True}
    r = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json", "X-Api-Key": "sk-alice-1"})
    ids, by = [[] for _ in range(8)], set()
    with urllib.request.urlopen(r, timeout=deadline) as answer:
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            assert "error" not in event, event
            for choice in event["choices"]:
                ids[choice["index"]] += choice["token_ids"]
            if "croll" in event:
                by.add(event["croll"]["weights_sha256"])
            if begun and any(ids):
                begun.set()
    assert [len(x) for x in ids] == [100] * 8 and len(by) == 1, (ids, by)
    return ids, by.pop()
tokens = {sample()[1]: sample()[0]} if samples else {}
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    loads = [pool.submit(load) for _ in range(4)]
    try:
        while len(seen) < 20:
            time.sleep(0.01)
        begun = threading.Event()
        running = pool.submit(sample, begun) if samples else None
        assert not samples or begun.wait(deadline), "no token of a sample"
        status, answer, headers = call(*update(new))
        assert status == 200 and answer["success"] and answer["weight_version"] == "2" and headers["x-croll-weights"] == answer["weights_sha256"], answer
        sha[new] = answer["weights_sha256"]
        after = [score() for _ in range(5)]
    finally:
        stop.set()
    for f in loads:
        f.result()
assert after == [(new, "2")] * 5, after
assert set(seen) == {(old, "1"), (new, "2")}, set(seen)
assert model()["root"] == new and model()["croll"]["weights_sha256"] == sha[new]
assert call("/v1/completions", {"model": "s@2", "prompt": [1], "max_tokens": 1})[0] == 200
refused(404, "model_not_found", "/v1/completions", {"model": "s@1", "prompt": [1], "max_tokens": 1})
if samples:
    tokens[sha[new]] = sample()[0]
    assert tokens[sha[new]] != tokens[sha[old]] # no prefix of the old weights is used
    assert running.result() == (tokens[sha[old]], sha[old]), "a sample of two versions" # it had begun before
status, answer, _ = call(*update(old, weight_version="first", croll={"expect_weights": sha[new]}, weights_sha256=sha[old][:12]))
assert status == 200 and score() == (old, "first"), answer
if samples:
    assert sample() == (tokens[sha[old]], sha[old])

# pause and resume
pool = concurrent.futures.ThreadPoolExecutor(4)
big = {"prompt": prompts * 128, "max_tokens": 0, "prompt_logprobs": 0, "encoding_format": "base64"}
def pause(mode):
    begun = [pool.submit(call, "/v1/completions", big) for _ in range(3)]
    while call("/load")[1]["server_load"] < 3 and not begun[-1].done():
        time.sleep(0.005)
    status, answer, _ = call("/pause?mode=" + mode, None, "root", "POST")
    assert status == 200 and answer == {"status": "paused"}, answer
    assert call("/load")[1]["server_load"] == 0 and call("/is_paused")[1] == {"is_paused": True}
    refused(503, "paused", "/v1/completions", {"prompt": [1], "max_tokens": 1})
    refused(503, "paused", "/ready")
    assert call("/tokenize", {"prompt": "1"})[0] == 200
    return [f.result()[0] for f in begun]
refused(400, "invalid_value", "/pause?mode=keep", None, "root", method="POST")
assert pause("wait") == [200] * 3
assert call(*update(new))[0] == 200 # while it is paused
assert call("/resume", None, "root", "POST")[1] == {"status": "resumed"} and call("/is_paused")[1] == {"is_paused": False}
assert score() == (new, "4") and call("/ready")[0] == 200
assert 503 in pause("abort")
call("/resume", None, "root", "POST")
assert score() == (new, "4")
assert call("/get_world_size")[1]["world_size"] == (1 if samples else 2)
PY
for ranks in "" "device_mapping=list(range(0,2)) --score-only"; do
    serve --keys $tmp/keys --allow-updates $ranks
    pid=$(rank_with 0 "serve $tmp/home/model")
    python3 $tmp/client.py $url $tmp "$CROLL" ${pid:-$server} $ranks || fail "$ranks: $(cat $tmp/err)"
    stop
done
nothing_left home/model

# frozen, and without keys
serve --keys $tmp/keys
curl -sS -m 60 -H 'X-Api-Key: sk-root-1' -d "{\"model_path\":\"$tmp/new\"}" $url/update_weights_from_disk | grep -q '"code":"frozen"' || fail "it is not frozen"
stop
serve
curl -sS -m 60 -X POST $url/pause | grep -q 'scope admin' || fail "anybody may pause it"
stop
code=0
"$CROLL" serve $tmp/home/model --allow-updates >$tmp/out 2>$tmp/err || code=$?
[ $code = 2 ] && grep -q 'needs --keys' $tmp/err || fail "updates without keys: $code"
echo "done"
