#!/bin/bash
# Data files in the forms of verl, TRL and Hugging Face data sets, as they are: data_args.columns says where prompt, right answer and tag
# stand; as Parquet, too. Each run has the samples and scores of the run on the same rows in ROLL's form. A nested column that is missing is named with
# its row; keys of `columns` that are wrong are refused with their line.
. tests/e2e/run.inc
quick_model
python3 - $tmp <<'PY'
import json, sys
tmp = sys.argv[1]
rows = [json.loads(l) for l in open(f"{tmp}/home/sums.train.jsonl")][:64]
sft = [json.loads(l) for l in open(f"{tmp}/home/sft.jsonl")][:64]
def write(name, rows):
    open(f"{tmp}/{name}.jsonl", "w").write("".join(json.dumps(r) + "\n" for r in rows))
user = lambda text: [{"role": "user", "content": text}]
write("roll", rows)
write("verl", [{"data_source": "openai/gsm8k", "prompt": user(r["prompt"]), "ability": "math", "reward_model": {"style": "rule", "ground_truth": r["ground_truth"]},
                "extra_info": {"split": "train", "index": i}} for i, r in enumerate(rows)])
write("trl", [{"prompt": user(r["prompt"]), "solution": r["ground_truth"]} for r in rows])
write("gsm8k", [{"question": r["prompt"], "answer": f"First one, then the other.\n#### {r['ground_truth']}"} for r in rows])
write("hole", [{"prompt": user(r["prompt"]), "reward_model": {"style": "rule", **({} if i == 2 else {"ground_truth": "1"})}} for i, r in enumerate(rows)])
write("sft", sft)
write("completion", [{"prompt": r["instruction"], "completion": r["output"]} for r in sft])
write("chats", [{"prompt": user(r["instruction"]), "completion": [{"role": "assistant", "content": r["output"]}]} for r in sft])
write("sharegpt", [{"conversations": [{"from": "human", "value": r["instruction"]}, {"from": "gpt", "value": r["output"]}]} for r in sft])
PY
for name in verl chats; do python3 tests/parity/parquet_bytes.py $tmp/$name.jsonl $tmp/$name.parquet 3; done
small=(max_steps=1 validation=null rollout_batch_size=8 num_return_sequences_in_group=4 actor_train.training_args.per_device_train_batch_size=8
    actor_train.training_args.gradient_accumulation_steps=2)
# rlvr NAME [key=value ..]: the samples of $tmp/NAME.jsonl (or of $file) are those of ROLL's form
rlvr() {
    job $1 "${small[@]}" "actor_train.data_args.file_name=[${file:-$tmp/$1.jsonl}]" "${@:2}"
    [ $code = 0 ] || fail "$1: exit code $code"
    python3 - $tmp/$1 $tmp/roll <<'PY' || fail "$1: other samples than in ROLL's form"
import json, sys
samples = [[(r["response"], r["score"], r["ground_truth"]) for r in map(json.loads, open(f"{folder}/rollouts/step-000000.jsonl"))] for folder in sys.argv[1:]]
assert len(samples[0]) == 32 and samples[0] == samples[1], samples
PY
}
rlvr roll
tag="rewards.math_rule.tag_included=[openai/gsm8k]"
verl=($tag actor_train.data_args.messages=prompt "actor_train.data_args.columns={ground_truth: reward_model.ground_truth, tag: data_source}")
rlvr verl "${verl[@]}"
file=$tmp/verl.parquet rlvr verl_parquet "${verl[@]}"
rlvr trl actor_train.data_args.messages=prompt "actor_train.data_args.columns={ground_truth: solution, tag: {value: sums}}"
rlvr gsm8k actor_train.data_args.messages=chat \
    "actor_train.data_args.columns={ground_truth: {path: answer, after: '####'}, chat: {path: question, role: user}, tag: {value: sums}}"

rlvr verl_alone $tag actor_train.data_args.messages=prompt "actor_train.data_args.file_name=[$tmp/verl.jsonl]"

job hole "${small[@]}" "actor_train.data_args.file_name=[$tmp/hole.jsonl]" actor_train.data_args.messages=prompt \
    "actor_train.data_args.columns={ground_truth: reward_model.ground_truth}"
[ $code = 2 ] && grep -q "hole.jsonl:3: data_args.columns: ground_truth: reward_model.ground_truth: there is no ground_truth, reward_model has style" $log ||
    fail "a hole: exit code $code"
[ ! -e $tmp/hole ] || fail "a hole: something was written"
for bad in "{a: 1}|columns: a: a path into the row" "{a: {value: x, path: y}}|columns: a: path or value is expected, one of them" \
    "{a: {from: y}}|columns: a: unknown key from" "{a: {value: 7}}|a text is expected for value (quote a number)" "{a: []}|columns: a: the list is empty" \
    "x|columns: "; do
    "$CROLL" config configs/quickstart/rlvr.yaml "actor_train.data_args.columns=${bad%%|*}" >/dev/null 2>$tmp/err && fail "$bad: accepted"
    grep -q "${bad#*|}" $tmp/err || fail "$bad: $(cat $tmp/err)"
done

# sft NAME [key=value ..]: the losses of $tmp/NAME.jsonl (or of $file) are those of $tmp/sft.jsonl
sft() {
    log=$tmp/$1.log code=0
    "$CROLL" run configs/quickstart/sft.yaml pretrain=$tmp/home/model output_dir=$tmp/$1 track_with=none max_steps=1 \
        "sft_train.data_args.file_name=[${file:-$tmp/$1.jsonl}]" "${@:2}" >$log 2>&1 </dev/null || code=$?
    [ $code = 0 ] || fail "$1: exit code $code"
    [ $1 = sft ] || same sft $1 sft_train/loss 1
}
sft sft
sft completion prompt_key=prompt response_key=completion
chats=(sft_train.data_args.messages=chat "sft_train.data_args.columns={chat: [prompt, completion]}")
sft chats "${chats[@]}"
file=$tmp/chats.parquet sft chats_parquet "${chats[@]}"
sft sharegpt sft_train.data_args.messages=conversations
echo ok
