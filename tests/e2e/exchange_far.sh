#!/bin/bash
# A Redis that is far away: every byte takes 0.2 s each way. Reward workers send many verdicts a trip and read ahead,
# so 512 samples are scored in 20 s, most of which is waiting, also on a busy machine (at one a trip it would be 205 s and more),
# each of them once.
. tests/e2e/run.inc
quick_model
port=$(port_pair)
redis-server --bind 127.0.0.1 --port $port --dir $tmp --save '' >/dev/null &
python3 tests/tools/far_proxy.py $((port + 1)) $port 0.2 &
trap 'kill $(jobs -p) 2>/dev/null; rm -rf $tmp' EXIT
until_true 'redis-cli -p $((port + 1)) ping >/dev/null 2>&1'
job far max_steps=1 validation=null exchange.url=redis://127.0.0.1:$((port + 1))/0
[ $code = 0 ] || fail "exit code $code"
[ "$(grep -c '"status":"ok"' $tmp/far/rollouts/step-000000.jsonl)" = 512 ] || fail "not 512 verdicts"
took=$(values time/step_generate $tmp/far/metrics.jsonl)
awk -v s="$took" 'BEGIN { exit !(s > 0 && s < 150) }' || fail "512 samples took $took s"
echo "ok: $took s"
