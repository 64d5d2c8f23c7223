#!/bin/bash
# croll run (rlvr, dpo) whose reference, or teacher, is a `croll serve` (reference.service, teacher.service): the metrics of the run with a reference of its own, to the
# byte but for times, also when the service is killed and started again in the middle; what is refused before anything starts;
# a service that stays away ends the run. Not covered: TLS of the client and what it tries again (unit/http_client).
# mostly waits
. tests/e2e/run.inc
quick_model
cp -r $tmp/home/sft_model $tmp/home/other
"$CROLL" init $tmp/home/other --seed 2 --overwrite >/dev/null
server= port=$(port_pair) runner= num_pairs=0
trap 'kill -9 $server $runner 2>/dev/null || true; rm -rf $tmp' EXIT
# serve MODEL [OPTION ..]: on $port, until it is ready
serve() {
    : >$tmp/serve.out # which has the line of the one before
    "$CROLL" serve "$@" --served-model-name ref --listen 127.0.0.1:$port model_args.dtype=fp32 --score-only \
        --access-log none >$tmp/serve.out 2>$tmp/serve.err &
    server=$!
    until_true 'grep -q ^ready $tmp/serve.out'
}
end_serve() { kill -9 $server; wait $server 2>/dev/null || true; }

kl="max_steps=3 validation=null rollout_batch_size=16 use_kl_loss=true kl_loss_coef=0.1 init_kl_coef=0.1 add_token_level_kl=true
    actor_train.training_args.gradient_accumulation_steps=2 actor_train.training_args.learning_rate=1e-3"
service=reference.service=http://127.0.0.1:$port
ranks=("reference.model_args.dtype=fp32" "reference.strategy_args.strategy_name=fsdp2_infer" "reference.device_mapping=[2]")
alike() { cmp <(timeless $tmp/${2:-own}/metrics.jsonl) <(timeless $tmp/$1/metrics.jsonl) || fail "$1: other metrics"; }

job own $kl "${ranks[@]}"
[ $code = 0 ] || fail "exit code $code"
learned own 3
[ "$(values actor/kl_loss $tmp/own/metrics.jsonl | sort -u | wc -l)" -gt 1 ] || fail "the reference is the actor"

serve $tmp/home/sft_model
job served $kl $service
[ $code = 0 ] || fail "exit code $code"
alike served
grep -q '"weights_sha256":"[0-9a-f]\{64\}"' $tmp/served/reference.json || fail "reference.json"
! pgrep -f "actor $tmp/served" >/dev/null

# the reference of dpo likewise
scripts/make_sums $tmp/sums
for of in "${ranks[*]}" $service; do
    log=$tmp/pairs.log code=0
    "$CROLL" run configs/quickstart/dpo.yaml pretrain=$tmp/home/sft_model output_dir=$tmp/pairs_$((num_pairs++)) track_with=none validation=null max_steps=3 reference=null $of \
        "actor_train.data_args.file_name=[$tmp/sums/pairs.train.jsonl]" actor_train.training_args.per_device_train_batch_size=2 >$log 2>&1 </dev/null || code=$?
    [ $code = 0 ] || fail "dpo: exit code $code"
done
alike pairs_1 pairs_0
values rewards/margins $tmp/pairs_1/metrics.jsonl | awk '{ last = $1 } END { exit !(NR == 3 && last != 0) }' || fail "dpo learns nothing"

# killed, seen to be away, started again
words killed $kl "reference={service: {url: http://127.0.0.1:$port/v1, timeout: 60, connections: 1}}"
log=$tmp/killed.log
"${words[@]}" >$log 2>&1 </dev/null &
runner=$!
steps killed 1
end_serve
away="(cannot connect: Connection refused|the connection broke: .*); trying again" # between requests, or in one
until_true 'grep -Eq "$away" $log'
serve $tmp/home/sft_model
wait $runner || fail "exit code $?"
alike killed

