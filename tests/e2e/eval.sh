#!/bin/bash
# eval.sh -- `croll eval`: pass@k, maj@k, means and intervals against Python's fractions from samples.jsonl; the numbers of a
# run's validation at step 0; kills at any moment, torn and foreign lines; what it refuses; checkpoints, adapters, domains,
# samples without a verdict. Needs python3.
# Not covered: several hosts (hosts_run.sh has them for runs), a GPU.
. tests/e2e/run.inc
quick_model
model=$tmp/home/sft_model
head -n 60 $tmp/home/sums.val.jsonl >$tmp/rows.jsonl

# evaluate NAME [MODEL or option or key ..]: stdout in $tmp/NAME.out, exit code in $code
evaluate() {
    local name=$1
    shift
    log=$tmp/$name.log code=0
    "$CROLL" eval "$@" --out $tmp/$name >$tmp/$name.out 2>>$log </dev/null || code=$?
}
sums=(--run configs/quickstart/rlvr.yaml --data $tmp/rows.jsonl)
ok() { [ $code = 0 ] || fail "$1: exit code $code"; }

# recompute NAME K ..: everything of eval.json from samples.jsonl alone
recompute() {
    python3 - $tmp/$1 "${@:2}" >$tmp/python 2>&1 <<'PY' || { log=$tmp/python; fail "$1: Python has other numbers"; }
import json, math, sys
from collections import Counter, defaultdict
from fractions import Fraction
lines = [json.loads(line) for line in open(sys.argv[1] + "/samples.jsonl")]
table = json.load(open(sys.argv[1] + "/eval.json"))
n = table["samples_a_prompt"]
rows = defaultdict(list)
for x in lines:
    rows[x["row"]].append(x)
assert [(x["row"], x["index"]) for x in lines] == [(r, i) for r in sorted(rows) for i in range(n)], "order"
def near(a, b):
    assert abs(a - b) <= 1e-12, (a, b)
def share(got, p, count):
    z = 1.959963984540054
    mid, half = p + z * z / (2 * count), z * math.sqrt(p * (1 - p) / count + z * z / (4 * count * count))
    near(got["value"], p)
    near(got["low"], max(0, (mid - half) / (1 + z * z / count)))
    near(got["high"], min(1, (mid + half) / (1 + z * z / count)))
def majority(block):
    votes = Counter(x["vote"] for x in block if x["vote"] is not None)
    if not votes:
        return Fraction(0)
    top = [x for x in block if x["vote"] is not None and votes[x["vote"]] == max(votes.values())]
    return Fraction(sum(x["score"] == 1 for x in top), len(top))
def check(label, prompts):
    done = [[x for x in p if x["status"] == "ok"] for p in prompts]
    good = [x for p in done for x in p]
    count = sum(len(p) > 0 for p in done)
    assert (label["prompts"], label["samples"]) == (len(prompts), n * len(prompts)), label
    assert label["without_verdict"] == n * len(prompts) - len(good)
    near(label["score"], sum(x["score"] for x in good) / len(good))
    share(label["right"], sum(x["score"] == 1 for x in good) / len(good), count)
    ks = []
    for k in (2 ** e for e in range(17)):
        have = [p for p in done if len(p) >= k]
        if not have:
            assert f"pass@{k}" not in label
            continue
        ks.append(k)
        right = [sum(x["score"] == 1 for x in p) for p in have]
        exact = sum(1 - Fraction(math.comb(len(p) - c, k), math.comb(len(p), k)) for p, c in zip(have, right)) / len(have)
        assert label[f"pass@{k}"]["fraction"] == f"{exact.numerator}/{exact.denominator}", (label[f"pass@{k}"], exact)
        share(label[f"pass@{k}"], float(exact), len(have))
        if k > 1:
            voted = [sum(majority(p[b * k:b * k + k]) for b in range(len(p) // k)) / (len(p) // k) for p in have]
            share(label[f"maj@{k}"], float(sum(voted) / len(have)), len(have))
    return ks
ks = check(table["all"], list(rows.values()))
assert ks == [int(k) for k in sys.argv[2:]], ks
for kind, column in (("tags", "tag"), ("domains", "domain")):
    assert set(table[kind]) == {x[column] for x in lines}
    for name, label in table[kind].items():
        check(label, [p for p in rows.values() if p[0][column] == name])
PY
}

# the numbers of a run's validation at step 0, and of Python; once more it only says them again
evaluate whole $model "${sums[@]}" --n 4
ok whole
recompute whole 1 2 4
job run max_steps=1 actor_train.training_args.warmup_steps=0 "validation.data_args.file_name=[$tmp/rows.jsonl]" validation.generating_args.num_return_sequences=4
[ $code = 0 ] || fail "run: exit code $code"
python3 - $tmp/whole/eval.json $tmp/run/metrics.jsonl >$tmp/python 2>&1 <<'PY' || { log=$tmp/python; fail "other numbers than the run's validation"; }
import json, sys
table, metrics = json.load(open(sys.argv[1])), json.loads(open(sys.argv[2]).readline())
for name, label in [("all", table["all"]), *table["tags"].items()]:
    assert label["right"]["value"] == metrics[f"val_correct/{name}/mean"] and label["score"] == metrics[f"val_score/{name}/mean"]
    for k in (2, 4):
        assert label[f"pass@{k}"]["value"] == metrics[f"val_pass@{k}/{name}"] and label[f"maj@{k}"]["value"] == metrics[f"val_maj@{k}/{name}"]
PY
texts() { sed 's/.*"\(text\|response\)":"\(\([^"\\]\|\\.\)*\)".*/\2/' $1; }
diff <(texts $tmp/whole/samples.jsonl) <(texts $tmp/run/rollouts/val-000000.jsonl) >$tmp/diff || { log=$tmp/diff; fail "other samples than the run's validation"; }
for text in 'all: 60 prompts, 240 samples' "pass@4 .*$(sed 's/.*"pass@4":{[^}]*"fraction":"\([^"]*\)".*/\1/' $tmp/whole/eval.json)$"; do
    grep -q "$text" $tmp/whole.out || { log=$tmp/whole.out; fail "the table has no $text"; }
done
python3 -c 'import sys, xml.dom.minidom as x; x.parse(sys.argv[1])' $tmp/whole/eval.html || fail "the page is not well-formed"
cp $tmp/whole/samples.jsonl $tmp/expected
evaluate whole $model "${sums[@]}" --n 4 --json
ok again
cmp $tmp/whole.out $tmp/whole/eval.json && cmp $tmp/whole/samples.jsonl $tmp/expected || fail "a finished evaluation is not repeated"
grep -q '60 rows are in' $tmp/whole.log || fail "rows that are there: nothing is said"

# the same rows as Parquet, in two row groups: the same bytes
python3 tests/parity/parquet_bytes.py $tmp/rows.jsonl $tmp/rows.parquet 2
evaluate parquet $model --run configs/quickstart/rlvr.yaml --data $tmp/rows.parquet --n 4
ok parquet
cmp $tmp/parquet/samples.jsonl $tmp/expected && cmp $tmp/parquet/eval.json $tmp/whole/eval.json || fail "rows of Parquet: other bytes"

# 20 kills, whenever some rows more are there or before: nothing twice, nothing lost, the same bytes
count() { cat $tmp/$1/samples.jsonl 2>/dev/null | wc -l; }
kills=0
slow=(max_running_requests=2 'device_mapping=[0]')
for attempt in $(seq 80); do
    before=$(count killed)
    "$CROLL" eval $model "${sums[@]}" --n 4 --out $tmp/killed "${slow[@]}" >$tmp/killed.out 2>>$tmp/killed.log </dev/null &
    pid=$!
    log=$tmp/killed.log
    if [ $((attempt % 2)) = 0 ]; then
        until_true "[ -d $tmp/killed/exchange ]"
        sleep 0.$((attempt / 2 % 5)) # any moment before the first row
    else
        until_true "[ \$(count killed) -gt $before ] || ! kill -0 $pid 2>/dev/null"
    fi
    code=0
    kill -9 $pid 2>/dev/null || code=1
    if wait $pid 2>/dev/null; then # a fast machine was at the end: from the second row on again
        cmp $tmp/killed/samples.jsonl $tmp/expected || fail "after $kills kills other samples"
        head -n 8 $tmp/expected >$tmp/killed/samples.jsonl
        continue
    fi
    [ $code = 0 ] && kills=$((kills + 1))
    [ $attempt = 3 ] && printf '{"id":"half of a li' >>$tmp/killed/samples.jsonl
    [ $attempt = 5 ] && sed -n 1,2p $tmp/expected | sed 's/"row":0/"row":59/' >>$tmp/killed/samples.jsonl
    [ $kills -ge ${CROLL_EVAL_KILLS:-20} ] && break
done
[ $kills -ge ${CROLL_EVAL_KILLS:-20} ] || fail "only $kills kills before the end"
sed -n 1,4p $tmp/killed/samples.jsonl >$tmp/twice
cat $tmp/twice >>$tmp/killed/samples.jsonl # a row that is there twice counts once
evaluate killed $model "${sums[@]}" --n 4
ok killed
cmp $tmp/killed/samples.jsonl $tmp/expected || fail "after $kills kills other samples"
cmp $tmp/killed/eval.json $tmp/whole/eval.json || fail "after $kills kills other numbers"

# a signal ends it with what it has; other keys, rows or weights do not go on with that
"$CROLL" eval $model "${sums[@]}" --n 4 --out $tmp/stopped "${slow[@]}" >$tmp/stopped.out 2>$tmp/stopped.log </dev/null &
pid=$!
log=$tmp/stopped.log
until_true "[ \$(count stopped) -gt 0 ]"
kill -INT $pid
code=0
wait $pid || code=$?
[ $code = 130 ] || fail "SIGINT: exit code $code"
had=$(count stopped)
[ $had -gt 0 ] && [ $((had % 4)) = 0 ] || fail "SIGINT: $had lines"
evaluate stopped $model "${sums[@]}" --n 8
[ $code = 2 ] && grep -q 'other keys: validation.generating_args.num_return_sequences 4 -> 8 (--overwrite' $log || fail "another n: exit code $code"
sed -i 's/"id":"354/"id":"355/' $tmp/rows.jsonl
evaluate stopped $model "${sums[@]}" --n 4
[ $code != 0 ] && grep -q 'rows of other data files or another model .*--overwrite starts anew' $log || fail "other rows: exit code $code"
[ $(count stopped) = $had ] || fail "a refused evaluation has changed its samples"
sed -i 's/"id":"355/"id":"354/' $tmp/rows.jsonl
evaluate stopped $model "${sums[@]}" --n 4
ok stopped
cmp $tmp/stopped/samples.jsonl $tmp/expected || fail "after a signal other samples"
evaluate stopped $model "${sums[@]}" --n 1 --overwrite
ok overwrite
recompute stopped 1
log=$tmp/refused.log code=0
"$CROLL" run $tmp/whole/config.yaml resume_from_checkpoint=false >$log 2>&1 || code=$?
[ $code = 2 ] && grep -q 'already holds a run' $log || fail "a folder with samples was taken for a new run: exit code $code"

# checkpoints know their run; an adapter beside its base
evaluate latest $tmp/run/latest --data $tmp/rows.jsonl
ok latest
recompute latest 1 2 4
"$CROLL" export $tmp/run/latest $tmp/exported >/dev/null
evaluate exported $tmp/exported --run $tmp/run/config.yaml --data $tmp/rows.jsonl
ok exported
cmp $tmp/latest/samples.jsonl $tmp/exported/samples.jsonl || fail "a checkpoint is not the model that it exports"
cmp -s $tmp/latest/samples.jsonl $tmp/expected && fail "the checkpoint is the model before it"
"$CROLL" run configs/quickstart/sft.yaml pretrain=$model output_dir=$tmp/lora track_with=none "sft_train.data_args.file_name=[$tmp/home/sft.jsonl]" \
    max_steps=3 sft_train.model_args.lora_target=all-linear sft_train.training_args.learning_rate=0.02 sft_train.training_args.warmup_steps=0 \
    >$tmp/lora.log 2>&1 </dev/null || { log=$tmp/lora.log; fail "lora: exit code $?"; }
evaluate adapted $tmp/lora/latest "${sums[@]}" --n 4
ok adapted
evaluate beside $model --adapter $tmp/lora/latest/sft_train "${sums[@]}" --n 4
ok beside
cmp $tmp/adapted/samples.jsonl $tmp/beside/samples.jsonl || fail "a checkpoint of adapters is not its base with --adapter"
evaluate start $model "${sums[@]}" --n 4 actor_train.model_args.adapter_name_or_path=$tmp/lora/latest/sft_train
ok start
cmp $tmp/start/samples.jsonl $tmp/expected || fail "MODEL has the adapter that the file would begin to train with"
cmp -s $tmp/adapted/samples.jsonl $tmp/expected && fail "the adapter has no effect"
evaluate nothing $tmp/lora/latest --data $tmp/rows.jsonl
[ $code = 2 ] && grep -q 'has no rewards: --run names the file' $log || fail "rewards of an sft run: exit code $code"
evaluate nothing $model --data $tmp/rows.jsonl
[ $code = 2 ] && grep -q 'which rewards? --run FILE' $log || fail "no rewards: exit code $code"
evaluate nothing $model "${sums[@]}" --n 0
[ $code = 2 ] && grep -q 'num_return_sequences: a number of at least 1 is expected, not 0' $log || fail "no samples: exit code $code"
evaluate nothing $tmp/nowhere "${sums[@]}"
[ $code = 2 ] && [ ! -e $tmp/nothing ] || fail "no model: exit code $code"

# two domains, and samples without a verdict: groups of 1 to 5 of the others
cat >$tmp/reward.py <<'PY'
import json, sys, zlib
for line in sys.stdin:
    x = json.loads(line)
    h = zlib.crc32((x["response"] + x["prompt"]).encode())
    print(json.dumps({"id": x["id"], "status": "error"} if h % 3 == 0 else {"id": x["id"], "score": [0, 1, 0.5][h // 3 % 3]}), flush=True)
PY
sed '1~3s/"tag":"sums"/"tag":"other"/' $tmp/rows.jsonl >$tmp/two.jsonl
two=("rewards.other={exec: python3 $tmp/reward.py, tag_included: [other]}" actor_train.data_args.domain_interleave_probs=null)
evaluate two $model --run configs/quickstart/rlvr.yaml --data $tmp/two.jsonl --n 5 "${two[@]}" generating_args.temperature=1.5
ok two
recompute two 1 2 4
grep -q '"status":"error"' $tmp/two/samples.jsonl && grep -q 'without a verdict (left out)' $tmp/two.out || fail "every sample has a verdict"
grep -q '^tag other: 20 prompts' $tmp/two.out && grep -q '^domain math_rule: 40 prompts' $tmp/two.out || { log=$tmp/two.out; fail "the table by tag and domain"; }
echo ok
