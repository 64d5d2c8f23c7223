#!/bin/bash
# The checks of all hosts before a run (croll doctor --hosts, croll run --hosts; docs/hosts.md) on two hosts (tests/tools/rig): each is
# made to fail for real, and names the host and what to do; a run that is refused starts nothing and leaves nothing.
# mostly waits
. tests/e2e/run.inc
. tests/e2e/rig.inc
quick_model
rig_up 2
program=/tmp/croll model=/mnt/own/model # of each host its own
for h in h1 h2; do
    rig in $h cp "$(realpath "$CROLL")" $program
    rig in $h cp -r /mnt/shared/home/sft_model $model
done
log=$tmp/log
doctor() { # CODE OPTIONS ..: on h1, of the quickstart with the model above
    local want=$1 code=0
    shift
    rig in h1 timeout $((2 * deadline)) $program doctor --hosts h1:2,h2:2 configs/quickstart/rlvr.yaml pretrain=$model output_dir=/mnt/shared/no/out "$@" >$log 2>&1 </dev/null || code=$?
    [ $code = $want ] || { cat $log; fail "$*: exit code $code, not $want"; }
}
says() { grep -Eq -- "$1" $log || { cat $log; fail "not said: $1"; }; }
row() { grep -E "^$1 " $log; }
doctor 0 output_dir=/mnt/own/out
says '^hosts: 2, 10\.77\.0\.0/24 \(eth0\), slowest link .* checked in'
! grep -E '^(error|warning)' $log || fail "errors where there are none"
row h2 | grep -Eq ' own, .*B/s [0-9.]+ (us|ms) +-$' || fail "the row of h2: $(row h2)"
doctor 0 --json
says '"is_output_dir_shared":true'
says '\{"hosts":\["h1","h2"\],"network":"10.77.0.0/24".*"links":\[\{"from":"h1","to":"h2","bytes_per_s":'
[ -z "$(find $tmp -name '.croll-hosts*')" ] && [ ! -e $tmp/no ] || fail "doctor leaves files"

# no GPU: a run is refused by this host's own device if it has ranks, else by the others
CROLL_DEVICE=cuda doctor 2
says '^error: host h2: device cuda needs a GPU, and it shows none: `croll doctor` on that host'
row h2 | grep -q ' none! ' || fail "the row of h2: $(row h2)"
on_gpus() { # HOSTS TEXT
    code=0
    rig in h1 $program run configs/quickstart/rlvr.yaml pretrain=$model output_dir=/mnt/shared/refused track_with=none validation=null \
        "actor_train.data_args.file_name=[/mnt/shared/home/sums.train.jsonl]" --device cuda --hosts $1 >$log 2>&1 </dev/null || code=$?
    [ $code != 0 ] && [ ! -e $tmp/refused ] || fail "a run on $1 without GPUs: exit code $code"
    says "$2"
}
on_gpus h2:4 '^croll run: host h2: device cuda needs a GPU, and it shows none'
on_gpus h1:2,h2:2 '^croll run: .*device.*cuda'

# another program, and none
rig in h2 sh -c "echo >>$program"
doctor 2
says '^error: host h2: another croll \([0-9a-f]{8}, here [0-9a-f]{8}\): install the same'
says '^croll doctor: host h2: another croll .*\. Nothing was started$'
row h2 | grep -Eq '^h2 +[0-9a-f]{8}! ' || fail "the row of h2: $(row h2)"
rig in h2 rm $program
doctor 2
says "^error: host h2: croll is not at this path there \(.*$program.*\): install"
rig in h2 cp "$(realpath "$CROLL")" $program

# one model changed, then missing; room and limits, all at once
rig in h2 sh -c "printf x | dd of=$model/model.safetensors bs=1 seek=100000 conv=notrunc 2>/dev/null"
rig in h2 mount -o remount,size=4m /dev/shm
rig in h2 sh -c 'prlimit --nofile=60: --pid $(cat /run/rig/sshd.pid)'
rig in h2 mount -o remount,size=4m /mnt/own
doctor 2 output_dir=/mnt/own/out
says "^error: host h2: $model is another model \([0-9a-f]{8}, here [0-9a-f]{8}: other names, sizes or bytes"
says '^error: host h2: /dev/shm has 4\.2 MB free, .* MB are needed'
says '^error: host h2: ulimit -n is 60 in what ssh or srun starts there, the run needs 72 open files'
says '^error: host h2: /mnt/own/out has .* of free disk, a checkpoint needs 6\.7 MB'
rig in h2 rm -r $model
code=0
rig in h1 $program run configs/quickstart/rlvr.yaml pretrain=$model output_dir=/mnt/shared/refused track_with=none validation=null \
    "actor_train.data_args.file_name=[/mnt/shared/home/sums.train.jsonl]" --hosts h1:2,h2:2 >$log 2>&1 </dev/null || code=$?
