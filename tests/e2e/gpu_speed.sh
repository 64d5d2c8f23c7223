#!/bin/bash
# bench/gpu_speed on the device ($CROLL_DEVICE) in small shapes; FLOPs, bytes, shares and the MFU of known shapes against numbers
# worked out by hand, with programs that pretend to have taken a known time; programs and peers that fail, hang or count
# otherwise. Not covered: speed itself, vLLM and torch (the peers here are pretended), a real GPU.
# also on cuda
# mostly waits
. tests/e2e/run.inc
log=$tmp/err
speed() { # EXIT-CODE OPTION ..: lines in $tmp/out
    local want=$1 code=0
    shift
    timeout 900 bench/gpu_speed "$@" >$tmp/out 2>$log </dev/null || code=$?
    [ $code = $want ] || { cat $tmp/out; fail "gpu_speed $*: exit code $code, not $want"; }
}
# lines PYTHON: on x, the lines by "what"; near(a, b) is to 4 digits
lines() {
    python3 - $tmp/out "$1" <<'PY' || fail "$1"
import json, math, sys
x = {}
def no_number(text):
    raise ValueError(text)
for line in open(sys.argv[1]):
    y = json.loads(line, parse_constant=no_number)
    assert y["what"] not in x and y["device"] and y["unit"] in ("TFLOP/s", "GB/s", "tokens/s"), y
    x[y["what"]] = y
    if "missing" in y:
        assert y["missing"] and not {"value", "share", "peer_value", "ratio", "fault"} & set(y), y
        continue
    assert ("peer_value" in y) == ("ratio" in y) != ("peer_missing" in y) and y.get("peer_missing", "why"), y
    assert ("limit" in y) == ("share" in y) != ("limit_missing" in y), y
    for key in ("value", "limit", "share", "peer_value", "ratio"):
        assert key in y or key != "value", y
        assert key not in y or (math.isfinite(y[key]) and y[key] > 0), y
def near(a, b):
    assert abs(a - b) <= 2e-4 * abs(b), (a, b)
exec(sys.argv[2])
PY
}

# all of it, with programs of this build and a Python without torch
printf '#!/bin/sh\nexec python3 -I -S "$@"\n' >$tmp/bare
chmod +x $tmp/bare
device=${CROLL_DEVICE:-cpu}
speed 0 --tiny --seconds 800 --device $device --build "$TOOLS" --python $tmp/bare --gpu "NVIDIA H100 80GB HBM3"
lines "
assert len(x) == (23 if '$device' == 'cuda' else 20), len(x)
for y in x.values():
    assert 'value' in y and 'fault' not in y and ('decode greedily' if 'top_k' in y['what'] else 'torch') in y['peer_missing'], y
    near(y['share'], y['value'] / y['limit'])
assert {y['limit'] for y in x.values() if y['unit'] == 'GB/s'} == {3350}
near(x['adamw 5000 elements']['share_of_copy'], x['adamw 5000 elements']['value'] / x['copy 64 KiB']['value'])"
if [ $device = cuda ]; then # products that are not cuBLASLt's are not taken for its
    lines "assert not any('note' in y for y in x.values())"
    CROLL_CUDA_PRODUCTS=own CROLL_SIM_CUBLASLT=none speed 0 --tiny --build "$TOOLS" --python $tmp/bare --only 'gemm y'
    lines "assert {y['what'].split()[-1]: 'note' in y for y in x.values()} == {'cuBLASLt': True, 'own': False}"
    echo ok
    exit 0
fi

# ---- known shapes: programs that say that they took known times and counted what they should ----
mkdir -p $tmp/fake $tmp/peers $tmp/site/torch $tmp/site/transformers
cat >$tmp/fake/any <<'PY'
#!/usr/bin/env python3
import json, os, sys
name, args = os.path.basename(sys.argv[0]), sys.argv[1:]
counted = {"attention=8192x16x8x128": 274911461376, "attention_grad=8192x16x8x128": 687278653440, "adamw=67108864": 1879048192,
           "rmsnorm=65536x2048": 536870912, "rmsnorm_grad=65536x2048": 805306368,
           "head=8192x151936x1024": 2549076692992, "head_grad=8192x151936x1024": 7647230078976}
if name == "bench_products":
    for arg in args[3:]:
        m, n, k = map(int, arg.split("x"))
        one = [1, 1, 0.25, 137438953472 if arg == "4096x4096x4096" else 2 * m * n * k]
        print(json.dumps({"m": m, "n": n, "k": k, "y": one, "y_packed": one, "dx": one, "dw": one}))
