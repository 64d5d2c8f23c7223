#!/bin/bash
# run_distill.sh -- `croll run` of distillation on given answers: losses and norms of two steps are those of whole models in float64 (tests/parity/
# distill_run.py makes distill_run.json) for six objectives, top-k 4, 64 and the whole vocabulary, on the answers and on all tokens, in ROLL's
# form, at temperatures, on 1, 2 and 4 ranks in turn; a teacher that is the student: 0, and gradient 0; the same numbers however rows are cut
# into ranks, micro-batches and ulysses groups, and with a teacher on ranks of its own; validation; kill -9 and resume; other tokenizers.
# CROLL_DISTILL=all: all 45 cases, else 20, which have each objective with two of the three top-k, on the answers and on all tokens.
# Not covered: one position (unit/rl_distill), the head's gradient (unit/kernels_head, unit/kernels_devices).
# also long: CROLL_DISTILL=all
. tests/e2e/run.inc
scripts/make_sums $tmp/home
cp -r $tmp/home/model $tmp/home/teacher
"$CROLL" init $tmp/home/model >/dev/null
"$CROLL" init $tmp/home/teacher --seed 7 >/dev/null
golden=tests/parity/distill_run.json
python3 - $golden $tmp <<'PY'
import json, sys
all, folder = json.load(open(sys.argv[1])), sys.argv[2]
write = lambda name, rows: open(f"{folder}/{name}", "w").write("".join(x + "\n" for x in rows))
write("rows.jsonl", map(json.dumps, all["rows"]))
turns = lambda a, b: [dict(role=r, content=x[k]) for x in (a, b) for r, k in (("user", "instruction"), ("assistant", "output"))]
write("chats.jsonl", (json.dumps(dict(messages=turns(a, b))) for a, b in zip(all["rows"], all["rows"][1:] + all["rows"][:1])))
write("val.jsonl", map(json.dumps, all["rows"][:3]))
write("cases", (" ".join(f"{k}={str(v).lower()}" for k, v in c["keys"].items()) for c in all["cases"]))
PY

# distill NAME RANKS [key=value ..]: steps of 4 rows, in order
distill() {
    local name=$1 ranks=$2
    shift 2
    words=("$CROLL" run configs/quickstart/distill.yaml student_pretrain=$tmp/home/model teacher_pretrain=$tmp/home/teacher output_dir=$tmp/$name
        track_with=none shuffle=false "student.data_args.file_name=[$tmp/rows.jsonl]" max_steps=2 student.training_args.num_train_epochs=1
        student.training_args.learning_rate=1e-3 student.training_args.lr_scheduler_type=constant student.training_args.warmup_steps=0
        student.training_args.adam_beta2=0.999 student.training_args.adam_epsilon=1e-6 logits_topk=64 distill_loss_weight=0.5
        student.training_args.per_device_train_batch_size=$((4 / ranks)) "student.device_mapping=list(range(0,$ranks))"
        student.strategy_args.strategy_config.fsdp_size=$ranks "teacher.device_mapping=list(range(0,$ranks))" "$@")
    log=$tmp/$name.log code=0
}
# go NAME RANKS [key=value ..]: to its end
go() {
    distill "$@"
    "${words[@]}" >$log 2>&1 </dev/null || code=$?
    [ $code = 0 ] || fail "$1: exit code $code"
}
metric() { values $1 $tmp/$2/metrics.jsonl | sed -n ${3:-1}p; }
is_same() { [ "$(timeless $tmp/$1/metrics.jsonl)" = "$(timeless $tmp/$2/metrics.jsonl)" ] || fail "$1: other numbers than $2"; }

# cases of the golden file: of the grid of 36 those that leave 0 or 3 of 7, and what follows it
num=0
while read -r keys; do
    ranks=$((1 << num % 3))
    [ "${CROLL_DISTILL:-}" = all ] || [ $num -ge 36 ] || [[ $((num % 7)) = [03] ]] || { num=$((num + 1)); continue; }
    rm -rf $tmp/case
    go case $ranks $keys
    python3 - $golden $num $tmp/case/metrics.jsonl <<'PY' || fail "case $num: $keys"
