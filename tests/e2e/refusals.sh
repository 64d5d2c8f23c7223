#!/bin/bash
# C51: what is not there or makes no sense exits with 2 and the sentence that says so, nothing is written:
# generate with ulysses, numbers from the meta device, a prefix or a class that matches nothing, checkpoints
# that are missing or hold no state. An attention name (sdpa) with ulysses is not an error here: every backend
# sees the whole sequence, so the numbers are those of one rank.
. tests/e2e/run.inc
scripts/make_sums $tmp/home
model=$tmp/home/model
"$CROLL" init $model >/dev/null
echo '{"id":1,"prompt":"12+3=15"}' >$tmp/lines
echo '{"id":1,"input_ids":[1,2,3,4,5,6,7,8]}' >$tmp/ids

# refuse PATTERN command..: exit code 2, that last line, nothing on stdout
refuse() {
    local pattern=$1 code=0
    shift
    log=$tmp/log
    "$CROLL" "$@" >$tmp/stdout 2>$log <$tmp/lines || code=$?
    [ $code = 2 ] || fail "$*: exit code $code"
    grep -Eq -- "$pattern" $log || fail "$*: another sentence"
    [ ! -s $tmp/stdout ] || fail "$*: wrote $(head -c 100 $tmp/stdout)"
}
two='device_mapping=list(range(0,2))'
sft() {
    local pattern=$1
    shift
    refuse "$pattern" run configs/quickstart/sft.yaml pretrain=$model output_dir=$tmp/out track_with=none max_steps=2 \
        "sft_train.data_args.file_name=[$tmp/home/sft.jsonl]" "$@"
    [ ! -e $tmp/out ] || fail "$*: made its output_dir"
}
refuse 'M11: ulysses_size 2 is for training and log-probs only' generate $model model_args.ulysses_size=2 "$two"
refuse 'M11: ulysses_size 2' generate $model model_args.ulysses_size=2
refuse 'top_p: a number of at most 1' generate $model generating_args.top_p=1.5
refuse 'min_p: a number of at most 1' generate $model generating_args.min_p=2
refuse 'profiler_timeline and profiler_memory exclude each other' config configs/quickstart/rlvr.yaml profiler_timeline=true profiler_memory=true
refuse '^croll config: 1 error in' config configs/quickstart/rlvr.yaml rollout_batch_size=-1
# keys of dpo that do not go together, and what it needs
dpo() { refuse "$1" config configs/quickstart/dpo.yaml "${@:2}"; }
dpo 'label_smoothing is of the losses sigmoid \(cDPO\) and robust, this one is hinge' loss_type=hinge label_smoothing=0.1
dpo 'label_smoothing is 0.5: loss_type robust divides by' loss_type=robust label_smoothing=0.5
dpo 'ipo and loss_type ipo exclude each other' ipo=true loss_type=ipo
dpo 'loss_type: exo_pair is not available yet' loss_type=exo_pair
dpo 'dpo needs a reference' reference=null
dpo 'chosen_key and rejected_key are both rejected' chosen_key=rejected
dpo 'data_args.messages is a column of rlvr and sft' actor_train.data_args.messages=chat
dpo 'a pair may have 2 x sequence_length 64 tokens' actor_train.use_dynamic_batching_in_train=true actor_train.max_tokens_per_microbatch_in_train=100
dpo 'beta belongs to the dpo pipeline, actor_infer to rlvr' 'actor_infer={device_mapping: [0]}'
# what is not closed is found where the file ends: the error names the line where it begins, too
printf 'a: 1\nb: [1,\nc: 2\n' >$tmp/open.yaml
refuse "open.yaml:4:1: error: not valid YAML: did not find expected ',' or ']' \(while parsing a flow sequence, from line 2 on\)" config $tmp/open.yaml
# interpolations: those that multiply are bounded, the environment is read, names of one's own that they read are no unknown keys
{ for i in $(seq 0 39); do echo "v$i: \${v$((i + 1))}\${v$((i + 1))}"; done; echo v40: ab; } >$tmp/bomb.yaml
refuse "bomb.yaml:[0-9]*:[0-9]*: error: v[0-9]*: .*: the texts of all interpolations have more than 16777216 bytes" config $tmp/bomb.yaml
resolved() { # VALUE key=value ..: as `croll config` prints the key exp_name, seed or output_dir
    mine=$tmp/home/mine MY_SEED=17 "$CROLL" config configs/quickstart/rlvr.yaml "${@:2}" >$tmp/stdout 2>$log || fail "$*: refused"
    grep -qx "$1" $tmp/stdout || { grep -E '^(seed|output_dir|exp_name):' $tmp/stdout; fail "$*: another value"; }
}
resolved "output_dir: \"$tmp/home/mine/x\"" 'output_dir=${oc.env:mine}/x'
resolved 'seed: 17' 'seed=${oc.env:MY_SEED,3}'
resolved 'seed: 3' 'seed=${oc.env:NO_SUCH_VARIABLE,3}'
resolved 'seed: 5' my_own=5 'seed=${my_own}'
refuse 'oc.env:NO_SUCH_VARIABLE.: this variable is not in the environment' config configs/quickstart/rlvr.yaml 'seed=${oc.env:NO_SUCH_VARIABLE}'
refuse 'oc.decode:x.: .*other resolvers, and one .* are not supported' config configs/quickstart/rlvr.yaml 'seed=${oc.decode:x}'
refuse "unknown key 'my_own'" config configs/quickstart/rlvr.yaml my_own=5
# a number that the tokenizer and the model do not have
echo '{"id":1,"input_ids":[49,99999]}' >$tmp/outside
"$CROLL" detokenize $model <$tmp/outside >$tmp/stdout 2>$log && fail "detokenize of an id outside"
grep -q 'input_ids\[1\] is 99999, outside the vocabulary of [0-9]* ids' $tmp/stdout || fail "detokenize of an id outside: another sentence"
echo '{"id":1,"input_ids":[-3]}' | "$CROLL" detokenize $model 2>$log | grep -q 'is -3, outside the vocabulary of 2[0-9][0-9] ids' || fail "detokenize of a negative id"
# warn PATTERN key=value ..: the file is accepted, with that warning or note
warn() {
    local pattern=$1
    shift
    "$CROLL" config configs/quickstart/rlvr.yaml "$@" >$tmp/stdout 2>$log || fail "$*: refused"
    grep -q -- "$pattern" $log || fail "$*: no $pattern"
}
filter=rewards.math_rule.query_filter_config
warn "warning: .*query_filter_config rejects nothing: filter_args needs std_threshold" "$filter={type: std_filter}"
warn "note: .*threshold_down and threshold_up have no effect without" "$filter={type: std_filter, filter_args: {threshold_up: 0.9}}"
warn "warning: .*filter_args needs threshold_down or threshold_up" "$filter={type: mean_filter, filter_args: {std_threshold: 0}}"
warn "warning: num_return_sequences_in_group is 1 .*every advantage is 0" num_return_sequences_in_group=1 rollout_batch_size=512
warn "warning: actor_infer: without temperature .*every advantage is 0" actor_infer.generating_args.temperature=0
"$CROLL" config configs/quickstart/rlvr.yaml "$filter={type: std_filter, filter_args: {std_threshold: 0}}" >$tmp/stdout 2>$log || fail "std_filter"
[ ! -s $log ] || fail "std_filter: a warning for nothing"
refuse "no rule 'ifevil', did you mean ifeval \(there are math_rule, .*, code\)$" score ifevil
refuse "no rule 'codes', did you mean code " score codes
sed 's/^rewards:/&\n  own: {exec: cat, tag_included: [x]}/' configs/quickstart/rlvr.yaml >$tmp/own.yaml
refuse "the domain own is scored by a program, exec: cat" score own --config $tmp/own.yaml
refuse 'ppo_epochs: ' config configs/quickstart/rlvr.yaml ppo_epochs=2147483647
"$CROLL" config configs/quickstart/rlvr.yaml pretrain=$model sequence_length=99999 2>&1 >/dev/null |
    grep -q 'sequence_length 99999 is more than the [0-9]* positions' || fail "a sequence_length beyond the model's positions"
