#!/bin/bash
# Sentences of README.md and docs/ against the program: what others found false once. Each check asks the program, and then looks
# at what the pages say of it; the pages are read without line breaks. With `PAGES=FOLDER` the pages are those of another folder.
# Not covered: names, files, options, keys (e2e/readme); curl lines and scopes of docs/serve.md (e2e/serve).
. tests/e2e/run.inc
pages=${PAGES:-.}
num=0 bad=0
wrong() { echo "FALSE: $*"; bad=$((bad + 1)); }
text() { tr -s '\n ' ' ' <$pages/$1; }
# says PAGE SENTENCE: the page has it. never PAGE PATTERN WHY: it has not
says() { num=$((num + 1)); text $1 | grep -qF -- "$2" || wrong "$1 does not say: $2"; }
never() { num=$((num + 1)); text $1 | grep -qE -- "$2" && wrong "$1 says '$(text $1 | grep -oE -- "$2" | head -n 1)': $3" || true; }
# code COMMAND ..: its exit code in $code, what it says in $tmp/stdout and $log
log=$tmp/log
code() { code=0; "$@" >$tmp/stdout 2>$log </dev/null || code=$?; }

quick_model
model=$tmp/home/sft_model

# README "What is not there yet" is a list: each entry names a key that answers so, a command that there is not, or hardware
section=$(sed -n '/^## What is not there yet/,/^## For maintainers/p' $pages/README.md)
list=$(grep '^- ' <<<"$section")
[ "$(grep -c . <<<"$list")" -ge 5 ] || wrong "README.md: what is not there yet is no list of at least 5 entries"
while read -r entry; do
    keys=$(grep -oE '`([A-Za-z_.]+: [^`]*|croll [a-z]+)`' <<<"$entry" | tr -d '`')
    [ -n "$keys" ] || grep -q 'never run on hardware' <<<"$entry" || wrong "README.md: an entry of "What is not there yet" has no key: $entry"
    while read -r key; do
        num=$((num + 1))
        case $key in
        croll\ *) code $CROLL ${key#croll } --help
            [ $code = 2 ] && grep -q "no command" $log || wrong "README.md: $key is there" ;;
        ?*) code "$CROLL" config configs/quickstart/rlvr.yaml "${key%%: *}=${key#*: }"
            [ $code = 2 ] && grep -q 'not available yet' $log || wrong "README.md: $key is there, or not known: $(head -n 1 $log)" ;;
        esac
    done <<<"$keys"
done <<<"$list"
# prose beside the list names nothing more that is missing
never README.md '(LoRA|critic)[^-|]*, distillation|^[^-]*distillation\. Their keys' "on-policy distillation is there (use_opd)"
code "$CROLL" config configs/quickstart/opd.yaml use_opd=true
grep -q 'not available' $log && wrong "use_opd is not available, and README.md says nothing of it"

# which command finds what: what `croll config` does not look at must not be promised of it alone
row=$(grep '^| wrong input' $pages/README.md)
for key in pretrain=/nope "actor_train.data_args.file_name=[/nope.jsonl]"; do
    num=$((num + 1))
    code "$CROLL" config configs/quickstart/rlvr.yaml $key
    [ $code = 2 ] || [[ $row == *--deep* ]] || wrong "README.md: croll config alone is said to find wrong input, and takes $key"
    code "$CROLL" config --deep configs/quickstart/rlvr.yaml pretrain=$model "actor_train.data_args.file_name=[$tmp/home/sums.train.jsonl]" \
        "validation.data_args.file_name=[$tmp/home/sums.val.jsonl]" $key
    [ $code = 2 ] && grep -q /nope $log || [[ $row != *--deep* ]] || wrong "croll config --deep takes $key: $code, $(tail -n 1 $log)"
    rm -rf $tmp/nope
    words nope $key
    code "${words[@]}"
    [ $code = 2 ] && grep -q '/nope' $log && [ ! -e $tmp/nope/run.log ] || wrong "croll run $key: $code, $(tail -n 1 $log)"
done

# keys that are accepted and have no effect say so, also of a judge and of a service
sed 's/^rewards:/&\n  asked:\n    judge_model_type: inference\n    tag_included: [x]\n    judge_prompt: score-0-10\n    model_args: {model_name_or_path: m}\n    device_mapping: "[7]"\n    strategy_args: {strategy_name: vllm, strategy_config: {gpu_memory_utilization: 0.1, block_size: 16}}/' configs/quickstart/rlvr.yaml >$tmp/judged.yaml
code "$CROLL" config $tmp/judged.yaml
grep -q block_size $log || wrong "a judge's block_size has no effect, and no note says so"
judge_has_effect() { # in the plan, which is the program's
    local share
    for share in 1e-9 0.8; do
        "$CROLL" plan $tmp/judged.yaml pretrain=$model rewards.asked.model_args.model_name_or_path=$model --memory 8GB \
            rewards.asked.strategy_args.strategy_config.gpu_memory_utilization=$share 2>/dev/null | grep -A 20 asked >$tmp/plan.$share || true
    done
    ! cmp -s $tmp/plan.1e-9 $tmp/plan.0.8
}
if ! grep -q gpu_memory_utilization $log && ! judge_has_effect; then
    never README.md '[Aa] key that is accepted and has no effect says so' "gpu_memory_utilization of a judge has none, and nothing says so"