elif name == "bench_ops":
    for arg in args[1:]:
        op, sizes = arg.split("=")
        for case in [arg, op + "_grad=" + sizes]:
            count = counted.get(case, float(os.environ.get("COUNT", 1)))
            print(json.dumps({"case": case, "seconds": 0.5, "flops": count, "moved_bytes": count}))
elif name == "bench_train":
    print(json.dumps({"tokens_per_s": 10000.0, "gflop_per_s": 71000.0 if args[0].endswith("0.6B") else 140000.0}))
else:
    rate = {("0", "none"): 1000, ("0.99", "roll"): 500}[args[4], args[7]]
    for streams in map(int, args[1].split(",")):
        print(json.dumps({"streams": streams, "tokens_per_s_median": rate}))
PY
chmod +x $tmp/fake/any
for name in products ops train decode; do ln -s any $tmp/fake/bench_$name; done
fake() { speed "$1" --device cpu --build $tmp/fake --python $tmp/bare "${@:2}"; }
fake 0 --gpu "NVIDIA H100 80GB HBM3" --only 'gemm y 4096|heads of 128|elements|rmsnorm|copy|checksum|rows|train.*0.6B|decode'
lines "
at = lambda part: next(y for y in x.values() if part in y['what'])
near(at('gemm y 4096')['value'], 0.5497558)                # 2 x 4096^3 = 137,438,953,472 in 0.25 s
near(at('gemm y 4096')['share'], 0.5497558 / 989)
near(at('attention causal')['value'], 0.5498229)           # 8192 x 8193 / 2 pairs x 16 heads x 4 x 128 in 0.5 s
near(at('attention backward')['value'], 1.3745573)         # 2.5 times that
near(at('copy 512 MiB')['value'], 2.1474836)               # 2 x 2^29 bytes in 0.5 s
near(at('checksum 512 MiB')['value'], 1.0737418)           # 2^29
near(at('adamw')['value'], 3.7580964)                      # 28 x 2^26
near(at('rmsnorm 65536')['value'], 1.0737418)              # 4 x 2^27
near(at('rmsnorm backward')['value'], 1.6106127)           # 6 x 2^27
near(at('head 16 rows')['value'], 0.6223954)               # 2 x 151952 x 1024
near(at('log-probs 8192 rows')['value'], 5.0981534)             # 2 x 8192 x 151936 x 1024
near(at('log-probs backward 8192')['value'], 15.2944602)        # 3 times that
near(at('train')['share'], 0.0646634)                      # (6 x 596,049,920 + 12 x 4096.5 x 28 x 16 x 128) x 10000 / 989e12
near(at('0.6B, 16 sequences, bf16, greedy')['limit'], 40033)         # 3350e9 x 16 / (2 x 596,049,920 + 16 x 114,688 x 80)"
fake 0 --gpu "NVIDIA B200" --only 'train.*1.7B'
lines "near(x['train Qwen3 1.7B, 8192 tokens a step, bf16']['share'], 0.0584118)" # 6 x 1,720,574,976 + the same attention, 2250e12
fake 0 --only 'gemm y 4096'
lines "assert x['gemm y 4096x4096x4096 bf16, cpu']['limit_missing'] == 'no data sheet of \"cpu\" here'"

# what the device counts is not what the formula says; a program that fails, one that hangs; the others are measured all the same
fake 1 --only 'heads of 64|copy'
lines "
assert x['attention causal 8192 tokens, 16 heads of 64']['fault'] == '1.37455731e+11 by the formula, 1 by the device'
assert 'fault' not in x['copy 512 MiB'] and 'value' in x['copy 512 MiB']"
rm $tmp/fake/bench_ops $tmp/fake/bench_train
printf '#!/bin/sh\necho "bench_ops: no memory" >&2\nexit 1\n' >$tmp/fake/bench_ops
printf '#!/bin/sh\necho $$ >>%s\nexec sleep 600\n' $tmp/pids >$tmp/fake/bench_train
chmod +x $tmp/fake/bench_ops $tmp/fake/bench_train
fake 1 --seconds 20 --only 'copy|train.*1.7B|decode.*16 seq'
lines "
assert x['copy 512 MiB']['missing'] == 'bench_ops: no memory'
assert 'bench_train Qwen3-1.7B was not done in ' in x['train Qwen3 1.7B, 8192 tokens a step, bf16']['missing']
near(x['decode Qwen3 0.6B, 16 sequences, bf16, greedy']['value'], 1000)
near(x['decode Qwen3 0.6B, 16 sequences, bf16, top_k 100, top_p 0.99']['value'], 500)"

