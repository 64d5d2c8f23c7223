#!/bin/bash
# hosts_plan.sh -- a run over two hosts beside its plan: bytes into a host as the kernel counts them. The links are cut: no rate that the
# run measures (hosts.json, which the plan reads) is above that, and no step takes less than its bytes need.
# Not covered: the recorder's counts (tests/mesh/links.c), how near a plan's time is to that of a step (bench/README.md).
. tests/e2e/run.inc
. tests/e2e/rig.inc
command -v tc >/dev/null || skip "there is no tc (iproute2)"
make_quick_data() { scripts/make_sums $tmp/home && "$CROLL" init $tmp/home/model >/dev/null; }
mkdir -p $tmp/home
make_quick_data
rig_up 2
for host in h1 h2; do
    rig in $host tc qdisc add dev eth0 root tbf rate 40mbit burst 64kb latency 200ms 2>/dev/null || skip "this kernel has no tbf queues"
done
shared=/mnt/shared steps=6
keys=(pretrain=$shared/home/model output_dir=$shared/out track_with=none "sft_train.data_args.file_name=[$shared/home/sft.jsonl]"
    "sft_train.device_mapping=list(range(0,4))" sft_train.strategy_args.strategy_config.fsdp_size=4 max_steps=$steps
    sft_train.training_args.per_device_train_batch_size=8 logging_steps=1 save_steps=1000)
into() { rig in h2 cat /sys/class/net/eth0/statistics/rx_bytes; }
start() { # the bytes that came into h2 when the first step had ended, or $done of them, and at the end
    rig in h1 "$CROLL" run configs/quickstart/sft.yaml "${keys[@]}" --hosts h1:2,h2:2 >$log 2>&1 </dev/null &
    run=$!
    steps out 1
    first=$(into)
    done=$(($(wc -l <$tmp/out/metrics.jsonl) - 1)) # without the head
    wait $run
    last=$(into)
}
log=$tmp/out.log
start || fail "exit code $?"
rig in h1 "$CROLL" plan configs/quickstart/sft.yaml "${keys[@]}" --hosts h1:2,h2:2 --json >$tmp/plan.json 2>$log || fail "plan"
python3 - $tmp $((last - first)) $steps $done <<'PY' || fail "the run is not its plan"
import json, sys
tmp, moved, steps, done = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
cut, burst, measured_s = 40e6 / 8, 64e3, 0.05
p = json.load(open(f"{tmp}/plan.json"))
h, rates = p["hosts"]["roles"][0], p["hosts"]["rates"]
flows = ("gathers", "reductions", "replicas", "exchanges", "small")
passes = [h[x] for x in ("first_micro_batch", "micro_batch", "update") if x in h]
planned = sum(x["times"] * x[f]["bytes_into_host"] for x in passes for f in flows if f in x)
network = sum(x["times"] * x[f]["seconds"] for x in passes for f in flows if f in x)
lines = [json.loads(l) for l in open(f"{tmp}/out/metrics.jsonl")][1:]
times = sorted(l["time/step_total"] for l in lines)
step = times[len(times) // 2]
print(f"link {rates['link']['per_s']:.4g} B/s {rates['link']['source']}; into h2 a step: plan {planned:.0f}, kernel {moved / (steps - done):.0f}; "
      f"step: network {network:.3f} s, run {step:.3f} s, at least {planned / cut:.3f} s")
# headers of TCP and IP, signs of life; the step that is under way when the first count is taken
assert planned * (steps - done - 1) < moved < planned * steps * 1.15 + 2e6, (planned, moved)
assert "measured" in rates["link"]["source"] and 0 < rates["link"]["per_s"] < cut + burst / measured_s, rates
assert network >= planned / rates["link"]["per_s"] * 0.99, (network, planned, rates)
assert times[0] > planned / cut * 0.9, (times, planned / cut)
PY
