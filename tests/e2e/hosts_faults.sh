#!/bin/bash
# only in scripts/check_long
# Random faults in runs of 20 steps on 3 hosts (tests/tools/rig): a host is cut off, has a bad cable (30 % loss, 200 ms), hangs, is
# killed or has no room in memory, Redis is killed, the disk of the run is full, one host has another program, another model or a
# clock that is wrong. Each run ends within its deadline, with a sentence that names what failed, or like an undisturbed one; it
# leaves nothing on any host, and resumed it has every sample and number of the undisturbed one.
# CROLL_FAULTS: how many (200). CROLL_FAULTS_FROM: seed of the first (1); a seed is one fault.
. tests/e2e/run.inc
. tests/e2e/rig.inc
faults=${CROLL_FAULTS:-200} from=${CROLL_FAULTS_FROM:-1}
deadline=$((60 * slower)) slow=$((240 * slower)) # slow: with 200 ms a step takes seconds
fake=$(ls /usr/lib/*/faketime/libfaketime.so.1 2>/dev/null || true)
[ "$(id -u)" = 0 ] || skip "root is needed to make hosts of namespaces"
mount -t tmpfs -o size=400m tmpfs $tmp # a disk that can be filled
trap 'umount -l $tmp; rm -rf $tmp' EXIT
quick_model
rig_up 3
trap 'rig down; umount -l $tmp; rm -rf $tmp' EXIT
real=$(realpath "$CROLL") program=/mnt/own/croll model=/mnt/own/model # of each host its own
give() {
    rig in $1 cp $real $program
    rig in $1 cp -r /mnt/shared/home/sft_model $model
}
for host in h1 h2 h3; do give $host; done
CROLL=$program
keys=(--hosts h1:1,h2:2,h3:1 pretrain=$model max_steps=20 save_steps=4 collective_timeout=20 exchange.timeout=20)
outputs() { (cd $tmp/$1 && sha256sum rollouts/*; cd latest && find . -name '*.safetensors' -o -name '*.master' | sort | xargs sha256sum); }

# sshd_of HOST [OPTION]: what it starts has these variables
sshd_of() {
    rig in $1 sh -c 'kill $(cat /run/rig/sshd.pid)'
    rig in $1 /usr/sbin/sshd -f /dev/null -h /run/rig/keys/id -o PidFile=/run/rig/sshd.pid -o AuthorizedKeysFile=/run/rig/keys/id.pub -o StrictModes=no \
        -o UsePAM=no -o PermitRootLogin=yes ${2:+-o "$2"}
}
# before KIND HOST, during, after: what breaks it, and what mends it
before() {
    case $1 in
    memory) rig in $2 mount -o remount,size=2m /dev/shm ;;
    program) rig in $2 sh -c "cp $program $program.other; echo >>$program.other; mv $program $program.own; mv $program.other $program" ;;
    model) rig in $2 sh -c "printf x | dd of=$model/model.safetensors bs=1 seek=100000 conv=notrunc 2>/dev/null" ;;
    clock) sshd_of $2 "SetEnv=LD_PRELOAD=$fake FAKETIME=+0.7" ;;
    esac
}
during() {
    case $1 in
    cut) rig cut $2 ;;
    loss) rig netem $2 loss 30% ;;
    delay) rig netem $2 delay 200ms ;;
    frozen) rig freeze $2 ;;
    killed) rig kill $2 ;;
    rank) rig in $2 sh -c 'kill -9 $(pgrep -P $(pgrep -x orted) | tail -n 1)' 2>/dev/null || true ;; # it may have ended
    redis) rig in h1 pkill -KILL redis-server || true ;;
    disk) dd if=/dev/zero of=$tmp/full bs=1M 2>/dev/null || true ;;
    esac
}
after() {
    case $1 in
    cut) rig heal $2 ;;
    loss | delay) rig netem $2 off ;;
    frozen) rig thaw $2 ;;
    killed) rig start $2; give $2 ;;
    disk) rm -f $tmp/full ;;
    memory) rig in $2 mount -o remount,size=2g /dev/shm ;;
    program) rig in $2 mv $program.own $program ;;
    model) rig in $2 sh -c "rm -r $model; cp -r /mnt/shared/home/sft_model $model" ;;
    clock) sshd_of $2 ;;
    esac
    reach $2
}
# wrong TEXT: told, and counted; the next fault goes on
wrong() { echo "WRONG: fault $seed, $kind of $host at step $step: $*"; is_wrong=1; }
compare() {
    cmp <(timeless $tmp/quiet/metrics.jsonl) <(timeless $tmp/faulty/metrics.jsonl) >/dev/null || wrong "$1: other metrics"
    cmp <(outputs quiet) <(outputs faulty) >/dev/null || wrong "$1: other samples or weights"
}

hosts_run quiet "${keys[@]}"
[ $code = 0 ] || fail "quiet: exit code $code"
kinds=(cut loss delay frozen killed rank redis disk memory program model ${fake:+clock})
num_wrong=0 refused=0 ended=0 went_on=0
for ((seed = from; seed < from + faults; seed++)); do
    RANDOM=$((seed * 7919 % 32768))
    kind=${kinds[(seed + RANDOM % 2) % ${#kinds[@]}]} host=h$((RANDOM % 2 + 2)) step=$((RANDOM % 18)) is_wrong=0
    case $kind in rank | redis) step=$((step + 1)) ;; esac # once they are there
    rm -rf $tmp/faulty $tmp/faulty.log
    before $kind $host
    (hosts_run faulty "${keys[@]}"; exit $code) &
    pid=$!
    while kill -0 $pid 2>/dev/null && [ "$(cat $tmp/faulty/metrics.jsonl 2>/dev/null | wc -l)" -lt $step ]; do sleep 0.02; done
    during $kind $host
    at=$(cat $tmp/faulty/metrics.jsonl 2>/dev/null | wc -l) # which may be later than planned
    begin=$(date +%s) code=0
    most=$deadline
    [ $kind != delay ] || most=$slow
    while kill -0 $pid 2>/dev/null && [ $(($(date +%s) - begin)) -lt $most ]; do sleep 0.1; done
    if kill -0 $pid 2>/dev/null; then
        wrong "not ended after $most s"
        rig in h1 pkill -KILL -f "^$program run" || true
    fi
    wait $pid || code=$?
    took=$(($(date +%s) - begin)) log=$tmp/faulty.log
    said=$(tail -n 1 $log 2>/dev/null | cut -c 1-170)
    alive=(h1 h2 h3)
    case $kind in killed) alive=(${alive[@]/$host/}) ;; esac
    [ $kind != frozen ] || after $kind $host
    (clean 25 ${alive[@]}) || wrong "something is left"
    [ $kind = frozen ] || after $kind $host
    if [ $code = 0 ]; then
        went_on=$((went_on + 1))
        case $kind in cut | frozen | killed | memory | program | model) [ $at -ge 17 ] || wrong "it should have ended: $said" ;; esac
        compare "went on"
    else
        case $kind in memory | program | model) refused=$((refused + 1)) ;; *) ended=$((ended + 1)) ;; esac
        case $kind in
        cut | frozen | killed | loss | delay) want="$host|^croll run: .*(h1|h2|h3|Redis)" ;;
        rank) want="rank [0-9] on $host" ;;
        disk) want='No space left|no room|make room|not saved' ;;
        memory | program | model) want="host $host: " ;;
        *) want=NEVER ;;
        esac
        grep '^croll run: ' $log | tail -n 1 | grep -Eq -- "$want" || wrong "code $code: $said"
        case $kind in memory | program | model) resume=() ;; *) resume=(resume_from_checkpoint=true) ;; esac
        hosts_run faulty "${keys[@]}" ${resume[@]+"${resume[@]}"}
        [ $code = 0 ] || wrong "resumed: exit code $code: $(tail -n 1 $log | cut -c 1-170)"
        [ $code != 0 ] || compare resumed
    fi
    num_wrong=$((num_wrong + is_wrong))
    echo "fault $seed: $kind of $host at step $step: $took s: $said"
done
echo "$faults faults: $went_on went on, $ended ended and were resumed, $refused refused; $num_wrong wrong"
[ $num_wrong = 0 ]
