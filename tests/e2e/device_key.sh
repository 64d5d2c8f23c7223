#!/bin/bash
# `device: cpu|cuda` is a key of the file: --device overrides it, config.yaml has it, a run that is resumed keeps it, and
# CROLL_DEVICE takes its place in tests only. This machine shows no GPU, so a run on cuda is refused before it starts.
. tests/e2e/run.inc
unset CROLL_DEVICE
export CROLL_SIM_GPUS=0
scripts/make_sums $tmp/home
"$CROLL" init $tmp/home/model >/dev/null
log=$tmp/log
keys=(configs/quickstart/sft.yaml pretrain=$tmp/home/model output_dir=$tmp/out track_with=none save_steps=1
    "sft_train.data_args.file_name=[$tmp/home/sft.jsonl]" sft_train.training_args.per_device_train_batch_size=2)

# call CODE COMMAND [key=value ..]: of the file above
call() {
    local want=$1 command=$2 code=0
    shift 2
    "$CROLL" $command "${keys[@]}" "$@" >$tmp/stdout 2>$log </dev/null || code=$?
    [ $code = $want ] || fail "$command $*: exit code $code"
}
says() { grep -q -- "$1" $log || fail "not said: $1"; }
resolved() { grep -qx "device: \"\?$1\"\?" $2 || fail "$2 has $(grep ^device: $2 || echo no device), not $1"; }

call 0 config
resolved cpu $tmp/stdout
call 0 config device=cuda
resolved cuda $tmp/stdout
call 2 config device=tpu
says 'device: .*cpu.*cuda'

# the key, the option, the variable: what a run computes on
no_gpu='device cuda\|no GPU'
call 2 run max_steps=1 device=cuda
says "$no_gpu"
call 2 run max_steps=1 device=cpu --device cuda
says "$no_gpu"
call 2 run max_steps=1 device=cuda --device tpu
says 'device: .*cpu.*cuda'
CROLL_DEVICE=cuda call 2 run max_steps=1
says "$no_gpu"
[ ! -e $tmp/out ] || fail "a run that is refused has written"
CROLL_DEVICE=cpu call 0 run max_steps=1 device=cuda
says 'CROLL_DEVICE, for tests, .*cpu.*device: cuda'
rm -r $tmp/out
CROLL_DEVICE=cuda call 0 run max_steps=1 device=cuda --device cpu
resolved cpu $tmp/out/config.yaml

# what was begun on cuda goes on there, unless the file or the option says another device
sed -i 's/^device: .*/device: cuda/' $tmp/out/config.yaml
call 0 config resume_from_checkpoint=true
resolved cuda $tmp/stdout
call 0 config resume_from_checkpoint=true device=cpu
resolved cpu $tmp/stdout
call 0 config
resolved cpu $tmp/stdout
call 2 run max_steps=2 resume_from_checkpoint=true
says "$no_gpu"
call 0 run max_steps=2 resume_from_checkpoint=true --device cpu
says 'differ from those of the run before: .*device "cuda" -> "cpu"'
resolved cpu $tmp/out/config.yaml

# commands of a run's file
printf '{"input_ids":[1,2,3]}\n' >$tmp/lines
"$CROLL" logprobs $tmp/home/model --device cuda <$tmp/lines >$tmp/stdout 2>$log && fail "logprobs --device cuda"
says "$no_gpu"
CROLL_DEVICE=cuda "$CROLL" logprobs $tmp/home/model --device cpu <$tmp/lines >$tmp/stdout 2>$log || fail "logprobs --device cpu"
"$CROLL" doctor --device cuda >$tmp/stdout 2>$log && fail "doctor --device cuda"
grep -q "^missing *device *cuda" $tmp/stdout || fail "doctor does not look at --device cuda"
echo ok
