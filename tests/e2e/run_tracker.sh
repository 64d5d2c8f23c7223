#!/bin/bash
# run_tracker.sh -- track_with: exec PROGRAM, and the scripts of examples/ with stubs of the packages that they need.
# Not covered: the packages themselves.
. tests/e2e/run.inc
scripts/make_sums $tmp/home
"$CROLL" init $tmp/home/model >/dev/null
head -n 64 $tmp/home/sft.jsonl >$tmp/rows.jsonl

# sft NAME PROGRAM [key=value ..]
sft() {
    local name=$1 program=$2
    shift 2
    log=$tmp/$name.log code=0
    "$CROLL" run configs/quickstart/sft.yaml pretrain=$tmp/home/model output_dir=$tmp/$name "sft_train.data_args.file_name=[$tmp/rows.jsonl]" \
        sft_train.training_args.per_device_train_batch_size=8 max_steps=3 exp_name=tracked "track_with=$program" "$@" >$log 2>&1 </dev/null || code=$?
}

sft lines "exec sh -c 'cat >\"\$CROLL_OUTPUT_DIR/got\"; echo \"\$CROLL_EXP_NAME \$CROLL_FIRST_STEP \$CROLL_TRACKER_KWARGS\" >\"\$CROLL_OUTPUT_DIR/env\"'" \
    "tracker_kwargs={project: p, tags: [a, b]}"
[ $code = 0 ] || fail "exit code $code"
cmp $tmp/lines/got $tmp/lines/metrics.jsonl || fail "the program has not got the lines"
grep -qx 'tracked 0 {"project": *"p", *"tags": *\["a", *"b"\]}' $tmp/lines/env || fail "its environment: $(cat $tmp/lines/env)"

sft ends "exec sh -c 'exit 3'"
[ $code = 0 ] || fail "a tracker that ends takes the run with it: $code"
[ "$(grep -c 'the run goes on without it' $log)" = 1 ] || fail "its end is not said once"
[ $(wc -l <$tmp/ends/metrics.jsonl) = 3 ] || fail "metrics.jsonl is cut"
sft absent "exec $tmp/absent"
[ $code = 2 ] && grep -q "track_with: $tmp/absent is not there" $log && [ ! -e $tmp/absent ] || fail "a program that is not there: exit code $code"
sft wandb wandb
[ $code = 2 ] && grep -q "exec python3 examples/track_wandb.py" $log || fail "wandb: exit code $code"

# stubs that write down what they are called with
mkdir $tmp/stubs
cat >$tmp/stubs/stub.py <<'END'
import os
def call(name):
    def f(*args, **kwargs):
        with open(os.environ["STUB"], "a") as out:
            print(name, args, sorted(kwargs.items()), file=out)
        return Run()
    return f
class Run:
    def __enter__(self): return self
    def __exit__(self, *why): call("exit")()
    def __getattr__(self, name): return call(name)
init = call("init"); log = call("log"); finish = call("finish"); start_run = call("start_run")
set_experiment = call("set_experiment"); set_tracking_uri = call("set_tracking_uri"); log_metrics = call("log_metrics")
END
for name in wandb trackio swanlab mlflow; do echo "from stub import *" >$tmp/stubs/$name.py; done
export PYTHONPATH=$tmp/stubs STUB
for script in "wandb.py" "wandb.py trackio" swanlab.py mlflow.py; do
    STUB=$tmp/calls
    rm -f $STUB
    CROLL_EXP_NAME=tracked CROLL_TRACKER_KWARGS='{"project": "p", "tracking_uri": "u"}' python3 examples/track_$script <$tmp/lines/metrics.jsonl ||
        fail "track_$script ends with $?"
    [ "$(grep -c '^log' $STUB)" = 3 ] && grep -q "'step', 2" $STUB && grep -q "sft_train/loss" $STUB || fail "track_$script has logged: $(cat $STUB)"
    grep -q tracked $STUB && grep -q "^finish\|^exit" $STUB || fail "track_$script has no name or no end: $(cat $STUB)"
done
echo ok
