#!/bin/bash
# croll serve: while a body of many megabytes is parsed and its text made tokens, samples of other requests go on: from the moment
# when its work begins to its answer (a refusal, so nothing is computed for it) events of a stream arrive.
. tests/e2e/serve.inc
serve
cat >$tmp/client.py <<'END'
import http.client, json, sys, threading, urllib.request
port = int(sys.argv[1])
events = threading.Semaphore(0)
count, ends, ended = [0], threading.Event(), threading.Event()
def stream():
    """Samples, one request after the other, until all is over."""
    while not ends.is_set():
        c = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        c.request("POST", "/v1/completions", json.dumps({"prompt": [5, 6, 7], "max_tokens": 200, "ignore_eos": True, "stream": True}),
                  {"Content-Type": "application/json"})
        for line in c.getresponse():
            if line.startswith(b"data: {"):
                count[0] += 1
                events.release()
        c.close()
    ended.set()
def large():
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    c.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    answer = c.getresponse()
    answers.append((answer.status, answer.read().decode()))
    answered.set()
def running():
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=600).read().decode()
    return [float(line.split()[1]) for line in text.splitlines() if line.startswith("croll_num_requests_running ")][0]
body = json.dumps({"prompt": "12+34=46, and so on. " * (24 * 1024 * 1024 // 21), "max_tokens": 1}).encode()
answers, answered = [], threading.Event()
threading.Thread(target=stream, daemon=True).start()
assert events.acquire(timeout=600)
threading.Thread(target=large, daemon=True).start()
while running() < 2 and not answered.is_set():
    pass
assert not answered.is_set(), "the large body was answered before it was seen to be worked on"
before = count[0]
assert answered.wait(600)
during = count[0] - before
assert answers[0][0] == 400, answers
assert "token" in answers[0][1], answers
print(during, "events while the large body was parsed")
assert during >= 20, during # what was under way when it began is less
ends.set()
assert ended.wait(600)
END
$python $tmp/client.py $port || fail "client: $(cat $tmp/err)"
stop
echo ok
