#!/bin/bash
# croll bisect: runs with the same file are equal; of 24 copies in each of which one bit of a file is another, the step and the sample,
# metric or tensor of that bit are named; a run with another learning rate differs first in that metric; a run that ended
# earlier; the tolerance; what is no run.
. tests/e2e/run.inc
quick_model
small="max_steps=3 save_steps=1 eval_steps=2 rollout_batch_size=8 actor_train.training_args.gradient_accumulation_steps=1"
job a $small
[ $code = 0 ] || fail "a: exit code $code"
job b $small
[ $code = 0 ] || fail "b: exit code $code"
# bisected CODE ARG ..: its output in $tmp/said
bisected() {
    local want=$1 code=0
    shift
    log=$tmp/said
    "$CROLL" bisect "$@" >$log 2>&1 || code=$?
    [ $code = $want ] || fail "bisect $*: exit code $code"
}
bisected 0 $tmp/a $tmp/b
grep -q "^compared: 4 steps, [0-9]* samples, $(ls -d $tmp/a/checkpoint-* | wc -l) checkpoints$" $log && grep -qx 'no difference' $log || fail "equal runs: $(cat $log)"
bisected 0 $tmp/a $tmp/b --json
python3 -c 'import json, sys; r = json.load(open(sys.argv[1])); assert r["differ"] is False and r["checkpoints"] > 1, r' $log || fail "as JSON"

cat >$tmp/flip.py <<'PYTHON'
import json, os, random, re, shutil, struct, subprocess, sys
croll, tmp = sys.argv[1:]
files = sorted(os.path.relpath(os.path.join(folder, name), f"{tmp}/a") for folder, _, names in os.walk(f"{tmp}/a") for name in names)
kinds = [[f for f in files if re.search(pattern, f)] for pattern in
         (r"^rollouts/step-", r"^rollouts/val-", r"state/actor_train\.(m|v|master)$", r"model\.safetensors$", r"^metrics\.jsonl$")]
assert all(kinds), files
random.seed(5)
for turn in range(24):
    name = random.choice(kinds[turn % len(kinds)])
    shutil.rmtree(f"{tmp}/flipped", ignore_errors=True)
    shutil.copytree(f"{tmp}/b", f"{tmp}/flipped", symlinks=True)
    data = bytearray(open(f"{tmp}/flipped/{name}", "rb").read())
    number = re.search(r"(\d+)(\.jsonl$|/)", name)
    step, want = int(number.group(1)) if number else None, []
    if name.endswith(".safetensors"):
        size, = struct.unpack("<Q", data[:8])
        at = random.randrange(8 + size, len(data))
        for tensor, about in json.loads(data[8:8 + size]).items():
            begin, end = about.get("data_offsets", (0, 0))
            if begin <= at - 8 - size < end:
                want = [f"{tensor}[{(at - 8 - size - begin) // 4}]"]
    elif name.startswith("checkpoint"):
        at = random.randrange(len(data))
        for param, about in json.load(open(f"{tmp}/b/{name.rsplit('.', 1)[0]}.json"))["params"].items():
            if 0 <= at // 4 - about["first"] < about["num"]:
                want = [f"{name.split('/', 1)[1]} {param}[{at // 4 - about['first']}]"]
    elif name == "metrics.jsonl": # a digit of a number that is compared
        spots = [m for m in re.finditer(rb'"(?!time/|memory/|system/|global_seqlen/)([a-z_/]+)":(-?\d[0-9.e-]*)', bytes(data)) if m.group(1) != b"step"]
        spot = random.choice(spots)
        at = spot.start(2) + [i for i, c in enumerate(spot.group(2)) if chr(c).isdigit()][:2][-1] # a value within its precision
        step, want = data[:at].count(b"\n"), [spot.group(1).decode()]
    else:
        at = random.randrange(len(data) - 1)
        begin = data.rfind(b"\n", 0, at) + 1
        sample = json.loads(data[begin:data.index(b"\n", at)])["id"] if data[at] != 10 else ""
        want = [f"sample {sample}" if sample else "line", f"line {data[:at].count(10) + 1}, byte {at - begin}", "line"]
    bit = 1 if name == "metrics.jsonl" else 1 << random.randrange(8)
    data[at] ^= bit
    open(f"{tmp}/flipped/{name}", "wb").write(data)
    done = subprocess.run([croll, "bisect", f"{tmp}/a", f"{tmp}/flipped"], capture_output=True, text=True)
    assert done.returncode == 1 and f"first difference: step {step}, " in done.stdout, (name, at, bit, done)
    assert want and any(w in done.stdout for w in want), (name, at, bit, want, done.stdout)