"$CROLL" config configs/quickstart/rlvr.yaml pretrain=$model 2>&1 | grep -q positions && fail "a warning of positions for nothing"
sft '/dev/zero is a device without an end, not a file' "sft_train.data_args.file_name=[/dev/zero]"
truncate -s 1T $tmp/holes.jsonl
truncate -s 1T $tmp/holes.yaml
sft 'holes.jsonl is too large, or has no end: it is read whole, which takes 1099511627776 bytes more' "sft_train.data_args.file_name=[$tmp/holes.jsonl]"
refuse 'holes.yaml is too large, or has no end' config $tmp/holes.yaml
"$CROLL" tokenize $model </dev/zero >$tmp/stdout 2>$log && fail "a line without an end"
grep -q '"error":"line 1: it has more than 64 MiB; what follows is not read"' $tmp/stdout || fail "a line without an end: another sentence"
"$CROLL" score math_rule </dev/zero >$tmp/stdout 2>$log && fail "a row without an end"
grep -q 'line 1 has more than 64 MiB; what follows is not read' $log || fail "a row without an end: another sentence"
# a MODEL by its name
mkdir -p $tmp/hub/models--org--name/refs $tmp/hub/models--org--name/snapshots && cp -r $model $tmp/hub/models--org--name/snapshots/0abc
echo -n 0abc >$tmp/hub/models--org--name/refs/main
HF_HUB_CACHE=$tmp/hub "$CROLL" inspect org/name >$tmp/listed 2>$log && grep -q 'tensors,' $tmp/listed || fail "inspect of a name"
refuse 'there is no folder org/other, and as a name' inspect org/other
refuse 'device meta only counts' logprobs $model --device meta
refuse 'device meta only counts' grad $model --out $tmp/g.safetensors --device meta
refuse "no parameter begins with 'model.layer.0' \(the nearest" grad $model --out $tmp/g.safetensors model_args.freeze_module_prefix=model.layer.0
refuse 'Qwen3Layer.*Qwen3DecoderLayer' grad $model --out $tmp/g.safetensors \
    'strategy_args.strategy_config.wrap_policy.transformer_layer_cls_to_wrap=[Qwen3Layer]'
