#!/bin/bash
# croll serve on several ranks: signals go to rank 0, which drains; a rank that is killed or stopped, in a round and between
# rounds: requests that wait get a 5xx, /health is 503, exit code 3 with a sentence that names the rank, no process is left.
# Not covered: the numbers (e2e/serve_numbers.sh), several hosts.
. tests/e2e/run.inc
log=$tmp/err
scripts/make_sums $tmp/home
"$CROLL" init $tmp/home/model >/dev/null
server= run=$CROLL
trap '[ -z "$server" ] || kill -9 $server 2>/dev/null; rm -rf $tmp' EXIT

# serve WORD ..: start it on two ranks, wait until it is ready; $port, and the processes of ranks: $rank0 $rank1
serve() {
    rm -f $tmp/port; : >$tmp/out # which has the line of the one before
    $run serve $tmp/home/model --served-model-name s --listen 127.0.0.1:0 --port-file $tmp/port --access-log none "$@" \
        device_mapping='list(range(0,2))' model_args.dtype=fp32 >$tmp/out 2>$tmp/err &
    server=$!
    for try in $(seq 300); do grep -q ^ready $tmp/out && break; sleep 0.1; done
    grep -q ^ready $tmp/out || fail "it is not ready: $(cat $tmp/out)"
    port=$(cat $tmp/port) rank0=$(rank 0) rank1=$(rank 1)
}
rank() {
    pgrep -f "serve $tmp/home/model" | sed 's|.*|/proc/&/environ|' | xargs grep -lzx "OMPI_COMM_WORLD_RANK=$1" | cut -d/ -f3
}
# ends CODE PATTERN: wait for the end; the last line on stderr has the pattern, and nothing is left
ends() {
    local code=0
    for try in $(seq 150); do kill -0 $server 2>/dev/null || break; sleep 0.1; done
    kill -0 $server 2>/dev/null && fail "it does not end"
    wait $server || code=$?
    server=
    [ $code = $1 ] || fail "exit code $code instead of $1"
    [ -z "$2" ] || tail -n 1 $tmp/err | grep -q -- "$2" || fail "no $2: $(cat $tmp/err)"
    nothing_left home/model
}
# ask: 4 requests of several rounds, each on a connection of its own; $tmp/answers gets a status a line
ask() {
    python3 - $port >$tmp/answers 2>$tmp/ask <<'PY' &
import json, socket, sys, threading
body = json.dumps({"prompt": [[(7 * i + t) % 250 for t in range(250)] for i in range(400)], "max_tokens": 0, "prompt_logprobs": 0}).encode()
def one():
    s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    s.settimeout(30)
    s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    try: head = s.makefile("rb").read()[:12]
    except OSError as e: head = repr(e).encode()
    sys.stdout.write((head.decode() or "closed") + "\n") # one call: threads must not mix their lines
    sys.stdout.flush()
threads = [threading.Thread(target=one) for _ in range(4)]
[t.start() for t in threads]
[t.join() for t in threads]
PY
    asker=$!
    for try in $(seq 100); do curl -s -m 5 http://127.0.0.1:$port/load | grep -q '"server_load":4' && return 0; sleep 0.02; done
    fail "no load: $(cat $tmp/answers $tmp/ask)"
}
# answered: all of ask's requests, some by a 5xx
answered() {
    wait $asker || fail "the clients: $(cat $tmp/ask)"
    [ $(grep -c '^HTTP/1.1 [25]0[03]$' $tmp/answers) = 4 ] && grep -q ' 50[03]' $tmp/answers || fail "answers: $(cat $tmp/answers)"
}

# log-probs on both ranks, samples on rank 0; keys are read again; SIGTERM drains
printf 'a key-a score,generate\n' >$tmp/keys
serve --keys $tmp/keys
post() { curl -sS -m 20 -H 'X-Api-Key: key-b' -d "$1" http://127.0.0.1:$port/v1/completions; }
printf 'b key-b score,generate\n' >$tmp/keys
kill -HUP $server
for try in $(seq 50); do grep -q 'read again' $tmp/err && break; sleep 0.1; done
post '{"prompt": [49, 50, 43], "max_tokens": 0, "prompt_logprobs": 1}' | grep -q '"logprob":-' || fail "no log-probs"
post '{"prompt": [49, 50, 43], "max_tokens": 5, "temperature": 0, "ignore_eos": true}' | grep -q '"completion_tokens":5' || fail "no samples"
post "{\"prompt\": [$(seq -s, 1 20)], \"max_tokens\": 200, \"n\": 64, \"ignore_eos\": true}" >$tmp/body &
client=$!
for try in $(seq 100); do curl -s -H 'X-Api-Key: key-b' http://127.0.0.1:$port/load | grep -q 'load":1' && break; sleep 0.02; done
kill -TERM $server
wait $client && grep -q '"completion_tokens":12800' $tmp/body || fail "SIGTERM does not drain: $(head -c 300 $tmp/body)"
ends 130 'read again'
serve --score-only
kill -INT $server
ends 130 ''
serve
kill -STOP $rank0 # cannot drain: the second signal ends it
kill -TERM $server
sleep 0.3
kill -0 $server || fail "the first signal has ended it"
kill -TERM $server
ends 130 'stopped by signal 15'

# a rank is killed in a round; stopped in a round; killed between rounds; rank 0 is killed; the launcher is killed
serve
ask
kill -9 $rank1
answered
ends 3 'rank 1 was killed'
serve --stall-s 2
ask
kill -STOP $rank1
for try in $(seq 60); do [ $(curl -s -m 5 -o $tmp/body -w '%{http_code}' http://127.0.0.1:$port/health) = 503 ] && break; sleep 0.1; done
grep -q stalled $tmp/body || fail "/health is not 503"
answered
ends 3 'waited 4 s for rank 1'
serve
kill -9 $rank1
ends 3 'rank 1 was killed'
serve
kill -9 $rank0
ends 3 'rank 0 was killed'
serve
kill -9 $server
wait $server 2>/dev/null || true
server=
nothing_left home/model
# without the launcher, mpirun is killed
run="scripts/mpi 2 $CROLL"
serve
kill -9 $server
wait $server 2>/dev/null || true
server=
nothing_left home/model
echo "done"
