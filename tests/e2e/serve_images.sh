#!/bin/bash
# croll serve with images, on a tiny Qwen3-VL: greedy answers and log-probs of chats with 0 to 3 images as data URIs are those of Transformers in
# float64 (tests/parity/logprobs_images.json), also as events, several at once, n samples, with log-probs of the prompt; usage counts
# their tokens. What is not a data URI of a whole image is a 400 with a sentence, and the service goes on; decoding holds up no other request.
# A model without a tower takes none. A Prismatic model's answers and log-probs are those of `croll generate` and `croll logprobs`, and a chat of two images is a
# 400.
. tests/e2e/serve.inc
mkdir $tmp/models
python3 tests/parity/logprobs_images.py --make $tmp/models || fail "the models"
"$CROLL" init $tmp/models/qwen3_vl --seed 5 >/dev/null
"$CROLL" init $tmp/models/sums/model >/dev/null
scripts/make_pictures $tmp/pictures prismatic
"$CROLL" init $tmp/pictures/model >/dev/null
cat >$tmp/asked <<'END'
{"id": 0, "messages": [{"role": "user", "content": [{"type": "image", "image": "3.png"}, {"type": "text", "text": "Which?"}]}]}
{"id": 1, "messages": [{"role": "user", "content": [{"type": "text", "text": "Which?"}, {"type": "image", "image": "4.png"}]}]}
{"id": 2, "messages": [{"role": "user", "content": "3+1="}]}
END
in=(--image-folder $tmp/pictures/pictures model_args.dtype=fp32)
"$CROLL" generate $tmp/pictures/model "${in[@]}" --temperature 0 --max-new-tokens 8 --json <$tmp/asked >$tmp/answers
"$CROLL" logprobs $tmp/pictures/model "${in[@]}" <$tmp/asked >$tmp/scores
launch v=$tmp/models/qwen3_vl t=$tmp/models/sums/model p=$tmp/pictures/model --access-log none model_args.dtype=fp32
client images <<'END2'
import base64, concurrent.futures, json, re, struct, sys, threading, time, urllib.error, urllib.request, zlib
url = sys.argv[1]
def post(path, body):
    r = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        return 200, urllib.request.urlopen(r, timeout=300).read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()
def chat(body, path="/v1/chat/completions"):
    status, text = post(path, {"model": "v", **body})
    assert status == 200, text
    return json.loads(text)
def uri(data, kind="png"):
    return f"data:image/{kind};base64," + base64.b64encode(data).decode()
def image(u):
    return {"type": "image_url", "image_url": {"url": u, "detail": "high"}}
def user(*parts):
    return [{"role": "user", "content": list(parts)}]
def png(width, height, rows=None):
    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    rows = height if rows is None else rows
    packer = zlib.compressobj(1)
    line = bytes(1 + 3 * width)
    data = b"".join(packer.compress(line) for _ in range(rows)) + packer.flush()
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) + chunk(b"IDAT", data) + chunk(b"IEND", b"")

# the numbers of Transformers
wanted = [x for x in map(json.loads, open("tests/parity/logprobs_images.json")) if x["model"] == "qwen3_vl" and "video" not in str(x.get("request", "video"))]
for x in wanted:
    for part in x["request"]["messages"][0]["content"]:
        if part["type"] == "image":
            name = part.pop("image")
            part.update(image(uri(open("tests/parity/images/" + name, "rb").read(), name.split(".")[-1])))
def check(x):
    m = x["request"]["messages"]
    greedy = {"messages": m, "temperature": 0, "max_tokens": 16, "return_token_ids": True}
    a = chat(greedy)
    assert a["choices"][0]["token_ids"] == x["greedy"], (a, x["greedy"])
    assert a["usage"]["prompt_tokens"] == len(x["input_ids"]), a["usage"]
    assert a["prompt_token_ids"] == x["input_ids"]
    for n in 1, 16: # a round alone; the engine, and then a round
        b = chat({**greedy, "max_tokens": n, "prompt_logprobs": 0})
        got = [next(iter(p.values()))["logprob"] for p in b["prompt_logprobs"][1:]]
        assert max(abs(p - q) for p, q in zip(got, x["logprobs"], strict=True)) < 2e-5
        assert b["choices"][0]["token_ids"] == x["greedy"][:n]
    r = post("/v1/chat/completions", {"model": "v", **greedy, "stream": True})
    events = [json.loads(line[6:]) for line in r[1].splitlines() if line.startswith("data: {")]
    assert "".join(c["delta"].get("content") or "" for e in events for c in e["choices"]) == (a["choices"][0]["message"]["content"] or ""), r
    n = chat({"messages": m, "max_tokens": 8, "n": 3, "seed": 7, "return_token_ids": True})
    return [c["token_ids"] for c in n["choices"]]
alone = [check(x) for x in wanted]
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    assert list(pool.map(check, wanted * 2)) == alone * 2
tokens = chat({"messages": wanted[4]["request"]["messages"]}, "/tokenize")
assert tokens["tokens"] == wanted[4]["input_ids"], tokens

