#!/bin/bash
# A killed run leaves no memory for good: everything that Open MPI keeps in files is in one folder of /dev/shm,
# which the run removes when it ends, also by a signal or when a rank dies; after kill -9 of the launcher the next
# start removes it, and never that of a run that lives.
# Not covered: a /dev/shm that is not a tmpfs (Open MPI's own places are used there).
[ "$(stat -f -c %T /dev/shm)" = tmpfs ] || { echo "skipped: /dev/shm is not a tmpfs"; exit 77; }
. tests/e2e/run.inc
trap "kill -9 \$(jobs -p) 2>/dev/null || true; rm -rf $tmp" EXIT
quick_model

# start NAME: a long run in the background; its launcher is $launcher, its folder $folder
start() {
    local name=$1 pids pid
    "$CROLL" run configs/quickstart/sft.yaml pretrain=$tmp/home/model output_dir=$tmp/$name track_with=none \
        "sft_train.data_args.file_name=[$tmp/home/sft.jsonl]" max_steps=100000 >$tmp/$name.log 2>&1 </dev/null &
    launcher=$! log=$tmp/$name.log
    steps $name 2
    # what the ranks and mpirun map or have open in memory or below /tmp, and what an MPI of this kind makes
    pids=$(pgrep -f "actor $tmp/$name/config.yaml")
    [ $(wc -w <<<"$pids") = 3 ] || fail "$name: mpirun and two ranks are processes $pids"
    for pid in $pids; do
        cat /proc/$pid/maps | grep -o ' /.*' | tr -d ' '
        ls -l /proc/$pid/fd | sed -n 's/.* -> //p'
    done | grep -E '^(/dev/shm|/tmp/ompi)' | sort -u >$tmp/files
    grep -q vader_segment $tmp/files || fail "$name: no segment of shared memory"
    folder=$(grep -o '^/dev/shm/croll\.[^/]*' $tmp/files | sort -u)
    [ -d "$folder" ] || fail "$name: its folders are $folder"
    # windows are shared, too, but have no name any more
    ! grep -v "^$folder/" $tmp/files | grep -v '(deleted)$' || fail "$name: files elsewhere"
    # no lock is left in those who do not own the folder
    [ $(ls -l /proc/[0-9]*/fd 2>/dev/null | grep -c -- "-> $folder$") = 1 ] || fail "$name: who holds $folder?"
}
gone() {
    until_true "[ ! -e $1 ]"
}

start alive
alive=$folder alive_pid=$launcher

start killed
killed=$folder
kill -9 $launcher
wait $launcher || true
nothing_left killed
[ -n "$(ls $killed)" ] || fail "a killed run left nothing: what is tested here?"

start ended
ended=$folder
[ ! -e $killed ] || fail "$killed of a dead run is left"
[ -n "$(ls $alive)" ] || fail "$alive of a living run is gone"
kill -TERM $launcher
kill -TERM $launcher 2>/dev/null || true
wait $launcher || true
nothing_left ended
gone $ended

start headless # mpirun is killed: the launcher notices, ends the run and removes the folder
kill -9 $(pgrep -f "mpirun.*actor $tmp/headless/config.yaml")
wait $launcher || true
nothing_left headless
gone $folder

n=$(wc -l <$tmp/alive/metrics.jsonl)
steps alive $((n + 2))
kill -INT $alive_pid
wait $alive_pid || true
gone $alive
echo ok
