#!/bin/bash
# croll serve over sockets, as curl and raw clients see it: routes, keys and their reload, errors, the log, metrics, TLS with
# client certificates, a unix socket, slow clients, signals, the curl lines of docs/serve.md. Not covered: what http/ does with
# every kind of request (unit/http_parser, unit/http_server), numbers of a model (e2e/serve_numbers.sh).
# mostly waits
. tests/e2e/serve.inc
make_model
model=$tmp/home/model
serve() { launch $model --served-model-name sums "$@"; }
# get STATUS PATTERN CURL-ARGUMENT ..: status and body
get() {
    local want=$1 pattern=$2 status
    shift 2
    status=$(curl -sS -m 60 -o $tmp/body -D $tmp/head -w '%{http_code}' "$@" 2>$tmp/curl) || fail "curl $*: $(cat $tmp/curl)"
    [ $status = $want ] || fail "curl $*: $status instead of $want: $(cat $tmp/body)"
    cat $tmp/head $tmp/body | grep -q -- "$pattern" || fail "curl $*: no $pattern: $(cat $tmp/head $tmp/body)"
}

# what cannot be started is refused with a sentence
refuse() {
    local pattern=$1 code=0
    shift
    timeout 120 "$CROLL" serve $model "$@" >$tmp/out 2>$tmp/err || code=$?
    [ $code = 2 ] && tail -n 1 $tmp/err | grep -q -- "$pattern" || fail "$*: exit code $code, no $pattern"
}
printf 'alice sk-alice-1 score,generate\njudge sk-judge-1 generate 2\n\n# comment\n' >$tmp/keys
chmod 600 $tmp/keys
refuse 'give --keys' --listen 0.0.0.0:0
refuse 'is not HOST:PORT' --listen localhost
refuse 'needed together' --tls-cert x
refuse 'needs --tls-cert' --tls-ca x
printf 'a k score\na j score\n' >$tmp/bad; refuse 'bad:2: the name a is there twice' --keys $tmp/bad
printf 'a k score\nb k score\n' >$tmp/bad; refuse 'bad:2: the key of b is there twice' --keys $tmp/bad
printf 'a k scores\n' >$tmp/bad; refuse "bad:1: there is no scope 'scores'" --keys $tmp/bad
printf 'a k score 0\n' >$tmp/bad; refuse 'requests a second' --keys $tmp/bad
refuse "$tmp/absent" --keys $tmp/absent
printf '# none\n' >$tmp/bad; refuse 'has no keys' --keys $tmp/bad
# keys of a worker block that do nothing here, also inside a block that has others
refuse 'training_args.learning_rate has no effect in a service' training_args.learning_rate=3
refuse 'strategy_config.gpu_memory_utilization has no effect' 'strategy_args.strategy_config={fsdp_size: 1, gpu_memory_utilization: 0.1}'
refuse 'data_args.messages has no effect' data_args.template=chatml data_args.messages=m
refuse '1 error in the worker keys' data_args.template=chatnl

# without keys
serve --access-log $tmp/access
head -n 1 $tmp/out | grep -qx "listening on $url" || fail "$(cat $tmp/out)"
python3 - $port <<'PY' &
# a head that never ends is answered with 408 after 10 s, whatever trickles in
import socket, sys, time
s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
s.settimeout(0.5)
s.sendall(b'GET /health HTTP/1.1\r\n')
begin, got = time.time(), b''
while time.time() - begin < 120:
    try:
        s.sendall(b'x: y\r\n')
        got += s.recv(4096) or b'END'
        if got.endswith(b'END'): break
    except socket.timeout: pass
    except OSError: break
