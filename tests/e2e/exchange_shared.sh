#!/bin/bash
# E9: two rlvr runs at once on one Redis of others, with a password, an ACL user and TLS: both have the numbers of their lone
# runs; a third with the prefix of one is refused with a sentence; keys of others stay, those of a run go with it; the
# password is in no command line; after kill -9 the run's own resume takes its prefix at once, and no other run may.
# A wrong certificate is an error before anything is written.
. tests/e2e/run.inc
trap 'kill -9 $(jobs -p) 2>/dev/null || true; rm -rf $tmp' EXIT
quick_model 20
new='openssl req -x509 -nodes -newkey ec -pkeyopt ec_paramgen_curve:P-256 -days 2'
(cd $tmp && $new -subj /CN=authority -keyout ca.key -out ca.pem && $new -subj /CN=another -keyout other.key -out other.pem &&
    openssl req -new -nodes -newkey ec -pkeyopt ec_paramgen_curve:P-256 -subj /CN=redis -keyout key.pem -out redis.csr &&
    echo subjectAltName=DNS:localhost >names && openssl x509 -req -in redis.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 \
    -extfile names -out cert.pem) >$tmp/openssl.log 2>&1 || { log=$tmp/openssl.log; fail "no certificates"; }
port=$(port_pair)
redis-server --port $port --tls-port $((port + 1)) --bind 127.0.0.1 --tls-cert-file $tmp/cert.pem --tls-key-file $tmp/key.pem \
    --tls-ca-cert-file $tmp/ca.pem --tls-auth-clients no --save "" --requirepass admin --logfile $tmp/redis.log \
    --user trainer on ">s3cretword" "~croll:*" "~mine:*" $(sed -n '/^ACL SETUSER/,/^```/p' docs/exchange.md | grep -o '+[a-z]*') &
tell() { redis-cli -p $port --user default --pass admin --no-auth-warning "$@"; }
until_true '[ "$(tell ping 2>/dev/null)" = PONG ]'
tell set croll:foreign 1 >/dev/null
url="exchange.url=rediss://trainer:s3cretword@localhost:$((port + 1))/0"
small=(rollout_batch_size=4 num_return_sequences_in_group=4 actor_train.training_args.per_device_train_batch_size=4
    actor_train.training_args.gradient_accumulation_steps=2 max_steps=3 save_steps=1
    actor_train.training_args.learning_rate=1e-3)
tls=("$url" exchange.ca_file=$tmp/ca.pem "${small[@]}")

# a worker that joined a run ends with it
stream=croll:sim:s:generated:math_rule
tell set croll:sim:owner "1 someone" >/dev/null
"$CROLL" reward configs/quickstart/rlvr.yaml --domain math_rule --prefix croll:sim: --exchange redis://trainer:s3cretword@localhost:$port/0 \
    >$tmp/worker.log 2>&1 & worker=$!
until_true '[ "$(tell exists $stream)" = 1 ]'
log=$tmp/worker.log
tell unlink $stream croll:sim:owner >/dev/null
wait $worker || fail "a worker whose run has ended: exit code $?"
grep -q 'the run has ended' $log || fail "a worker whose run has ended: another sentence"
tell keys 'croll:sim:*' | xargs -r -n 1 redis-cli -p $port --user default --pass admin --no-auth-warning unlink >/dev/null

job alone "${small[@]}"
[ $code = 0 ] || fail "alone: exit code $code"
job wrong_ca "${tls[@]}" exchange.ca_file=$tmp/other.pem
[ $code = 2 ] && grep -q 'the certificate of localhost:.* is not accepted' $log || fail "a wrong certificate: exit code $code"
[ ! -e $tmp/wrong_ca ] || fail "a wrong certificate: output_dir was made"
job plain "exchange.url=redis://trainer:wrong@localhost:$port/0"
[ $code = 2 ] && grep -q 'refused the user or password' $log && ! grep -q ':wrong@' $log || fail "a wrong password: exit code $code"

(job one "${tls[@]}"; exit $code) & one=$!
(job two "${tls[@]}" 'exchange.prefix="mine:"' max_steps=1000; exit $code) & two=$!
steps two 1
log=$tmp/two.log
! grep -l s3cretword /proc/[0-9]*/cmdline 2>/dev/null | grep -v "/$one/\|/$two/" | while read -r f; do
    { tr '\0' ' ' <$f; } 2>/dev/null | grep -v 'croll run' && exit 0; done | grep . || fail "the password is in a command line"
job three "${tls[@]}" 'exchange.prefix="mine:"'
[ $code = 2 ] && grep -q "the keys mine:\* of Redis at localhost:[0-9]* belong to another run: .*:$tmp/two, process" $log ||
    fail "a third run with the prefix of the second: exit code $code"
[ ! -e $tmp/three ] || fail "a refused run made its output_dir"
code=0; wait $one || code=$?
log=$tmp/one.log
[ $code = 0 ] || fail "one of two: exit code $code"
steps two 3
pkill -9 -f "run configs/quickstart/rlvr.yaml .*output_dir=$tmp/two" || true
wait $two || true
nothing_left two
[ -n "$(tell keys 'mine:*')" ] || fail "a killed run left no keys: what is tested here?"
job three "${tls[@]}" 'exchange.prefix="mine:"'
[ $code = 2 ] || fail "the prefix of a run that was killed just now: exit code $code"
job two "${tls[@]}" 'exchange.prefix="mine:"' resume_from_checkpoint=true max_steps=$(($(cat $tmp/two/metrics.jsonl | wc -l) + 1))
[ $code = 0 ] || fail "resumed: exit code $code"
[ "$(tell keys '*')" = croll:foreign ] || fail "keys are left: $(tell keys '*' | head -5)"
for name in one two; do
    for k in 0 1 2; do
        cmp $tmp/alone/rollouts/step-00000$k.jsonl $tmp/$name/rollouts/step-00000$k.jsonl || fail "$name has other rollouts"
    done
    last=$([ $name = one ] && echo 3 || echo 2) # the last step of a run validates once more
    diff <(timeless $tmp/alone/metrics.jsonl | head -n $last) <(timeless $tmp/$name/metrics.jsonl | head -n $last) >$tmp/diff || { log=$tmp/diff; fail "$name has other numbers"; }
done
echo ok
