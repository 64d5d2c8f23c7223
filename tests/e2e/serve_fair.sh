#!/bin/bash
# croll serve with two tenants: a request of many long prompts, or of many samples, does not hold up another tenant's
# short ones; a full queue has place for the other; counters of tenants are in /metrics, Retry-After is measured; the model's time
# of requests that take turns in its rounds is within their own.
# Not covered: turns in the queue by numbers (unit/serve_queue).
. tests/e2e/serve.inc
printf 'long sk-long-1 score,generate\nshort sk-short-1 score,generate - 2\n' >$tmp/keys
chmod 600 $tmp/keys
serve --keys $tmp/keys --max-queue 40 --access-log $tmp/access
cat >$tmp/client.py <<'END2'
import json, os, socket, sys, threading, time, urllib.error, urllib.request
port = int(sys.argv[1])
def post(body, key):
    r = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(),
                               {"Content-Type": "application/json", "X-Api-Key": f"sk-{key}-1"})
    try:
        return urllib.request.urlopen(r, timeout=120), None
    except urllib.error.HTTPError as e:
        return e, e.read().decode()
def metric(name, tenant):
    r = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"X-Api-Key": "sk-long-1"})
    text = urllib.request.urlopen(r, timeout=60).read().decode()
    want = f'croll_{name}{{tenant="{tenant}"}} '
    return sum(float(line[len(want):]) for line in text.splitlines() if line.startswith(want))
slower = int(os.environ.get("CROLL_TESTS_SLOWER", 1)) # builds with sanitizers
class Later(threading.Thread):
    def __init__(self, body, key):
        super().__init__()
        self.args, self.answer, self.end_s = (body, key), None, None
        self.start()
    def run(self):
        self.answer, self.text = post(*self.args)
        if self.answer.status == 200:
            self.text = self.answer.read().decode()
        self.end_s = time.time()
def load():
    r = urllib.request.Request(f"http://127.0.0.1:{port}/load", headers={"X-Api-Key": "sk-long-1"})
    return json.load(urllib.request.urlopen(r, timeout=60))["server_load"]
def until(holds):
    begin = time.time()
    while not holds():
        assert time.time() - begin < 120 * slower
        time.sleep(0.01)
line = list(range(3, 243))
score = {"prompt": [line] * 500, "max_tokens": 0, "prompt_logprobs": 0, "encoding_format": "base64"}
sample = {"prompt": [line[:20]] * 20, "max_tokens": 200, "n": 8, "ignore_eos": True}
quick = {"prompt": [line[:20]], "max_tokens": 4, "ignore_eos": True}
def during(big, small):
    """A small request of the other tenant is answered while the big one is worked on."""
    begin = time.time()
    later = Later(big, "long")
    until(lambda: load() > 0)
    time.sleep(0.05)
    answer, text = post(small, "short")
    assert answer.status == 200, text
    answer.read()
    seconds = time.time() - begin
    later.join()
    assert later.answer.status == 200, later.text
    assert seconds < 0.6 * (later.end_s - begin), (seconds, later.end_s - begin)
    print(f"a short request {seconds:.2f} s, the long one {later.end_s - begin:.2f} s")
during(score, {"prompt": [line[:20]], "max_tokens": 0, "prompt_logprobs": 0})
during(sample, quick)
assert metric("tenant_tokens_total", "long") == 240 * 500 + 20 * 20 + 20 * 8 * 200, metric("tenant_tokens_total", "long")
assert metric("tenant_tokens_total", "short") == 20 + 24
# 224 requests of one tenant are worked on and 40 wait: the next one is refused, but one of another tenant has a place
def send(key):
    data = json.dumps({"prompt": [line[:20]] * 100, "max_tokens": 200, "n": 64, "ignore_eos": True}).encode()
    s = socket.create_connection(("127.0.0.1", port))
    s.settimeout(60)
    s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nX-Api-Key: sk-%s-1\r\nContent-Length: %d\r\n\r\n%s"
              % (key.encode(), len(data), data))
    return s
sockets = []
for i in range(264):
    sockets.append(send("long"))
    if i % 32 == 31:
        until(lambda: load() == i + 1 and (i >= 224 or metric("tenant_requests_waiting", "long") == 0))
until(lambda: metric("tenant_requests_waiting", "long") == 40)
answer, text = post(quick, "long")
assert answer.status == 503 and json.loads(text)["error"]["code"] == "server_overloaded", (answer.status, text)
assert 1 < int(answer.headers["Retry-After"]) <= 60, answer.headers["Retry-After"] # minutes of work
answer, text = post(quick, "short")
assert answer.status == 200, text
refused = sockets[-1].recv(4096) # the last one
assert b" 503 " in refused and b"server_overloaded" in refused and b"Retry-After: " in refused, refused
assert metric("tenant_rejections_total", "long") == 2 and metric("tenant_rejections_total", "short") == 0
for s in sockets:
    s.close()
until(lambda: load() == 0)
both = [Later({**score, "prompt": [line[:20]] * 600}, key) for key in ("long", "short")]
for later in both:
    later.join()
    assert later.answer.status == 200, later.text
END2
python3 $tmp/client.py $port || fail "one tenant holds up the other: $(cat $tmp/err)"
until_true '[ $(grep "\"route\":\"/v1/completions\"" $tmp/access | grep -c "\"status\":200") -ge 6 ]'
python3 - $tmp/access <<'PY' || fail "the model's time in the log"
import json, sys
lines = [json.loads(l) for l in open(sys.argv[1])]
done = [l for l in lines if l["route"] == "/v1/completions" and l["status"] == 200]
assert len(done) >= 6 and all(0 < l["model_ms"] <= l["compute_ms"] for l in done), done
PY
stop