import json, sys
want = json.load(open(sys.argv[1]))["cases"][int(sys.argv[2])]["steps"]
got = [json.loads(x) for x in open(sys.argv[3])]
assert len(got) == len(want) == 2
for i, (x, y) in enumerate(zip(want, got)):
    for key, name in dict(loss="train/loss", distill="train/train_distill_loss", student="train/train_student_loss", norm="student/grad_norm").items():
        assert abs(x[key] - y[name]) <= (1e-5 if i == 0 else 1e-4) * (1 + abs(x[key])), (i, name, x[key], y[name])
    assert x["tokens"] == y["train/tokens"]
PY
    num=$((num + 1))
done <$tmp/cases
[ $num = 45 ] || fail "$num cases"

# a teacher that is the student: no loss, no gradient, not nearly; weights stay
for keys in kd_objective=forward_kl "kd_objective=reverse_kl kd_temperature=1.7" "kd_objective=adaptive_kl kd_normalize=topk" "kd_objective=js_divergence logits_topk=0"; do
    rm -rf $tmp/own
    go own 1 teacher_pretrain=$tmp/home/model distill_loss_weight=1 $keys
    for i in 1 2; do
        [ "$(metric train/train_distill_loss own $i)" = 0 ] && [ "$(metric student/grad_norm own $i)" = 0 ] || fail "teacher = student, $keys: not 0"
    done
done

# chats of two turns of the assistant: what the user says between them is not learnt, and the teacher's words stay with their tokens
chats=(student.data_args.messages=messages "student.data_args.file_name=[$tmp/chats.jsonl]")
go chats 1 teacher_pretrain=$tmp/home/model distill_loss_weight=1 "${chats[@]}"
[ "$(metric train/train_distill_loss chats)" = 0 ] && [ "$(metric student/grad_norm chats)" = 0 ] || fail "chats, teacher = student: not 0"
go chats_whole 1 teacher_pretrain=$tmp/home/model distill_loss_weight=1 logits_topk=0 "${chats[@]}"
[ "$(metric train/train_distill_loss chats_whole)" = 0 ] || fail "chats, teacher = student, the whole vocabulary: not 0"
[ "$(metric train/tokens chats)" -gt "$(metric train/tokens own)" ] || fail "chats: one turn is learnt"

# however it is cut, and wherever the teacher is
go whole 1
go micro 1 student.training_args.per_device_train_batch_size=1 student.training_args.gradient_accumulation_steps=4 teacher.infer_batch_size=1
go tokens 2 student.use_dynamic_batching_in_train=true student.max_tokens_per_microbatch_in_train=64
go ulysses 2 student.model_args.ulysses_size=2 student.training_args.per_device_train_batch_size=4
for name in micro tokens ulysses; do
    for metric in train/loss train/train_distill_loss student/grad_norm; do same $name whole $metric 2; done
done
go everything 1 logits_topk=0
go everything_ulysses 2 logits_topk=0 student.model_args.ulysses_size=2 student.training_args.per_device_train_batch_size=4
for metric in train/loss train/train_distill_loss student/grad_norm; do same everything_ulysses everything $metric 2; done
go apart 1 "teacher.device_mapping=[1,2]" teacher.training_args.per_device_train_batch_size=2
is_same apart whole

# adapters of the student, which begin as nothing: the teacher of the base is matched, another one is learnt from, however rows are cut
lora="student.model_args.lora_target=all-linear student.model_args.lora_rank=4"
go lora_own 1 teacher_pretrain=$tmp/home/model distill_loss_weight=1 $lora
[ "$(metric train/train_distill_loss lora_own)" = 0 ] && [ "$(metric student/grad_norm lora_own)" = 0 ] || fail "adapters, teacher = base: not 0"
go lora 1 $lora
go lora_2 2 $lora
for metric in train/loss train/train_distill_loss student/grad_norm; do same lora_2 lora $metric 2; done
[ "$(metric train/loss lora)" = "$(metric train/loss whole)" ] && [ "$(metric train/loss lora 2)" != "$(metric train/loss whole 2)" ] || fail "adapters: not the base's loss at first, or all of it is trained"
[ -e $tmp/lora/latest/student/adapter_model.safetensors ] || fail "no adapters are saved"

