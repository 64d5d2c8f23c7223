#!/bin/bash
# A Redis that is far away: every byte takes 0.1 s each way. Reward workers send many verdicts a trip and read ahead,
# so 512 samples are scored in seconds (at one or two a trip it would be a minute and more), each of them once.
. tests/e2e/run.inc
quick_model
port=$(port_pair)
redis-server --bind 127.0.0.1 --port $port --dir $tmp --save '' >/dev/null &
python3 tests/tools/far_proxy.py $((port + 1)) $port 0.1 &
trap 'kill $(jobs -p) 2>/dev/null; rm -rf $tmp' EXIT
for try in $(seq 100); do
    redis-cli -p $((port + 1)) ping >/dev/null 2>&1 && break
    sleep 0.1
done
job far max_steps=1 validation=null exchange.url=redis://127.0.0.1:$((port + 1))/0
[ $code = 0 ] || fail "exit code $code"
[ "$(grep -c '"status":"ok"' $tmp/far/rollouts/step-000000.jsonl)" = 512 ] || fail "not 512 verdicts"
took=$(values time/step_generate $tmp/far/metrics.jsonl)
awk -v s="$took" 'BEGIN { exit !(s > 0 && s < 40) }' || fail "512 samples took $took s"
echo "ok: $took s"
