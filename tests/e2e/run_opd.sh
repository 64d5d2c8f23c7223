#!/bin/bash
# croll run with a teacher (use_opd, is_pure_opd): an untrained student comes nearer to a model that knows sums a little, step by step; the
# bits do not depend on the teacher's ranks; without a block reference the KL terms are of the teacher; what is refused before
# anything starts. Numbers of the advantages: unit/rl_advantage, unit/formula_loss. The teacher as a service: e2e/run_service.
. tests/e2e/run.inc
quick_model
short="max_steps=2 validation=null rollout_batch_size=16 num_return_sequences_in_group=4 use_opd=true pretrain=$tmp/home/model
    actor_train.device_mapping=[0] actor_train.strategy_args.strategy_config.fsdp_size=1 actor_infer.device_mapping=[0]
    actor_train.training_args.gradient_accumulation_steps=1 actor_train.training_args.learning_rate=5e-4
    actor_train.training_args.lr_scheduler_type=constant actor_train.training_args.warmup_steps=0"
block="{model_args: {model_name_or_path: $tmp/home/sft_model, dtype: fp32}, strategy_args: {strategy_name: fsdp2_infer}, device_mapping: [1]}"
teacher="teacher=$block"

nearer() { # RUN: the mean of the last three distances is well below the first
    values critic/opd_kl $tmp/$1/metrics.jsonl >$tmp/distance
    awk 'NR == 1 { from = $1 } { x[NR] = $1 } END { exit !(NR > 5 && from > 1 && (x[NR] + x[NR - 1] + x[NR - 2]) / 3 < 0.93 * from) }' $tmp/distance ||
        { cat $tmp/distance; fail "$1: the student does not come nearer"; }
}

# the distance falls, with the same bits on 1 and on 2 ranks
job own $short max_steps=6 "$teacher"
[ $code = 0 ] || fail "exit code $code"
learned own 6
nearer own
job shared $short max_steps=6 "${teacher/\[1\]/[0, 1]}" teacher.strategy_args.strategy_config.fsdp_size=2 teacher.infer_batch_size=5
[ $code = 0 ] || fail "exit code $code"
numbers() { timeless $tmp/$1/metrics.jsonl | sed -E 's/"memory\/[^"]*":[^,}]*,?//g; s/,\}/}/'; }
cmp <(numbers own) <(numbers shared) ||
    fail "other numbers with two ranks of the teacher"
cmp $tmp/own/latest/actor_train/model.safetensors $tmp/shared/latest/actor_train/model.safetensors || fail "other weights"
[ "$(values memory/teacher/compute_log_probs/end/offload/allocated $tmp/shared/metrics.jsonl | wc -l)" = 6 ] || fail "the teacher was not offloaded"

# the teacher is the reference where there is no other
kl="use_kl_loss=true kl_loss_coef=0.1 init_kl_coef=0.1 add_token_level_kl=true"
job one $short $kl "$teacher"
[ $code = 0 ] || fail "exit code $code"
job two $short $kl "$teacher" "reference=${block/\[1\]/[2]}"
[ $code = 0 ] || fail "exit code $code"
cmp <(numbers one) <(numbers two) || fail "the reference is not the teacher"
values actor/kl_loss $tmp/one/metrics.jsonl | awk '$1 <= 0 { exit 1 } END { exit NR != 2 }' || fail "no KL loss"

# the pure form, with ROLL's names of the roles: nearer without rewards, to the same weights whatever the verdicts are
pure() { # NAME [key=value ..]
    log=$tmp/$1.log code=0
    "$CROLL" run configs/quickstart/opd.yaml output_dir=$tmp/$1 track_with=none validation=null max_steps=6 rollout_batch_size=16 \
        {student_train,student_infer}.model_args.model_name_or_path=$tmp/home/model teacher.model_args.model_name_or_path=$tmp/home/sft_model \
        "student_train.data_args.file_name=[$tmp/home/sums.train.jsonl]" student_train.training_args.gradient_accumulation_steps=1 "${@:2}" \
        >$log 2>&1 </dev/null || code=$?
    [ $code = 0 ] || fail "exit code $code"
    learned $1 6
}
pure pure
nearer pure
cat >$tmp/judge <<'END'
#!/usr/bin/env python3
import json, sys
for line in sys.stdin:
    row = json.loads(line)
    kind = len(row["response"].encode()) % 3
    print(json.dumps({"id": row["id"], "status": "error"} if kind == 2 and row["response"] else {"id": row["id"], "score": kind}), flush=True)
