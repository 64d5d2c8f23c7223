#!/bin/bash
# Files in ROLL's form (tests/roll) as they are run three steps, scaled down: overrides only of models, sizes, devices, folders, data
# files (of LoRA also the seed and the learning rate, without which three steps move nothing), which are made here (small models, rows of every domain). Each reward gives verdicts, which training sees; five domains
# with a judge that the run starts and code that is executed, with LoRA, too; experts; sequences that ranks share.
# ROLL_EXAMPLES=FOLDER runs ROLL's own (`examples` of a checkout) instead, every text file with fsdp2 actors and without
# a critic, and three with Megatron-Core's (--as-fsdp2). Not covered: what is learned.
. tests/e2e/run.inc
# ---- a policy that answers sums, prints numbers and picks letters, often wrongly; a judge that says YES or NO ----
scripts/make_sums $tmp/home
python3 - $tmp/home <<'PY'
import json, os, random, sys
random.seed(1)
math = "deepmath_103k" if os.environ.get("ROLL_EXAMPLES") else "tasks"
home, chat = sys.argv[1], lambda *turns: json.dumps([{"role": role, "content": text} for role, text in turns])
def row(file, n, tag, question, truth, system=None, **more):
    turns = ([("system", system)] if system else []) + [("user", question)]
    file.write(json.dumps({"id": f"{tag}/{n}", "source": tag, "difficulty": "1", "prompt": question, "messages": chat(*turns), "ground_truth": truth,
                           "case_type": "", "test_case_function": "", "test_cases": "", "tag": tag, **more}) + "\n")
sft = open(f"{home}/sft.jsonl", "w")
for i in range(6000):
    a, b = random.randrange(1, 9), random.randrange(1, 6)
    wrong = random.random() < 0.4
    sft.write(json.dumps({"instruction": f"{a}+{b}=", "output": f"\\boxed{{{random.randrange(14) if wrong else a + b}}}"}) + "\n")
    sft.write(json.dumps({"instruction": f"print {a}", "output": f"```python\nprint({random.randrange(10) if wrong else a})\n```"}) + "\n")
    sft.write(json.dumps({"instruction": f"pick {a}", "output": f"\\boxed{{{random.choice('AB')}}}"}) + "\n")
judge = open(f"{home}/judge.jsonl", "w")
for i in range(1200):
    text = "".join(random.choice("abcdefghij \n.,") for _ in range(random.randrange(900, 1200)))
    judge.write(json.dumps({"instruction": text + "Reply with YES or NO and nothing else.", "output": random.choice(["YES", "NO"])}) + "\n")
files = {name: open(f"{home}/{name}.jsonl", "w") for name in ("math", "code", "judged", "ifeval", "cross", "val")}
for n in range(60):
    a, b = random.randrange(1, 9), random.randrange(1, 6)
    row(files["math"], n, math, f"{a}+{b}=", str(a + b))
    row(files["val"], n, "MATH-500", f"{a}+{b}=", str(a + b), domain="math_rule")
    row(files["code"], n, "KodCode", f"print {a}", "", case_type="input",
        test_cases=json.dumps([{"stdin": "", "expected_stdout": f"{a}\n"}]))
    row(files["judged"], n, "RLVR", f"{a}+{b}=", str(a + b), system="s")
    row(files["ifeval"], n, "ifeval", f"{a}+{b}=", json.dumps({"func_name": "verify_letter_frequency", "letter": str((a + b) % 10), "N": 1}))
    row(files["cross"], n, "crossthinkqa", f"pick {a}", "A")
PY
cp -r $tmp/home/model $tmp/home/judge
sed -i 's/"hidden_size": 128/"hidden_size": 48/; s/"intermediate_size": 256/"intermediate_size": 96/; s/"head_dim": 32/"head_dim": 12/; s/"num_hidden_layers": 3/"num_hidden_layers": 1/; s/: 256, "rms/: 2048, "rms/' $tmp/home/judge/config.json
# teach NAME FILE LENGTH STEPS BATCH
teach() {
    log=$tmp/$1.log
    "$CROLL" init $tmp/home/$1 >/dev/null
    "$CROLL" run configs/quickstart/sft.yaml pretrain=$tmp/home/$1 output_dir=$tmp/$1.sft track_with=none "sft_train.data_args.file_name=[$tmp/home/$2.jsonl]" \
        sequence_length=$3 max_steps=$4 sft_train.training_args.per_device_train_batch_size=$5 >$log 2>&1 </dev/null || fail "$1: exit code $?"
    rm -rf $tmp/home/$1.taught
    "$CROLL" export $tmp/$1.sft/latest $tmp/home/$1.taught >/dev/null
}
teach model sft 64 150 32
teach judge judge 1400 40 8
cp -r $tmp/home/model $tmp/home/experts
cat >$tmp/home/experts/config.json <<'JSON'
{"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 264, "hidden_size": 64,
 "intermediate_size": 96, "moe_intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
 "num_key_value_heads": 2, "head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": true,
 "initializer_range": 0.1, "max_position_embeddings": 256, "eos_token_id": 258, "torch_dtype": "float32"}
