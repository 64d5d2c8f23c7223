#!/bin/bash
# croll serve on several ranks: signals go to rank 0, which drains; a rank that is killed or stopped, in a round and between
# rounds: requests that wait get a 5xx, /health is 503, exit code 3 with a sentence that names the rank, no process is left.
# Not covered: the numbers (e2e/serve_numbers.sh), several hosts.
# mostly waits
. tests/e2e/serve.inc
make_model

# on_two OPTION ..: start it on two ranks; $rank0 and $rank1 are their processes
on_two() {
    serve "$@" device_mapping='list(range(0,2))'
    rank0=$(rank_with 0 "serve $tmp/home/model") rank1=$(rank_with 1 "serve $tmp/home/model")
}
# ended CODE PATTERN: the last line on stderr has the pattern, and nothing is left
ended() {
    ends $1 15
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
    s.settimeout(120)
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
    until_true 'curl -s -m 60 http://127.0.0.1:$port/load | grep -q "server_load.:4"'
}
# answered: all of ask's requests, some by a 5xx
answered() {
    wait $asker || fail "the clients: $(cat $tmp/ask)"
    [ $(grep -c '^HTTP/1.1 [25]0[03]$' $tmp/answers) = 4 ] && grep -q ' 50[03]' $tmp/answers || fail "answers: $(cat $tmp/answers)"
}

# log-probs on both ranks, samples on rank 0; keys are read again; SIGTERM drains
printf 'a key-a score,generate\n' >$tmp/keys
on_two --keys $tmp/keys
post() { curl -sS -m $deadline -H 'X-Api-Key: key-b' -d "$1" http://127.0.0.1:$port/v1/completions; }
printf 'b key-b score,generate\n' >$tmp/keys
kill -HUP $server
until_true 'grep -q "read again" $tmp/err'
post '{"prompt": [49, 50, 43], "max_tokens": 0, "prompt_logprobs": 1}' | grep -q '"logprob":-' || fail "no log-probs"
post '{"prompt": [49, 50, 43], "max_tokens": 5, "temperature": 0, "ignore_eos": true}' | grep -q '"completion_tokens":5' || fail "no samples"
post "{\"prompt\": [$(seq -s, 1 20)], \"max_tokens\": 200, \"n\": 64, \"ignore_eos\": true}" >$tmp/body &
client=$!
until_true 'curl -s -H "X-Api-Key: key-b" http://127.0.0.1:$port/load | grep -q "load.:1"'
kill -TERM $server
wait $client && grep -q '"completion_tokens":12800' $tmp/body || fail "SIGTERM does not drain: $(head -c 300 $tmp/body)"
ended 130 'read again'
on_two --score-only
kill -INT $server
ended 130 ''
on_two
kill -STOP $rank0 # cannot drain: the second signal ends it
kill -TERM $server
sleep 0.3
kill -0 $server || fail "the first signal has ended it"
kill -TERM $server
ended 130 'stopped by signal 15'

# a rank is killed in a round; stopped in a round; killed between rounds; rank 0 is killed; the launcher is killed
on_two
ask
kill -9 $rank1
answered
ended 3 'rank 1 .*was killed'
on_two --stall-s 2
ask
kill -STOP $rank1
until_true '[ "$(curl -s -m 60 -o $tmp/body -w "%{http_code}" http://127.0.0.1:$port/health)" = 503 ]'
grep -q stalled $tmp/body || fail "/health is not 503"
answered
ended 3 'waited 4 s for rank 1'
on_two
kill -9 $rank1
ended 3 'rank 1 .*was killed'
on_two
kill -9 $rank0
ended 3 'rank 0 .*was killed'
on_two
kill -9 $server
wait $server 2>/dev/null || true
server=
nothing_left home/model
# without the launcher, mpirun is killed
program=(scripts/mpi 2 "$CROLL")
on_two
kill -9 $server
wait $server 2>/dev/null || true
server=
nothing_left home/model
echo "done"