PYTHON
python3 $tmp/flip.py "$CROLL" $tmp >$tmp/flips 2>&1 || { log=$tmp/flips; fail "a flipped bit is not found"; }

# a phase counts before a sample; a member that one line alone has
changed() { # CODE: python that changes the samples `rows` of step 1 of b
    cp $tmp/a/rollouts/step-000001.jsonl $tmp/b/rollouts/
    python3 - $tmp/b/rollouts/step-000001.jsonl "$1" <<'PYTHON'
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
exec(sys.argv[2])
open(sys.argv[1], "w").writelines(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
print(rows[5]["id"])
PYTHON
}
id=$(changed 'rows[0]["advantage"] = 7; rows[5]["ids"][1] += 1; rows[5]["score"] = 9')
bisected 1 $tmp/a $tmp/b
grep -qx "first difference: step 1, generation, sample $id" $log && grep -qFx '  ids[1]' $log || fail "two phases: $(cat $log)"
changed 'rows[5]["values"] = [1]' >/dev/null
bisected 1 $tmp/a $tmp/b --tolerance 1e-6
grep -qx "first difference: step 1, advantages, sample $id" $log && grep -qx '  values' $log && grep -qx '  A  absent' $log || fail "another member: $(cat $log)"
cp $tmp/a/rollouts/step-000001.jsonl $tmp/b/rollouts/

# another learning rate: step 0 is in the warm-up, whose rate is 0; then the metric is named
job slow $small actor_train.training_args.learning_rate=1.0e-4
bisected 1 $tmp/a $tmp/slow
grep -q '^first difference: step 1, metrics$' $log && grep -qx '  actor/lr' $log || fail "another learning rate: $(cat $log)"
# numbers within a tolerance are equal, the first beyond it is not
scaled() { # FACTOR: gradient norms of b are a's times that
    python3 - $tmp $1 <<'PYTHON'
import json, sys
tmp, factor = sys.argv[1:]
lines = [json.loads(line) for line in open(f"{tmp}/a/metrics.jsonl")]
for line in lines:
    line["actor_train/grad_norm"] *= float(factor)
open(f"{tmp}/b/metrics.jsonl", "w").writelines(json.dumps(line) + "\n" for line in lines)
PYTHON
}
scaled 1.00001
bisected 1 $tmp/a $tmp/b --tolerance 1e-6
grep -qx '  actor_train/grad_norm' $log || fail "beyond the tolerance: $(cat $log)"
scaled 1.00000001
bisected 0 $tmp/a $tmp/b --tolerance 1e-6
bisected 1 $tmp/a $tmp/b
# a run that ended earlier
sed -i '$d' $tmp/b/metrics.jsonl
rm -rf $tmp/b/rollouts/*-00000[23].jsonl $tmp/b/checkpoint-2
bisected 1 $tmp/a $tmp/b --tolerance 1e-6
grep -qx 'no difference' $log && grep -q 'ends with step 3, .*/b with step 1$' $log || fail "a shorter run: $(cat $log)"
# what is no run, and a checkpoint that is broken
bisected 2 $tmp/a $tmp
grep -q 'is not a folder of a run: it has no config.yaml' $log || fail "no run: $(cat $log)"
cp -r $tmp/a $tmp/c
echo '{' >$tmp/c/checkpoint-2/manifest.json
bisected 2 $tmp/a $tmp/c
grep -q 'checkpoint-2/manifest.json: not valid JSON' $log || fail "a broken manifest: $(cat $log)"
echo ok
