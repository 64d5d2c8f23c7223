#!/bin/bash
# The pages that people look at: croll plan --html and run.html of a run on two ranks, of one whose rank was
# killed, and written again by croll report. Each is well-formed XML, fetches nothing, and has its parts;
# the killed rank is named in it, with its last call.
# Not covered: what a page looks like; ranks that disagree (tests/unit/mesh_timeline.c).
. tests/e2e/run.inc
command -v python3 >/dev/null || { echo "no python3: scripts/setup --check installs it"; exit 1; }

# page FILE TEXT..: well-formed, on its own, with these texts
page() {
    python3 - "$@" <<'PY' || fail "$1"
import re, sys, xml.etree.ElementTree as tree
text = open(sys.argv[1], encoding="utf-8").read()
root = tree.fromstring(text)
for e in root.iter():
    name = e.tag.split("}")[1]
    assert name not in ("script", "link", "img", "iframe"), name
    for key, value in e.attrib.items():
        assert key not in ("src", "href"), key
        if key in ("x", "y", "width", "height", "cx", "cy") and re.match(r"[-0-9.]", value):
            assert -1 <= float(value.rstrip("%")) < 1e5, (e.tag, key, value)
assert "nan" not in re.sub(r"<pre>.*?</pre>", "", text, flags=re.S).lower().split(), "nan"
all = " ".join("".join(root.itertext()).split())
for want in sys.argv[2:]:
    assert want in all, f"{want!r} is not in {sys.argv[1]}"
PY
}

quick_model
words plan max_steps=2
"${words[0]}" plan "${words[@]:2}" --html $tmp/plan.html --memory 1GB >$tmp/plan.txt 2>&1 || fail "plan"
page $tmp/plan.html "It fits in" actor_train "all-gather of units" "FSDP[Qwen3DecoderLayer]" "Mesh: ddp 1 x fsdp 2" \
    "optimizer moments" "tape (activations): at most" actor_infer
! grep -q "Between hosts" $tmp/plan.html || fail "hosts of a plan without any"
"${words[0]}" plan "${words[@]:2}" --html $tmp/plan.html --hosts 2x2 --link 1GB/s >$tmp/plan.txt 2>&1 || fail "plan over hosts"
page $tmp/plan.html "Between hosts" "hosts 2 with 2 devices each" "into a host 1 GB/s (--link)" "weights to actor_infer, once a step:"
page $tmp/home/sft/run.html "sft_train/loss" "sft_step" "No difference in the records"

job whole max_steps=2 save_steps=100 eval_steps=100
[ $code -eq 0 ] || fail "run: exit code $code"
page $tmp/whole/run.html "No difference in the records" "critic/score/mean" "The last training step" train_step generate \
    "waits for gathers" reduce_scatter "Samples of the first step" "actor_infer" "Verdicts by cause" "Slowest verdicts" "Rows that fail"
cp $tmp/whole/run.html $tmp/before.html
rm $tmp/whole/run.html
"$CROLL" report $tmp/whole || fail "report"
cmp $tmp/whole/run.html $tmp/before.html || fail "report writes another page"
"$CROLL" report $tmp 2>$tmp/err && fail "report of no run"
grep -q "no config.yaml" $tmp/err || fail "report of no run: $(cat $tmp/err)"

# a rank that is killed in the middle
words dead max_steps=100 save_steps=100 eval_steps=100
log=$tmp/dead.log
"${words[@]}" >$log 2>&1 </dev/null &
run=$!
steps dead 2
pid=$(rank_of dead 0)
[ -n "$pid" ] || fail "no actor"
kill -9 $pid
code=0
wait $run || code=$?
[ $code -eq 1 ] || fail "exit code $code after a killed rank"
page $tmp/dead/run.html "The run ended with:" "was killed" "Where each rank was last" "critic/score/mean"
head -c 2000 $tmp/dead/flight/rank-01.bin >$tmp/cut && cp $tmp/cut $tmp/dead/flight/rank-01.bin
"$CROLL" report $tmp/dead || fail "report of a damaged record"
page $tmp/dead/run.html "A record is left out:" "rank-01.bin"
