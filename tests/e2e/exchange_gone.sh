#!/bin/bash
# A Redis of others that is killed or frozen during a run ends it within exchange.timeout and a few seconds, with a
# sentence and exit code 3, and leaves no process; a run that is resumed goes on once it is there again. What others write
# into it, or another password, ends the run with exit code 1.
# mostly waits
. tests/e2e/run.inc
trap 'kill -9 $(jobs -p) 2>/dev/null || true; rm -rf $tmp' EXIT
quick_model
port=$(port_pair)
mkdir $tmp/redis
serve() {
    redis-server --port $port --bind 127.0.0.1 --save "" --dir $tmp/redis --logfile $tmp/redis.log &
    server=$!
    until_true 'redis-cli -p $port ping >/dev/null 2>&1'
}
shared=(exchange.url=redis://127.0.0.1:$port/0 exchange.timeout=3 rollout_batch_size=4 num_return_sequences_in_group=4
    actor_train.training_args.per_device_train_batch_size=4 actor_train.training_args.gradient_accumulation_steps=2
    save_steps=1 validation=null)

# ends NAME SIGNAL [key=value ..]: the server gets the signal after a checkpoint
ends() {
    local name=$1 signal=$2 begin
    (job $name "${shared[@]}" max_steps=100000 "${@:3}"; exit $code) & run=$!
    steps $name 1
    until_true '[ -L $tmp/$name/latest ]'
    kill -$signal $server
    begin=$SECONDS code=0
    wait $run || code=$?
    took=$((SECONDS - begin))
    log=$tmp/$name.log
    [ $code = 3 ] || fail "$signal: exit code $code"
    grep -q "^croll run: .*Redis at 127.0.0.1:$port gave no answer to .* within 3 s" $log || fail "$signal: another sentence"
    [ $took -ge 2 ] && [ $took -le $deadline ] || fail "$signal: after $took s"
    nothing_left $name
}
serve
ends frozen STOP
kill -CONT $server
ends gone KILL
serve
job gone "${shared[@]}" resume_from_checkpoint=true max_steps=$(($(cat $tmp/gone/metrics.jsonl | wc -l) + 2))
[ $code = 0 ] || fail "resumed: exit code $code"
[ "$(sed 's/^{"id":\("[^"]*"\).*/\1/' $tmp/gone/rollouts/*.jsonl | sort | uniq -d | wc -l)" = 0 ] || fail "a sample counts twice"

# what others do to it in the middle of a run is no wrong use: exit code 1. NAME SENTENCE REDIS-COMMANDS, with PREFIX for that of its keys
disturbed() {
    local prefix
    (job $1 "${shared[@]}" max_steps=100000; exit $code) & run=$!
    steps $1 1
    prefix=$(sed 's/.*"prefix": *"\([^"]*\)".*/\1/' $tmp/$1/exchange/owner.json)
    while # again if need be: what it takes away may not be there yet
        printf '%s\n' "$3" | sed "s/PREFIX/$prefix/" | redis-cli -p $port >/dev/null
        [ $1 = rows ] && kill -0 $run 2>/dev/null
    do sleep 1; done
    code=0
    wait $run || code=$?
    log=$tmp/$1.log
    [ $code = 1 ] && grep -q "^croll run: .*$2" $log || fail "$1: exit code $code"
    nothing_left $1
}
disturbed junk 'a record does not begin with CRR1' 'XADD PREFIXs:cmd:actor_infer:1 * id junk d junk'
disturbed rows "the run's keys are no longer in Redis (rows of prompts are gone)" 'DEL PREFIXt:rows'
disturbed replica 'the Redis server is a replica of another one now' 'REPLICAOF 127.0.0.1 1'
redis-cli -p $port REPLICAOF NO ONE >/dev/null
disturbed password 'it wants a password\|it refused the user or password' $'CONFIG SET requirepass other\nCLIENT KILL TYPE normal SKIPME yes'
echo ok