sys.exit(0 if b' 408 ' in got and time.time() - begin > 9 else 1)
PY
slow=$!
get 200 '"status":"ok"' $url/health
get 200 '"status":"ok"' $url/v1/health
get 200 '"ready"' $url/ready
get 200 'Content-Length: 16' -I $url/health
get 200 '"id":"sums"' $url/v1/models
get 200 '"max_model_len":256' $url/v1/models/sums
get 404 '"code":"model_not_found"' $url/v1/models/other
get 200 '"version"' $url/version
get 200 '"eos_token":"<|im_end|>"' $url/tokenizer_info
get 404 '"type":"not_found_error"' $url/nothing
get 405 'Allow: GET, HEAD' -X DELETE $url/health
get 405 'Allow: POST' $url/tokenize
get 411 '"code":"length_required"' -X POST $url/tokenize
get 200 '"tokens":\[49,50,43\]' -d '{"prompt":"12+"}' $url/tokenize # curl calls it a form
get 200 '^x-croll-weights: [0-9a-f]' -d '{"prompt":"12+"}' $url/tokenize
get 200 '^x-croll-ignored: other' -d '{"prompt":"12+","other":1}' $url/tokenize
get 200 '"server_load":0' $url/load
get 200 '"prompt":"12+"' -H 'Content-Type: application/json' -d '{"tokens":[49,50,43]}' $url/detokenize
get 415 'application/json' -d 'prompt=12' $url/tokenize
get 415 'compressed' -H 'Content-Encoding: gzip' -d '{"prompt":[1]}' $url/v1/completions
get 200 'croll_requests_total{route="/v1/completions",status="415",tenant="-"} 1' $url/metrics
get 400 '"code":"unknown_parameter"' -d '{"prompt":[1],"croll":{"expect_weight":"00000000"}}' $url/v1/completions
get 400 'tokens\[1\] is 99999, outside the vocabulary' -d '{"tokens":[49,99999]}' $url/detokenize
get 400 'tokens\[1\]: expected a token id' -d '{"tokens":[49,-3]}' $url/detokenize
get 400 '"type":"invalid_request_error"' -d '{"prompt":' $url/tokenize
get 400 '"param":"prompt' -d '{"prompt":{}}' $url/tokenize
get 409 "x-should-retry: false" -d '{"prompt":[1],"croll":{"expect_weights":"00000000"}}' $url/v1/completions
get 200 'x-request-id: my-id' -H 'x-request-id: my-id' $url/health
head -c 40000000 /dev/zero | get 413 '"code":"content_too_large"' -H 'Content-Type: application/json' --data-binary @- $url/tokenize
get 431 header_too_large -H "x: $(printf 'x%.0s' $(seq 16384))" $url/health
get 414 uri_too_long $url/$(printf 'x%.0s' $(seq 4200))
head -c 400000 /dev/zero | tr '\0' x | sed 's/^/{"prompt":"/; s/$/"}/' >$tmp/long
get 200 '"count":400000' -H 'Expect: 100-continue' --data-binary @$tmp/long $url/tokenize
get 200 '"count":400000' -H 'Transfer-Encoding: chunked' --data-binary @$tmp/long $url/tokenize
python3 - $port <<'PY' || fail "pipelined requests"
import socket, sys
s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
s.settimeout(120)
paths = [b'/health', b'/v1/models', b'/version', b'/nothing', b'/ready'] * 40
method = lambda i: b'HEAD' if i % 7 == 6 else b'GET' # whose answers have no body
s.sendall(b''.join(b'%s %s HTTP/1.1\r\nHost: a\r\nx-request-id: %d\r\n\r\n' % (method(i), p, i) for i, p in enumerate(paths)))
f = s.makefile('rb')
for i in range(len(paths)): # all answers, in order
    head = b''
    while not head.endswith(b'\r\n\r\n'): head += f.readline()
    assert head.startswith(b'HTTP/1.1 ') and b'x-request-id: %d\r\n' % i in head, head
    if method(i) == b'GET': f.read(int(head.lower().split(b'content-length: ')[1].split(b'\r\n')[0]))
s.sendall(b'GET /health HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /version HTTP/1.1\r\nHost: a\r\n\r\n')
rest = f.read()
assert rest.count(b'HTTP/1.1') == 1 and b' 400 ' in rest, rest
PY
get 200 'croll_requests_total{route="/v1/models",status="200",tenant="-"} 41' $url/metrics
if command -v promtool >/dev/null; then promtool check metrics <$tmp/body || fail "promtool"; else echo "promtool is not there: its check is left out"; fi
get 200 '<title>croll serve' $url/
get 200 "^Content-Security-Policy: default-src 'none'" $url/
python3 - $url <<'PY' || fail "openapi.json: routes"
# every route that openapi.json names answers, and those of docs/serve.md are in it
import json, re, sys, urllib.error, urllib.request
paths = json.load(urllib.request.urlopen(sys.argv[1] + '/openapi.json'))['paths']
assert len(paths) == 23, sorted(paths)
for path, methods in paths.items():
    for method in methods:
        try:
            urllib.request.urlopen(urllib.request.Request(sys.argv[1] + path.replace('{model}', 'sums'), method=method.upper(),
                                                          data=b'{' if method == 'post' else None))
            assert method == 'get', path
        except urllib.error.HTTPError as e:
            assert method == 'post' and e.code in (400, 403, 409), (path, e.code) # 403: admin routes need keys
