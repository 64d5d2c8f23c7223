#!/bin/bash
# scripts/gpu-check packs croll itself for the simulated GPU, and unpacked it passes in a root and a network of its own that have no more
# than the other machine has to bring. Not covered: its steps, limits and reports (e2e/gpu_check).
. tests/e2e/run.inc
. tests/e2e/gpu_check.inc
export CROLL_DEVICE=cuda
root=$tmp/root python=$(python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')
# in_root COMMAND ..: where docs/cuda.md's "brings" is all there is: no compiler, toolkit, MPI, Redis, environment, nor a network but lo
in_root() {
    [ -e $root/usr ] || make_root
    unshare $([ $(id -u) = 0 ] || echo -r) -mpnf --propagation private bash -c 'ip link set lo up && mount --rbind /dev $0/dev &&
        mount -t tmpfs tmpfs $0/dev/shm && mount -t proc proc $0/proc && mount --rbind /sys $0/sys && mount --bind $1 $0$1 && root=$0 && shift &&
        exec chroot $root /usr/bin/env -i PATH=/usr/bin HOME=/root "$@"' $root $python "$@"
}
make_root() {
    local file
    mkdir -p $root/{dev,proc,sys,tmp,etc,root,usr/bin,$python}
    ln -s usr/bin $root/bin
    echo root:x:0:0::/root:/bin/sh >$root/etc/passwd
    cp $(python3 -c 'import os, sys; print(os.path.realpath(sys.executable))') $root/usr/bin/python3
    for file in bash sh env awk sed grep pgrep basename cat chmod cp cut date df dirname head ln ls mkdir mktemp mv nproc paste readlink rm \
        rmdir seq sleep sort tail tee touch tr uname uniq wc; do
        cp -L $(command -v $file) $root/usr/bin/$file
    done
    for file in $(ldd $root/usr/bin/* $python/lib-dynload/*.so 2>&1 | grep -o '/[^ :]*\.so[^ :]*' | grep -v "^$root\|lib-dynload" | sort -u); do
        mkdir -p $root${file%/*}
        cp -L $file $root$file
    done
}
mkdir -p $root/work
check 0 --built "$TOOLS" --only doctor,sft,bits --pack $root/work/real.tar.xz
cp -r $tree/scripts $root/work
if in_root /bin/sh -c : 2>$log; then
    code=0
    in_root /bin/sh -c 'cd /work && exec scripts/gpu-check real.tar.xz --limit 3000' >$log 2>&1 </dev/null || code=$?
    [ $code = 0 ] || fail "gpu-check in a root of its own: exit code $code"
    in_root /bin/sh -c 'PATH=/work/real/bin:$PATH exec /work/real/scripts/mpi 2 sh -c true' >$log 2>&1 || fail "ranks in a root of its own"
else
    echo "skipped: a root of its own ($(tail -n 1 $log))"
    (cd $root/work && scripts/gpu-check real.tar.xz --limit 3000) >$log 2>&1 </dev/null || fail "gpu-check of a folder: exit code $?"
fi
mv $root/work/real $tmp
report 'list(step.values()) == ["ok"] * 3' $tmp/real
# neither it nor mpirun takes a library of this machine that is in the folder
log=$tmp/maps
$tmp/real/bin/mpirun --allow-run-as-root --oversubscribe -n 1 sh -c 'cat /proc/$PPID/maps' >$log 2>&1 || fail "mpirun of the folder"
ldd $tmp/real/build/cuda-sim/croll | sed 's|/build/cuda-sim/../..||' >>$log
for text in "$tmp/real/lib/libopen-rte" "$tmp/real/mpi/plugins/mca_" "$tmp/real/lib/libjansson"; do says "$text"; done
! grep -oE '/[^ ]*\.so[^ ]*' $log | sort -u | grep -v "^$tmp/real/" | grep -vE '/(ld-linux|lib(c|m|nss|resolv|dl|pthread|rt|util))[^/]*$' || fail "libraries of this machine"
CROLL_SIM_GPUS=0 $tmp/real/scripts/gpu-check --only doctor >$log 2>&1 && fail "no GPU, and passed"
says 'none is visible to this process'
echo ok
