#!/bin/bash
# Bodies that other trainers send to a reference, teacher or judge, written after their sources, and what they read of the answer:
# prime-rl, slime (teacher and rollout), verl (completions and generate), AReaL (both), ROLL's judge and its agents. Numbers are
# those of `croll logprobs`. Not covered: the programs themselves.
. tests/e2e/serve.inc
serve --clamp-max-tokens --max-chat-tokens 24
client bodies <<'END2'
import json, random, sys, urllib.error, urllib.request
url = sys.argv[1]
sys.path.insert(0, sys.argv[2])
from logprobs import numbers
def post(path, body, headers={}):
    r = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json", **headers})
    try:
        answer = urllib.request.urlopen(r, timeout=60)
    except urllib.error.HTTPError as e:
        raise SystemExit(f"{body}: {e.read().decode()}")
    assert answer.status == 200
    return json.load(answer), answer.headers
random.seed(5)
ids = [random.randrange(3, 250) for _ in range(40)]
line, = numbers([ids], "--top-logprobs", "4", "--rank")
want = line["logprobs"]

# prime-rl, teacher or reference: the first value of each place, null is 0
a, _ = post("/inference/v1/generate", {"model": "s", "token_ids": ids, "sampling_params":
    {"max_tokens": 1, "temperature": 1.0, "top_p": 1.0, "prompt_logprobs": 1}}, {"X-Session-ID": "1"})
got = [0.0 if place is None else next(iter(place.values()))["logprob"] for place in a["prompt_logprobs"]]
assert got == [0.0] + want, got

# slime, teacher of rm_url: entries [1:], element 0
body = {"input_ids": ids, "sampling_params": {"temperature": 0, "max_new_tokens": 0, "skip_special_tokens": False},
        "return_logprob": True, "logprob_start_len": 0}
a, _ = post("/generate", body)
assert [x[0] for x in a["meta_info"]["input_token_logprobs"][1:]] == want
assert [x[1] for x in a["meta_info"]["input_token_logprobs"]] == ids
# slime, rollout: ids and log-probs of the tokens, how it ended
a, _ = post("/generate", {"input_ids": ids, "sampling_params": {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_new_tokens": 9,
    "stop": None, "stop_token_ids": None, "skip_special_tokens": False, "no_stop_trim": True, "spaces_between_special_tokens": False},
    "return_logprob": True})
new = [x[1] for x in a["meta_info"]["output_token_logprobs"]]
again, = numbers([ids + new])
assert [x[0] for x in a["meta_info"]["output_token_logprobs"]] == again["logprobs"][len(ids) - 1:]
assert a["meta_info"]["finish_reason"]["type"] in ("stop", "length") and a["meta_info"]["weight_version"] == "1"

# verl, teacher: K or K+1 entries a place, actual first; SGLang's form with top_logprobs_num
a, _ = post("/v1/completions", {"model": "s", "prompt": [ids], "max_tokens": 1, "temperature": 1.0, "prompt_logprobs": 4})
for t, place in enumerate(a["choices"][0]["prompt_logprobs"][1:]):
    keys = list(place)
    assert len(place) in (4, 5) and keys[0] == str(ids[t + 1]) and place[keys[0]]["logprob"] == want[t]
    assert place[keys[0]]["rank"] == line["rank"][t]
    assert sorted(int(k) for k, v in place.items() if v["rank"] <= 4) == sorted(line["top_ids"][t])
a, _ = post("/generate", {"input_ids": [ids], "sampling_params": {"max_new_tokens": 1, "temperature": 1.0}, "return_logprob": True,
    "logprob_start_len": 0, "top_logprobs_num": 4})
top = a[0]["meta_info"]["input_top_logprobs"]
assert top[0] is None and [[x[1] for x in place] for place in top[1:]] == line["top_ids"]
assert [[x[0] for x in place] for place in top[1:]] == line["top_logprobs"]

# AReaL: vLLM's route with ids as tokens, SGLang's route
a, _ = post("/v1/completions", {"model": "s", "prompt": ids, "max_tokens": 6, "temperature": 1.0, "top_p": 1.0, "top_k": -1,
    "logprobs": 0, "stop_token_ids": [], "ignore_eos": False, "skip_special_tokens": True, "return_tokens_as_token_ids": True,
    "use_beam_search": False, "stream": False})
c = a["choices"][0]["logprobs"]
new = [int(t.split(":")[1]) for t in c["tokens"]]
again, = numbers([ids + new])
assert c["token_logprobs"] == again["logprobs"][len(ids) - 1:] and a["choices"][0]["finish_reason"] in ("stop", "length")
a, _ = post("/generate", {"input_ids": ids, "image_data": [], "sampling_params": {"top_p": 1.0, "top_k": -1, "max_new_tokens": 6,
    "temperature": 0.0, "stop_token_ids": [], "ignore_eos": False, "skip_special_tokens": False, "frequency_penalty": 0.0},
    "return_logprob": True, "stream": False})
assert len(a["meta_info"]["output_token_logprobs"]) == a["meta_info"]["completion_tokens"] > 0

# ROLL's judge: messages only
a, _ = post("/v1/chat/completions", {"model": "s", "messages": [{"role": "user", "content": "Is 12+3=15 right? YES or NO."}]})
assert isinstance(a["choices"][0]["message"]["content"], str)
assert a["usage"]["total_tokens"] == a["usage"]["prompt_tokens"] + a["usage"]["completion_tokens"] and a["usage"]["completion_tokens"] <= 24
# ROLL's agents: tools that are empty, fields at the top, more tokens than the context has
a, h = post("/v1/chat/completions", {"model": "s", "messages": [{"role": "user", "content": "12+3="}], "temperature": 0.7, "top_p": 0.8,
    "top_k": 20, "max_tokens": 8192, "tools": [], "tool_choice": "none", "logprobs": True, "top_logprobs": 1,
    "chat_template_kwargs": {"enable_thinking": False}, "stop": None, "n": 1})
c = a["choices"][0]
assert len(c["logprobs"]["content"]) == a["usage"]["completion_tokens"]
assert all(isinstance(x["logprob"], float) and len(x["top_logprobs"]) == 1 for x in c["logprobs"]["content"])
print("bodies of prime-rl, slime, verl, AReaL, ROLL")
END2