PY
get 200 '"prompt_logprobs"' -d '{"prompt":[49,50],"max_tokens":0,"prompt_logprobs":0}' $url/v1/completions
get 200 '"text"' -d '{"prompt":[49,50],"max_tokens":4}' $url/v1/completions
wait $slow || fail "a slow head was not answered with 408 after 10 s"
until_true 'grep -q "\"status\":408" $tmp/access' # the last one
python3 - $tmp/access <<'PY' || fail "the log"
import json, sys
lines = [json.loads(l) for l in open(sys.argv[1])]
assert all(l['route'] != '/health' or l['status'] != 200 for l in lines)
assert sum(l['route'] == '/v1/models' for l in lines) == 42 # the last one is of openapi.json's routes
done = [l for l in lines if l['route'] == '/v1/completions' and l['status'] == 200]
assert len(done) == 2 and all(0 < l['model_ms'] <= l['compute_ms'] <= l['total_ms'] for l in done), done
assert {l['status'] for l in lines} >= {200, 400, 404, 405, 408, 411, 413, 414, 415, 431, 409}
PY
# the curl lines of the page, with this address
sed -n '/^```/,/^```/p' docs/serve.md | grep '^curl .*127.0.0.1:8000/' | sed "s|http://127.0.0.1:8000|$url|; s/^curl /curl -sS -m 60 /" >$tmp/lines
[ $(wc -l <$tmp/lines) -ge 6 ] || fail "docs/serve.md has too few lines of curl"
while read -r line; do
    bash -c "$line" >$tmp/body 2>$tmp/curl </dev/null && [ -s $tmp/body ] && ! grep -q '"error"' $tmp/body || fail "$line: $(cat $tmp/curl $tmp/body)"
done <$tmp/lines
# SIGTERM while a text is tokenized: it is answered, new work is refused, an idle connection does not hold it up
python3 - $port $server <<'PY' || fail "SIGTERM does not drain"
import os, select, signal, socket, sys, time
def ask(method, path, body=b''):
    s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
    s.settimeout(120)
    s.sendall(b'%s %s HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s' % (method, path, len(body), body))
    return s
idle = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
def start(sums): # three texts; False: one was answered before the last was taken
    global work
    work = [ask(b'POST', b'/tokenize', b'{"prompt":"' + b'12+3=' * sums + b'"}') for _ in range(3)]
    begin = time.time()
    while time.time() - begin < 120:
        load = int(ask(b'GET', b'/load').recv(4096).split(b'load":')[1].split(b'}')[0])
        if load == 3: return True
        if select.select(work, [], [], 0)[0]: break
    for s in work: s.close()
    while b'load":0' not in ask(b'GET', b'/load').recv(4096): time.sleep(0.05)
    return False
sums = next(n for n in (250000, 500000, 1000000, 1000000, 1000000) if start(n))
os.kill(int(sys.argv[2]), signal.SIGTERM)
late = ask(b'POST', b'/tokenize', b'{"prompt":"1"}').makefile('rb').read()
assert b' 503 ' in late and b'shutting_down' in late and b'Retry-After' in late, late
ready = ask(b'GET', b'/ready').makefile('rb').read()
assert b' 503 ' in ready and b'shutting_down' in ready, ready
for i, s in enumerate(work): # the first may have been answered just before SIGTERM
    answer = s.makefile('rb').read(600)
    assert b' 200 OK' in answer and b'"count":%d' % (5 * sums) in answer, answer
    assert i == 0 or b'Connection: close' in answer, answer
PY
ends 130
curl -s -m 60 $url/health && fail "it still answers"