# Prismatic: a placeholder a patch after the first token
tmp, parts = sys.argv[2], []
asked, answers, scores = ([json.loads(x) for x in open(f"{tmp}/{name}")] for name in ("asked", "answers", "scores"))
for x, answer, score in zip(asked, answers, scores, strict=True):
    for part in x["messages"][0]["content"]:
        if type(part) is dict and part["type"] == "image":
            part.update(image(uri(open(f"{tmp}/pictures/pictures/" + part.pop("image"), "rb").read())))
            parts.append(part)
    a = chat({"model": "p", "messages": x["messages"], "temperature": 0, "max_tokens": 8, "return_token_ids": True, "prompt_logprobs": 0})
    assert a["prompt_token_ids"] == score["input_ids"] and a["choices"][0]["token_ids"] == answer["output_ids"], (a, answer, score)
    got = [next(iter(p.values()))["logprob"] for p in a["prompt_logprobs"][1:]]
    assert max(abs(p - q) for p, q in zip(got, score["logprobs"], strict=True)) < 1e-6, (got, score)
assert scores[0]["input_ids"].count(259) == scores[1]["input_ids"].count(259) == 16 and len(scores[0]["input_ids"]) == len(scores[1]["input_ids"])
status, text = post("/v1/chat/completions", {"model": "p", "messages": user(*parts, {"type": "text", "text": "?"})})
assert status == 400 and "message 1 has a second image" in text, (status, text)

# another image under the same ids, after its prefix was kept
m = lambda name: user({"type": "text", "text": "What is in this picture? " * 8}, image(uri(open("tests/parity/images/" + name, "rb").read())))
first, other, again = (chat({"messages": m(name), "temperature": 0, "max_tokens": 8, "return_token_ids": True}) for name in ("png_rgb.png", "png_gray.png", "png_rgb.png"))
assert first["prompt_token_ids"] == other["prompt_token_ids"] and first["choices"] == again["choices"] != other["choices"]

# what is refused
frames = b"" # one in the other
for _ in range(500):
    frames = b"ANMF" + struct.pack("<I", 16 + len(frames)) + bytes(16) + frames
frames = b"VP8X" + struct.pack("<I", 10) + b"\2" + bytes(9) + frames
frames = b"RIFF" + struct.pack("<I", 4 + len(frames)) + b"WEBP" + frames
whole = open("tests/parity/images/png_rgb.png", "rb").read()
for what, parts in [
    ("is a data URI, data:image/png;base64,..: nothing is fetched", [image("http://127.0.0.1:1/x.png")]),
    ("is a data URI", [image("https://example.com/x.png")]), ("is a data URI", [image("file:///etc/passwd")]), ("is a data URI", [image("/etc/passwd")]),
    ("is a data URI", [image("data:text/html;base64,AAAA")]), ("is a data URI", [{"type": "image_url"}]), ("is a data URI", [{"type": "image_url", "image_url": {"path": "x.png"}}]),
    ("is a data URI", [{"type": "image_url", "image_url": {"url": 3}}]), ("is a data URI", [{"type": "image_url", "image_url": {"bytes": base64.b64encode(whole).decode()}}]),
    ("message 1, image 1: its base64 is not valid", [image("data:image/png;base64,iVBORw0KG!!!")]), ("image 1: its base64 is not valid", [image("data:image/png;base64,iVBOR")]),
    ("image 1: data:image/png,abc is no data URI with base64", [image("data:image/png,abc")]), ("message 1, image 2: ", [image(uri(whole)), image(uri(whole[:200]))]),
    ("image 1: it is GIF", [image(uri(b"GIF89a" + bytes(50)))]), ("image 1: ", [image(uri(b"<svg xmlns='http://www.w3.org/2000/svg'/>", "svg+xml"))]),
    ("image 1: ", [image(uri(b""))]), ("image 1: .*60000 x 60000", [image(uri(png(60000, 60000, 4)))]), ("image 1: WebP: it is an animation", [image(uri(frames, "webp"))]), ("more than 512 images", [image(uri(whole))] * 600),
    ("image 1: .*200 times", [image(uri(png(4000, 2)))]), ("1 placeholders|2 placeholders", [image(uri(whole)), {"type": "text", "text": "<|image_pad|>"}]),
    ("with type image_url", [{"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}}]), ("with type image_url", [{"type": "image", "image": "/etc/passwd"}]),
]:
    status, text = post("/v1/chat/completions", {"model": "v", "messages": user(*parts), "max_tokens": 4})
    assert status == 400, (what, status, text)
    message = json.loads(text)["error"]["message"]
    assert re.search(what, message), (what, message)
many = [image(uri(whole))] * 300 # each allowed, and together more than the context
status, text = post("/v1/chat/completions", {"model": "v", "messages": user(*many), "max_tokens": 4})
assert status == 400 and "more than 4096 tokens" in text, (status, text)
status, text = post("/v1/chat/completions", {"model": "t", "messages": user(image(uri(whole))), "max_tokens": 4})
assert status == 400 and "the model t takes no images" in text, (status, text)
assert check(wanted[3]) == alone[3]

# the model works while images are decoded
done = []
slow = threading.Thread(target=lambda: done.append(chat({"messages": user(*[image(uri(large))] * 6), "max_tokens": 1})))
large = png(9000, 9000)
slow.start()
def running():
    return int(re.search(r"num_requests_running(?:{.*})? (\d+)", urllib.request.urlopen(url + "/metrics", timeout=60).read().decode())[1])
end = time.time() + 300
while not running():
    assert not done and time.time() < end, "it was not taken"
for _ in range(5):
    chat({"prompt": [5, 6, 7], "max_tokens": 3}, "/v1/completions")
    assert not done, "the images were decoded before a text was answered"
slow.join()
assert done and done[0]["usage"]["prompt_tokens"] > 6
END2