fi
code timeout $deadline "$CROLL" serve $model --listen 127.0.0.1:0 training_args.learning_rate=3
[ $code = 2 ] || never README.md '[Aa] key that is accepted and has no effect says so' "croll serve takes training_args.learning_rate"

# clients of a service: one of them needs a package
never docs/serve.md 'Nothing but an address is needed' "TRL's client needs the package vllm (e2e/serve_trl puts a stand-in there)"
says docs/serve.md 'pip install "trl[vllm]"'

# weights of a service: which error an update is
printf 'root k admin\nother o score,generate\n' >$tmp/keys
chmod 600 $tmp/keys
update() { # KEY OPTION ..: status and code of an update
    local key=$1 server status
    shift
    rm -f $tmp/port $tmp/ready # the one of the service before must not be taken for this one's
    "$CROLL" serve $model --listen 127.0.0.1:0 --port-file $tmp/port --access-log none "$@" >$tmp/ready 2>$log &
    server=$!
    until_true "grep -q ^ready $tmp/ready || ! kill -0 $server 2>/dev/null"
    status=$(curl -sS -m $deadline -o $tmp/body -w '%{http_code}' ${key:+-H "X-Api-Key: $key"} -d '{"model_path":"/nope"}' \
        http://127.0.0.1:$(cat $tmp/port)/update_weights_from_disk 2>>$log) || true
    kill -9 $server 2>/dev/null
    wait $server 2>/dev/null || true
    echo "$status $(sed -n 's/.*"code":"\([a-z_]*\)".*/\1/p' $tmp/body)"
}
without=$(update '') frozen=$(update k --keys $tmp/keys) other=$(update o --keys $tmp/keys --allow-updates)
says docs/serve.md "- ${without% *} \`${without#* }\` without \`--keys\`, or with a key that has not the scope \`admin\`"
[ "$other" = "$without" ] || wrong "an update without the scope admin is $other, not $without"
says docs/serve.md "- ${frozen% *} \`${frozen#* }\` without \`--allow-updates\`"
[ "${without% *}" = "${frozen% *}" ] || never docs/serve.md "an update is ${frozen% *} \`${frozen#* }\`" "without keys it is $without"

# every file of docs/recipes.md and of the page for those who come from elsewhere is right, and its memory is the plan's
files() { # PAGE FOLDER: its yaml blocks, which begin with `# NAME.yaml`, as files
    mkdir -p $2
    awk -v folder=$2 '/^```yaml/ { is_in = 1; file = ""; next } /^```/ { is_in = 0; next }
        is_in && file == "" { if ($0 !~ /^# [a-z_]*\.yaml$/) { print "a block without a name: " $0; exit 1 } file = folder "/" $2; next }
        is_in { print > file }' $pages/$1 || wrong "$1: a yaml block does not begin with the name of its file"
}
mkdir $tmp/eight
cat >$tmp/eight/config.json <<'END'
{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 12288,
 "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 40960,
 "rms_norm_eps": 1e-6, "rope_theta": 1000000, "tie_word_embeddings": false, "eos_token_id": 151645, "torch_dtype": "bfloat16"}
END
for page in docs/recipes.md docs/from_roll_verl_trl.md; do
    folder=$tmp/$(basename $page .md)
    files $page $folder
    for file in $folder/*.yaml; do
        num=$((num + 1))
        code "$CROLL" config $file
        [ $code = 0 ] || wrong "$page: $(basename $file): $(grep error $log | head -n 1)"
        grep -q '^pretrain: "*Qwen/Qwen3-8B' $tmp/stdout || continue # another model
        code "$CROLL" plan $file pretrain=$tmp/eight --memory 80GB
        [ $code = 0 ] && grep -q '^it fits' $tmp/stdout || wrong "$page: $(basename $file) does not fit: $(tail -n 3 $tmp/stdout $log)"
    done
done
[ $(ls $tmp/recipes/*.yaml | wc -l) -ge 4 ] || wrong "docs/recipes.md has too few files"
while IFS='|' read -r _ key want _; do # GiB of the plan, within 2 %: the plan may learn
    num=$((num + 1))
    key=$(tr -d '` ' <<<"$key")
    [ $key = none ] && key= || key=${key/:/=}
    got=$("$CROLL" plan $tmp/recipes/eight.yaml pretrain=$tmp/eight --memory 80GB $key 2>>$log | sed -n '/^actor_train/,/memory of a rank/s/.*at most \([0-9.]*\) GiB.*/\1/p')
    awk -v a="$want" -v b="$got" 'BEGIN { exit !(b > 0 && a > 0.98 * b && a < 1.02 * b) }' || wrong "docs/recipes.md: $key: $want GiB, the plan says $got"
done < <(sed -n '/^## Out of memory/,/^These make/p' $pages/docs/recipes.md | grep -E '^\| .*\| [0-9.]+ \|')

# commands that read JSON lines: how they answer a bad one
says docs/errors.md 'Commands that read JSON lines answer a bad line with `{"id": .., "error": ".."}`'
echo '{"id":"x","input_ids":[1,999999],"ground_truth":7,"response":7}' >$tmp/line
answers() { # COMMAND ..: {"id":"x","error":..} on stdout
    num=$((num + 1))
    code=0
    "$@" <$tmp/line >$tmp/stdout 2>$log || code=$?
    [ $code = 2 ] && grep -q '"id":"x".*"error":"' $tmp/stdout
}
answers "$CROLL" detokenize $model || wrong "docs/errors.md: croll detokenize answers a bad line with $(cat $tmp/stdout)"
answers "$CROLL" tokenize $model || wrong "docs/errors.md: croll tokenize answers a bad line with $(cat $tmp/stdout)"
answers "$CROLL" logprobs $model || wrong "docs/errors.md: croll logprobs answers a bad line with $(cat $tmp/stdout)"
answers "$CROLL" generate $model --json || wrong "docs/errors.md: croll generate --json answers a bad line with $(cat $tmp/stdout)"
answers "$CROLL" generate $model || says docs/errors.md '`croll generate` without `--json`'

# metrics: every one of a plain run is in docs/metrics.md
job plain max_steps=2 save_steps=100 eval_steps=1
[ $code = 0 ] || fail "run: exit code $code"
log=$tmp/sft2.log
"$CROLL" run configs/quickstart/sft.yaml pretrain=$model output_dir=$tmp/sft2 track_with=none max_steps=1 eval_steps=1 \
    "sft_train.data_args.file_name=[$tmp/home/sft.jsonl]" "validation={data_args: {file_name: [$tmp/home/sft.jsonl]}}" >$log 2>&1 </dev/null || fail "sft: exit code $?"
num=$((num + 1))
python3 - $pages/docs/metrics.md $tmp/plain/metrics.jsonl $tmp/sft2/metrics.jsonl <<'PY' || wrong "docs/metrics.md lacks metrics of a run"
import itertools, json, re, sys
def spread(name): # a/{b,c}/d -> a/b/d a/c/d
    parts = [p.split(",") if i % 2 else [p] for i, p in enumerate(re.split(r"\{([^}]*)\}", name))]
    return ("".join(p) for p in itertools.product(*parts))
names = {n for quoted in re.findall(r"`([^`\s]+)`", open(sys.argv[1]).read()) for n in spread(quoted)}
patterns = [re.sub(r"<[^>]*>", "[^/]+", re.escape(n).replace("@K", r"@\d+").replace(r"\<", "<").replace(r"\>", ">")) for n in names]
known = re.compile("(final/)?(?:" + "|".join(patterns) + ")")
domain = "math_rule/"
keys = {k for file in sys.argv[2:] for line in open(file) for k in json.loads(line)} - {"step"}
assert len(keys) > 150, len(keys)
plain = {k.replace(domain, "", 1) for k in keys}
missing = [k for k in sorted(keys) if not known.fullmatch(k) and not known.fullmatch(k.replace(domain, "", 1))]
print("\n".join(missing))
sys.exit(bool(missing))
PY

# what is learnt of a turn: with ChatML the newline after it belongs to the chat and is not learnt. One token a byte, and the end of turn
echo '{"messages":[{"role":"user","content":"1+2="},{"role":"assistant","content":"3, as it is"}]}' >$tmp/chat.jsonl
"$CROLL" run configs/quickstart/sft.yaml pretrain=$model output_dir=$tmp/chat track_with=none max_steps=1 sft_train.training_args.per_device_train_batch_size=1 \
    sft_train.training_args.gradient_accumulation_steps=1 "sft_train.device_mapping=[0]" sft_train.strategy_args.strategy_config.fsdp_size=1 \
    "sft_train.data_args={file_name: [$tmp/chat.jsonl], messages: messages, template: native}" >$log 2>&1 </dev/null || fail "sft of a chat: exit code $?"
learnt=$(values sft_train/tokens $tmp/chat/metrics.jsonl)
num=$((num + 1))
case $learnt in
12) says docs/data.md 'less one newline'
    never docs/data.md 'it ends where the chat up to it ends(\.|;)' "the newline after ChatML's end of turn is not learnt" ;;
13) never docs/data.md 'less one newline' "the newline after ChatML's end of turn is learnt" ;;
*) wrong "a turn of 11 bytes has $learnt learnt tokens" ;;
esac

# exit code 2: what it promises, in the one case where only started ranks see what is wrong
job small max_steps=1 actor_infer.strategy_args.strategy_config.gpu_memory_utilization=0.000001
num=$((num + 1))
[ $code = 2 ] || wrong "a cache without room: exit code $code"
[ ! -e $tmp/small ] || never docs/errors.md 'With 2 nothing was started and no file was written' "$(ls $tmp/small | head -n 3 | tr '\n' ' ')of such a run is there"
job small max_steps=1 save_steps=100
[ $code = 0 ] || never docs/errors.md 'taken again without' "the corrected command ends with $code: $(tail -n 1 $log)"

[ $bad = 0 ] || fail "$bad of $num sentences"
echo "$num sentences hold"