# a queue of one: further texts are refused, late ones are not worked on, those of clients that left neither
serve --max-queue 1 --access-log $tmp/access.queue
python3 - $port <<'PY' || fail "the queue"
import socket, sys, time
def ask(body, *fields, path=b'/tokenize'):
    s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
    s.settimeout(120)
    s.sendall(b'POST %s HTTP/1.1\r\nHost: a\r\nConnection: close\r\n%sContent-Length: %d\r\n\r\n%s' % (path, b''.join(fields), len(body), body))
    return s
def get(path):
    s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
    s.sendall(b'GET %s HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n' % path)
    return s.makefile('rb').read()
long = b'{"prompt":"' + b'12+3=' * 1000000 + b'"}'
def until(path, text):
    begin = time.time()
    while text not in get(path): assert time.time() - begin < 120, text
first = ask(long) # is worked on
until(b'/metrics', b'croll_num_requests_running 1')
late = ask(b'{"prompt":"1"}', b'x-croll-deadline-ms: 1\r\n') # waits
until(b'/load', b'load":2')
full = ask(b'{"prompt":"1"}').makefile('rb').read()
assert b' 503 ' in full and b'server_overloaded' in full and b'Retry-After: ' in full, full
assert b' 200 ' in get(b'/health')
late = late.makefile('rb').read()
assert b' 504 ' in late and b'deadline_exceeded' in late, late
assert b'"count":5000000' in first.makefile('rb').read(600)
until(b'/load', b'load":0') # a late one has its place until the one before is done
assert b'"count":1,' in ask(b'{"prompt":"1"}').makefile('rb').read()
wrong = ask(b'{"prompt":"1"}', b'x-croll-deadline-ms: soon\r\n').makefile('rb').read()
assert b' 400 ' in wrong and b'x-croll-deadline-ms' in wrong, wrong
busy = ask(long)
until(b'/metrics', b'croll_num_requests_running 1')
gone = ask(b'{"prompt":"1"}') # waits
until(b'/load', b'load":2')
gone.close()
until(b'/metrics', b'croll_cancelled_total 1')
assert b'"count":5000000' in busy.makefile('rb').read(600)
PY
get 200 'croll_admission_rejections_total{reason="queue"} 1' $url/metrics
get 200 'croll_admission_rejections_total{reason="deadline"} 1' $url/metrics
kill -TERM $server
ends 130
grep -q '"status":499' $tmp/access.queue || fail "the client that left is not in the log"

# keys
serve --keys $tmp/keys --access-log $tmp/access.keys --metrics-prefix vllm:
get 200 ok $url/health
get 200 ready $url/ready
get 401 'WWW-Authenticate: Bearer' $url/v1/models
get 401 invalid_api_key -H 'Authorization: Bearer ' $url/v1/models
get 401 invalid_api_key -H 'Authorization: Bearer sk-alice-' $url/v1/models
get 401 invalid_api_key -H 'Authorization: Bearer sk-alice-11' $url/metrics
get 401 'Connection: close' -d '{"prompt":"1"}' $url/tokenize
get 400 'several keys that differ' -H 'X-Api-Key: sk-alice-1' -H 'X-Api-Key: sk-judge-1' $url/v1/models
get 400 'several keys that differ' -H 'X-Api-Key: sk-alice-1' -H 'Authorization: Bearer sk-judge-1' $url/v1/models
get 400 'several keys that differ' -H 'Authorization: Basic eA==' -H 'X-Api-Key: sk-alice-1' $url/v1/models
get 200 sums -H 'Authorization: bearer sk-alice-1' $url/v1/models
get 200 sums -H 'X-Api-Key: sk-alice-1' $url/v1/models
get 200 'vllm:requests_total{route="/v1/models",status="200",tenant="alice"} 2' -H 'X-Api-Key: sk-alice-1' $url/metrics
get 200 sums -H 'X-Api-Key: sk-alice-1' -H 'Authorization: Bearer sk-alice-1' $url/v1/models
get 200 tokens -H 'X-Api-Key: sk-judge-1' -d '{"prompt":"1"}' $url/tokenize
get 200 sums -H 'X-Api-Key: sk-judge-1' $url/v1/models
quota=
for try in $(seq 20); do # more than two within a second, also on a busy machine
    curl -s -m 60 -D $tmp/head -H 'X-Api-Key: sk-judge-1' $url/v1/models $url/v1/models $url/v1/models $url/v1/models >/dev/null
    grep -q ' 429 ' $tmp/head && grep -q 'Retry-After: 1' $tmp/head && quota=yes && break
