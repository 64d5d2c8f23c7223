#!/bin/bash
# Two hosts (tests/tools/rig): `croll grad` on 2 + 2 ranks writes the file that 4 ranks of one host write, and a rank that
# fails on the other host says so with host and rank: without its weights, without its configuration.
. tests/e2e/run.inc
. tests/e2e/rig.inc
rig_up 2
quick_model
for id in 1 2 3 4; do echo "{\"id\":$id,\"input_ids\":[51,43,5$id,61]}"; done >$tmp/rows
for host in h1 h2; do rig in $host cp -r /mnt/shared/home/sft_model /mnt/own/model; done
devices=(device_mapping='list(range(0,4))' strategy_args.strategy_name=fsdp2_train)
grad() { # HOSTS NAME: exit code in $code
    log=$tmp/$2.log code=0
    on $1 4 "$CROLL" grad /mnt/own/model "${devices[@]}" --out /mnt/shared/$2 <$tmp/rows >$log 2>&1 || code=$?
}
grad h1:4 one
[ $code = 0 ] || fail "one host: exit code $code"
grad h1:2,h2:2 two
[ $code = 0 ] || fail "two hosts: exit code $code"
cmp $tmp/one $tmp/two || fail "two hosts: another gradient"
rig in h2 rm /mnt/own/model/model.safetensors
grad h1:2,h2:2 none
[ $code = 1 ] && grep -q "^croll grad: rank [23] on h2: /mnt/own/model has neither model.safetensors" $log ||
    fail "a model that h2 has not: exit code $code"
! grep "on h1" $log || fail "an error of h1"
# an actor: its configuration is there on h1 only
log=$tmp/actor.log code=0
rig in h1 cp $PWD/configs/quickstart/rlvr.yaml /mnt/own/run.yaml
on h1:1,h2:1 2 -x CROLL_EXCHANGE_URL=redis://10.77.0.1:1 "$CROLL" actor /mnt/own/run.yaml >$log 2>&1 || code=$?
[ $code = 2 ] && grep -q "^actor rank 1 on h2: .*/mnt/own/run.yaml" $log || { cat $log; fail "a configuration that h2 cannot read: exit code $code"; }
# the configuration through the exchange: no host needs the file; another text than the launcher's is refused
rig in h1 redis-server --bind 10.77.0.1 --port 6400 --protected-mode no --save '' --daemonize yes >/dev/null
printf 'output_dir: [' | rig in h1 redis-cli -h 10.77.0.1 -p 6400 -x set croll:config >/dev/null
for digest in $(printf 'output_dir: [' | sha256sum | cut -d' ' -f1) $(sha256sum </dev/null | cut -d' ' -f1); do
    code=0
    on h1:1,h2:1 2 -x CROLL_EXCHANGE_URL=redis://10.77.0.1:6400 "$CROLL" actor /mnt/own/none/config.yaml --prefix croll: --digest $digest --timeout 5 \
        >$tmp/$digest 2>&1 || code=$?
    [ $code = 2 ] || { cat $tmp/$digest; fail "--digest: exit code $code"; }
done
grep -q "^actor rank 1 on h2: 1 error in /mnt/own/none/config.yaml" $tmp/$(printf 'output_dir: [' | sha256sum | cut -d' ' -f1) ||
    fail "the text in the exchange is not what is read"
grep -q "^actor rank 1 on h2: the configuration in Redis at .*10.77.0.1:6400.* has SHA-256" $tmp/$digest || { cat $tmp/$digest; fail "another text: not refused"; }
rig kill h2
! rig in h2 true 2>/dev/null || fail "h2 lives"
echo "ok"
