#!/bin/bash
# scripts/gpu-check without a GPU: its steps, limits, reports, files for other machines and their refusal, with programs that are
# pretended. Not covered: croll itself (cuda_sim/gpu_check), its builds, NVIDIA's tools and libraries, a GPU (tests/README.md).
# mostly waits
. tests/e2e/run.inc
. tests/e2e/gpu_check.inc
# pretended programs: FAKE="NAME=fail NAME=hang .."
cat >$built/croll <<'SH'
#!/bin/bash
case " $FAKE " in
*" ${0##*/}=fail "*) echo "a planted failure"; exit 3 ;;
*" ${0##*/}=skip "*) exit 77 ;;
*" ${0##*/}=hang "*) setsid sleep 98765 & echo $! >$FAKE_PID; wait ;;
*" ${0##*/}=leave "*) setsid sleep 98765 & echo $! >$FAKE_PID ;;
esac
[ "${0##*/}" != croll ] || echo '{"name":"cuda","status":"ok","found":"-"}
{"name":"gpu","status":"'${FAKE_GPU:-ok}'","found":"a pretended GPU"}'
SH
chmod +x $built/croll
for program in unit_kernels_{devices,attention,attention_long,log_probs} cuda_device cuda_probe cuda_engine_graphs bench_{products,ops,train,decode}; do
    cp $built/croll $built/$program
done
export FAKE= FAKE_PID=$tmp/pid
gone() { # the process whose number is in $FAKE_PID
    [ -s $FAKE_PID ] && ! kill -0 "$(cat $FAKE_PID)" 2>/dev/null || fail "process $(cat $FAKE_PID) is left"
    rm $FAKE_PID
}

# all is well; what is missing is named
steps=doctor,kernels,log_probs,graphs,memcheck
hidden=$(tr : '\n' <<<$PATH | grep -v cuda | paste -sd:)
PATH=$hidden CUDA_HOME=$tmp check 0 --only $steps
report 'r["result"] == "passed" and list(step) == "'$steps'".split(",") and [step[n] for n in ("doctor", "kernels", "log_probs", "graphs")] == ["ok"] * 4'
report 'step["memcheck"] == "skipped: no compute-sanitizer" and r["libraries"] == ["none"]'
# the limits of what has most value fit into the whole; tools come last
$tree/scripts/gpu-check --list | python3 -c '
import sys
rows = [line.split() for line in sys.stdin]
names, limits = [r[0] for r in rows], [int(r[1]) for r in rows]
assert sum(limits[:names.index("train") + 1]) <= 540 and names[-4:] == ["memcheck", "racecheck", "initcheck", "synccheck"], names' || fail "the order of steps"
# kernels that ncu is asked for are there
for kernel in $(PYTHONPATH=$tree/scripts python3 -c 'from gpu_check.steps import PROFILED; print(*PROFILED)'); do
    grep -rq "\b$kernel(" kernels/cuda || fail "no kernel $kernel"
done
report 'all(b["result"] == "not measured" for b in r["bars"])'

# a failed step, one that skips itself, one that is over its limit, one that leaves a process; the others go on
FAKE="cuda_probe=fail cuda_device=skip" check 1 --only memory,graphs
report 'r["result"] == "failed" and step["memory"] == "failed: cuda_device: skipped itself; cuda_probe: exit code 3" and step["graphs"] == "ok"'
report '"a planted failure" in "".join(r["steps"][0]["said"]) and "    a planted failure" in text'
says 'a planted failure'
FAKE="unit_kernels_devices=hang" check 1 --only kernels,graphs --each 1
report '"unit_kernels_devices: ended after the 1 s" in step["kernels"] and step["graphs"] == "ok"'
gone
for limit in 1 4 16 64; do # the first in which the program is started
    FAKE="unit_kernels_devices=hang" check 1 --only kernels,graphs --limit $limit
    [ ! -s $FAKE_PID ] || break
done
report '"the whole check was up" in step["kernels"] and "not run, because" in step["graphs"] and r["steps"][0]["seconds"] < 60'
gone
FAKE="cuda_device=leave" check 0 --only memory
grep -q 'left processes' $tree/build/gpu-check/gpu-check.log || fail "a process that was left is not named"
gone
FAKE_GPU=missing check 1 --only doctor
report 'step["doctor"] == "failed: gpu: a pretended GPU"'

