#!/bin/bash
# A run on two hosts (tests/tools/rig) of which a rank, then a host is killed: it ends at once with a sentence that names host,
# role and rank, leaves nothing on the hosts that live, and is resumed with the numbers of an undisturbed run. SIGINT ends it
# with a saved step. The records of both hosts, whose clocks are 1000 s apart, are laid on one clock. Before it a run on three hosts whose
# sockets are soon full: what one keeps back goes out while its rank waits in Redis (without Open MPI's thread for TCP a weight sync stops
# within 20 steps).
. tests/e2e/run.inc
. tests/e2e/rig.inc
quick_model
rig_up 3
for host in h1 h2 h3; do
    rig in $host sh -c 'cd /proc/sys/net/ipv4; echo 4096 16384 16384 | tee tcp_wmem >tcp_rmem'
done
keys=(--hosts h1:2,h2:2 save_steps=1 max_ckpt_to_keep=2 actor_train.training_args.lr_scheduler_type=constant)
hosts_run full "${keys[@]}" --hosts h1:1,h2:2,h3:1 save_steps=100 max_steps=60
[ $code = 0 ] || fail "full sockets: exit code $code"
hosts_run quiet "${keys[@]}" max_steps=12
[ $code = 0 ] || fail "quiet: exit code $code"
cmp <(timeless $tmp/full/metrics.jsonl | head -n 12) <(timeless $tmp/quiet/metrics.jsonl) || fail "three hosts: other numbers"
clean 2 h1 h2 h3
within=$(sed -n 's/.*aligned by round trips, within \([0-9.]*\) ms.*/\1/p' $tmp/quiet/run.html)
python3 - $tmp/quiet/flight ${within:-none} <<'END' || fail "clocks of two hosts: within ${within:-?} ms"
import struct, sys
ahead = [struct.unpack_from("<d", open(f"{sys.argv[1]}/rank-0{r}.bin", "rb").read(), 56)[0] for r in (0, 3)] # asked[0].ahead_s
sys.exit(not (float(sys.argv[2]) < 20 and abs(ahead[0] - ahead[1] - 1000) * 1e3 < 20))
END

# ends NAME CODE SENTENCE: the run in the background
ends() {
    code=0 begin=$(date +%s)
    wait $pid || code=$?
    took=$(($(date +%s) - begin))
    echo "$1: exit code $code after $took s: $(tail -n 1 $log)"
    [ $code = $2 ] && tail -n 1 $log | grep -Eq "$3" || fail "$1: exit code $code, or another sentence"
    [ $took -le $deadline ] || fail "$1: ended after $took s"
}
start() { # in the background, until its third step: the second is saved
    local had=$(cat $tmp/faulty/metrics.jsonl 2>/dev/null | wc -l)
    (hosts_run faulty "${keys[@]}" max_steps=${1:-100000} resume_from_checkpoint=true; exit $code) &
    pid=$! log=$tmp/faulty.log
    steps faulty $((had + 3))
}
start
rig in h2 kill -9 $(rank_on h2 3)
ends "a rank killed" 1 '^croll run: .*step [0-9]+: actor_infer rank 1 on h2 was killed'
clean 2 h1 h2
start
rig kill h2
ends "a host killed" 1 '^croll run: .*step [0-9]+: host h2 is lost( \(actor_infer rank 0 and 1 more ran there\))?: ' # known after each rank's first beats
clean 2 h1
! grep -v '^croll run: ' $log | grep -E 'ORTE|Open MPI|btl_tcp|closed by' || fail "advice of Open MPI is shown"
rig start h2
start
rig in h1 pkill -INT -f "^$CROLL run"
ends "SIGINT" 130 'stopped by signal 2 after step [0-9]+, which is saved'
clean 2 h1 h2
[ ! -e $tmp/faulty/.croll-run ] && flock -n $tmp/faulty true || fail "a mark or a lock is left"
hosts_run faulty "${keys[@]}" max_steps=$(($(wc -l <$tmp/faulty/metrics.jsonl) + 2)) resume_from_checkpoint=true
[ $code = 0 ] || fail "resumed: exit code $code"
cmp <(timeless $tmp/quiet/metrics.jsonl | head -n 8) <(timeless $tmp/faulty/metrics.jsonl | head -n 8) || fail "other numbers"
echo ok