done
[ -n "$quota" ] || fail "the quota is never used up: $(cat $tmp/head)"
get 400 missing_required_parameter -H 'X-Api-Key: sk-alice-1' -d '{}' $url/v1/chat/completions
# what one user has sent is not told by what another one's request finds computed
seq -s, 1 200 | sed 's/.*/{"prompt":[&],"max_tokens":2,"ignore_eos":true}/' >$tmp/prompt
get 200 '"cached_tokens":0' -H 'X-Api-Key: sk-alice-1' -d @$tmp/prompt $url/v1/completions
get 200 '"cached_tokens":192' -H 'X-Api-Key: sk-alice-1' -d @$tmp/prompt $url/v1/completions
sleep 1 # of the quota
get 200 '"cached_tokens":0' -H 'X-Api-Key: sk-judge-1' -d @$tmp/prompt $url/v1/completions
printf 'bob sk-bob-1 score\n' >$tmp/keys
kill -HUP $server
until_true 'grep -q "read again" $tmp/err'
get 401 invalid_api_key -H 'X-Api-Key: sk-alice-1' $url/v1/models
get 403 permission_error -H 'X-Api-Key: sk-bob-1' -d '{}' $url/v1/chat/completions
get 403 'score prompts only' -H 'X-Api-Key: sk-bob-1' -d '{"prompt":[1],"max_tokens":2}' $url/v1/completions
get 200 text_completion -H 'X-Api-Key: sk-bob-1' -d '{"prompt":[1],"max_tokens":1}' $url/v1/completions
printf 'bob\n' >$tmp/keys
kill -HUP $server
until_true 'grep -q stay $tmp/err'
get 200 sums -H 'X-Api-Key: sk-bob-1' $url/v1/models
kill -INT $server
ends 130
! grep -rq 'sk-' $tmp/access.keys $tmp/err || fail "a key in a log"

# the table of routes in docs/serve.md says which scope each needs: users of one scope each are refused or not, as it says
printf 'score k1 score\ngenerate k2 generate\nadmin k3 admin\n' >$tmp/keys
serve --keys $tmp/keys
python3 - $url <<'PY' || fail "scopes of docs/serve.md"
import json, re, sys, urllib.error, urllib.request
def status(method, path, key, body=b"{"):
    r = urllib.request.Request(sys.argv[1] + path, body if method == "POST" else None, {"X-Api-Key": key} if key else {}, method=method)
    try:
        return urllib.request.urlopen(r, timeout=120).status
    except urllib.error.HTTPError as e:
        return e.code
rows = [[c.strip() for c in line.strip("|\n").split("|")] for line in open("docs/serve.md") if re.match(r"\| (GET|POST) `", line)]
described = set()
for route, _, scope in rows:
    method, may = route.split()[0], re.split(", *", scope)
    for path in re.findall(r"`([^`]+)`", route):
        described.add(path)
        for key, name in (("k1", "score"), ("k2", "generate"), ("k3", "admin"), (None, None)):
            allowed = may == ["no key"] or (name is not None and (may == ["any"] or name in may))
            if allowed and path in ("/pause", "/resume"): continue # which they would do
            got = status(method, path.replace("{model}", "sums"), key)
            assert (got in (401, 403)) == (not allowed), (path, name, scope, got)
paths = json.load(urllib.request.urlopen(urllib.request.Request(sys.argv[1] + "/openapi.json", headers={"X-Api-Key": "k1"})))["paths"]
assert described == set(paths), described ^ set(paths)
body = lambda n: json.dumps({"prompt": [1], "max_tokens": n}).encode()
assert status("POST", "/v1/completions", "k1", body(1)) == 200 and status("POST", "/v1/completions", "k1", body(2)) == 403
scored = json.dumps({"prompt": [1, 2], "max_tokens": 0, "prompt_logprobs": 0}).encode()
assert status("POST", "/v1/completions", "k2", scored) == 200 # as the sentence below the table says
PY
stop

