#!/bin/bash
# Numbers and samples of croll serve: every route gives the float32 of `croll logprobs` on one rank, alone and among 63
# neighbours, on 1, 2 and 4 ranks, fp32 and bf16, and the samples of `croll generate`; streams put together are the whole
# answer; a client that is gone frees its place. serve_numbers.sh N: with N prompts instead of 60, on all ranks in both precisions,
# all of them alone, too (1000: some minutes). Not covered: real clients.
. tests/e2e/serve.inc
num=${1:-60}
make_model

cat >$tmp/prompts.py <<'END'
import random, sys
def prompts(num):
    random.seed(7)
    return [[random.randrange(3, 250) for _ in range(random.choice([1, 2, 3, 17, 40, 64, 65, 100, 200]))] for _ in range(num)]
END
cat >$tmp/lines.py <<'END'
import json, prompts, sys
for i, ids in enumerate(prompts.prompts(int(sys.argv[1]))):
    print(json.dumps({"id": i, "input_ids": ids}))
END
# PORT FILE-OF-LOGPROBS PROMPTS PROMPTS-ALONE
cat >$tmp/scores.py <<'END'
import base64, http.client, json, struct, sys, threading
import prompts
port, num, num_alone = int(sys.argv[1]), int(sys.argv[3]), int(sys.argv[4])
ids = prompts.prompts(num)
want = [json.loads(line)["logprobs"] for line in open(sys.argv[2])]
assert len(want) == num
float32 = lambda x: struct.pack("f", x)
def one(c, i):
    def post(path, body):
        c.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = c.getresponse()
        body = json.load(answer)
        assert answer.status == 200, body
        return body
    p = ids[i]
    x = post("/v1/completions", {"prompt": [p], "max_tokens": 1, "logprobs": 1, "echo": True, "temperature": 0})["choices"][0]
    assert x["logprobs"]["token_logprobs"][1:-1] == want[i], i
    x = post("/v1/completions", {"prompt": p, "max_tokens": 0, "prompt_logprobs": 2})["choices"][0]
    assert [next(iter(y.values()))["logprob"] for y in x["prompt_logprobs"][1:]] == want[i], i
    assert [next(iter(y)) for y in x["prompt_logprobs"][1:]] == [str(t) for t in p[1:]], i
    x = post("/generate", {"input_ids": p, "sampling_params": {"max_new_tokens": 0}, "return_logprob": True, "logprob_start_len": 0})
    assert [y[0] for y in x["meta_info"]["input_token_logprobs"]][1:] == want[i], i
    x = post("/inference/v1/generate", {"token_ids": p, "sampling_params": {"max_tokens": 1, "prompt_logprobs": 0}})
    assert [next(iter(y.values()))["logprob"] for y in x["prompt_logprobs"][1:]] == want[i], i
    x = post("/v1/completions", {"prompt": p, "max_tokens": 0, "prompt_logprobs": 0, "encoding_format": "base64"})["choices"][0]
    assert base64.b64decode(x["croll_scores"]["log_probs"]) == b"".join(map(float32, want[i])), i
connect = lambda: http.client.HTTPConnection("127.0.0.1", port, timeout=120)
alone = connect()
for i in range(num_alone):
    one(alone, i)
left, failed, together = list(range(num)), [], threading.Barrier(min(64, num))
def worker():
    try:
        c = connect()
        together.wait()
        while left and not failed:
            one(c, left.pop())
    except Exception as e:
        failed.append(repr(e))
threads = [threading.Thread(target=worker) for _ in range(min(64, num))]
[t.start() for t in threads]
[t.join() for t in threads]
assert not failed, failed
END
cat >$tmp/check.py <<'END'
import json, math, socket, sys, time, urllib.error, urllib.request
import prompts
port = int(sys.argv[1])
def post(path, body):
    data = json.dumps(body).encode()
    r = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(r, timeout=60))
def get(path):
    return json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60))
want = {}
for line in open(sys.argv[2]):
    line = json.loads(line)
    want[line["id"]] = line["logprobs"]
ids = prompts.prompts(60)
many = post("/v1/completions", {"prompt": ids, "max_tokens": 1, "logprobs": 0, "echo": True})["choices"]
assert [c["logprobs"]["token_logprobs"][1:-1] for c in many] == [want[i] for i in range(len(ids))]