echo '12+3=' | "$CROLL" generate $model 2>$log >$tmp/stdout && fail "generate: a line that is no JSON"
grep -q '^generate: error: line 1: not valid JSON: column 3' $log || fail "generate: another sentence"
[ ! -e $tmp/g.safetensors ] || fail "a refused grad wrote its file"
# four ranks, one sentence: nothing of mpirun's advice on ranks that exit
refuse 'M4: ulysses_size 3 does not divide' grad $model --out $tmp/g.safetensors 'device_mapping=list(range(0,3))' model_args.ulysses_size=3
[ $(wc -l <$tmp/log) = 1 ] || fail "more than one line"
refuse 'nowhere is not a folder; a MODEL is a folder with config.json' logprobs $tmp/nowhere
refuse 'nowhere is not a folder; a MODEL is' serve small=$tmp/nowhere --listen 127.0.0.1:0
refuse 'nowhere is not a checkpoint' export $tmp/nowhere $tmp/x
sft 'there is no checkpoint at .*nowhere' resume_from_checkpoint=$tmp/nowhere
sft 'has no manifest.json: it is not a complete checkpoint' resume_from_checkpoint=$model
sft 'nowhere' pretrain=$tmp/nowhere
sft "sft_train: .*no parameter begins with 'layers'" sft_train.model_args.freeze_module_prefix=layers
sft 'freeze_module_prefix: model is every parameter: nothing is left to train' sft_train.model_args.freeze_module_prefix=model
sft 'sft_train: .*Qwen3Layer.*Qwen3DecoderLayer' \
    'sft_train.strategy_args.strategy_config.wrap_policy.transformer_layer_cls_to_wrap=[Qwen3Layer]'