END
chmod +x $tmp/judge
pure judged "rewards={math_rule: {exec: $tmp/judge, tag_included: [sums]}}"
values scheduler/reward_errors $tmp/judged/metrics.jsonl | awk '{ num += $1 } END { exit num == 0 }' || fail "every sample has a verdict"
cmp $tmp/pure/latest/actor_train/model.safetensors $tmp/judged/latest/actor_train/model.safetensors || fail "rewards change the pure form"
said() { # CODE PATTERN key=value ..: what `croll config` says of opd.yaml
    code=0
    "$CROLL" config configs/quickstart/opd.yaml "${@:3}" >$tmp/config 2>$tmp/said || code=$?
    [ $code = $1 ] && grep -Eq "$2" $tmp/said || { cat $tmp/said; fail "${*:3}: exit code $code, another sentence"; }
}
grep -q 'enable_old_logprobs_recompute: false' $tmp/pure/config.yaml || fail "log-probs of equal bits are computed again"
said 0 'gamma has no effect \(is_pure_opd' gamma=0.9
grep -q 'gamma: 0' $tmp/config || fail "gamma of the pure form"
"$CROLL" config configs/quickstart/opd.yaml student_infer.strategy_args.strategy_config.param_dtype=bf16 >$tmp/config 2>$tmp/said
grep -q 'enable_old_logprobs_recompute: true' $tmp/config || fail "the student's log-probs are of another dtype"
said 2 'student_train is of runs with is_pure_opd: true' is_pure_opd=false
said 2 'student_train and actor_train exclude each other' 'actor_train={device_mapping: [0]}'
said 2 'use_opd and is_pure_opd exclude each other' use_opd=true
said 2 'the teacher takes the place of the reference' 'reference={device_mapping: [2]}'
said 2 'is_pure_opd needs a teacher' teacher=null
said 2 'every advantage is then 0' teacher.opd_kl_coef=0
said 2 'agentic is not available yet' pure_opd_pipeline_type=agentic

# refused before anything starts: KEY=VALUE .. PATTERN
refused() {
    job refused $short "${@:1:$#-1}"
    [ $code = 2 ] || fail "$*: exit code $code"
    grep -Eq "${@: -1}" $log || { cat $log; fail "$*: another sentence"; }
    [ ! -e $tmp/refused ] || fail "$*: started"
    rm -f $log
}
refused 'use_opd needs a teacher'
refused use_opd=false "$teacher" 'nothing asks the teacher'
refused "teacher={device_mapping: [1]}" 'teacher has no model'
refused "${teacher/, device_mapping: \[1\]/}" 'teacher.device_mapping is missing'
refused "$teacher" teacher.opd_kl_coef=-1 'opd_kl_coef: a number of at least 0 is expected'
refused "$teacher" teacher.opd_kl_coef=.nan 'an infinity or NaN is not a useful value'
refused "$teacher" opd_kl_coef=0.5 "unknown key 'opd_kl_coef' here \(it belongs to teacher\)"
refused "$teacher" actor_train.opd_kl_coef=0.5 "unknown key 'opd_kl_coef' here \(it belongs to teacher\)"
refused "$teacher" teacher.tag_included=[other] 'no teacher answers for the row of line'
cp -r $tmp/home/sft_model $tmp/renamed
sed -i 's/"+"\( *:\)/"plus"\1/' $tmp/renamed/tokenizer.json
cmp -s $tmp/renamed/tokenizer.json $tmp/home/sft_model/tokenizer.json && fail "the tokenizer is the same"
refused "${teacher/home\/sft_model/renamed}" "teacher .*renamed: id [0-9]* is '[^']*' in the run's tokenizer and '[^']*' in its"
"$CROLL" config configs/quickstart/rlvr.yaml pretrain=$tmp/home/model use_opd=true "teacher={only: $block}" >$tmp/config 2>&1 || fail "a list of one teacher"
grep -q 'opd_kl_coef: 1' $tmp/config || fail "the default of opd_kl_coef"
"$CROLL" plan configs/quickstart/rlvr.yaml pretrain=$tmp/home/model use_opd=true "$teacher" --json >$tmp/plan 2>$log || fail "plan"
grep -q '"name":"teacher"' $tmp/plan || fail "the plan has no teacher"