# a template for the chats of a model that has none
cp -r $model $tmp/plain
rm -f $tmp/plain/chat_template.jinja
sed -i 's/"chat_template"/"was_template"/' $tmp/plain/tokenizer_config.json
chat='"messages":[{"role":"user","content":"1+2="}]'
launch $tmp/plain
get 400 'has no chat template; croll serve takes one: data_args.template=chatml' -d "{$chat}" $url/v1/chat/completions
stop
launch $tmp/plain data_args.template=chatml
get 200 '"content":"' -d "{$chat,\"max_tokens\":2}" $url/v1/chat/completions
get 200 '"tokens":' -d "{$chat}" $url/tokenize
cp $tmp/body $tmp/chat
get 200 '"tokens":' -d '{"prompt":"<|im_start|>user\n1+2=<|im_end|>\n<|im_start|>assistant\n"}' $url/tokenize
cmp $tmp/chat $tmp/body || fail "data_args.template is not that of the chats"
get 400 'template chatml, which takes neither tools' -d "{$chat,\"tools\":[{\"type\":\"function\"}]}" $url/v1/chat/completions
stop

# a unix socket
rm -f $tmp/port; : >$tmp/out # which has the line of the one before
"$CROLL" serve $model --listen unix:$tmp/socket >$tmp/out 2>$tmp/err &
server=$!
until_true 'grep -q ^ready $tmp/out'
[ "$(stat -c %a $tmp/socket)" = 600 ] || fail "mode of the socket"
get 200 "$model" --unix-socket $tmp/socket http://any/v1/models
kill -TERM $server
ends 130
[ ! -e $tmp/socket ] || fail "the socket is left"

# TLS: certificates of an authority of the test
new_key() { openssl req -newkey rsa:2048 -nodes -keyout $tmp/$1.key -subj "/CN=$2" "${@:3}" 2>/dev/null; }
new_key ca test-ca -x509 -days 2 -out $tmp/ca.pem
for name in one two judge; do
    new_key $name $([ $name = judge ] && echo judge || echo localhost) -out $tmp/$name.csr
    printf 'subjectAltName=IP:127.0.0.1' >$tmp/ext
    openssl x509 -req -in $tmp/$name.csr -CA $tmp/ca.pem -CAkey $tmp/ca.key -CAcreateserial -days 2 -extfile $tmp/ext -out $tmp/$name.pem 2>/dev/null
done
cp $tmp/one.pem $tmp/cert.pem
cp $tmp/one.key $tmp/cert.key
printf 'judge sk-judge-1 generate\n' >$tmp/keys
serve --tls-cert $tmp/cert.pem --tls-key $tmp/cert.key --tls-ca $tmp/ca.pem --keys $tmp/keys
head -n 1 $tmp/out | grep -q "listening on https://" || fail "$(cat $tmp/out)"
url=https://127.0.0.1:$port
tls=(--cacert $tmp/ca.pem --cert $tmp/judge.pem --key $tmp/judge.key)
get 200 sums "${tls[@]}" $url/v1/models # the certificate's CN is a name of the keys
get 401 invalid_api_key "${tls[@]}" -H 'X-Api-Key: wrong' $url/v1/models
get 200 sums --cacert $tmp/ca.pem --cert $tmp/two.pem --key $tmp/two.key -H 'X-Api-Key: sk-judge-1' $url/v1/models
curl -sS -m 60 --cacert $tmp/ca.pem $url/health 2>/dev/null && fail "no client certificate was asked for"
curl -sS -m 60 "${tls[@]}" --tls-max 1.1 $url/health 2>/dev/null && fail "TLS 1.1 is taken"
curl -sS -m 60 "${tls[@]}" --curves X448 $url/health 2>/dev/null && fail "a group outside the list is taken"
head -c 300000 $tmp/long | sed 's/$/"}/' >$tmp/long.tls
get 200 '"count":2999' "${tls[@]}" -H 'X-Api-Key: sk-judge-1' --data-binary @$tmp/long.tls $url/tokenize
serial() { openssl s_client -connect 127.0.0.1:$port -cert $tmp/judge.pem -key $tmp/judge.key </dev/null 2>/dev/null | openssl x509 -noout -serial; }
before=$(serial)
cp $tmp/two.pem $tmp/cert.pem
cp $tmp/two.key $tmp/cert.key
kill -HUP $server
until_true 'grep -q "read again" $tmp/err'
[ -n "$before" ] && [ "$before" != "$(serial)" ] || fail "the certificate was not read again"
get 200 'tls_handshakes_total{result="failed"}' "${tls[@]}" $url/metrics
kill -TERM $server
ends 130
echo "done"