# validation of the answers alone; max_grad_norm: 0 does not clip, and says so
go val 1 "validation={data_args: {file_name: [$tmp/val.jsonl]}}" eval_steps=1 max_grad_norm=0
values student/val_loss $tmp/val/metrics.jsonl | awk '{ if ($1 + 0 <= 0) exit 1 } END { exit NR != 2 }' || fail "validation"
[ "$(values final/student/val_loss $tmp/val/metrics.jsonl | wc -l)" = 1 ] || fail "the last step is not validated"
grep -qE "^step +0/.*  val [0-9.]+  loss [0-9.]+  distill [0-9.]+  grad [0-9.]+  lr [0-9.e-]+  tok/s " $tmp/val.log || fail "a step's line: $(grep "^step" $tmp/val.log | head -1)"
grep -q "max_grad_norm: 0 means that gradients are not clipped" $log || fail "max_grad_norm: 0 does not say what it means"
[ "$(metric train/loss val 2)" != "$(metric train/loss whole 2)" ] || fail "max_grad_norm: 0 clips"

# kill -9 in a run, resume: the same numbers
go all 2 max_steps=20 student.training_args.num_train_epochs=10 save_steps=1
distill part 2 max_steps=20 student.training_args.num_train_epochs=10 save_steps=1
"${words[@]}" >$log 2>&1 </dev/null &
pid=$!
steps part 3
kill -KILL $pid
wait $pid 2>/dev/null || true
[ "$(wc -l <$tmp/part/metrics.jsonl)" -lt 20 ] || fail "it was over before it was killed"
go part 2 max_steps=20 student.training_args.num_train_epochs=10 save_steps=1 resume_from_checkpoint=true
is_same part all

# the teacher as a service: the same numbers, also at temperatures; its weights are written down
server= port=$(port_pair)
trap 'kill -9 $server 2>/dev/null || true; rm -rf $tmp' EXIT
"$CROLL" serve $tmp/home/teacher --listen 127.0.0.1:$port model_args.dtype=fp32 --score-only --access-log none >$tmp/serve.out 2>$tmp/serve.err &
server=$!
until_true 'grep -q ^ready $tmp/serve.out'
service="teacher={service: \"http://127.0.0.1:$port\"}"
warm="kd_temperature=1.7 teacher_temperature=0.6 logits_topk=4"
go served 2 "$service"
go warm 2 $warm
go served_warm 1 $warm "$service" student.training_args.per_device_train_batch_size=2 student.training_args.gradient_accumulation_steps=2
go whole_2 2
is_same served whole_2
for metric in train/loss train/train_distill_loss student/grad_norm; do same served_warm warm $metric 2; done
grep -q '"weights_sha256":"[0-9a-f]\{64\}"' $tmp/served/teacher.json || fail "teacher.json"

# refused: another tokenizer, what a service cannot give, two pipelines' settings
sed 's/"+":/"++":/' $tmp/home/teacher/tokenizer.json >$tmp/other.json
refused() {
    local said=$1
    shift
    distill refused 1 "$@"
    "${words[@]}" >$log 2>&1 </dev/null || code=$?
    [ $code = 2 ] && grep -q -- "$said" $log || fail "exit code $code instead of: $said"
}
cmp -s $tmp/other.json $tmp/home/teacher/tokenizer.json && fail "the tokenizer is the same"
cp $tmp/other.json $tmp/home/teacher/tokenizer.json
refused "in the run's tokenizer and" # names the first id
refused "logits_topk: 0 needs the teacher's states" logits_topk=0 "$service"
refused "its tokenizer .* is not that of the run" "$service" student_pretrain=$tmp/home/teacher
refused "teacher.service: .* gave no answer within 1 s .*Connection refused" "teacher={service: {url: \"http://127.0.0.1:1\", timeout: 1}}"
echo ok
