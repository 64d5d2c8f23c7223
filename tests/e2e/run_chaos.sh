#!/bin/bash
# croll run while its processes are killed or stopped: reward workers and Redis come back and nothing is
# lost or scored twice; a dead or frozen rank ends the run with a sentence that names it.
# CROLL_CHAOS_KILLS: how many reward workers are killed (4).
# also long: CROLL_CHAOS_KILLS=12
. tests/e2e/run.inc
quick_model
kills=${CROLL_CHAOS_KILLS:-4}

# start NAME [key=value ..]: job in the background, $pid
start() {
    local name=$1
    shift
    (job $name "$@"; exit $code) &
    pid=$!
    log=$tmp/$name.log
    steps $name 1
}

start workers max_steps=$((kills + 4))
for ((i = 0; i < kills; i++)); do
    sleep 0.$((RANDOM % 9 + 1))
    pkill -9 -f "reward $tmp/workers/config.yaml" || true
done
server=$(pgrep -f "redis-server.*$tmp/workers" | head -1)
[ -z "$server" ] || kill -9 $server
code=0
wait $pid || code=$?
[ $code = 0 ] || fail "reward workers killed: exit code $code"
cat $tmp/workers/rollouts/step-*.jsonl >$tmp/all
[ "$(wc -l <$tmp/all)" = $(((kills + 4) * 32 * 16)) ] || fail "$(wc -l <$tmp/all) samples"
[ "$(sed 's/^{"id":\("[^"]*"\).*/\1/' $tmp/all | sort -u | wc -l)" = $(((kills + 4) * 32 * 16)) ] || fail "ids are not unique"
! grep -v '"status":"ok"' $tmp/all || fail "a sample was not scored"
nothing_left workers
# the same numbers as without any of it
job quiet max_steps=$((kills + 4))
diff <(timeless $tmp/quiet/metrics.jsonl) <(timeless $tmp/workers/metrics.jsonl) >$tmp/diff || { log=$tmp/diff; fail "the killed workers changed the numbers"; }

start dead max_steps=1000 save_steps=1
until_true '[ -L $tmp/dead/latest ]'
kill -9 $(rank_of dead 1)
begin=$(date +%s) code=0
wait $pid || code=$?
[ $code = 1 ] || fail "a rank killed: exit code $code"
[ $(($(date +%s) - begin)) -le $deadline ] || fail "a rank killed: the run ended after $(($(date +%s) - begin)) s"
grep -Eq "step [0-9]+: actor_(train|infer) rank [0-9]" $log || fail "a rank killed: no sentence names it"
nothing_left dead
last=$(readlink $tmp/dead/latest)
job dead max_steps=$((${last#checkpoint-} + 3)) resume_from_checkpoint=true
[ $code = 0 ] || fail "a rank killed, resumed: exit code $code"

start frozen max_steps=1000 collective_timeout=$((slower == 1 ? 4 : 30))
kill -STOP $(rank_of frozen 1)
begin=$(date +%s) code=0
wait $pid || code=$?
[ $code = 3 ] || fail "a rank stopped: exit code $code"
[ $(($(date +%s) - begin)) -le $deadline ] || fail "a rank stopped: the run ended after $(($(date +%s) - begin)) s"
grep -Eq "actor_(train|infer).*rank [0-9]" $log || fail "a rank stopped: no sentence names it"
nothing_left frozen
tail -n 1 $log
echo ok