# a teacher likewise, beside the reference
opd="$kl use_opd=true teacher.opd_kl_coef=0.5"
job taught $opd "${ranks[@]}" "${ranks[0]/reference/teacher}" "${ranks[1]/reference/teacher}" teacher.model_args.model_name_or_path=$tmp/home/sft_model teacher.device_mapping=[3]
[ $code = 0 ] || fail "exit code $code"
values critic/opd_kl $tmp/taught/metrics.jsonl | awk '{ last = $1 } END { exit !(NR == 3 && last != 0) }' || fail "the teacher is the actor"
job teaching $opd $service ${service/reference/teacher}
[ $code = 0 ] || fail "exit code $code"
alike teaching taught
cmp $tmp/teaching/reference.json $tmp/teaching/teacher.json || fail "teacher.json"

# refused before anything starts: KEY=VALUE .. CODE PATTERN
refused() {
    local pattern=${@: -1} want=${@: -2:1}
    job refused $kl "${@:1:$#-2}"
    [ $code = $want ] || fail "$*: exit code $code"
    grep -Eq "$pattern" $log || { cat $log; fail "$*: another sentence"; }
    [ ! -e $tmp/refused ] || fail "$*: started"
    rm -f $log
}
refused "reference={service: {url: http://127.0.0.1:$port, expect_weights: dead}}" 2 'answered 409: .*dead'
refused "reference={service: {url: http://127.0.0.1:$port, model: another}}" 2 'it has no model another \(it has ref\)'
refused "reference={service: {url: http://127.0.0.1:$port, timeout: 2, key_file: $tmp/absent}}" 2 'key_file: .*absent'
refused $service sequence_length=5000 2 'its longest sequence has [0-9]* tokens, sequence_length of the run is 5000'
refused "reference={service: {url: http://127.0.0.1:$((port + 1)), timeout: 1}}" 2 'cannot connect: Connection refused.*start it with croll serve'
refused $service "${ranks[2]}" 2 'reference.device_mapping: the service has the model and its devices'
refused $service "${ranks[1]}" 2 'reference.strategy_args: the service has the model'
refused $service actor_infer.generating_args.temperature=0.7 2 'set logprobs_mode: raw'
refused actor_train.service=http://h $service 2 'actor_train.service: only a reference or a teacher may be a service'
refused 'actor_infer={service: http://h}' $service 2 'actor_infer.service: only a reference or a teacher may be a service'
refused reference.service=ftp://h 2 'reference.service: a URL is expected'
refused $service use_opd=true "teacher={service: {url: http://127.0.0.1:$((port + 1)), timeout: 1}}" 2 'teacher.service: .*cannot connect: Connection refused.*start it with croll serve'
refused $service use_opd=true teacher.service=http://127.0.0.1:$port teacher.model_args.dtype=fp32 2 'teacher.model_args: the service has the model'
sed 's/"unk_token"/"unk_token" /; s/^{/{ /' $tmp/home/sft_model/tokenizer.json >$tmp/tokenizer.json
cp -r $tmp/home/sft_model $tmp/renamed
cp $tmp/tokenizer.json $tmp/renamed/tokenizer.json
refused $service pretrain=$tmp/renamed 2 'its tokenizer .* is not that of the run'
"$CROLL" plan configs/quickstart/rlvr.yaml pretrain=$tmp/home/sft_model $kl $service >$tmp/plan || fail "plan"
! grep -q reference $tmp/plan || fail "the plan has ranks of the reference"

# other weights come back; none come back
words changed $kl max_steps=50 $service
log=$tmp/changed.log
"${words[@]}" >$log 2>&1 </dev/null &
runner=$!
steps changed 1
end_serve
serve $tmp/home/other
code=0
wait $runner || code=$?
[ $code = 1 ] || fail "exit code $code"
grep -q 'step [0-9]*: reference.service: .* answered 409' $log || fail "other weights are not named"
nothing_left changed
job served $kl max_steps=4 $service resume_from_checkpoint=true
[ $code = 2 ] || fail "resumed: exit code $code"
grep -q 'the run that is resumed began with' $log || fail "a resume takes another reference"
limit_s=$((2 * slower))
words gone $kl max_steps=50 "reference={service: {url: http://127.0.0.1:$port, timeout: $limit_s}}"
log=$tmp/gone.log
"${words[@]}" >$log 2>&1 </dev/null &
runner=$!
steps gone 1
end_serve
code=0
wait $runner || code=$?
[ $code = 3 ] || fail "exit code $code"
grep -q "step [0-9]*: reference.service: .* gave no answer within $limit_s s" $log || fail "nothing says that it is gone"
nothing_left gone
server= runner=
