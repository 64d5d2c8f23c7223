#!/bin/bash
# Two hosts (tests/tools/rig): `croll grad` on 2 + 2 ranks writes the file that 4 ranks of one host write, `croll generate` the answers of one rank, and a rank that
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
# by the commands themselves: rank 0 has their stdin and stdout
own() { # NAME COMMAND WORDS ..: on h1; exit code in $code
    local name=$1
    shift
    log=$tmp/$name.log code=0
    rig in h1 "$CROLL" "$@" <$tmp/rows >$tmp/$name.out 2>$log || code=$?
}
own three grad /mnt/own/model "${devices[@]}" --out /mnt/shared/three --hosts h1:2,h2:2
[ $code = 0 ] && cmp $tmp/one $tmp/three || fail "croll grad --hosts: exit code $code"
devices[1]=strategy_args.strategy_name=fsdp2_infer
own here logprobs /mnt/own/model "${devices[@]}"
[ $code = 0 ] && [ "$(wc -l <$tmp/here.out)" = 4 ] || fail "croll logprobs: exit code $code"
own there logprobs /mnt/own/model "${devices[@]}" --hosts h1:1,h2:3
[ $code = 0 ] && cmp $tmp/here.out $tmp/there.out || fail "croll logprobs --hosts: exit code $code"
one=(generate /mnt/own/model --json --n 2 --max-new-tokens 12 --temperature 1 --seed 3)
own whole "${one[@]}"
[ $code = 0 ] && [ "$(wc -l <$tmp/whole.out)" = 8 ] || fail "croll generate: exit code $code"
own dealt "${one[@]}" "${devices[0]}" --hosts h1:2,h2:2
[ $code = 0 ] && cmp $tmp/whole.out $tmp/dealt.out || fail "croll generate --hosts: exit code $code"
clean 5 h2
own zeros logprobs /mnt/own/model "${devices[@]}" --hostfile /dev/zero
[ $code = 2 ] && grep -q '/dev/zero: longer than 1 MiB' $log || fail "a hostfile without end: exit code $code"
own first logprobs /mnt/own/model "${devices[@]}" --hosts h2:2,h1:2
[ $code = 2 ] && grep -q '^croll logprobs: rank 0 has stdin and stdout, so it runs on h1, .*, which is h2' $log || fail "rank 0 elsewhere: exit code $code"
own alone logprobs /mnt/own/model --hosts h1:1,h2:1
[ $code = 2 ] && grep -q '^croll logprobs: --hosts: one rank runs on this host' $log || fail "hosts for one rank: exit code $code"
rig in h2 mv /mnt/own/model/model.safetensors /mnt/own/model/away
own lacks logprobs /mnt/own/model "${devices[@]}" --hosts h1:2,h2:2
[ $code = 2 ] && grep -q "^croll logprobs: host h2: /mnt/own/model is another model .*Nothing was started$" $log || fail "a model that h2 has not, by the command itself: exit code $code"
devices[1]=strategy_args.strategy_name=fsdp2_train
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
