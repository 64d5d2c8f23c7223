#!/bin/bash
# bench/gpu_expected: work, milliseconds and MFU of known shapes against numbers worked out by hand. Not covered: whether a GPU is as fast.
. tests/e2e/run.inc
expect() { # TEXT ..: each is in the output
    for text; do
        grep -qF -- "$text" $tmp/out || { cat $tmp/out; fail "no \"$text\""; }
    done
}
# 6 D FLOPs for each of 8192 x 8193 / 2 pairs, 16 heads of 128, 28 layers; 28 bytes for each of 1,720,574,976 parameters, 92 % of 3.35 TB/s.
bench/gpu_expected >$tmp/out
expect '| attention, dq | 11.55 TFLOP |' '| AdamW | 48.2 GB | 15.6 | 15.6 | gpu_static |' '| all | 107.7 TFLOP that count |'
# dK and dV at 798 and 620 TFLOP/s whatever the instructions allow; 8 x 16 tiles of logits for 132 multiprocessors; AdamW writes
# bf16, too: 30 bytes. Cleared are gradients of all but the 28 x 50,331,648 parameters of Linears in layers.
bench/gpu_expected --kept >$tmp/out
expect '| attention, dK and dV | 15.40 TFLOP | 19.3 | 24.8 |' '| head, logits | 5.10 TFLOP | 8.4 | 8.4 | gpu_static, grid 97% |' '| AdamW, bf16 weights | 51.6 GB | 16.7 |' '| gradients to zero | 1.2 GB | 0.4 |'
# All at half of its peak but what is assumed. dK and dV, twice: 8 D FLOPs for each of 1024 x 1025 / 2 pairs, in 494.5 TFLOP/s; of 132 multiprocessors 64 have a block, the
# longest of 8 x 2 tiles and 0.3, all of them 8 x (36 x 2 + 8 x 0.3).
sed -E 's/[0-9]+% of (tensor cores|memory)(, [0-9]+% in (step|turns))?/50% of \1/' bench/README.md >$tmp/half
bench/gpu_expected --table $tmp/half --length 1024 --micro 2 >$tmp/out
expect '| attention, dK and dV | 0.48 TFLOP | 3.5 | 3.5 | gpu_static, grid 28% |' '| AdamW | 48.2 GB | 28.8 | 28.8 |'
echo '| a kernel | 90 | | | | | | 50% of memory |' >$tmp/none
! bench/gpu_expected --table $tmp/none >$tmp/out 2>&1 || fail "a table without the kernels was taken"
expect 'attention forward, bf16, D 128, wgmma'
echo ok