# the tools and rates of a machine that has them
mkdir $tree/bench
printf '#!/bin/sh\necho "$*" >>%s\nshift 6\ncase $* in *head) exit 86 ;; esac\n' $tmp/watched >$tmp/tools/compute-sanitizer
cat >$tree/bench/gpu_speed <<'SH'
#!/bin/sh
echo '{"what": "train Qwen3 1.7B, bf16", "value": 9, "unit": "tokens/s", "share": 0.44, "peer_missing": "no torch"}'
echo '{"what": "AdamW", "value": 2900.5, "unit": "GB/s", "limit": 3350, "share": 0.86, "peer": "torch | fused", "peer_value": 2800}'
echo '{"what": "rmsnorm 1", "value": 1, "unit": "GB/s", "share": 0.95}'
echo '{"what": "rmsnorm backward 1", "value": 1, "unit": "GB/s", "share": 0.5}'
echo '{"what": "copy 512 MiB", "value": 300, "unit": "GB/s", "share": 0.8}'
echo '{"what": "head, many rows", "value": 300, "unit": "TFLOP/s", "limit": 989, "share": 0.3}'
echo "$FAKE_SPEED"
SH
chmod +x $tmp/tools/compute-sanitizer $tree/bench/gpu_speed
PATH=$tmp/tools:$PATH check 1 --only memcheck,racecheck,ops
report '"exit code 86" in step["memcheck"] and "norms" not in step["memcheck"] and step["ops"] == "ok" and len(r["speeds"]) == 6'
report '{b["bar"].split(":")[0]: (b["share"], b["result"]) for b in r["bars"] if b["share"]} == {"training, 1.7B shape, bf16": (0.44, "met"), "AdamW": (0.86, "met"), "RMSNorm": (0.95, "met"), "its gradient": (0.5, "met"), "copy": (0.8, "not met")} and "no torch" in text'
grep -q -- '--tool racecheck .*/unit_kernels_devices norms' $tmp/watched || fail "the tool was not called"
FAKE_SPEED='{"what": 3}' check 0 --only ops
report '"not a speed" in step["ops"] and step["ops"].startswith("incomplete: ")'
# a tool that has too little time has found nothing
printf '#!/bin/sh\nexec sleep 98765\n' >$tmp/tools/compute-sanitizer
PATH=$tmp/tools:$PATH check 0 --only memcheck,racecheck --each 1
report 'step["memcheck"].startswith("incomplete: ") and "after the 1 s" in step["racecheck"] and r["result"] == "passed"'
FAKE_SPEED='{"what": "copy", "unit": "GB/s", "missing": "out of memory"}' check 0 --only ops
report 'step["ops"] == "incomplete: copy: out of memory" and "incomplete: ops" in r["summary"] and len(r["speeds"]) == 7'

# killed: the report says what ran, where --out is
FAKE="cuda_probe=hang" $tree/scripts/gpu-check --device sim --built $built --only doctor,kernels,memory,graphs --out $tmp/killed/build/gpu-check >$log 2>&1 </dev/null &
check=$!
until_true '[ -s $FAKE_PID ]'
kill -KILL $check
wait $check || true
report 'r["result"] == "unfinished" and list(step.values()) == ["ok", "ok", "running", "not run"]' $tmp/killed
kill $(cat $FAKE_PID)
rm $FAKE_PID

# stopped: children end, the report says what was done
for signal in TERM INT; do
    rm -rf $tree/build $FAKE_PID
    FAKE="cuda_probe=hang" $tree/scripts/gpu-check --device sim --built $built --only doctor,memory,graphs >$log 2>&1 </dev/null &
    check=$!
    until_true '[ -s $FAKE_PID ]'
    kill -$signal $check
    code=0
    wait $check || code=$?
    [ $code = 130 ] || fail "stopped by SIG$signal: exit code $code"
    report 'r["result"] == "stopped" and list(step.values()) == ["ok", "stopped by SIG'$signal'", "not run"]'
    gone
done

# wrong words
check 2 --only doctor,nothing
says 'there is no step nothing'
PATH=$hidden CUDA_HOME=$tmp check 2 --only memcheck,racecheck
report 'r["result"] == "nothing was checked"'
for words in "--only ," "--to $tmp" "--with-nvidia" "--pack $tmp/none/x" "--each 0" "--limit soon" "--device tpu" "--what" "$tmp/absent.tar.xz" "1 2" "--only"; do check 2 $words; done
mv $built/cuda_probe $tmp
check 2 --only memory
says 'has no cuda_probe'
mv $tmp/cuda_probe $built

# a file for another machine
check 0 --only doctor,memory --pack $tmp/check.tar.xz
unpacked() { # CODE [ARGUMENT ..]
    local want=$1 code=0
    shift
    (cd $tmp && timeout 120 $tree/scripts/gpu-check "$@" >$log 2>&1 </dev/null) || code=$?
    [ $code = $want ] || fail "gpu-check $*: exit code $code"
}
refused() { # TEXT FILE
    unpacked 2 $2 --to $tmp/refused
    says "was not unpacked: .*$1"
    [ "$(grep -c . $log)" = 1 ] || fail "more than a sentence"
    ! compgen -G "$tmp/refused*" >/dev/null || fail "a folder is left"
}
unpacked 0 check.tar.xz
report 'list(step.values()) == ["ok"] * 2' $tmp/check
unpacked 2 check.tar.xz
says 'is there already'
FAKE="cuda_probe=fail" && ! $tmp/check/scripts/gpu-check --only memory >$log 2>&1 || fail "a failure in the folder"
FAKE=
report '"cuda_probe: exit code 3" in step["memory"]' $tmp/check
! $tmp/check/scripts/gpu-check --only graphs >$log 2>&1 || fail "a step that was not packed"
says 'graphs is not in this folder'
rm $tmp/check/build/cuda-sim/cuda_probe
! $tmp/check/scripts/gpu-check >$log 2>&1 || fail "a folder with a hole"
says 'is not whole: build/cuda-sim/cuda_probe'

