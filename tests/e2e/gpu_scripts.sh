#!/bin/bash
# What scripts/gpu-check and scripts/cuda-seeds say, before they build anything, where they cannot do their work. Programs of
# NVIDIA's are pretended. Not covered: their work (tests/README.md).
. tests/e2e/run.inc
log=$tmp/out
refused() { # TEXT COMMAND ..: exit code 2, and TEXT
    local text=$1 code=0
    shift
    timeout $deadline env -u CUDA_HOME PATH=$tmp:$PATH "$@" >$log 2>&1 </dev/null || code=$?
    [ $code = 2 ] && grep -q -- "$text" $log || fail "$*: exit code $code"
}
printf '#!/bin/sh\necho "Cuda compilation tools, release 12.4, V12.4.131"\n' >$tmp/nvcc
printf '#!/bin/sh\nexit 9\n' >$tmp/nvidia-smi
chmod +x $tmp/nvcc $tmp/nvidia-smi
refused 'no GPU: nvidia-smi' scripts/gpu-check
printf '#!/bin/sh\necho a GPU\n' >$tmp/nvidia-smi
printf '#!/bin/sh\nexit 1\n' >$tmp/pkg-config
chmod +x $tmp/pkg-config
refused "a build needs what is not here: .*libevent_core.*cmocka, CUDA 12.8 or newer ($tmp/nvcc is of CUDA 12.4); make a file on a machine" scripts/gpu-check 4
[ "$(wc -l <$log)" = 1 ] || fail "more than a sentence"
for jobs in --help 0 many; do refused '^scripts/gpu-check \[JOBS\] -- ' scripts/gpu-check $jobs; done
for seeds in --help text "-1 2" "1 x" "5 -2"; do refused '^usage: scripts/cuda-seeds' scripts/cuda-seeds $seeds; done
refused 'no seeds from 3 to 1' scripts/cuda-seeds 3 1
echo ok
