#!/bin/bash
# The tests of mesh/ with their ranks on 2 and on 4 hosts (tests/tools/rig): transports, formulas of what moves between hosts,
# plan, strategies, experts, ulysses, states, failures and 240 cuts of a model. Sums and gradients have the bits of one host.
# What a meeting sends is counted (mesh/links); how long 16 ranks on two hosts take for one is only printed.
# only in scripts/check_long
. tests/e2e/run.inc
. tests/e2e/rig.inc
programs=$(dirname "$CROLL")
# what a test says of its numbers
bits() { sed -nE 's/^(rank [0-9]+).*(bits .*)/\1 \2/p; /^bits/p' $1 | sort; }
ranks_of() { sed -n 's|^ \* // ranks: ||p' tests/mesh/$1.c | grep . || echo 2; }

for test in comm links cut_matrix; do
    scripts/mpi $(ranks_of $test) $programs/mesh_$test >$tmp/$test.one 2>&1 || fail "$test on one host"
    [ -n "$(bits $tmp/$test.one)" ] || fail "$test prints no bits"
done
log=$tmp/uneven # all cuts on hosts that do not have the same number of ranks; fewer in mesh_cut_matrix_hosts
CUT_NUM=240 CUT_ADAPTED=30 CROLL_TEST_HOSTS=0,0,0,1 scripts/mpi 8 $programs/mesh_cut_matrix >$log 2>&1 && cmp <(bits $tmp/cut_matrix.one) <(bits $log) ||
    fail "cut_matrix on uneven hosts"
rig_up 4
for num in 2 4; do
    for test in comm links plan strategies experts ulysses states failures cut_matrix; do
        ranks=$(ranks_of $test) list=
        [ $ranks -ge $num ] || continue
        for i in $(seq $num); do list=$list,h$i:$((ranks / num)); done
        log=$tmp/$test.$num
        on ${list#,} $ranks env CROLL_TESTS_FOLDER=/mnt/shared $programs/mesh_$test >$log 2>&1 || fail "$test on $num hosts: exit code $?"
        [ ! -e $tmp/$test.one ] || cmp <(bits $tmp/$test.one) <(bits $log) || fail "$test on $num hosts: other bits"
        echo "$test, $ranks ranks on $num hosts: ok"
    done
done
log=$tmp/meetings
on h1:8,h2:8 16 $programs/bench_meetings >$log || fail "meetings"
cat $log
python3 -c 'import json,sys; sys.exit(json.loads(sys.stdin.read().splitlines()[-1])["real hosts"]["times_faster"] <= 0)' <$log ||
    fail "no time of a meeting"
echo "ok"
