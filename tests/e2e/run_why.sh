#!/bin/bash
# croll why: of runs with a reference, with a critic, with a teacher and with several rewards the terms of all samples add up to the
# losses of the step, in float64 and within rounding, and each is what its columns give by the formulas: ratio, clip, KL, entropy,
# weights, values, and each step of the advantage. The step that is trained again for it has the bytes of the recorded metrics. A
# changed reward (croll replay --set --terms) shows in the terms. What cannot be answered. Broken files: tests/fuzz/fuzz_terms.c.
. tests/e2e/run.inc
quick_model
small="max_steps=3 save_steps=1 validation=null rollout_batch_size=8 num_return_sequences_in_group=4 actor_train.training_args.warmup_steps=0
    actor_train.training_args.per_device_train_batch_size=8 actor_train.training_args.gradient_accumulation_steps=1"
cat >$tmp/check.py <<'PYTHON'
import json, math, sys
run, terms, kind = sys.argv[1:4]
head, *rows = [json.loads(x) for x in open(terms)]
step = head["step"]
m = next(x for x in map(json.loads, open(f"{run}/metrics.jsonl")) if x["step"] == step)
samples = {x["id"]: x for x in map(json.loads, open(f"{run}/rollouts/step-{step:06d}.jsonl"))}
size = 0

def near(a, b, what, scale=1):
    assert abs(a - b) <= 1e-6 * max(scale, abs(b)), (what, a, b)

def column(x, n):
    return x if isinstance(x, list) else [x] * n

def k3(r):
    return min(max(math.exp(r) - r - 1, -10), 10)

assert len(rows) == head["samples"] == len(samples) == 32
total, critic, kl_seen, cut_seen = 0, 0, 0, 0
for r in rows:
    s, n, a = samples[r["id"]], len(r["tokens"]["ids"]), r["advantage"]
    assert r["tokens"]["ids"] == s["ids"] and r["response"] == s["response"]
    for got, want in zip(column(r["tokens"]["infer"], n), s["log_probs"], strict=True):
        near(got, want, "the sampler's log-prob")
    adv, final = column(r["tokens"]["advantages"], n), column(r["tokens"]["final"], n)
    for got, want in zip(adv, column(s["advantage"], n)):
        near(got, want, "advantage")
    # the advantage, step by step
    steps = {name: column(x, n) for name, x in a["steps"].items()}
    if kind != "opd":
        assert sum(x["weight"] * x["reward"] for x in a["rewards"]) - s["reward"] < 1e-12
    last = list(steps)[-1]
    for got, want in zip(adv, steps[last]):
        near(got, want, "the last step is the advantage")
    if kind == "several":
        assert list(steps) == ["reward", "mask", "estimate", "whiten_advantages", "advantage_mask", "advantage_clip"], list(steps)
        for t in range(n):
            near(steps["advantage_clip"][t], min(max(steps["whiten_advantages"][t], -1), 1), "clip")
        for x in a["rewards"]:
            group = [y["rewards"][x["block"]]["reward"] for y in samples.values() if y["group"] == s["group"]]
            mean = sum(group) / len(group)
            std = math.sqrt(sum((y - mean) ** 2 for y in group) / (len(group) - 1)) + 1e-6
            near(x["mean"], mean, "mean"), near(x["std"], std, "std"), near(x["normalised"], (x["reward"] - mean) / std, "normalised")
            assert x["weight"] == (0.3 if x["block"] == "second" else 1)
    if kind == "grpo":
        group = [x["reward"] for x in samples.values() if x["group"] == s["group"]]
        mean = sum(group) / len(group)
        std = math.sqrt(sum((x - mean) ** 2 for x in group) / (len(group) - 1)) + 1e-6
        near(a["mean"], mean, "mean"), near(a["std"], std, "std"), near(a["normalised"], (s["reward"] - mean) / std, "normalised")
    if kind == "ppo":
        near(steps["reward"][-1], a["used"], "reward")
        kl = column(r["tokens"]["kl"], n)
        for t in range(n):
            near(steps["kl"][t], steps["reward"][t] - 0.05 * kl[t], "KL in the reward")
            near(kl[t], 0.5 * (column(r["tokens"]["ref"], n)[t] - column(r["tokens"]["infer"], n)[t]) ** 2, "KL")
        carry, after = 0, 0
        values = column(r["tokens"]["values"], n)
        for t in reversed(range(n)):
            carry = steps["mask"][t] + after - values[t] + 0.9 * carry
            after = values[t]
            near(steps["estimate"][t], carry, "GAE")
            near(column(r["tokens"]["returns"], n)[t], carry + values[t], "return")
    if kind == "opd":
        for t in range(n):
            d = column(r["tokens"]["opd_kl"], n)[t]
            near(d, column(r["tokens"]["infer"], n)[t] - column(r["tokens"]["teacher"], n)[t], "distance", 10)
            near(steps["distil"][t], -d, "pure distillation", 10)
    mine = [0, 0, 0]
    for u in r["updates"]:
        c = {name: column(x, n) for name, x in u.items()}
        for t in range(n):
            ratio = math.exp(c["log_probs"][t] - c["old"][t])
            near(c["ratio"][t], ratio, "ratio")
            low, high = (0.8, 1.28)
            clipped = min(max(ratio, low), high)
            assert c["cut"][t] == ((ratio > high) - (ratio < low) if final[t] else 0)
            cut_seen += c["cut"][t] != 0
            loss = -min(ratio * adv[t], clipped * adv[t])
            near(c["pg"][t], c["weight"][t] * loss, "pg", 1e-3)
            grad = -c["weight"][t] * adv[t] * ratio if ratio * adv[t] <= clipped * adv[t] else 0
            if kind == "grpo":
                d = column(r["tokens"]["ref"], n)[t] - c["log_probs"][t]
                near(c["kl"][t], 0.01 * c["weight"][t] * k3(d), "kl", 1e-3)
                near(c["grad_kl"][t], 0.01 * c["weight"][t] * (1 - math.exp(d)), "its gradient", 1e-3)
                near(c["entropy_term"][t], -0.001 * c["weight"][t] * c["entropy"][t], "entropy", 1e-3)
                near(c["grad_entropy"][t], -0.001 * c["weight"][t], "its gradient", 1e-3)
                kl_seen += c["kl"][t] > 0
            near(c["grad_log_probs"][t], grad + c["grad_kl"][t], "gradient", 1e-3)
            for k, name in enumerate(("pg", "kl", "entropy_term")):
                mine[k] += c[name][t]
                size += abs(c[name][t])
    updates = m["actor/backward_steps"]  # each sample is in one of each epoch
    near(r["sums"]["total"], sum(mine) / updates, "sum of a sample", 1e-6)
    total += sum(mine) / updates
    for u in r.get("critic", []):
        c = {name: column(x, n) for name, x in u.items()}
        count = sum(final)
        for t in range(n):
            v, want, old = c["values"][t], c["returns"][t], c["old_values"][t]
            loss = 0.5 * max((v - want) ** 2, (min(max(v, old - 0.2), old + 0.2) - want) ** 2)
            weight = final[t] / (count + 1e-8) / 16  # two mini-batches of 16 samples
            near(c["loss"][t], weight * loss, "value loss", 1e-3)
        critic += sum(c["loss"]) / 2
