#!/bin/bash
# croll run with sequence parallel and tiled MLPs: three steps of RLVR on two training ranks that share
# each batch have the metrics of one training rank (the samples are the same, sums differ in order).
# Not covered: SFT (accept/training.py), more ranks (tests/mesh/cut_matrix.c).
set -eu
model=../shared/data/stories260k
[ -d $model ] && [ -d ../shared/data/stories_rules ] || { echo "skipped: no $model"; exit 77; }
tmp=$(mktemp -d)
trap 'rm -rf $tmp' EXIT
fail() { echo "FAILED: $*"; tail -5 $tmp/*.log; exit 1; }
run() {
    local name=$1
    shift
    "$CROLL" run configs/stories_keywords.yaml pretrain=$model output_dir=$tmp/$name \
        logging_dir=$tmp/$name/logs max_steps=3 eval_steps=100 save_steps=100 rollout_batch_size=8 \
        actor_train.training_args.per_device_train_batch_size=8 "$@" >$tmp/$name.log 2>&1 </dev/null ||
        fail "exit code $? of the run on $name"
}
# NAME of each step, one a line
values() { sed "s|.*\"$2\":\([-0-9.e+]*\).*|\1|" $tmp/$1/metrics.jsonl; }

# what cannot be is told where it is written, and nothing starts (fsdp2.md 1.4)
refuse() {
    local id=$1 code=0
    shift
    "$CROLL" config configs/stories_keywords.yaml pretrain=$model "$@" >$tmp/$id.log 2>&1 || code=$?
    [ $code = 2 ] && grep -q "error: $id: " $tmp/$id.log || fail "$id: exit code $code"
}
refuse M2 actor_train.model_args.ulysses_size=3
refuse M3 actor_train.model_args.ulysses_size=4 "actor_train.device_mapping=list(range(0,4))"
refuse M4 actor_train.model_args.ulysses_size=3 "actor_train.device_mapping=list(range(0,3))" \
    actor_train.strategy_args.strategy_config.fsdp_size=3
refuse M11 actor_infer.model_args.ulysses_size=2

train=actor_train.strategy_args.strategy_config
run one "actor_train.device_mapping=list(range(0,1))" $train.fsdp_size=1
run two "actor_train.device_mapping=list(range(0,2))" $train.fsdp_size=2 \
    actor_train.model_args.ulysses_size=2 $train.apply_tiled_mlp=true $train.tiled_num_shards=3
for name in actor/total_loss actor/approxkl token/response_length/mean critic/score/mean; do
    paste <(values one $name) <(values two $name) |
        awk -v n=$name '{ d = $1 - $2; s = $1 < 0 ? -$1 : $1
            if ($1 !~ /^[-0-9]/ || d * d > (1e-6 + 1e-4 * s) ^ 2) { print n, "step", NR - 1, $0; bad = 1 } }
            END { exit bad || NR != 3 }' || fail "$name differs"
done
