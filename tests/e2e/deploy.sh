#!/bin/bash
# deploy.sh -- deploy/pod on hosts made of namespaces (tests/tools/rig) as an indexed Job would start it: a run over two pods and its end
# on both, a pod that does not come, SIGTERM. The commands in the manifests are ones that croll takes, names agree.
# Not covered: schemas of Kubernetes, an image, a cluster (deploy/README.md says what was tried by hand).
# mostly waits
. tests/e2e/run.inc
. tests/e2e/rig.inc
python3 - <<'PY' || fail "manifests"
import re, sys
def args(text): return [a.strip().split(", ") for a in re.findall(r"args: \[(.*)\]", text)]
job, mpi = open("deploy/job.yaml").read(), open("deploy/mpijob.yaml").read()
container, pod = open("deploy/Containerfile").read(), open("deploy/pod").read()
num = set(re.findall(r"(?:completions|parallelism): (\d+)", job))
hosts = re.search(r"value: (croll-0\.croll.*)", job).group(1).split(",")
assert num == {str(len(hosts))} and [h.split(":")[0] for h in hosts] == [f"croll-{i}.croll" for i in range(len(hosts))], hosts
for text in (job, mpi):
    assert re.findall(r"runAsUser: (\d+)", text) == ["1000"] and "useradd --create-home --uid 1000" in container
    assert "privileged: true" not in text and "drop: [ALL]" in text
    assert "/etc/croll-ssh" in text and "keys=${CROLL_KEYS:-/etc/croll-ssh}" in pod
assert "containerPort: 2222" in job and "CROLL_SSH_PORT:-2222" in pod
want = ["run", "/etc/croll/run.yaml", "output_dir=/data/output", "resume_from_checkpoint=true"]
assert args(job) == [want] and args(mpi) == [["launch"] + want, ["serve"]], (args(job), args(mpi))
assert re.search(r"\nUSER 1000\n", container) and container.count("\nFROM ") == 2
PY
"$CROLL" config configs/quickstart/rlvr.yaml output_dir=/data/output resume_from_checkpoint=true >/dev/null 2>$tmp/config ||
    ! grep -v "output/quickstart" $tmp/config | grep -q error: || fail "croll config: $(cat $tmp/config)"
quick_model
rig_up 2
for host in h1 h2; do rig in $host mount -t tmpfs -o mode=700 tmpfs /root; done # ssh reads ~/.ssh of the password file's home
mkdir $tmp/keys $tmp/bin
ssh-keygen -q -t ed25519 -N '' -C '' -f $tmp/keys/id
ln -s "$(realpath "$CROLL")" $tmp/bin/croll
wait=$((60 * slower))
pod() { # HOST INDEX NAME WORDS ..: its log in $tmp/NAME.HOST.log
    local host=$1 index=$2 name=$3
    shift 3
    rig in $host env HOME=/root CROLL_KEYS=/mnt/shared/keys CROLL_HOSTS=h1:2,h2:2 JOB_COMPLETION_INDEX=$index PATH=/mnt/shared/bin:$PATH \
        CROLL_WAIT_S=$wait deploy/pod run configs/quickstart/rlvr.yaml pretrain=/mnt/shared/home/sft_model \
        output_dir=/mnt/shared/$name track_with=none "actor_train.data_args.file_name=[/mnt/shared/home/sums.train.jsonl]" \
        validation=null "$@" >$tmp/$name.$host.log 2>&1 </dev/null
}
# two pods: the other one leaves when the run is over
pod h2 1 two &
other=$!
log=$tmp/two.h1.log code=0
pod h1 0 two max_steps=2 save_steps=2 || code=$?
[ $code = 0 ] && [ "$(wc -l <$tmp/two/metrics.jsonl)" = 2 ] || fail "two pods: exit code $code"
code=0
wait $other || code=$?
[ $code = 0 ] || { log=$tmp/two.h2.log; fail "the other pod: exit code $code"; }
! rig in h2 pgrep -f "deploy/pod|sshd -D -e -f /dev/null" >/dev/null || fail "something is left on h2"
# a pod that does not come is named
wait=3 log=$tmp/alone.h1.log code=0
pod h1 0 alone max_steps=2 || code=$?
[ $code = 1 ] && grep -q "croll-pod: h2 cannot be reached after 3 s: ssh: " $log || fail "a pod that is missing: exit code $code"
wait=$((60 * slower))
# SIGTERM: the step is saved, both end
pod h2 1 stopped &
other=$!
pod h1 0 stopped max_steps=1000 save_steps=1000 &
first=$!
steps stopped 1
rig in h1 pkill -TERM -o -f "deploy/pod run" || fail "no pod on h1"
log=$tmp/stopped.h1.log code=0
wait $first || code=$?
[ $code = 130 ] && [ -e $tmp/stopped/latest ] || fail "SIGTERM: exit code $code"
code=0
wait $other || code=$?
[ $code = 0 ] || { log=$tmp/stopped.h2.log; fail "SIGTERM, the other pod: exit code $code"; }
echo ok
