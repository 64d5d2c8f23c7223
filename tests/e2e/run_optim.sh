#!/bin/bash
# run_optim.sh -- `croll run` with optim: muon and groups of parameters: a run that is killed goes on as if it had not been,
# an unchanged group keeps its bits, and croll plan tells who has which tensors.
# Not covered: numbers (mesh/optimizer, tests/parity/optimizers.py).
. tests/e2e/run.inc
quick_model
keys="max_steps=5 save_steps=2 rollout_batch_size=8 validation=null actor_train.training_args.optim=muon actor_train.training_args.gradient_accumulation_steps=1
    actor_train.training_args.muon_args.learning_rate=2e-3"
groups="actor_train.training_args.param_groups=[{params: embed_tokens.weight, learning_rate: 0}, {params: .*k_proj.*, optim: adamw_torch}]"
plan=$("$CROLL" plan configs/quickstart/rlvr.yaml pretrain=$tmp/home/sft_model $keys "$groups")
echo "$plan" | grep -q 'group     adamw, learning_rate 0, weight_decay 0: 1 tensor, .* model.embed_tokens.weight$' || fail "plan: $plan"
echo "$plan" | grep -q 'group     adamw, .* 3 tensors, .*k_proj.weight (3)$' || fail "plan: $plan"
echo "$plan" | grep -q 'group     muon, learning_rate 0.002, .* 18 tensors, ' || fail "plan: $plan"
job whole $keys "$groups"
[ $code = 0 ] || fail "exit code $code"
killed killed 4 $keys "$groups"
job killed $keys "$groups" resume_from_checkpoint=true
[ $code = 0 ] || fail "resumed: exit code $code"
diff <(timeless $tmp/whole/metrics.jsonl) <(timeless $tmp/killed/metrics.jsonl) >$tmp/diff || { log=$tmp/diff; fail "the resumed run differs"; }
for f in actor_train/model.safetensors state/actor_train.master state/actor_train.m state/actor_train.v; do
    cmp $tmp/whole/latest/$f $tmp/killed/latest/$f || fail "$f differs"
done
[ "$("$CROLL" inspect $tmp/whole/latest/actor_train --json 2>/dev/null | wc -c)" -gt 0 ] || fail "inspect"
python3 - $tmp/home/sft_model $tmp/whole/latest/actor_train <<'PY' || fail "embeddings without a rate have moved, or nothing else has"
import sys
sys.path.insert(0, "tests/e2e")
from tensors import read

a, b = map(read, sys.argv[1:])
same = {k for k in a if a[k] == b[k]}
assert same == {k for k in a if "embed_tokens" in k}, same
PY
# with another optimizer the checkpoint is refused, and named
job killed $keys resume_from_checkpoint=true max_steps=6 actor_train.training_args.optim=adamw_torch
[ $code != 0 ] && grep -q 'has moments of muon for' $log || fail "resumed with AdamW: exit code $code"
echo ok