# samples: the bits of croll generate, whatever else runs; numbers of sampled tokens are those of a scored sequence
sampled = [json.loads(line) for line in open(sys.argv[3])]
p = ids[6]
c = post("/v1/completions", {"prompt": [p], "max_tokens": 20, "temperature": 0, "logprobs": 3, "return_token_ids": True})["choices"][0]
assert c["token_ids"] == sampled[0]["output_ids"], (c["token_ids"], sampled[0])
s = post("/v1/completions", {"prompt": p + c["token_ids"], "max_tokens": 0, "prompt_logprobs": 0})["choices"][0]
tail = [next(iter(x.values()))["logprob"] for x in s["prompt_logprobs"][len(p):]]
assert tail == c["logprobs"]["token_logprobs"]
plain = post("/v1/completions", {"prompt": [p], "max_tokens": 20, "temperature": 0, "logprobs": 0})["choices"][0]
assert plain["logprobs"]["token_logprobs"] == tail
body = {"prompt": [p, ids[7]], "max_tokens": 12, "n": 2, "seed": 5, "logprobs": 0}
whole = post("/v1/completions", body)
text, numbers = [""] * 4, [[] for _ in range(4)]
r = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", json.dumps(dict(body, stream=True)).encode(), {"Content-Type": "application/json"})
events = urllib.request.urlopen(r, timeout=60)
assert events.headers["Content-Type"].startswith("text/event-stream")
last = None
for line in events:
    if not line.startswith(b"data: "):
        continue
    last = line[6:].strip()
    if last != b"[DONE]":
        for x in json.loads(last)["choices"]:
            text[x["index"]] += x["text"]
            if x["logprobs"]:
                numbers[x["index"]] += x["logprobs"]["token_logprobs"]
assert last == b"[DONE]"
assert text == [x["text"] for x in whole["choices"]]
assert numbers == [x["logprobs"]["token_logprobs"] for x in whole["choices"]]

# one token, which a round draws, is the first of many, which the engine draws, whatever changes its logits
processors = {"prompt": [p, ids[7]], "n": 8, "seed": 3, "logprobs": 0, "return_token_ids": True, "temperature": 1.1, "top_k": 15, "logit_bias": {"50": 3.0, "51": -100},
         "allowed_token_ids": list(range(40, 60)), "min_tokens": 1, "stop_token_ids": [52], "bad_words": ["5", "67"], "presence_penalty": 1.5, "repetition_penalty": 1.2}
many = post("/v1/completions", dict(processors, max_tokens=6))["choices"]
for x, y in zip(post("/v1/completions", dict(processors, max_tokens=1))["choices"], many):
    assert x["token_ids"] == y["token_ids"][:1] and x["logprobs"]["token_logprobs"] == y["logprobs"]["token_logprobs"][:1], (x, y)
    assert 40 <= min(y["token_ids"]) and max(y["token_ids"]) < 60 and 51 not in y["token_ids"] and y["token_ids"][0] != 52
    assert 53 not in y["token_ids"] and (54, 55) not in zip(y["token_ids"], y["token_ids"][1:]), y
assert len({y["token_ids"][0] for y in many}) > 2
once = post("/v1/completions", {"prompt": p, "max_tokens": 12, "temperature": 0, "frequency_penalty": 2, "presence_penalty": 2, "ignore_eos": True, "return_token_ids": True,
                                "logit_bias": {str(i): 100 for i in range(40, 52)}})["choices"][0]["token_ids"]
again = post("/v1/completions", {"prompt": p, "max_tokens": 12, "temperature": 0, "ignore_eos": True, "return_token_ids": True,
                                 "logit_bias": {str(i): 100 for i in range(40, 52)}})["choices"][0]["token_ids"]
assert len(set(once)) > len(set(again)), (once, again)

# alternatives and ranks of sampled tokens are those of a scored sequence, and the same in a stream
def lines(path, body):
    r = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(dict(body, stream=True)).encode(), {"Content-Type": "application/json"})
    return [json.loads(x[6:]) for x in urllib.request.urlopen(r, timeout=60) if x.startswith(b"data: {")]
how = {"max_tokens": 20, "temperature": 1.3, "seed": 4, "logprobs": 3, "ignore_eos": True}
ids_in = {"token_ids": p, "sampling_params": how}
t = post("/inference/v1/generate", ids_in)["choices"][0]
scored = post("/inference/v1/generate", {"token_ids": p + t["token_ids"], "sampling_params": {"max_tokens": 0, "prompt_logprobs": 3}})["prompt_logprobs"][len(p):]
assert len(scored) == 20
for e, x in zip(t["logprobs"]["content"], scored):
    first = next(iter(x.items()))
    assert (str(e["token_id"]), e["logprob"], e["rank"]) == (first[0], first[1]["logprob"], first[1]["rank"]), (e, x)
    assert len(e["top_logprobs"]) == 3
    assert {str(a["token_id"]): a["logprob"] for a in e["top_logprobs"]}.items() <= {k: v["logprob"] for k, v in x.items()}.items(), (e, x)
assert [e for x in lines("/inference/v1/generate", ids_in) for e in x["choices"][0]["logprobs"]["content"]] == t["logprobs"]["content"]
body = dict(how, prompt=p)
assert [e for x in lines("/v1/completions", body) for e in x["choices"][0]["logprobs"]["top_logprobs"]] == post("/v1/completions", body)["choices"][0]["logprobs"]["top_logprobs"]
body = dict(how, messages=[{"role": "user", "content": "1+2="}], logprobs=True, top_logprobs=2)
assert [e for x in lines("/v1/chat/completions", body) if x["choices"][0]["logprobs"] for e in x["choices"][0]["logprobs"]["content"]] == post("/v1/chat/completions", body)["choices"][0]["logprobs"]["content"]
body = {"input_ids": p, "sampling_params": {"max_new_tokens": 20, "sampling_seed": 4}, "return_logprob": True, "top_logprobs_num": 2}
assert lines("/generate", body)[-1]["meta_info"]["output_top_logprobs"] == post("/generate", body)["meta_info"]["output_top_logprobs"]

