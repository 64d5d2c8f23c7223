#!/bin/bash
# croll run over two hosts of a hostfile (tests/tools/rig): metrics and checkpoint have the bits of one host, the password
# of the private Redis is in no command line and in no file that others can read; lists of hosts that are wrong or not used.
# mostly waits
. tests/e2e/run.inc
. tests/e2e/rig.inc
quick_model
rig_up 2
shared=/mnt/shared
run() { # NAME WORDS ..: on h1; exit code in $code
    local name=$1
    shift
    log=$tmp/$name.log code=0
    rig in h1 "$CROLL" run configs/quickstart/rlvr.yaml pretrain=$shared/home/sft_model output_dir=$shared/$name track_with=none \
        "actor_train.data_args.file_name=[$shared/home/sums.train.jsonl]" validation=null max_steps=2 save_steps=2 \
        "$@" >$log 2>&1 </dev/null || code=$?
}
run one
[ $code = 0 ] || fail "one host: exit code $code"
printf '# half each\nh1 slots=2\n\nh2 slots=2\n' >$tmp/nodes
run two --hostfile /mnt/shared/nodes &
steps two 1
rig in h2 ps axww -o args >$tmp/ps2
rig in h1 ps axww -o args >$tmp/ps1
grep -q "croll actor" $tmp/ps2 || fail "no actor on h2"
secret=$(sed -n 's/^requirepass //p' $tmp/two/exchange/redis.conf)
[ ${#secret} = 32 ] || fail "no password"
! grep -h "$secret" $tmp/ps1 $tmp/ps2 || fail "the password is in a command line"
[ "$(grep -rl "$secret" $tmp/two)" = $tmp/two/exchange/redis.conf ] || fail "the password is in another file"
[ "$(stat -c %a $tmp/two/exchange/redis.conf)" = 600 ] || fail "redis.conf can be read by others"
wait %1
grep -q 'actor_infer: ranks by host: h2 0-1' $tmp/two.log || fail "the log does not say which ranks are on h2"
[ "$(wc -l <$tmp/two/metrics.jsonl)" = 2 ] || fail "two hosts: not 2 steps"
cmp <(timeless $tmp/one/metrics.jsonl) <(timeless $tmp/two/metrics.jsonl) || fail "two hosts: other metrics"
sums() { (cd $tmp/$1/checkpoint-1 && find . -name '*.safetensors' -o -name '*.master' | sort | xargs sha256sum); }
[ "$(sums one | wc -l)" -gt 0 ] && cmp <(sums one) <(sums two) || fail "two hosts: another checkpoint"
[ ! -e $tmp/two/.croll-run ] || fail "the mark is left"
! rig in h2 pgrep -x croll >/dev/null || fail "ranks are left on h2"
# system_envs of the run are those of ranks on all hosts: one that only h1's had would be two calls of MPI
run envs --hostfile /mnt/shared/nodes "system_envs={CROLL_TEST_HOSTS: '0,0,1,1'}" max_steps=1 collective_timeout=20
[ $code = 0 ] || fail "system_envs: exit code $code"
# a folder that h2 has not, or has of its own
rig in h2 mkdir -p /mnt/own/out/checkpoint-1.tmp/state /mnt/own/out/checkpoint-1.tmp/actor_train
run private --hosts h1:2,h2:2 output_dir=/mnt/own/out
[ $code = 2 ] && grep -q "^croll run: step 0: actor rank [23] on h2: output_dir /mnt/own/out is not the folder" $log || fail "a private folder: exit code $code"
# lists that cannot be
run few --hosts h1:1,h2:1
[ $code = 2 ] && grep -q 'room for 2 ranks, the device_mapping of all roles asks for 4' $log || fail "too few: exit code $code"
run absent --hosts h1:2,nowhere:2
[ $code = 2 ] && grep -q 'host nowhere: ' $log || fail "an unknown host: exit code $code"
run odd --hosts h1:2,-x:2
[ $code = 2 ] && grep -q "'-x:2' is not NAME" $log || fail "an option as a host: exit code $code"
PBS_NODEFILE=/mnt/shared/nodes run unused
[ $code = 2 ] && grep -q 'PBS_NODEFILE names a list of hosts' $log || fail "a list in the environment that is not used: exit code $code"
printf 'h1 slots=2\nh2 slots=x\n' >$tmp/nodes
run wrong --hostfile /mnt/shared/nodes
[ $code = 2 ] && grep -q "/mnt/shared/nodes:2: 'h2 slots=x' is not NAME" $log || fail "a wrong hostfile: exit code $code"
echo ok
