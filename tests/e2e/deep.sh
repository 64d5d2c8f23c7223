#!/bin/bash
# What a run needs beside its file: `croll config --deep` and `croll run` refuse a model, a tokenizer, an architecture, data, a judge
# or a cache that is not there, not known or too large, all faults of models at once, with nothing written, so that the corrected command
# starts in the same folder; one that starts is accepted by --deep. Not covered: memory of GPUs (croll plan), other hosts (e2e/hosts_preflight).
. tests/e2e/run.inc
quick_model
keys=(configs/quickstart/rlvr.yaml pretrain=$tmp/home/sft_model output_dir=$tmp/out track_with=none max_steps=1 "actor_train.data_args.file_name=[$tmp/home/sums.train.jsonl]"
    "validation.data_args.file_name=[$tmp/home/sums.val.jsonl]")

# refuse PATTERN LINES key=value ..: by both commands, with that many lines of errors
refuse() {
    local pattern=$1 lines=$2 code
    shift 2
    for how in "config --deep" run; do
        log=$tmp/log code=0
        "$CROLL" $how "${keys[@]}" "$@" >$tmp/stdout 2>$log </dev/null || code=$?
        [ $code = 2 ] || fail "$how $*: exit code $code"
        grep -Eq -- "$pattern" $log || fail "$how $*: another sentence"
        [ $(grep -c ': error: ' $log) = $lines ] || fail "$how $*: not $lines errors"
        [ ! -s $tmp/stdout ] || fail "$how $*: wrote $(head -c 100 $tmp/stdout)"
        [ ! -e $tmp/out ] || fail "$how $*: made its output_dir"
    done
}
refuse 'error: actor_train: .*/nowhere is not a folder; a MODEL is a folder with config.json' 2 pretrain=$tmp/nowhere
cp -r $tmp/home/sft_model $tmp/gemma
sed -i 's/Qwen3ForCausalLM/Gemma3ForCausalLM/' $tmp/gemma/config.json
refuse 'error: actor_train: .*Gemma3ForCausalLM' 2 pretrain=$tmp/gemma
cp -r $tmp/home/sft_model $tmp/mute
rm $tmp/mute/tokenizer.json
refuse 'error: actor_infer: .*tokenizer.json' 1 pretrain=$tmp/mute
cp -r $tmp/home/sft_model $tmp/cut
truncate -s -100 $tmp/cut/model.safetensors
refuse 'error: actor_train: .*model.safetensors' 1 pretrain=$tmp/cut
cp -r $tmp/home/sft_model $tmp/pointer
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:%064d\nsize 9\n' 0 >$tmp/pointer/model.safetensors
refuse 'error: actor_train: .*model.safetensors is a Git LFS pointer' 1 pretrain=$tmp/pointer
cp -r $tmp/home/sft_model $tmp/pickle
mv $tmp/pickle/model.safetensors $tmp/pickle/pytorch_model.bin
refuse 'error: actor_train: .*has neither model.safetensors.*pytorch_model.bin is not read' 1 pretrain=$tmp/pickle
# what else would be found out when the ranks have started
refuse 'error: track_with: ./nowhere is not there' 1 'track_with=exec ./nowhere'
refuse 'error: track_with: .*/sums.train.jsonl cannot be executed' 1 "track_with=exec $tmp/home/sums.train.jsonl"
refuse 'error: track_with: a quote is not closed' 1 "track_with=exec 'cat"
printf '#!/bin/sh\r\n' >$tmp/windows
chmod +x $tmp/windows
refuse 'cannot start .*/windows: No such file or directory .the program that its first line' 1 rewards.math_rule.exec=$tmp/windows
for key in output_dir=\~/x pretrain=\~/x "actor_train.data_args.file_name=[~/x]" "actor_train.data_args.file_name=~/x"; do
    refuse "error: '~/x': ~ is not replaced here .write .*HOME}/x" 1 "$key"
done
refuse 'cannot open .*/nowhere.jsonl' 0 "actor_train.data_args.file_name=[$tmp/nowhere.jsonl]"
refuse 'gpu_memory_utilization 1e-06 of [0-9]* bytes leaves 0 beside .*one sequence of 56 tokens needs [0-9]* .raise it to' 1 \
    actor_infer.strategy_args.strategy_config.gpu_memory_utilization=0.000001

# a judge whose weights are more than half of this machine's memory: a file with holes
cp -r $tmp/home/sft_model $tmp/judge
python3 - $tmp/judge $(sed -n 's/^MemTotal: *\([0-9]*\) kB/\1/p' /proc/meminfo) <<'PY' || fail "no judge"
import json, struct, sys
folder, kb = sys.argv[1], int(sys.argv[2])
c = json.load(open(f"{folder}/config.json"))
head = open(f"{folder}/model.safetensors", "rb")
names = json.loads(head.read(struct.unpack("<Q", head.read(8))[0]))
wide, one = 4194304, ".layers.0."
c["intermediate_size"] = wide
c["num_hidden_layers"] = layers = kb * 1024 * 6 // 10 // (3 * c["hidden_size"] * wide * 2) + 1
c.pop("layer_types", None)
at, out = 0, {}
for name, t in sorted(names.items()):
    if name == "__metadata__" or ".layers." in name and one not in name: continue
    shape = [wide if "mlp." in name and n == (1 if "down_proj" in name else 0) else s for n, s in enumerate(t["shape"])]
    size = 2
    for s in shape: size *= s
    for i in range(layers if one in name else 1):
        out[name.replace(one, f".layers.{i}.")] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
text = json.dumps(out).encode()
text += b" " * (-len(text) % 8)
with open(f"{folder}/model.safetensors", "wb") as f:
    f.write(struct.pack("<Q", len(text)) + text)
    f.truncate(8 + len(text) + at)
json.dump(c, open(f"{folder}/config.json", "w"))
PY
judge="rewards.math_rule={worker_cls: roll.pipeline.rlvr.rewards.llm_judge_reward_worker.LLMJudgeRewardWorker, tag_included: [sums], judge_model_type: inference,
    judge_prompt: '{question}{response}', device_mapping: '[2]', generating_args: {max_new_tokens: 4}, model_args: {model_name_or_path: $tmp/judge}}"
refuse 'error: the run needs at least .* of memory, this machine .* has .*rewards.math_rule 1 x .*; rewards.math_rule takes most' 1 "$judge"

"$CROLL" config --deep "${keys[@]}" >$tmp/stdout 2>$log || fail "a run that starts is refused"
! grep -q 'error\|warning' $log || fail "a warning for nothing"
log=$tmp/run.log
"$CROLL" run "${keys[@]}" >$log 2>&1 </dev/null || fail "the corrected command does not start"
[ $(cat $tmp/out/metrics.jsonl | wc -l) = 1 ] || fail "not one step"
echo ok