JSON
rm -f $tmp/home/experts/*.safetensors
teach experts sft 64 150 32
# experts that get no tokens are not gathered, so ranks with few tokens each stop unless every token goes to every expert
cp -r $tmp/home/experts.taught $tmp/home/all_experts.taught
sed -i 's/"num_experts_per_tok": 2/"num_experts_per_tok": 4/' $tmp/home/all_experts.taught/config.json

# ---- the runs ----

# run NAME FILE MODEL TRAIN INFER REFERENCE FILES [key=value ..]: devices of the roles, data files
run() {
    local name=$1 file=$2 model=$3 train=$4 infer=$5 reference=$6 files=$7 from=$(pwd) flags=$(sed -n '1s/^# flags: //p' $2)
    shift 7
    [ -z "${ROLL_EXAMPLES:-}" ] || flags=--as-fsdp2
    log=$tmp/$name.log code=0
    (cd "$(dirname "$file")" && "$CROLL" config "$(basename "$file")" $flags >$tmp/config.yaml 2>$log) || fail "$file: croll config does not accept it"
    "$CROLL" run $file $flags pretrain=$tmp/home/$model reward_pretrain=$tmp/home/$model output_dir=$tmp/$name logging_dir=$tmp/logs tracker_kwargs.log_dir=$tmp/curves checkpoint_config.output_dir=$tmp/$name.saved \
        max_steps=3 rollout_batch_size=16 num_return_sequences_in_group=4 prompt_length=48 response_length=32 \
        actor_train.device_mapping="$train" actor_infer.device_mapping="$infer" reference.device_mapping="$reference" \
        "actor_train.data_args.file_name=[$files]" "validation.data_args.file_name=[$tmp/home/val.jsonl]" "$@" >$log 2>&1 </dev/null || code=$?
    [ $code = 0 ] || { grep -v ': note: ' $log | tail -n 20; fail "$name: exit code $code"; }
    python3 - $tmp $name <<'PY' || fail "$name: not three steps with verdicts"
import collections, json, sys
folder = f"{sys.argv[1]}/{sys.argv[2]}"
metrics = [json.loads(line) for line in open(f"{folder}/metrics.jsonl")]
assert [m["step"] for m in metrics] == [0, 1, 2], len(metrics)
found = collections.defaultdict(collections.Counter)
for step in range(3):
    for line in open(f"{folder}/rollouts/step-{step:06d}.jsonl"):
        r = json.loads(line)
        found[r["domain"]][r["status"], r["score"]] += 1
for domain, counts in sorted(found.items()):
    print(" ", sys.argv[2], domain, dict(counts))
    assert counts and sum(n for (status, _), n in counts.items() if status == "ok") >= 0.75 * sum(counts.values()), domain
    assert domain == "llm_judge" or len({score for status, score in counts if status == "ok"}) > 1, (domain, "one score only")
assert any(m.get("actor_train/grad_norm", 0) > 0 for m in metrics)
PY
    nothing_left $name
}

five=$tmp/home/code.jsonl,$tmp/home/judged.jsonl,$tmp/home/math.jsonl,$tmp/home/ifeval.jsonl,$tmp/home/cross.jsonl math=$tmp/home/math.jsonl
judge="rewards.llm_judge.model_args.model_name_or_path=$tmp/home/judge.taught"
workers="rewards.math_rule.world_size=1" all_workers="$workers rewards.ifeval.world_size=1 rewards.crossthinkqa.world_size=1 rewards.code_sandbox.world_size=1"
steps=actor_train.training_args.gradient_accumulation_steps
args=actor_train.training_args train=actor_train.strategy_args.strategy_config reference=reference.strategy_args.strategy_config
# job NAME FILE KIND
roll() {
    case $3 in
    five) run $1 $2 model.taught '[0,1]' '[0,1]' '[0,1]' $five $judge rewards.llm_judge.device_mapping=[2] $all_workers ;;
    lora) run $1 $2 model.taught '[0,1]' '[0,1]' '[0,1]' $five $judge rewards.llm_judge.device_mapping=[2] $all_workers seed=7 $args.learning_rate=1.0e-3 $args.warmup_steps=0 ;;
    sp2) run $1 $2 model.taught '[0,1]' '[0,1]' '[0,1]' $five $judge rewards.llm_judge.device_mapping=[2] $all_workers ;;
    moe) run $1 $2 experts.taught '[0,1]' '[0,1]' '[0,1]' $math $workers ;;
    moe_long) run $1 $2 all_experts.taught '[0,1,2,3]' '[0,1]' '[0,1]' $math $workers ;;
    moe_ep) run $1 $2 experts.taught '[0,1,2,3]' '[0,1]' '[0,1,2,3]' $math $workers $train.ep_size=2 $train.efsdp_size=2 $reference.ep_size=2 $reference.efsdp_size=2 ;;
    moe_five) run $1 $2 all_experts.taught '[0,1,2,3]' '[0,1]' '[0,1,2,3]' $five $judge rewards.llm_judge.device_mapping=[4] $all_workers ;;
    megatron) run $1 $2 all_experts.taught '[0,1]' '[0,1]' '[0,1]' $math $workers ;;
    apart) run $1 $2 model.taught '[0,1]' '[2]' '[3]' $math $workers ;;
    esac
}
# is_adapted NAME: adapters alone were trained, the engine had them, and actor_train with them off was the reference
is_adapted() {
    [ -f $tmp/$1.saved/checkpoint-2/actor_train/adapter_model.safetensors ] || fail "$1: $(ls $tmp/$1.saved)"
    python3 - $tmp/$1/metrics.jsonl <<'PY' || fail "$1: the reference, or the engine"
import json, sys
metrics = [json.loads(line) for line in open(sys.argv[1])]
assert [m["actor/train_infer_diff_max"] for m in metrics] == [0, 0, 0]
assert metrics[0]["math_rule/critic/kl"] == 0 != metrics[2]["math_rule/critic/kl"], [m["math_rule/critic/kl"] for m in metrics]
assert not any(name.startswith("memory/reference/") for name in metrics[0])
PY
}
if [ "${ROLL_EXAMPLES:-}" ]; then
    roll m7b $ROLL_EXAMPLES/qwen2.5-7B-rlvr_megatron/rlvr_config.yaml five
    roll m8b $ROLL_EXAMPLES/qwen3-8B-rlvr_megatron/rlvr_config.yaml five
    roll m30b $ROLL_EXAMPLES/qwen3-30BA3B-rlvr_megatron/rlvr_config.yaml moe_five
    roll r8b $ROLL_EXAMPLES/qwen3-8B-rlvr_fsdp2/rlvr_config.yaml five
    roll r8b_wo $ROLL_EXAMPLES/qwen3-8B-rlvr_fsdp2/rlvr_config_wo_cpuoffload.yaml five
    roll lora $ROLL_EXAMPLES/qwen2.5-7B-rlvr_megatron/rlvr_lora_fsdp2.yaml lora
    is_adapted lora
    roll sp2 $ROLL_EXAMPLES/qwen2.5-7B-rlvr_megatron/rlvr_fsdp2_sp2.yaml sp2
    roll r30b $ROLL_EXAMPLES/qwen3-30BA3B-rlvr_fsdp2/rlvr_config.yaml moe_long
    roll r30b_ep $ROLL_EXAMPLES/qwen3-30BA3B-rlvr_fsdp2/rlvr_config_ep.yaml moe_ep
    roll a8b $ROLL_EXAMPLES/ascend_examples/qwen3_8b_rlvr_fsdp2.yaml apart
    roll a30b $ROLL_EXAMPLES/ascend_examples/qwen3_30b_rlvr_fsdp2.yaml moe
else
    if reason=$("$CROLL" score code </dev/null 2>&1); then
        roll five tests/roll/rlvr_five.yaml five
        roll lora tests/roll/rlvr_lora.yaml lora
        is_adapted lora
    else
        echo "five domains: skipped: $reason"
    fi
    roll experts tests/roll/rlvr_moe_ep.yaml moe_ep
    roll apart tests/roll/rlvr_apart.yaml apart
    roll megatron tests/roll/rlvr_megatron.yaml megatron
fi