rounding = 1e-13 * size + 1e-15
assert abs(total - m["actor/total_loss"]) <= rounding, ("actor/total_loss", total, m["actor/total_loss"], rounding)
assert head["actor/total_loss"] == m["actor/total_loss"]
if kind == "ppo":
    assert abs(critic - m["critic/loss"]) <= 1e-12 * abs(m["critic/loss"]), ("critic/loss", critic, m["critic/loss"])
if kind == "grpo":
    assert kl_seen > 20, "no KL"
assert any(r["sums"]["pg"] for r in rows)
PYTHON
# why KIND NAME: step 2 of that run
why() {
    log=$tmp/$2.why
    (cd $tmp && "$CROLL" why $tmp/$2 --step 2 >$tmp/said 2>$log </dev/null) || fail "$2: why: exit code $?"
    ! grep -q warning $log || fail "$2: a warning: $(grep warning $log)"
    grep -q '^actor/total_loss ' $tmp/said || fail "$2: no loss"
    python3 $tmp/check.py $tmp/$2 $tmp/output/why/$2-step-2/terms/step-000002.jsonl $1 || fail "$2: terms"
    cmp <(numbers $tmp/$2/metrics.jsonl) <(numbers $tmp/output/why/$2-step-2/metrics.jsonl) || fail "$2: other numbers when trained again"
}
# numbers FILE: what is compared of the line of step 2, as bytes
numbers() { grep '"step":2,' $1 | sed -E 's/"(time|system|memory|global_seqlen|scheduler)\/[^"]*":[^,}]*,?//g; s/,\}/}/'; }