# libraries of NVIDIA's, which are not packed: the places where they are looked for; and packed. What steps read is in the folder
mkdir -p $tmp/toolkit/lib64 $tmp/site/nvidia/cublas/lib $tmp/found
cat >$tmp/tools/ldconfig <<SH
#!/bin/sh
for at in $tmp/found/*; do echo "	\${at##*/} (libc6,x86-64) => \$at"; done
SH
chmod +x $tmp/tools/ldconfig
for lib in cublasLt nccl; do
    echo "int $lib(void) { return 0; }" | cc -shared -x c - -o $tmp/lib$lib.so.99 -Wl,-soname,lib$lib.so.99
done
mv $built/cuda_probe $tmp
echo 'int cublasLt(void), nccl(void); int main(void) { return cublasLt() + nccl(); }' >$tmp/probe.c
cc $tmp/probe.c -o $built/cuda_probe $tmp/lib{cublasLt,nccl}.so.99 -Wl,--disable-new-dtags,-rpath,'$ORIGIN/../../lib'
LD_LIBRARY_PATH=$tmp check 0 --only memory,long --pack $tmp/without.tar.xz
says 'without libcublasLt.so.99, libnccl.so.99;'
LD_LIBRARY_PATH=$tmp check 0 --only memory --pack $tmp/with.tar.xz --with-nvidia
! grep -q 'without' $log || fail "--with-nvidia leaves some out"
mv $built/cuda_probe $tmp/probe
mv $tmp/cuda_probe $built
unpacked 2 without.tar.xz
says 'nothing was checked, because libcublasLt.so.99 is neither in ldconfig'
searched() { # FOLDER NAME=VALUE: both libraries are found there alone
    mv $tmp/lib*.so.99 $1
    env "$2" $tmp/without/scripts/gpu-check >$log 2>&1 </dev/null || fail "libraries in $1: exit code $?"
    for lib in cublasLt nccl; do
        [ $(readlink $tmp/without/lib/lib$lib.so.99) = $1/lib$lib.so.99 ] || fail "$1: another library"
    done
    report 'list(step.values()) == ["ok"] * 2' $tmp/without
    mv $1/lib*.so.99 $tmp
}
searched $tmp/toolkit/lib64 CUDA_HOME=$tmp/toolkit
searched $tmp/site/nvidia/cublas/lib PYTHONPATH=$tmp/site
searched $tmp/found PATH=$tmp/tools:$PATH
cmp $tmp/without/tests/parity/attention.json tests/parity/attention.json || fail "what a step reads is not packed"
rm $tmp/lib*.so.99
unpacked 0 with.tar.xz

size=$(stat -c %s $tmp/check.tar.xz)
head -c $((size / 2)) $tmp/check.tar.xz >$tmp/half.tar.xz
refused '' $tmp/half.tar.xz
for bytes in 0 5 100; do head -c $bytes $tmp/check.tar.xz >$tmp/half.tar.xz; refused '' $tmp/half.tar.xz; done
tar cJf $tmp/other.tar.xz -C $tmp out
refused 'not made by gpu-check --pack' $tmp/other.tar.xz
python3 - $tmp <<'PY'
import io, json, sys, tarfile
tmp = sys.argv[1]
with tarfile.open(f"{tmp}/check.tar.xz") as tar:
    members = [(m, tar.extractfile(m).read()) for m in tar if m.size < 1e5 or "pack.json" in m.name]
pack = json.loads(members[0][1])
pack["files"] = {n: f for n, f in pack["files"].items() if f"croll-gpu-check/{n}" in {m.name for m, _ in members}}
def write(name, change):
    with tarfile.open(f"{tmp}/{name}.tar.xz", "w:xz", preset=1) as tar:
        for m, data in members:
            m, data = tarfile.TarInfo(m.name), json.dumps(pack).encode() if "pack.json" in m.name else data
            m, data = change(m, data)
            m.size = len(data)
            tar.addfile(m, io.BytesIO(data))
write("changed", lambda m, d: (m, d.replace(b"planted", b"plented")))
pack["files"]["huge"] = [10**18, "", 0o644]
write("huge", lambda m, d: (m, d))
del pack["files"]["huge"]
pack["files"]["absent"] = [1, "", 0o644]
write("absent", lambda m, d: (m, d))
del pack["files"]["absent"]
pack["files"]["../outside"] = pack["files"]["scripts/mpi"]
def outside(m, d):
    m.name = m.name.replace("scripts/mpi", "../outside")
    return m, d
write("outside", outside)
PY
refused 'is not what was packed' $tmp/changed.tar.xz
refused 'there is no room' $tmp/huge.tar.xz
refused 'it ends before absent' $tmp/absent.tar.xz
refused 'which is not in its list' $tmp/outside.tar.xz
(ulimit -f 100 && refused 'File too large' $tmp/check.tar.xz)
echo ok
