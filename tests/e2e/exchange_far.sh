#!/bin/bash
# A Redis that is far away: every byte takes 0.2 s each way. Reward workers send many verdicts a trip and read ahead, so the 512 verdicts
# of a step make few trips (16 on a quiet machine; 256 and more at two a trip), whatever the step takes.
# mostly waits
. tests/e2e/run.inc
quick_model
port=$(port_pair)
redis-server --bind 127.0.0.1 --port $port --dir $tmp --save '' >/dev/null &
python3 tests/tools/far_proxy.py $((port + 1)) $port 0.2 detail >$tmp/trips & # with a verdict: it has that field
trap 'kill $(jobs -p) 2>/dev/null; rm -rf $tmp' EXIT
until_true 'redis-cli -p $((port + 1)) ping >/dev/null 2>&1'
job far max_steps=1 validation=null exchange.url=redis://127.0.0.1:$((port + 1))/0
[ $code = 0 ] || fail "exit code $code"
[ "$(grep -c '"status":"ok"' $tmp/far/rollouts/step-000000.jsonl)" = 512 ] || fail "not 512 verdicts"
sum=$(($(paste -sd+ $tmp/trips))) trips=$(wc -l <$tmp/trips)
[ $sum -ge 512 ] && [ $trips -lt 256 ] || fail "$sum verdicts in $trips trips"
echo "ok: $trips trips"