[ $code = 2 ] || fail "a run without the model on h2: exit code $code"
says "^error: host h2: cannot open $model: No such file"
says "^croll run: host h2: cannot open $model.*Nothing was started$"
says '^h2 .* missing! '
! grep -q '^starting' $log || fail "something was started"
[ ! -e $tmp/refused ] || fail "a refused run leaves a folder"
! rig in h2 pgrep -x croll >/dev/null || fail "agents are left on h2"
rig in h2 mount -o remount,size=2g /dev/shm
rig in h2 mount -o remount,size=2g /mnt/own
rig in h2 sh -c 'prlimit --nofile=10000: --pid $(cat /run/rig/sshd.pid)'
rig in h2 cp -r /mnt/shared/home/sft_model $model

# a network that connects no hosts, and one that has the same address on all: as docker0 and a card without a cable
for h in h1 h2; do
    rig in $h sh -c "ip link add v0 type veth peer name v1 && ip link set v1 up && ip addr add 192.168.9.${h#h}/24 dev v0 && ip link set v0 up"
    rig in $h sh -c 'ip link add d0 type veth peer name d1 && ip link set d1 up && ip addr add 172.17.0.1/16 dev d0 && ip link set d0 up'
done
doctor 0
says '^hosts: 2, 10\.77\.0\.0/24 \(eth0\)'
doctor 2 --network 192.168.9.0/24
says '^error: host h1: 192\.168\.9\.0/24 \(v0\): h1 cannot connect to h2 \(192\.168\.9\.2: .*\); 2 pairs in all'
doctor 2 --network 172.17.0.0/16
says '^error: host h1: host h2 has no own address in --network 172\.17\.0\.0/16'
doctor 2 --network 10.77.0.0
says "'10\.77\.0\.0' is not a prefix"
doctor 2 --hosts h1:2,h2:1,10.77.0.2:1
says '^error: host 10\.77\.0\.2: it is the same machine as h2'
echo '{"prompt":"1+1=","response":"2"}' | rig in h1 env OMPI_MCA_btl_tcp_if_exclude=docker0 OMPI_MCA_oob_tcp_if_exclude=docker0 $program logprobs /mnt/shared/home/sft_model "device_mapping=[0,1]" --hosts h1:1,h2:1 >$log 2>&1 || fail "logprobs where a second network does not connect: exit code $?"
says '"logprobs"'
code=0
rig in h1 timeout $((60 * slower)) $program run configs/quickstart/rlvr.yaml pretrain=/mnt/shared/home/sft_model output_dir=/mnt/shared/two track_with=none \
    validation=null max_steps=1 "actor_train.data_args.file_name=[/mnt/shared/home/sums.train.jsonl]" --hosts h1:2,h2:2 >$log 2>&1 </dev/null || code=$?
[ $code = 0 ] || fail "a run where a second network does not connect: exit code $code"
says '^hosts: 2, 10\.77\.0\.0/24'
grep -q '"network":"10.77.0.0/24".*"from":"h2","to":"h1","bytes_per_s":' $tmp/two/hosts.json || fail "hosts.json: $(cat $tmp/two/hosts.json)"

# a link of 100 Mbit/s, one of 20 ms
measured() { # KEY MIN [MAX]: of the link from h1 to h2. A busy machine is slower, never faster
    local x
    doctor 0 --json
    x=$(sed -n "s/.*\"from\":\"h1\",\"to\":\"h2\",[^}]*\"$1\":\([0-9.e+-]*\).*/\1/p" $log)
    awk -v x=$x -v least=$2 -v most=${3:-1e300} 'BEGIN { exit !(x > least && x < most) }' || fail "$1 is $x, not $2 to ${3:-any}"
}
rig netem h2 rate 100mbit
measured bytes_per_s 0 13.5e6
rig netem h2 delay 20ms
measured latency_s 0.0199