fake 0 --seconds 10 --only 'train.*1.7B' # the time is no failure
lines "assert 'was not done in' in x['train Qwen3 1.7B, 8192 tokens a step, bf16']['missing']"

printf '#!/bin/sh\necho "{\\"case\\": \\"copy=536870912\\", \\"seconds\\": 0.5}"\nexit 4\n' >$tmp/fake/bench_ops
fake 1 --only copy # fails after its number
lines "near(x['copy 512 MiB']['value'], 2.1474836)"
printf '#!/bin/sh\necho "{\\"y\\": 1, \\"m\\": 2}"\necho "[1]"\necho "{"\necho "{\\"case\\": \\"copy=536870912\\", \\"seconds\\": NaN}"\n' >$tmp/fake/bench_ops
fake 1 --only copy
lines "assert x['copy 512 MiB']['missing'] == 'no number was printed'"

# stopped: what it started ends, too
rm $tmp/pids
bench/gpu_speed --device cpu --build $tmp/fake --python $tmp/bare --only 'train.*1.7B' >$tmp/out 2>$log </dev/null &
driver=$!
until_true '[ -s $tmp/pids ]'
kill -TERM $driver
wait $driver && fail "stopped, and exit code 0"
[ -s $tmp/pids ] && [ ! -e /proc/"$(cat $tmp/pids)" ] || fail "stopped, and process $(cat $tmp/pids) is left"

# ---- peers: one that answers, one operation that fails, one that hangs, one that ends at once ----
rm $tmp/fake/bench_ops $tmp/fake/bench_train
for name in ops train; do ln -s any $tmp/fake/bench_$name; done
touch $tmp/site/torch/__init__.py $tmp/site/transformers/__init__.py
cat >$tmp/peers/gpu_ops.py <<'PY'
import json, os, sys, time
open(os.environ["PIDS"], "a").write("%d\n" % os.getpid())
print(json.dumps({"peer": "torch"}), flush=True)
for line in sys.stdin:
    line = line.strip()
    if line.startswith("head=8192"): time.sleep(600)
    if line.startswith("adamw"): print(json.dumps({"case": line, "failed": "OutOfMemoryError: none left"}))
    else: print(json.dumps({"case": line.replace("gemm", "y"), "seconds": 0.125}))
    print(json.dumps({"done": line}), flush=True)
PY
printf 'import sys\nprint("a warning", file=sys.stderr)\nraise RuntimeError("no nccl here")\n' >$tmp/peers/train_fsdp2.py
printf 'import json\nprint(json.dumps({"tokens_per_s": 250.0}))\n' >$tmp/peers/generate_hf.py
export PYTHONPATH=$tmp/site PIDS=$tmp/pids COUNT=1879048192
speed 0 --device cpu --build $tmp/fake --python "$(command -v python3)" --peers $tmp/peers --seconds 60 \
    --only 'gemm y 4096|copy|adamw|log-probs 8192|train.*0.6B|decode.*16 seq'
lines "
near(x['gemm y 4096x4096x4096 bf16, cpu']['ratio'], 0.5)
near(x['copy 512 MiB']['peer_value'], 8.589935)
assert x['adamw 67108864 elements']['peer_missing'] == 'OutOfMemoryError: none left'
assert x['log-probs 8192 rows, 151936 words of 1024']['peer_missing'] == 'torch gave no answer in its time'
assert x['train Qwen3 0.6B, 8192 tokens a step, bf16']['peer_missing'] == 'RuntimeError: no nccl here'
near(x['decode Qwen3 0.6B, 16 sequences, bf16, greedy']['ratio'], 4)
assert x['decode Qwen3 0.6B, 16 sequences, bf16, greedy']['peer'] == 'Transformers'
assert x['decode Qwen3 0.6B, 16 sequences, bf16, top_k 100, top_p 0.99']['peer_missing'] == 'peers decode greedily'"
[ "$(wc -l <$tmp/pids)" -ge 2 ] || fail "what hung was not started"
wc -l <$tmp/pids >$tmp/asked
speed 0 --device cpu --build $tmp/fake --python "$(command -v python3)" --peers $tmp/peers --no-peers --only 'copy|decode.*16 seq.*greedy'
lines "assert {y['peer_missing'] for y in x.values()} == {'peers were left out'}"
[ "$(wc -l <$tmp/pids)" = "$(cat $tmp/asked)" ] || fail "a peer was started in spite of --no-peers"
while read -r pid; do
    [ ! -e /proc/$pid ] || fail "process $pid is left"
done <$tmp/pids
speed 2 --only '('
speed 2 --seconds 0
speed 2 --only 'nothing of that name'
echo ok
