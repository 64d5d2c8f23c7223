#!/bin/bash
# only in scripts/check_long
# A run on two hosts (tests/tools/rig) of which one is cut off or hangs, or whose launcher does: it ends within its deadline and names
# the host, and nothing stays, also on the host that cannot be reached. What is shorter than the lease of 15 s, and a Redis
# that is away for a while, cost nothing: the numbers stay those of an undisturbed run.
. tests/e2e/run.inc
. tests/e2e/rig.inc
quick_model
rig_up 2
keys=(--hosts h1:2,h2:2 collective_timeout=60 exchange.timeout=20)

# start NAME [key=value ..]: in the background, until its third step
start() {
    name=$1
    shift
    (hosts_run $name "${keys[@]}" "$@"; exit $code) &
    pid=$! log=$tmp/$name.log
    steps $name 3
}
ends() { # CODE SENTENCE
    local begin=$(date +%s)
    code=0
    wait $pid || code=$?
    took=$(($(date +%s) - begin))
    echo "$name: exit code $code after $took s: $(tail -n 1 $log | cut -c 1-200)"
    [[ $code = $1 ]] && tail -n 1 $log | grep -Eq "$2" || fail "$name: exit code $code, or another sentence"
    [ $took -le $deadline ] || fail "$name: ended after $took s"
}
launcher() { rig in h1 pkill -$1 -f "^$CROLL run .*output_dir=/mnt/shared/$name "; }
like_quiet() {
    ends 0 .
    cmp <(timeless $tmp/quiet/metrics.jsonl) <(timeless $tmp/$name/metrics.jsonl) || fail "$name: other numbers"
    clean 3 h1 h2
}
long=max_steps=100000 short=max_steps=40
hosts_run quiet "${keys[@]}" $short
[ $code = 0 ] || fail "quiet: exit code $code"

start cut $long
rig cut h2
ends '[13]' ': host h2 is lost'
clean 3 h1
clean 20 h2 # which cannot be told to
rig heal h2
reach h2

start frozen $long
rig freeze h2
ends '[13]' ': host h2 is lost'
clean 3 h1
rig thaw h2
clean 5 h2

start cut_launcher $long
rig cut h1
ends '[13]' ': host h2 is lost'
clean 3 h1
clean 20 h2
rig heal h1
reach h2

start stopped $long
launcher STOP
sleep 25
rig in h2 pgrep -x croll && fail "stopped: ranks on h2 after 25 s"
clean 1 h2
launcher CONT
ends '[13]' 'step [0-9]+: '
grep -q 'on h[12]: no word from the launcher on h1 for 1[5-9] s' $log || fail "stopped: the ranks do not say why they end"
clean 3 h1 h2

start killed $long
launcher KILL
clean 5 h2
! rig in h1 pgrep -x croll || fail "killed: processes are left on h1"
wait $pid || true # its folder in h1's /dev/shm is removed by the next run

start paused $short
launcher STOP
sleep 8
launcher CONT
like_quiet

start away $short
server=$(rig in h1 pgrep redis-server)
rig in h1 kill -STOP $server
sleep 8
rig in h1 kill -CONT $server
like_quiet

start redis $short
rig in h1 pkill -KILL redis-server
like_quiet
grep -q 'starting it again from its append-only file' $log || fail "redis: it was not started again"
echo ok
