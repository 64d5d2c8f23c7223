#!/bin/bash
# croll score code: programs that attack the machine, each other, and their verdict (score_code_attacks.py is the table). Each has a
# named status or fails its case within its limit; nothing of them is left: no process, mount, file or shared memory.
# Not covered: faults of the kernel, and time that a program learns from how long others take.
. tests/e2e/run.inc
reason=$("$CROLL" score code </dev/null 2>&1) || { echo "skipped: $reason"; exit 77; }
server=
trap 'kill -9 $server 2>/dev/null || true; rm -rf $tmp' EXIT
export CANARY=$tmp/canary CROLL_SECRET=hush PORT=$(port_pair) LIMIT=$((9 * slower))
echo hush >$CANARY
chmod 644 $CANARY
python3 - $PORT <<'END' &
import socket, sys, time
tcp = socket.socket()
tcp.bind(("127.0.0.1", int(sys.argv[1])))
tcp.listen()
abstract = socket.socket(socket.AF_UNIX)
abstract.bind("\0croll-" + sys.argv[1])
abstract.listen()
time.sleep(600)
END
server=$!
sed 's/worker_cls: .*MathRuleRewardWorker.*/worker_cls: roll.pipeline.rlvr.rewards.code_sandbox_reward_worker.CodeSandboxRewardWorker\n    case_timeout: 2\n    case_memory_mb: 512\n    max_in_flight: 2/' \
    configs/quickstart/rlvr.yaml >$tmp/attacks.yaml
domain=$(sed -n '/^rewards:/,$s/^  \([a-z_]*\):.*/\1/p' $tmp/attacks.yaml | head -n 1)
sed -i "s/^pretrain:.*/pretrain: $(echo $tmp | sed 's|/|\\/|g')/" $tmp/attacks.yaml
python3 -B tests/e2e/score_code_attacks.py lines >$tmp/lines
mounts=$(wc -l </proc/self/mounts)
"$CROLL" score $domain --config $tmp/attacks.yaml --timeout 30 --explain <$tmp/lines >$tmp/answers 2>$tmp/err &
scorer=$!
wait $scorer || { cat $tmp/err; fail "exit code $?"; }
python3 -B tests/e2e/score_code_attacks.py check <$tmp/answers || fail "an attack"
[ "$(cat $CANARY)" = hush ] || fail "the file of the host was changed"
kill -0 $server || fail "a process of the host was ended"
until_true "! grep -qs '^croll-daemon$' /proc/[0-9]*/comm"
[ $mounts = $(wc -l </proc/self/mounts) ] || fail "a mount is left"
[ -z "$(find /sys/fs/cgroup -maxdepth 5 -name "croll-$scorer-*" 2>/dev/null)" ] || fail "a cgroup is left"
grep -q hush $tmp/answers && ! grep -q '"detail":"[^"]*hush' $tmp/answers || fail "a secret came out"
echo ok