# a signal while the checks go on: nothing is left of them
rig netem h2 delay 200ms
log=$tmp/stopped.log code=0
rig in h1 sh -c '"$@"; exit $?' sh $program run configs/quickstart/rlvr.yaml pretrain=$model output_dir=/mnt/shared/stopped track_with=none validation=null \
    "actor_train.data_args.file_name=[/mnt/shared/home/sums.train.jsonl]" --hosts h1:2,h2:2 >$log 2>&1 </dev/null &
until_true '[ -n "$(find $tmp/stopped -name ".croll-hosts*" 2>/dev/null)" ]'
rig in h1 pkill -TERM -f "^$program run"
wait $! || code=$?
[ $code = 130 ] || fail "stopped in its checks: exit code $code"
says '^croll run: stopped by signal 15. Nothing was started$'
[ ! -e $tmp/stopped ] || fail "left of stopped checks: $(ls -A $tmp/stopped)"
until_true '! rig in h2 pgrep -x croll >/dev/null'
rig netem h2 off

# what ssh starts there
sshd() { # OPTIONS ..: another one on h2
    rig in h2 sh -c 'kill $(cat /run/rig/sshd.pid)'
    rig in h2 /usr/sbin/sshd -f /dev/null -h /run/rig/keys/id -o AuthorizedKeysFile=/run/rig/keys/id.pub -o StrictModes=no -o UsePAM=no \
        -o PermitRootLogin=yes -o PidFile=/run/rig/sshd.pid "$@"
    until_true 'rig in h2 test -s /run/rig/sshd.pid'
}
sshd -o SetEnv=PATH=/nowhere
doctor 0
says "^warning: host h2: Open MPI's orted is not in PATH of what ssh or srun starts there"

# a CPU with less: all ranks have its instructions, so that lines have the same bits on both hosts
has=$("$CROLL" doctor | sed -n 's/.*kernels for //p')
if [ "$has" != x86_64 ] && [ "$has" != avx2 ] && [ "$has" != neon ]; then
    less=avx2
    [ "$(uname -m)" = x86_64 ] || less=neon
    sshd -o SetEnv=CROLL_CPU=$less
    doctor 0
    says "^warning: host h2: its CPU has up to $less, others have more: all ranks use $less, so that"
    row h1 | grep -q " $has " && row h2 | grep -q " $less! " || fail "the rows: $(row h1) $(row h2)"
    CROLL_CPU=$has doctor 2
    says "^error: host h2: CROLL_CPU is $has, and its CPU has .*$less\$"
    CROLL_CPU=$less doctor 0
    ! grep -E '^(error|warning)' $log || fail "a set that all hosts have, named by the user"
    for i in $(seq 8); do echo "{\"prompt\":\"$i+1=\",\"response\":\"2\"}"; done >$tmp/lines
    rig in h1 $program logprobs /mnt/shared/home/sft_model "device_mapping=[0,1]" --hosts h1:1,h2:1 <$tmp/lines >$tmp/both 2>$log || fail "logprobs on two CPUs: exit code $?"
    says "^warning: host h2: its CPU has up to $less"
    CROLL_CPU=$less "$CROLL" logprobs $tmp/home/sft_model <$tmp/lines >$tmp/one 2>/dev/null
    cmp $tmp/one $tmp/both || fail "two CPUs, other bits"
    "$CROLL" logprobs $tmp/home/sft_model <$tmp/lines 2>/dev/null | cmp -s - $tmp/one && fail "$has and $less have the same bits: nothing was shown"
fi
sshd -o 'ForceCommand=echo This account is not available; exit 1'
doctor 2
says '^error: host h2: its agent ended: This account is not available \(tried: ssh '

# a clock that is wrong
fake=$(ls /usr/lib/*/faketime/libfaketime.so.1 2>/dev/null || true)
if [ -n "$fake" ]; then
    sshd -o "SetEnv=LD_PRELOAD=$fake FAKETIME=+0.412 ASAN_OPTIONS=verify_asan_link_order=0"
    doctor 0
    says '^warning: host h2: its clock is 0\.4 s ahead of this host'
    row h2 | grep -Eq ' \+4[0-9][0-9]\.[0-9]+ ms! ' || fail "the row of h2: $(row h2)"
fi

# a host that cannot be reached
rig in h2 sh -c 'kill $(cat /run/rig/sshd.pid)'
doctor 2
says '^error: host h2: cannot be reached: ssh: connect to host h2 port 22: Connection refused \(tried: ssh '
echo ok
