#!/bin/bash
# c29_experts.sh -- experts as units of their own on 2 ranks whose tokens go to different experts (C29).
# A line that repeats one token has one route, and rank r gets line r. Token 0 against the tokens 1 to 6:
# with apply_expert_patch every run gives the gradient of one rank; without it a run ends well where both
# ranks choose the same expert, and stops with exit code 3 and both ranks and units where they do not.
# Not covered: gradients tensor by tensor (tests/mesh/cut_matrix.c), other models.
# also on far
# also on cuda, long
set -u
: "${CROLL:?the binary}"
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
fail() { echo "FAIL: $*" >&2; cat "$dir/err" >&2; exit 1; }

mkdir "$dir/model"
cat > "$dir/model/config.json" <<'JSON'
{"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 16, "hidden_size": 32,
 "intermediate_size": 48, "moe_intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
 "num_key_value_heads": 1, "head_dim": 16, "num_experts": 2, "num_experts_per_tok": 1, "initializer_range": 0.5,
 "torch_dtype": "float32"}
JSON
"$CROLL" init "$dir/model" --seed 1 > "$dir/out" 2> "$dir/err" || fail "init"

units="strategy_args.strategy_config.wrap_policy.moe_experts=[Qwen3MoeMLP]"
patch="strategy_args.strategy_config.apply_expert_patch"
grad() { # tokens of the two lines, then keys
    local a=$1 b=$2
    shift 2
    printf '{"id":0,"input_ids":[%s,%s,%s]}\n{"id":1,"input_ids":[%s,%s,%s]}\n' "$a" "$a" "$a" "$b" "$b" "$b" |
        "$CROLL" grad "$dir/model" --out "$dir/g.safetensors" model_args.dtype=fp32 \
            training_args.per_device_train_batch_size=1 "$@" > "$dir/out" 2> "$dir/err"
}
same() { # loss and norm within 1e-6
    awk -v a="$(cat "$dir/one")" -v b="$(cat "$dir/out")" 'BEGIN {
        split(a, x, /[:,}]/); split(b, y, /[:,}]/)
        for (i = 2; i <= 6; i += 2) if ((x[i] - y[i])^2 > (1e-6 * x[i])^2) exit 1 }'
}

diverged=0 agreed=0
for token in 1 2 3 4 5 6; do
    grad 0 $token || fail "one rank, token $token"
    cp "$dir/out" "$dir/one"
    two="device_mapping=list(range(0,2))"
    grad 0 $token "$two" "$units" "$patch=true" || fail "token $token with the patch: exit $?"
    same || fail "token $token: $(cat "$dir/out") is not $(cat "$dir/one")"
    start=$SECONDS
    grad 0 $token "$two" "$units" "$patch=false"
    code=$?
    [ $((SECONDS - start)) -lt 120 ] || fail "token $token took $((SECONDS - start)) s"
    case $code in
    0)
        agreed=$((agreed + 1))
        same || fail "token $token without the patch: $(cat "$dir/out") is not $(cat "$dir/one")"
        ;;
    3)
        diverged=$((diverged + 1))
        for word in "rank 0" "rank 1" mlp.experts.0 mlp.experts.1; do
            grep -qF -- "$word" "$dir/err" || fail "token $token: the error does not name $word"
        done
        ;;
    *) fail "token $token without the patch: exit $code" ;;
    esac
done
[ $diverged -gt 0 ] && [ $agreed -gt 0 ] || fail "$diverged runs diverged, $agreed agreed: no test"
echo "$agreed runs agreed, $diverged were stopped"
