#!/bin/bash
# Threads and cores of ranks (docs/cores.md): the tables of the page are what `croll doctor` and `croll plan` print for machines of
# 2 to 128 cores and 1 to 8 NUMA nodes; what ranks then do, as OpenMP itself tells (OMP_DISPLAY_AFFINITY): by affinity, by CPU time of a
# cgroup (where this user may make one), by OMP_NUM_THREADS and CROLL_BIND, also in system_envs of a role; wrong values start nothing.
# Not covered: a real machine with several nodes.
. tests/e2e/run.inc
quick_model
log=$tmp/log
unset OMP_NUM_THREADS OMP_PROC_BIND OMP_PLACES CROLL_BIND
page=docs/cores.md
in_page() { # a file, whose lines are in the page one after another
    python3 - $1 $page <<'PY' || fail "$page has another table than: $(cat $1)"
import sys
sys.exit(0 if open(sys.argv[1]).read().rstrip("\n") in open(sys.argv[2]).read() else 1)
PY
}
machines=0
while read -r text; do
    "$CROLL" doctor --topology "$text" >$log || fail "doctor --topology '$text'"
    { echo "\$ croll doctor --topology '$text'"; grep -v '^   *\(ranks of a role\|a role does\)' $log; } >$tmp/table
    in_page $tmp/table
    machines=$((machines + 1))
done < <(sed -n "s/^\$ croll doctor --topology '\(.*\)'$/\1/p" $page)
[ $machines -ge 8 ] || fail "$page has $machines machines"
"$CROLL" plan configs/quickstart/rlvr.yaml pretrain=$tmp/home/sft_model --world 8 --topology 'numa:8 core:16 pu:2' 2>/dev/null |
    sed -n '/^cores /,/^$/p' | sed '/^$/d' >$tmp/table
[ "$(wc -l <$tmp/table)" = 4 ] || fail "croll plan: $(cat $tmp/table)"
in_page $tmp/table
"$CROLL" plan configs/quickstart/rlvr.yaml pretrain=$tmp/home/sft_model --hosts a:2,b:2 --topology 'numa:2 core:8 pu:1' --json >$log 2>/dev/null
grep -q '"cores":\[{"first_host":1,"last_host":1,"shares":\[{"role":"actor_train","ranks":"0-1","threads":8,"cores":"nodes 0-1, 1 rank each"' $log ||
    fail "plan --json: $(grep -o '"cores".\{300\}' $log)"

refused() { # TEXT COMMAND ..: exit code 2 with that text
    local text=$1 code=0
    shift
    "$@" >$log 2>&1 </dev/null || code=$?
    [ $code = 2 ] && grep -q -- "$text" $log || fail "exit code $code, without '$text': $*"
}
words refused
refused 'actor_train: CROLL_BIND is "node" (use none, nodes or cores)' env CROLL_BIND=node "${words[@]}"
refused 'actor_infer: OMP_NUM_THREADS is "two"' "${words[@]}" 'actor_infer.system_envs={OMP_NUM_THREADS: two}'
[ ! -e $tmp/refused ] || fail "a refused run leaves a folder"
refused 'OMP_NUM_THREADS is "0"' env OMP_NUM_THREADS=0 "$CROLL" logprobs $tmp/home/sft_model
refused 'neither hwloc' "$CROLL" doctor --topology 16x2
refused 'stands alone' "$CROLL" doctor --topology 'core:2 pu:1' --hosts a:1

# the threads of a rank, "level 1 thread .. affinity 0-1" each
for i in $(seq 64); do echo '{"prompt":"12+34=12+34=12+34=12+34=12+34=12+34=12+34=12+34=","response":"46"}'; done >$tmp/lines
threads() { # WANT COMMAND ..: as many threads as that
    local want=$1 num
    shift
    "$@" env OMP_DISPLAY_AFFINITY=true OMP_AFFINITY_FORMAT='thread %n on %A' "$CROLL" logprobs $tmp/home/sft_model <$tmp/lines >$tmp/out 2>$log ||
        fail "logprobs: $*"
    num=$(grep -c '^thread' $log) || num=1 # one thread opens no team
    [ $num = $want ] || fail "$num threads, not $want: $*"
}
cores=$("$CROLL" doctor | sed -n 's/^ok *cores *\([0-9]*\) core.*/\1/p')
threads $cores env
cp $tmp/out $tmp/want
threads 3 env OMP_NUM_THREADS=3
cmp $tmp/out $tmp/want || fail "three threads give other numbers"
threads 1 taskset -c "$(taskset -cp $$ | sed 's/.*: *\([0-9]*\).*/\1/')"
threads 3 env OMP_NUM_THREADS=3 CROLL_BIND=cores
if [ "$cores" -gt 1 ] && folder=/sys/fs/cgroup/cpu/croll-test-$$ && mkdir $folder 2>/dev/null; then
    echo 100000 >$folder/cpu.cfs_period_us && echo 100000 >$folder/cpu.cfs_quota_us
    code=0
    (echo $BASHPID >$folder/tasks && exec "$CROLL" doctor) >$tmp/limited || code=$?
    (echo $BASHPID >$folder/tasks && threads 1 env) || code=1
    rmdir $folder
    [ $code = 0 ] && grep -q 'CPU time for 1 of them' $tmp/limited || fail "a cgroup with the time of one CPU: $(grep cores $tmp/limited)"
else
    echo "skipped: no cgroup of version 1 can be made here, or there is one core"
fi

# ranks of a run: both with all threads that system_envs say, and the metrics of any other
run() { # NAME [key=value ..]
    job "$@" max_steps=2 validation=null
    [ $code = 0 ] || fail "run $1: exit code $code"
    grep -o '"actor/grad_norm":[^,]*\|"critic/score/mean":[^,]*' $tmp/$1/metrics.jsonl >$tmp/$1.numbers
}
run plain
export OMP_DISPLAY_AFFINITY=true OMP_AFFINITY_FORMAT='thread %n of %P'
CROLL_BIND=cores run bound 'actor_train.system_envs={OMP_NUM_THREADS: 2}' 'actor_infer.system_envs={OMP_NUM_THREADS: 3}'
cmp $tmp/plain.numbers $tmp/bound.numbers || fail "other threads give other numbers"
[ "$(grep -o 'thread [0-9]* of [0-9]*' $tmp/bound.log | sort | uniq -c | awk '{print $3}' | sort -n | tail -n 1)" = 2 ] || fail "no engine has three threads"