job grpo $small use_kl_loss=true kl_loss_coef=0.01 entropy_loss_coef=0.001 ppo_epochs=2 actor_infer.generating_args.top_p=0.9 \
    "reference={model_args: {dtype: fp32}, strategy_args: {strategy_name: fsdp2_infer}, device_mapping: [0], infer_batch_size: 32}"
[ $code = 0 ] || fail "grpo: exit code $code"
learned grpo 3
why grpo grpo
# a second question trains nothing; --json has the file's members; a changed reward shows in the terms of a replay
id=$(sed -n 5p $tmp/grpo/rollouts/step-000002.jsonl | grep -o '"id":"[0-9a-f]*"' | grep -o '[0-9a-f]\{16\}')
(cd $tmp && "$CROLL" why $tmp/grpo --step 2 --sample $id >$tmp/said 2>$log </dev/null && "$CROLL" why $tmp/grpo --step 2 --sample $id --json >$tmp/json 2>$log) || fail "a sample: exit code $?"
[ ! -s $log ] || fail "trained again"
grep -q "^sample $id of step 2: group 1," $tmp/said && grep -q '^update [23]$' $tmp/said && grep -q '<|im_end|>' $tmp/said || fail "the text of a sample: $(cat $tmp/said)"
"$CROLL" replay $tmp/grpo --step 2 --set reward.$id=3 --terms --out $tmp/if >$log 2>&1 </dev/null || fail "replay --terms: exit code $?"
"$CROLL" why $tmp/if --step 2 --sample $id --json >$tmp/if.json 2>$log || fail "why of a replay: exit code $?"
python3 - $tmp/json $tmp/if.json $id <<'PYTHON' || fail "what a changed reward changes"
import json, sys
was, now = (json.load(open(x))["samples"] for x in sys.argv[1:3])
assert len(was) == len(now) == 1 and was[0]["id"] == now[0]["id"] == sys.argv[3]
assert now[0]["advantage"]["reward"] == 3 and now[0]["advantage"]["rewards"][0]["reward"] == 3 and was[0]["advantage"]["reward"] < 2
assert now[0]["sums"]["pg"] != was[0]["sums"]["pg"] and now[0]["tokens"]["ids"] == was[0]["tokens"]["ids"]
PYTHON

job ppo $small adv_estimator=gae lambd=0.9 value_clip=0.2 init_kl_coef=0.05 add_token_level_kl=true kl_penalty=mse \
    "reference={model_args: {dtype: fp32}, strategy_args: {strategy_name: fsdp2_infer}, device_mapping: [0], infer_batch_size: 32}" \
    "critic={model_args: {dtype: fp32, disable_gradient_checkpointing: true}, training_args: {learning_rate: 1.0e-2,
    warmup_steps: 0, per_device_train_batch_size: 8, gradient_accumulation_steps: 2}, strategy_args: {strategy_name: fsdp2_train,
    strategy_config: {param_dtype: fp32}}, device_mapping: [1], infer_batch_size: 8}"
[ $code = 0 ] || fail "ppo: exit code $code"
why ppo ppo
grep -q '^critic/loss ' $tmp/said || fail "no loss of the critic"

job opd $small is_pure_opd=true pretrain=$tmp/home/model "teacher={model_args: {model_name_or_path: $tmp/home/sft_model, dtype: fp32},
    strategy_args: {strategy_name: fsdp2_infer}, device_mapping: [1]}"
[ $code = 0 ] || fail "opd: exit code $code"
why opd opd

cat >$tmp/third <<'PYTHON'
import json, sys
for line in sys.stdin:
    id = json.loads(line)["id"]
    print(json.dumps({"id": id, "score": (int(id[12:16], 16) if id[0] in "0123456789abcdef" else 1) % 4 / 3}), flush=True)
PYTHON
job several $small force_disable_old_logprobs_recompute=true multi_objective_aggregation=normalize_then_sum whiten_advantages=true advantage_clip=1.0 actor_train.model_args.lora_target=all-linear \
    actor_train.model_args.lora_rank=4 actor_train.training_args.learning_rate=5.0e-3 \
    "rewards.second={worker_cls: roll.pipeline.rlvr.rewards.ifeval_rule_reward_worker.GeneralRuleRewardWorker, tag_included: [sums], reward_weight: 0.3,
    exec: python3 $tmp/third}"
[ $code = 0 ] || fail "several: exit code $code"
why several several

