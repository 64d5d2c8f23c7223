#!/bin/bash
# What commands say when the simulated GPU fails (CROLL_SIM_FAIL): each allocation that finds no memory, a GPU that is lost
# at some operation, an asynchronous error of NCCL: one sentence with the cause and exit code 1, at once, on 1 and 2 ranks.
# No GPU, no driver, an old one; settings of the simulation that cannot be read. And that ranks have the GPUs of device_mapping.
. tests/e2e/run.inc
export CROLL_DEVICE=cuda
log=$tmp/err
scripts/make_sums $tmp/home
model=$tmp/home/model
sed -i 's/"hidden_size": 128/"hidden_size": 64/; s/"intermediate_size": 256/"intermediate_size": 72/; s/"head_dim": 32/"head_dim": 16/
    s/"num_hidden_layers": 3/"num_hidden_layers": 2/' $model/config.json
CROLL_DEVICE=cpu "$CROLL" init $model >/dev/null
printf '{"id":%d,"input_ids":[1,2,3,4,5,6,7,8,9]}\n' 1 2 3 4 >$tmp/lines

# fails COMMAND TEXT [word ..]: exit code 1 and one line on stderr, which begins as the command's do and has TEXT
fails() {
    local command=$1 text=$2
    shift 2
    code=0
    timeout 100 "$CROLL" $command "$@" <$tmp/lines >$tmp/out 2>$log || code=$?
    [ $code = 1 ] && [ "$(wc -l <$log)" = 1 ] && grep -q "^croll $command: .*$text" $log
}
# until_good KIND TEXT COMMAND [word ..]: with each N of KIND:N until the command is not told to fail, at least 4 times
until_good() {
    local kind=$1 text=$2 n=1 step=1
    shift 2
    [ $kind = alloc ] || step=17
    while CROLL_SIM_FAIL=$kind:$n fails $1 "$text" "${@:2}"; do n=$((n + step)); done
    [ $code = 0 ] && [ $n -gt $((4 * step)) ] || fail "$1, $kind:$n: exit code $code"
}
for kind in alloc work; do
    text='memory' && [ $kind = alloc ] || text='uncorrectable ECC error'
    until_good $kind "$text" logprobs $model
    until_good $kind "$text" generate $model --json --max-new-tokens 2 --temperature 0
    until_good $kind "$text" grad $model --out $tmp/gradient
done
CROLL_SIM_MEMORY_MIB=1 fails grad 'out of GPU memory asking for [0-9]* bytes ([0-9]* of 1048576 are free; croll plan --device cuda' $model --out $tmp/gradient || fail "1 MiB: exit code $code"

# two ranks
two=(grad $model --out $tmp/gradient training_args.per_device_train_batch_size=1)
for failure in alloc:5 work:3 work:99; do
    CROLL_SIM_FAIL=$failure fails "${two[0]}" 'memory\|uncorrectable ECC error' "${two[@]:1}" "device_mapping=[0,1]" || fail "2 ranks, $failure: exit code $code"
done
for n in 1 9; do
    CROLL_SIM_FAIL=nccl:$n fails "${two[0]}" 'NCCL says: unhandled system error' "${two[@]:1}" "device_mapping=[0,1]" || fail "2 ranks, nccl:$n: exit code $code"
done

# which GPUs: ranks that share one do not use NCCL
good() { timeout 100 "$CROLL" "${two[@]}" "$@" <$tmp/lines >$tmp/out 2>$log || fail "$*: exit code $?"; }
export CROLL_SIM_GPUS=4 CROLL_SIM_FAIL=nccl:1
good "device_mapping=[1,5]"
# memory of another process that cannot be opened: a warning, and the same path through the host as before
CROLL_SIM_FAIL=ipc:1 good "device_mapping=[1,5]"
grep -q "processes of one GPU do not open each other's memory (rank 1: .*mapping of buffer object failed" $log || fail "ipc:1: $(cat $log)"
for mapping in [1,6] [2,3]; do
    fails "${two[0]}" 'NCCL says' "${two[@]:1}" "device_mapping=$mapping" || fail "$mapping: exit code $code"
done
export CROLL_TEST_HOSTS=0,0,1,1 # the same on two hosts, whose ranks share a GPU only with their neighbours
good "device_mapping=[1,5,2,3]"
fails "${two[0]}" 'NCCL says' "${two[@]:1}" "device_mapping=[1,6,5,2]" || fail "two hosts: exit code $code"
unset CROLL_SIM_GPUS CROLL_SIM_FAIL CROLL_TEST_HOSTS

# no GPU
why() { # CODE TEXT
    code=0
    "$CROLL" logprobs $model <$tmp/lines >$tmp/out 2>$log || code=$?
    [ $code = 2 ] && grep -q "^croll logprobs: device cuda: $1; croll doctor shows more$" $log || fail "$1: exit code $code"
    code=0
    "$CROLL" doctor >$tmp/out 2>$log || code=$?
    [ $code = 2 ] && grep -q "^missing  device  *cuda$" $tmp/out && grep -q "^note  *gpu" $tmp/out && grep -q "^note  *cuda" $tmp/out &&
        grep -q "CUDA shows no GPU: $1$" $tmp/out || { cat $tmp/out; fail "doctor, $1: exit code $code"; }
    CROLL_DEVICE=cpu "$CROLL" doctor >$tmp/out 2>$log || fail "doctor of cpu, $1: exit code $?"
}
CROLL_SIM_DRIVER=0 why "there is no NVIDIA driver on this machine (a container needs --gpus all)"
CROLL_SIM_DRIVER=12040 why "the NVIDIA driver is for CUDA 12.4, this build needs one for CUDA 13.0 or newer"
CROLL_SIM_GPUS=0 CUDA_VISIBLE_DEVICES= why 'none is visible to this process: CUDA_VISIBLE_DEVICES is ""'
CROLL_SIM_GPUS=0 why "none is visible to this process"
# settings that say nothing are errors, not the default
for setting in SEED=text SEED=-1 SEED= SEED=99999999999999999999 GPUS=x MEMORY_MIB=1GB CUBLASLT=x FAIL=work CAPABILITY=90 NCCL_DIE=x NCCL_DELAY_US=x; do
    code=0 ranks=
    [ "${setting#NCCL}" = $setting ] || ranks="device_mapping=[0,1]"
    env CROLL_SIM_$setting timeout 100 "$CROLL" "${two[@]}" model_args.dtype=bf16 $ranks <$tmp/lines >$tmp/out 2>$log || code=$?
    [ $code != 0 ] && grep -q "CROLL_SIM_$setting: " $log || fail "CROLL_SIM_$setting: exit code $code"
done
# doctor: what cuBLASLt does with numbers, not with zeros
says() { # TEXT
    "$CROLL" doctor >$tmp/out 2>$log || fail "doctor: exit code $?"
    grep -q "$1" $tmp/out || { cat $tmp/out; fail "doctor does not say: $1"; }
}
says "^ok  *device  *cuda$"
says "^ok  *products  *cuBLASLt's give a row the same bits in any company; few rows of [0-2] of 2 sizes"
CROLL_SIM_CUBLASLT=fickle says '^note  *products  *[01] of 2 sizes of weights (row 0 of [0-9]* has other bits than the same row alone)$'
CROLL_SIM_CUBLASLT=split says '^note  *products  *0 of 2 sizes of weights (its algorithm splits k into [0-9]* parts)$'
echo ok