sft 'strategy_name: sft_train needs fsdp2_train, not fsdp2_infer' sft_train.strategy_args.strategy_name=fsdp2_infer
"$CROLL" config configs/quickstart/sft.yaml 'sft_train.strategy_args.strategy_config={apply_tiled_mlp: true, model_type: qwen3}' \
    >$tmp/stdout 2>$log || fail "model_type, which ROLL reads for tiles, is refused"
sft 'no row has a token of its answer within sequence_length 3' sequence_length=3
sft 'sft_train is empty' sft_train=null
# a list of no device is no list that is missing
for role in actor_train actor_infer; do
    refuse "device_mapping: 'list\(range\(0,0\)\)' lists no device" config configs/quickstart/rlvr.yaml "$role.device_mapping=list(range(0,0))"
    ! grep -q missing $log || fail "$role.device_mapping is there: $(cat $log)"
done
sft "device_mapping: '\[\]' lists no device" 'sft_train.device_mapping=[]'
! grep -q missing $log || fail "sft_train.device_mapping is there: $(cat $log)"
sft 'sft_train.device_mapping is missing' sft_train.device_mapping=null
sft 'adam_beta2: a number below 1 is expected' sft_train.training_args.adam_beta2=1.0
sft 'warmup_ratio: a number of at most 1' sft_train.training_args.warmup_ratio=2
sft "lr_scheduler_type: greedy is not available yet" sft_train.training_args.lr_scheduler_type=greedy
sft "lr_scheduler_type: reduce_lr_on_plateau is not available yet" sft_train.training_args.lr_scheduler_type=reduce_lr_on_plateau
sft 'lr_scheduler_kwargs: cosine has no argument min_lr \(it has num_cycles\)' 'sft_train.training_args.lr_scheduler_kwargs={min_lr: 1e-6}'
sft 'lr_scheduler_kwargs: warmup_stable_decay needs num_decay_steps' sft_train.training_args.lr_scheduler_type=warmup_stable_decay
sft 'adam_epsilon: a number of at least 1e-30 is expected' sft_train.training_args.adam_epsilon=0
sft 'param_groups: params is missing' 'sft_train.training_args.param_groups=[{weight_decay: 1}]'
sft 'param_groups: a group needs learning_rate, weight_decay or' 'sft_train.training_args.param_groups=[{params: a}]'
sft 'optim: adafactor is not available yet' sft_train.training_args.optim=adafactor
sft 'sft_train: optim: muon is not available with offload_policy' sft_train.training_args.optim=muon sft_train.strategy_args.strategy_config.offload_policy=true
sft 'sft_train: optim: muon is not available with adapters' sft_train.training_args.optim=muon sft_train.model_args.lora_target=all-linear
sft 'collective_timeout: a number of at most 1e8 is expected' collective_timeout=1e300
sft 'max_grad_norm: a number of at most 1e30 is expected' max_grad_norm=1e300
while IFS='|' read -r says change; do
    refuse "$says" config configs/quickstart/rlvr.yaml $change