# norms of gradients: one update a step. A sample alone, one without an advantage, and two of whose sum the norm is known to lie between
job single $small max_steps=2 actor_train.training_args.per_device_train_batch_size=16
[ $code = 0 ] || fail "single: exit code $code"
(cd $tmp && "$CROLL" why $tmp/single --step 1 >$tmp/said 2>$log </dev/null) || fail "single: why: exit code $?"
python3 - $tmp/output/why/single-step-1/terms/step-000001.jsonl >$tmp/ids <<'PYTHON'
import json, sys
head, *rows = [json.loads(x) for x in open(sys.argv[1])]
assert head["sums"]["updates"] == 1
rows.sort(key=lambda r: r["sums"]["gradient"])
print(rows[0]["id"], rows[-1]["id"])
PYTHON
read -r none large <$tmp/ids
(cd $tmp && "$CROLL" why $tmp/single --step 1 --sample $none --sample $large --gradient --json >$tmp/json 2>$log </dev/null) || fail "single: gradients: exit code $?"
python3 - $tmp <<'PYTHON' || fail "norms of gradients"
import json, sys
tmp = sys.argv[1]
step = [json.loads(x) for x in open(f"{tmp}/single/metrics.jsonl")][1]["actor_train/grad_norm"]
none, large = json.load(open(f"{tmp}/json"))["samples"]
assert none["sums"]["gradient"] == 0 and none["gradient_norm"] == 0, none["sums"]
assert large["step_gradient_norm"] == step and 0 < large["gradient_norm"] < 32 * step, (large["gradient_norm"], step)
PYTHON
[ ! -e $tmp/output/why/single-step-1/alone ] || fail "a folder is left"

# the commands of the pages and of --help, on a run that is where the quickstart's would be
mkdir -p $tmp/output/quickstart $tmp/bin
job quick $small max_steps=4
[ $code = 0 ] || fail "quick: exit code $code"
mv $tmp/quick $tmp/output/quickstart/rlvr
sed -i "s|$tmp/quick|$tmp/output/quickstart/rlvr|" $tmp/output/quickstart/rlvr/config.yaml
ln -s "$(realpath "$CROLL")" $tmp/bin/croll
{
    "$CROLL" why --help | sed -n '/^example:/{n;p}'
    awk '/^```/ { is_in = !is_in; next } is_in && /^croll / { sub(/ *#.*/, ""); print }' docs/why.md
} >$tmp/examples
[ $(wc -l <$tmp/examples) = 6 ] || fail "examples: $(cat $tmp/examples)"
while read -r example; do
    log=$tmp/example.log
    (cd $tmp && PATH=$tmp/bin:$PATH sh -c "$example" >$tmp/said 2>$log </dev/null) || fail "$example: exit code $?"
    [ -s $tmp/said ] || fail "$example: no answer"
done <$tmp/examples

# what cannot be answered
refused() { # CODE TEXT ARG ..
    local want=$1 text=$2 code=0
    shift 2
    log=$tmp/refused
    (cd $tmp && "$CROLL" why "$@" >$log 2>&1 </dev/null) || code=$?
    [ $code = $want ] && grep -q -- "$text" $log || fail "why $*: exit code $code"
}
refused 2 'is not a folder of a run' $tmp --step 0
refused 2 'the step has 2 updates of actor_train' $tmp/opd --step 2 --sample $(grep -o '"id":"[0-9a-f]*"' $tmp/opd/rollouts/step-000002.jsonl | head -1 | cut -d'"' -f4) --gradient
refused 2 'needs --sample, and the run itself' $tmp/if --step 2 --gradient
refused 2 'the step has no sample 0123456789abcdef' $tmp/opd --step 2 --sample 0123456789abcdef
refused 2 'is there (--overwrite' $tmp/ppo --step 1 --out $tmp/opd
sed -i '1s/"response":"/&x/' $tmp/opd/rollouts/step-000002.jsonl
refused 2 'is of other samples than' $tmp/opd --step 2
sed -i '1s/"response":"x/"response":"/; 2s/"grad_kl"/"grad_kl":[1],"x"/' $tmp/opd/rollouts/step-000002.jsonl $tmp/output/why/opd-step-2/terms/step-000002.jsonl
refused 2 'step-000002.jsonl, line 2: .*grad_kl is missing or is not' $tmp/opd --step 2
make_experts $tmp/experts
job experts $small "${no_commas[@]}" max_steps=1 pretrain=$tmp/experts actor_train.model_args.moe_aux_loss_coef=0.01 actor_train.data_args.file_name=[$tmp/rows.jsonl]
[ $code = 0 ] || fail "experts: exit code $code"
refused 1 'balance loss of experts' $tmp/experts --step 0
echo ok
