#!/bin/bash
# run_lora_experts.sh -- rlvr with adapters of attention, experts, routers and the embedding table, and a head in full: generation has the bits of training; on two ranks with
# the experts dealt to them the numbers of one rank; the checkpoint has PEFT's tensors of all experts, from which training goes on, also
# on the other mesh, and the same adapter starts a run.
# Not covered: PEFT (tests/parity/peft_folder.py), more ranks (tests/mesh/experts.c).
. tests/e2e/run.inc
scripts/make_sums $tmp/home
make_experts $tmp/home/sft_model
lora=(lora_target=all-linear,all-router,all-embedding lora_rank=2 additional_target=lm_head)
run() {
    local name=$1
    shift
    job $name max_steps=3 validation=null save_steps=1 ppo_epochs=2 rollout_batch_size=8 num_return_sequences_in_group=8 response_length=32 \
        "actor_train.data_args.file_name=[$tmp/rows.jsonl]" "${no_commas[@]}" actor_train.training_args.per_device_train_batch_size=8 \
        actor_train.training_args.learning_rate=1.0e-3 ${lora[@]/#/actor_train.model_args.} "$@"
    [ $code = 0 ] || fail "exit code $code of the run on $name"
    values actor/train_infer_diff_max $tmp/$name/metrics.jsonl | grep -vx 0 && fail "$name: generation and training differ"
    true
}
train=actor_train.strategy_args.strategy_config
one=("actor_train.device_mapping=list(range(0,1))" $train.fsdp_size=1)
dealt=(actor_train.training_args.gradient_accumulation_steps=2 $train.ep_size=2 "$train.wrap_policy.moe_experts=[Qwen3MoeExperts]")
run one "${one[@]}"
run dealt "${dealt[@]}"
for name in actor/total_loss critic/score/mean; do same one dealt $name 1 3; done
saved=$tmp/one/checkpoint-1/actor_train
"$CROLL" inspect $saved/adapter_model.safetensors >$tmp/tensors
for name in mlp.experts.base_layer.lora_A mlp.experts.base_layer.lora_B mlp.experts.lora_A mlp.experts.lora_B mlp.gate.lora_A; do
    grep -q "base_model.model.model.layers.0.$name.weight" $tmp/tensors || fail "no $name in the checkpoint"
done
for name in model.embed_tokens.lora_embedding_A model.embed_tokens.lora_embedding_B lm_head.weight; do
    grep -q "base_model.model.$name .*F32" $tmp/tensors || fail "no $name in the checkpoint"
done
# the tensors of all experts have each expert's masters in PEFT's order: A in rows e R + k, B in columns k E + e
for run in one dealt; do
    python3 - $tmp/$run/checkpoint-1 <<'PYTHON' || fail "$run: tensors of experts"
import array, json, struct, sys
folder, num, seen = sys.argv[1], 0, 0
index = json.load(open(folder + "/state/actor_train.json"))["params"]
masters = array.array("f", open(folder + "/state/actor_train.master", "rb").read())
data = open(folder + "/actor_train/adapter_model.safetensors", "rb").read()
head = 8 + struct.unpack("<Q", data[:8])[0]
tensors = json.loads(data[8:head])
experts = sum(".layers.0." in name and name.endswith("down_proj.lora_A.weight") for name in index)
for name, at in index.items():
    module, _, part = name.partition(".mlp.experts.")
    if not part: continue
    expert, linear, factor, _ = part.split(".")
    tensor = tensors[f"base_model.model.{module}.mlp.experts{'' if linear == 'down_proj' else '.base_layer'}.{factor}.weight"]
    begin, end = (head + x for x in tensor["data_offsets"])
    values, (rows, cols) = array.array("f", data[begin:end]), tensor["shape"]
    mine = masters[at["first"]:at["first"] + at["num"]]
    if factor == "lora_A":
        want = values[int(expert) * at["num"]:][:at["num"]]
    else:
        first = rows // 2 if linear == "up_proj" else 0
        want = array.array("f", (values[(first + r) * cols + c] for r in range(at["num"] * experts // cols) for c in range(int(expert), cols, experts)))
    assert mine == want and any(mine), name
    seen += 1
print(seen, "parts of", experts, "experts")
assert seen and seen % experts == 0
PYTHON
done
for key in target_parameters rank_pattern alpha_pattern; do grep -q "\"$key\": [[{]\"" $saved/adapter_config.json || fail "$key: $(cat $saved/adapter_config.json)"; done
run on "${dealt[@]}" resume_from_checkpoint=$tmp/one/checkpoint-1
for name in actor/total_loss critic/score/mean; do
    [ "$(values $name $tmp/one/metrics.jsonl | tail -1 | cut -c1-6)" = "$(values $name $tmp/on/metrics.jsonl | tail -1 | cut -c1-6)" ] || fail "on from one: $name"
done
lora=(adapter_name_or_path=$tmp/one/checkpoint-2/actor_train)
run started "${one[@]}"
echo ok