done <<'LIST'
metric_for_best_model is of validations, and this run has no validation|metric_for_best_model=val_score/all/mean validation=null
stop_token_ids: a whole number from 0 to 2147483647 is expected, not -1|actor_infer.generating_args.stop_token_ids=[-1]
tag_to_template: "nosuch" is none of native|tag_to_template.x=nosuch
actor_infer.domain_generating_args: rewards has no domain nosuch|actor_infer.domain_generating_args.nosuch={}
domain_generating_args.math_rule: a repetition_penalty is of all domains, or of none|actor_infer.domain_generating_args.math_rule.repetition_penalty=1.5
domain_generating_args.math_rule.max_new_tokens: one for all domains|actor_infer.domain_generating_args.math_rule.max_new_tokens=3
stop_strings: a text is expected, not \[1\]|actor_infer.generating_args.stop_strings=[a,[1]]
prompt_length \+ response_length are 2147483663 tokens|prompt_length=2147483647
max_running_requests: a whole number of at most 65536 is expected, not 2147483647|max_running_requests=2147483647
max_running_requests: a whole number of at most 65536|router_args.max_running_requests=65537
world_size: a whole number of at most 4096|rewards.math_rule.world_size=2147483647
x 32768 blocks of the KV cache|max_running_requests=65536 actor_infer.strategy_args.strategy_config.max_model_len=524288
1000000 x 65536 samples of a step .* than the 2147483647|rollout_batch_size=1000000 num_return_sequences_in_group=65536
2147483647 x 2147483647 samples of an update|actor_train.training_args.per_device_train_batch_size=2147483647 actor_train.training_args.gradient_accumulation_steps=2147483647
1024 x 2147483647 tokens of a step .* than the 1099511627776|rollout_batch_size=64 sequence_length=2147483647
unknown key 'learning_rate' here \(it belongs to training_args of actor_train|learning_rate=1e-5
unknown key 'fsdp_size' here \(it belongs to strategy_args.strategy_config of a role|actor_train.fsdp_size=2
num_return_sequences is 65537, but the ids of samples have room for 65536|validation.generating_args.num_return_sequences=65537
adv_estimator: .?GRPO.? is none of .* \(did you mean grpo\?|adv_estimator=GRPO
top_p: a number of at least 1e-9|actor_infer.generating_args.top_p=1e-300
temperature: 0 \(greedy\) or a number of at least 1e-06 is expected, not 1e-07|actor_infer.generating_args.temperature=1e-7
temperature: a number of at most 1e6 is expected|actor_infer.generating_args.temperature=1e7
repetition_penalty: a number of at most 1e6 is expected|actor_infer.generating_args.repetition_penalty=1e7
exchange.prefix is empty: the keys of the run|exchange.prefix=""
unknown key .api_key.: a key stays out of the file \(key_env: NAME .*key_file: FILE|rewards.math_rule.judge.api_key=abc
unknown key .judge_api_key.: a key stays out of the file|rewards.math_rule.judge.judge_api_key=abc
unknown key .api_key.: a key stays out of the file|reference.service.api_key=abc
track_with: \[.*\] is none of tensorboard|track_with=[wandb,tensorboard]
LIST
refuse '--memory 80 is 80 bytes \(did you mean 80GiB\?' plan configs/quickstart/rlvr.yaml pretrain=$model --memory 80
# a text of others in a message: its control characters are shown, a terminal does not obey them
printf '"\\e[2J\\u009b1m\\ax": 1\n' >$tmp/escape.yaml
refuse "unknown key '.x1b\[2J.x9b1m.x07x'" config $tmp/escape.yaml
! grep -q "$(printf '\033')" $log || fail "an escape character reached the terminal"
for change in reference.training_args actor_infer.training_args actor_infer.data_args validation.model_args; do
    "$CROLL" config configs/quickstart/rlvr.yaml "reference={device_mapping: [0]}" "$change={}" >$tmp/stdout 2>$log || fail "$change: refused"
    grep -q "note: ${change//./\\.} has no effect (" $log || fail "$change: no note"
done
grep -q "note: reference has no effect (init_kl_coef and use_kl_loss are off" $log || fail "an unused reference: no note"
(export CROLL_DEVICE=meta; sft 'device meta only counts, it has no numbers to answer with') || exit 1
(export CROLL_CPU=486; sft 'CROLL_CPU=486 is not one of [a-z]') || exit 1
(export CROLL_CPU=486; refuse '^croll: CROLL_CPU=486 is not one of [a-z]' config configs/quickstart/rlvr.yaml) || exit 1
(ulimit -n 40; sft 'ulimit -n is 40, a run of 2 ranks needs at least 64 open files') || exit 1
"$CROLL" generate $model --prompt 1+1= generating_args.max_new_tokens=1 >$tmp/stdout 2>$log || fail "generating_args of generate: refused"
! grep -q note $log || fail "generating_args have an effect in generate, a note denies it"
sft 'num_train_epochs: a number of at most 1e9' sft_train.training_args.num_train_epochs=1e30
sft '65536 x 65536 samples of an update' sft_train.training_args.per_device_train_batch_size=65536 sft_train.training_args.gradient_accumulation_steps=65536
sft '65536 x 2147483647 tokens of a step' sft_train.training_args.per_device_train_batch_size=65536 sft_train.training_args.gradient_accumulation_steps=1 sequence_length=2147483647
sft 'validation: its files \(/dev/null\) have no row to take' 'validation={data_args: {file_name: [/dev/null]}}'
sft 'cannot open .*/no_rows' "sft_train.data_args.file_name=[$tmp/no_rows]"
only=(run configs/quickstart/sft.yaml pretrain=$model output_dir=$tmp/only track_with=none max_steps=1
    "sft_train.data_args.file_name=[$tmp/home/sft.jsonl]" sft_train.strategy_args.strategy_config.save_only_model=true)
log=$tmp/only.log
"$CROLL" "${only[@]}" >$log 2>&1 </dev/null || fail "save_only_model: exit code $?"
refuse "output_dir: $tmp/ids is there and is not a folder" "${only[@]}" output_dir=$tmp/ids
refuse 'sft_train.json is not there, so it cannot be resumed' "${only[@]}" max_steps=2 resume_from_checkpoint=true
refuse 'rewards.math_rule: a block of keys is expected, not null' config configs/quickstart/rlvr.yaml rewards.math_rule=null
refuse "'max_steps=' gives no value" config configs/quickstart/rlvr.yaml max_steps=

# an answer that stdout does not take is no success; a reader that has left gets no message
echo '{"id":1,"ground_truth":"7","response":"7"}' >$tmp/score
for command in --version 'config configs/quickstart/rlvr.yaml' 'score math_rule' 'formula --list' "inspect $model" "tokenize $model"; do
    code=0
    "$CROLL" $command <$tmp/score >/dev/full 2>$log || code=$?
    [ $code = 1 ] && grep -Eq 'cannot be written.*full' $log || fail "$command with a full disk: exit code $code"
done
{ "$CROLL" inspect $model 2>$log || true; } | true
[ ! -s $log ] || fail "a message for a reader that has left"
# closed streams: no file gets their numbers, and with them what is printed
"$CROLL" "${only[@]}" output_dir=$tmp/closed track_with=stdout <&- >&- 2>&- || fail "closed streams: exit code $?"
! grep -q '^step' $tmp/closed/metrics.jsonl || fail "closed streams: the terminal's lines are in metrics.jsonl"
grep -q 'stdout cannot be written: no more lines go there' $tmp/closed/run.log || fail "closed stdout: no warning"

"$CROLL" logprobs $model $two model_args.ulysses_size=2 model_args.attn_implementation=sdpa model_args.dtype=fp32 <$tmp/ids >$tmp/two 2>$tmp/log ||
    fail "sdpa with ulysses: exit code $?"
"$CROLL" logprobs $model model_args.dtype=fp32 <$tmp/ids >$tmp/one
cmp $tmp/one $tmp/two || fail "sdpa with ulysses has other numbers than one rank"
echo ok