# processed log-probs: of a prompt at the temperature, of samples what they were drawn with; raw ones beside them stay
body = {"prompt": p, "max_tokens": 0, "prompt_logprobs": -1, "temperature": 0.5}
raw = post("/v1/completions", body)["choices"][0]["prompt_logprobs"]
cold = post("/v1/completions", dict(body, croll={"logprobs_mode": "processed"}))["choices"][0]["prompt_logprobs"]
assert raw == post("/v1/completions", dict(body, temperature=1, croll={"logprobs_mode": "processed"}))["choices"][0]["prompt_logprobs"]
for x, y in zip(raw[1:], cold[1:]):
    total = math.log(sum(math.exp(2 * e["logprob"]) for e in x.values()))
    for k, e in y.items():
        assert abs(e["logprob"] - (2 * x[k]["logprob"] - total)) < 1e-4, (e, x[k])
body = dict(how, prompt=p, n=3, logprobs=8, top_k=5, return_tokens_as_token_ids=True, frequency_penalty=0.5, croll={"logprobs_mode": "processed"})
for c in post("/v1/completions", body)["choices"]:
    for number, top in zip(c["logprobs"]["token_logprobs"], c["logprobs"]["top_logprobs"]):
        assert number in top.values() and len(top) == 5 and abs(sum(map(math.exp, top.values())) - 1) < 1e-5, top
one = post("/v1/completions", dict(body, max_tokens=1))["choices"]
many = post("/v1/completions", body)["choices"]
assert [x["logprobs"]["top_logprobs"] for x in one] == [x["logprobs"]["top_logprobs"][:1] for x in many]

# beginnings of prompts that are in the cache: the same answer, and how much of it was there
body = {"prompt": list(range(3, 183)), "max_tokens": 70, "temperature": 0, "logprobs": 2, "return_token_ids": True, "ignore_eos": True}
def hits():
    page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60).read().decode()
    return float(page.split("\ncroll_prefix_cache_hits_total ")[1].split("\n")[0])
before = hits()
first, again = post("/v1/completions", body), post("/v1/completions", body)
cached = lambda answer: answer["usage"]["prompt_tokens_details"]["cached_tokens"]
assert (cached(first), cached(again)) == (0, 128) and first["choices"] == again["choices"]
other = post("/v1/completions", dict(body, cache_salt="mine"))
assert cached(other) == 0 and other["choices"] == first["choices"]
turn = {"input_ids": body["prompt"] + first["choices"][0]["token_ids"] + [7], "sampling_params": {"max_new_tokens": 2}}
assert post("/generate", turn)["meta_info"]["cached_tokens"] == 192
assert hits() - before == 320

# a client that is gone, and one with a deadline: their samples, minutes of work, end
data = json.dumps({"prompt": [p] * 200, "max_tokens": 150, "n": 128, "stream": True, "ignore_eos": True}).encode()
s = socket.create_connection(("127.0.0.1", port))
s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
s.recv(100)
s.close()
late = {"prompt": [p] * 200, "max_tokens": 150, "n": 128, "ignore_eos": True, "croll": {"deadline_ms": 50}}
try:
    post("/v1/completions", late)
    raise SystemExit("an answer after its deadline")
except urllib.error.HTTPError as e:
    assert e.code == 504 and json.load(e)["error"]["code"] == "deadline_exceeded"
for _ in range(100):
    if get("/load")["server_load"] == 0:
        break
    time.sleep(0.1)
assert get("/load")["server_load"] == 0
END
cd $tmp
python3 lines.py $num >lines.jsonl
for dtype in fp32 bf16; do "$CROLL" logprobs home/model model_args.dtype=$dtype <lines.jsonl >$dtype.jsonl; done
cmp -s fp32.jsonl bf16.jsonl && fail "both precisions have the same numbers"
sed -n 7p lines.jsonl | "$CROLL" generate home/model --json --temperature 0 --max-new-tokens 20 model_args.dtype=fp32 >generated.jsonl
alone=6 places=("1 fp32" "2 fp32" "4 bf16 strategy_args.strategy_config.fsdp_size=2")
[ $# = 0 ] || alone=$num places=("1 fp32" "1 bf16" "2 fp32" "2 bf16" "4 fp32" "4 bf16" "4 fp32 model_args.ulysses_size=2")
for place in "${places[@]}"; do
    set -- $place
    launch $tmp/home/model --served-model-name s --access-log none --max-logprobs 300 "device_mapping=list(range(0,$1))" model_args.dtype=$2 "${@:3}"
    begin=$SECONDS
    python3 scores.py $port $2.jsonl $num $alone || fail "$place: the numbers differ: $(cat err)"
    echo "$num prompts, $alone of them alone, ranks and precision $place: equal, $((SECONDS - begin)) s"
    if [ "$place" = "1 fp32" ]; then
        [ $num -ge 60 ] || fail "at least 60 prompts"
        python3 check.py $port fp32.jsonl generated.jsonl || fail "samples: $(cat err)"
    fi
    stop
done
