#!/bin/bash
# run_teachers.sh -- on-policy distillation with several teachers: the advantage of each token is that of runs with one teacher, summed over the teachers
# whose tags have the row's, each with its coefficient; on own and shared ranks, resolved again from config.yaml, resumed; what is refused.
# Against Transformers in float64: tests/parity/teachers.py, by hand. Not covered: one teacher (e2e/run_opd).
. tests/e2e/run.inc
scripts/make_sums $tmp/home
for i in 7 8; do
    cp -r $tmp/home/model $tmp/home/t$i
    "$CROLL" init $tmp/home/t$i --seed $i >/dev/null
done
"$CROLL" init $tmp/home/model >/dev/null
awk 'NR % 2 { sub(/"tag":"sums"/, "\"tag\":\"odd\"") } !(NR % 2) { sub(/"tag":"sums"/, "\"tag\":\"even\"") } { print }' $tmp/home/sums.train.jsonl >$tmp/rows.jsonl
[ "$(grep -c '"tag":"odd"' $tmp/rows.jsonl)" -gt 100 ] && [ "$(grep -c '"tag":"even"' $tmp/rows.jsonl)" -gt 100 ] || fail "rows have not both tags"

# teacher MODEL DEVICES [MORE]: its block
teacher() { echo "{model_args: {model_name_or_path: $tmp/home/$1, dtype: fp32}, strategy_args: {strategy_name: fsdp2_infer}, device_mapping: $2, infer_batch_size: 64${3:-}}"; }
# taught NAME [key=value ..]
taught() {
    log=$tmp/$1.log code=0
    "$CROLL" run configs/quickstart/opd.yaml output_dir=$tmp/$1 track_with=none validation=null max_steps=2 rollout_batch_size=16 \
        {student_train,student_infer}.model_args.model_name_or_path=$tmp/home/model "student_train.data_args.file_name=[$tmp/rows.jsonl]" \
        student_train.training_args.gradient_accumulation_steps=1 student_train.training_args.learning_rate=1e-3 \
        "rewards.math_rule.tag_included=[odd, even]" "${@:2}" >$log 2>&1 </dev/null || code=$?
}
# advantages of step 0: RUN [COEF_ODD COEF_EVEN] against sums of runs with one teacher
check() {
    python3 - $tmp "$@" <<'PY' || fail "advantages: $*"
import json, sys
folder, name, parts = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
read = lambda run: [json.loads(x) for x in open(f"{folder}/{run}/rollouts/step-000000.jsonl")]
got, one = read(name), {run: read(run) for run in ("seven", "eight")}
tags, num = set(), 0
tokens = lambda x: x["advantage"] if isinstance(x["advantage"], list) else [x["advantage"]] * len(x["ids"])  # one number: that of all tokens
for i, x in enumerate(got):
    tags.add(x["tag"])
    for t, a in enumerate(tokens(x)):
        want = sum(c * tokens(one[run][i])[t] for run, c in parts[x["tag"]].items())
        assert one["seven"][i]["ids"] == x["ids"]
        assert abs(a - want) <= 1e-6 * (1 + abs(want)), (i, t, a, want)
        num += abs(a) > 1e-3
assert tags == {"odd", "even"} and num > 100, (tags, num)
PY
}
taught seven "teacher=$(teacher t7 '[1]')"
[ $code = 0 ] || fail "one teacher: exit code $code"
taught eight "teacher=$(teacher t8 '[1]')"
[ $code = 0 ] || fail "one teacher: exit code $code"

# by tag; with coefficients and a teacher of all rows beside them; ranks of their own or shared: the same bits
by_tag="teacher={x: $(teacher t7 '[1]' ', tag_included: [odd]'), y: $(teacher t8 '[1]' ', tag_included: [even]')}"
taught both "$by_tag"
[ $code = 0 ] || fail "two teachers: exit code $code"
grep -q 'note: teacher.y is the role teacher_2' $log || fail "which role a name is"
check both '{"odd": {"seven": 1}, "even": {"eight": 1}}'
for name in teacher teacher_2; do [ "$(values time/${name}_log_probs $tmp/both/metrics.jsonl | wc -l)" = 2 ] || fail "no time of $name"; done
taught apart "${by_tag/\[1\]/[2, 3]}"
[ $code = 0 ] || fail "on ranks of their own: exit code $code"
cmp <(timeless $tmp/both/metrics.jsonl | sed -E 's/"memory\/[^"]*":[^,}]*,?//g') <(timeless $tmp/apart/metrics.jsonl | sed -E 's/"memory\/[^"]*":[^,}]*,?//g') || fail "other numbers on other ranks"
taught three "teacher={x: $(teacher t7 '[1]' ', tag_included: [odd], opd_kl_coef: 0.5'), y: $(teacher t8 '[1]' ', tag_included: [even], opd_kl_coef: 2'), z: $(teacher t8 '[1]' ', opd_kl_coef: 0.25')}"
[ $code = 0 ] || fail "three teachers: exit code $code"
check three '{"odd": {"seven": 0.5, "eight": 0.25}, "even": {"eight": 2.25}}'

# beside rewards; resumed
taught mixed is_pure_opd=false use_opd=true adv_estimator=reinforce student_train=null student_infer=null "actor_train={model_args: {model_name_or_path: $tmp/home/model}, data_args: {template: native, messages: messages, file_name: [$tmp/rows.jsonl], domain_interleave_probs: {math_rule: 1}}, training_args: {per_device_train_batch_size: 64}, strategy_args: {strategy_name: fsdp2_train}, device_mapping: [0]}" \
    "actor_infer={model_args: {model_name_or_path: $tmp/home/model}, strategy_args: {strategy_name: fsdp2_infer}, device_mapping: [0]}" "$by_tag" max_steps=1
[ $code = 0 ] || fail "beside rewards: exit code $code"
taught part "$by_tag" max_steps=1
taught part "$by_tag" resume_from_checkpoint=true
[ $code = 0 ] || fail "resumed: exit code $code"
[ "$(values critic/opd_kl $tmp/part/metrics.jsonl | tail -n 1)" = "$(values critic/opd_kl $tmp/both/metrics.jsonl | tail -n 1)" ] || fail "resumed: other numbers"

# refused
taught none "teacher={x: $(teacher t7 '[1]' ', tag_included: [odd]')}"
[ $code = 2 ] && grep -q 'no teacher answers for the row of line' $log || fail "rows without a teacher: exit code $code"
taught many "teacher={a: $(teacher t7 '[1]'), b: $(teacher t7 '[1]'), c: $(teacher t7 '[1]'), d: $(teacher t7 '[1]'), e: $(teacher t7 '[1]')}"
[ $code = 2 ] && grep -q 'teacher: 5 teachers, at most 4 are possible' $log || fail "five teachers: exit code $code"
echo ok
