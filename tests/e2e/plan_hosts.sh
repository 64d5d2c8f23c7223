#!/bin/bash
# plan_hosts.sh -- croll plan over several hosts: bytes into a host against closed formulas, places and sizes of shard groups,
# times from measured and from data sheet rates, what a GPU keeps, and what is refused. Needs python3.
# Not covered: a run beside it (hosts_plan.sh).
set -u
: "${CROLL:?the binary}"
command -v python3 >/dev/null || { echo "no python3: scripts/setup --check installs it"; exit 1; }
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
fail() { echo "FAIL: $*" >&2; cat "$dir/err" >&2; exit 1; }
cat > "$dir/sft.yaml" <<YAML
exp_name: plan
pretrain: Qwen/Qwen3-0.6B
output_dir: $dir/run
sequence_length: 1024
sft_train:
  model_args: {dtype: bf16, disable_gradient_checkpointing: false}
  training_args: {learning_rate: 1.0e-5, per_device_train_batch_size: 2, gradient_accumulation_steps: 3}
  data_args: {file_name: [none.jsonl]}
  strategy_args: {strategy_name: fsdp2_train, strategy_config: {param_dtype: bf16}}
  device_mapping: list(range(0,32))
YAML
sed 's/sft_train/actor_train/; /sequence_length/d; s/file_name: .none.jsonl./file_name: [none.jsonl], messages: messages, domain_interleave_probs: {ifeval: 1.0}/' \
    "$dir/sft.yaml" > "$dir/rlvr.yaml"
cat >> "$dir/rlvr.yaml" <<YAML
rollout_batch_size: 64
num_return_sequences_in_group: 8
prompt_length: 512
response_length: 512
init_kl_coef: 0.0
adv_estimator: grpo
actor_infer:
  model_args: {dtype: bf16}
  strategy_args: {strategy_name: fsdp2_infer}
  device_mapping: list(range(0,32))
rewards:
  ifeval:
    worker_cls: roll.pipeline.rlvr.rewards.ifeval_rule_reward_worker.GeneralRuleRewardWorker
    tag_included: [ifeval]
YAML
number=0
plan() { # what python checks, FILE, then arguments; the plan is `p`, its first role `r`, of the hosts `h`
    local check=$1
    shift
    number=$((number + 1))
    "$CROLL" plan "$@" --json > "$dir/plan" 2> "$dir/err" || fail "plan $*: exit $?"
    cp "$dir/err" "$dir/warned"
    python3 - "$dir/plan" > "$dir/err" 2>&1 <<PY || fail "plan $*"
import json, sys
p = json.load(open(sys.argv[1]))
r = p["roles"][0]
def near(x, want, part=1e-9): assert abs(x - want) <= part * abs(want), (x, want)
passes = ("first_micro_batch", "micro_batch", "update", "forward")
def of(role, flow, what): # in a step
    return sum(role[x]["times"] * role[x][flow][what] for x in passes if x in role and flow in role[x])
if "hosts" in p:
    h = p["hosts"]["roles"][0]
    hosts = p["hosts"]["num"]
$check
PY
}
refuses() { # a part of the message, then arguments
    local part=$1
    shift
    "$CROLL" plan "$@" > "$dir/out" 2> "$dir/err"
    case $? in 1 | 2) ;; *) fail "$*: exit code" ;; esac
    grep -qF -- "$part" "$dir/err" || fail "$*: no word of: $part"
}

# one shard group over 4 hosts of 8: each part enters a host once; of reductions the sums of three hosts, in float32
flat='
assert h["host_of"] == [i // 8 for i in range(32)], h["host_of"]
near(of(h, "gathers", "calls"), r["step"]["all_gather"]["num"])
near(of(h, "gathers", "bytes_into_host"), r["step"]["all_gather"]["bytes"] * 24 / 32)
near(of(h, "gathers", "bytes_inside"), r["step"]["all_gather"]["bytes"] * (8 * 31 / 32 - 24 / 32))
assert "replicas" not in h["update"]'
plan "$flat"'
near(of(h, "reductions", "bytes_into_host"), r["step"]["reduce_scatter"]["bytes"] * 3 * 8 / 32)
assert "seconds" not in h["micro_batch"] and "compute_seconds" not in h["micro_batch"]
assert p["hosts"]["rates"] == {}' "$dir/sft.yaml" --hosts 4x8
plan 'near(of(h, "reductions", "bytes_into_host"), r["step"]["reduce_scatter"]["bytes"] * 2 * 3 * 8 / 32)' \
    "$dir/sft.yaml" --hosts 4x8 sft_train.strategy_args.strategy_config.reduce_dtype=bf16
# NCCL sums nothing on the way: each rank receives every contribution to its part
plan "$flat"'
near(of(h, "reductions", "bytes_into_host"), r["step"]["reduce_scatter"]["bytes"] * 8 * 24 / 32)' \
    "$dir/sft.yaml" --hosts 4x8 --device h100 --link 400GB/s
# shard groups inside a host: only replicas cross, once an update; the file names two updates, the ranks of one host stay there
plan '
assert of(h, "gathers", "bytes_into_host") == of(h, "reductions", "bytes_into_host") == 0
u = h["update"]["replicas"]
shards = 4 * r["shard_elements"] * 8
near(u["bytes_into_host"], shards * (3 * 1 / 4 + 3 / 4), 0.01)' \
    "$dir/sft.yaml" --hosts 4x8 sft_train.strategy_args.strategy_config.fsdp_size=8
plan 'assert h["host_of"] == [0, 0, 0, 0, 1, 1, 1, 1], h' "$dir/sft.yaml" --hosts a:6,b:4 --world 8 \
    sft_train.strategy_args.strategy_config.fsdp_size=4

# times: rates of a file, of a link; a better size is one that is faster
echo '{"device": "test", "product_flops_per_s": 1e13, "attention_flops_per_s": 1e12, "memory_bytes_per_s": 1e11}' > "$dir/rates"
plan '
m = h["micro_batch"]
compute = (m["flops"] - m["attention_flops"]) / 1e13 + m["attention_flops"] / 1e12 + m["moved_bytes"] / 1e11
near(m["compute_seconds"], compute)
under = (m["gathers"]["bytes_into_host"] + m["reductions"]["bytes_into_host"]) / 1e9
near(m["gathers"]["seconds"], m["gathers"]["bytes_into_host"] / 1e9)
assert under > compute
near(m["not_hidden_seconds"], under - compute, 1e-6)
near(h["step_seconds"], sum(h[x]["times"] * h[x]["seconds"] for x in passes if x in h))
c = p["hosts"]["choices"]
assert [x["fsdp_size"] for x in c] == [8, 16, 32] and c[2]["is_file"], c
best = min(c, key=lambda x: x["step_seconds"])
assert [x["is_best"] for x in c] == [x is best and not x["is_file"] for x in c], c
assert not best["is_file"]
near(c[2]["step_seconds"], h["step_seconds"])
assert c[0]["peak_bytes"] > c[2]["peak_bytes"] == p["device_peak_bytes"]' \
    "$dir/sft.yaml" --hosts 4x8 --rates "$dir/rates" --link 1GB/s
for size in 2 8 12 32; do # the file's own size is always there, once, in its place
    plan 'c = [x["fsdp_size"] for x in p["hosts"]["choices"]]; assert c == sorted({8, 24, '$size'} if '$size' != 32 else {8, 16, 32}), c
assert [x["is_file"] for x in p["hosts"]["choices"]] == [x == '$size' for x in c]' "$dir/sft.yaml" \
        --hosts $([ $size = 32 ] && echo 4x8 --world 32 || echo 3x8 --world 24) sft_train.strategy_args.strategy_config.fsdp_size=$size
done
# what does not fit is not better
plan 'c = p["hosts"]["choices"]; assert not any(x["is_best"] and x["peak_bytes"] > p["memory_bytes"] for x in c)' \
    "$dir/sft.yaml" --hosts 4x8 --rates "$dir/rates" --link 1GB/s --memory 1.9GB
# the run's own check of its hosts
mkdir "$dir/run"
echo '{"hosts": ["a", "b"], "links": [{"from": "a", "to": "b", "bytes_per_s": 1.2e9, "latency_s": 1e-5},
    {"from": "b", "to": "a", "bytes_per_s": 1.1e9, "latency_s": 3e-5}]}' > "$dir/run/hosts.json"
plan 'x = p["hosts"]["rates"]; assert x["link"]["per_s"] == 1.1e9 and "b to a" in x["link"]["source"] and x["latency_seconds"] == 3e-5, x' \
    "$dir/sft.yaml" --hosts 4x8
plan 'x = p["hosts"]["rates"]; assert x["link"] == {"per_s": 5e9, "source": "--link"}, x' "$dir/sft.yaml" --hosts 4x8 --link 40Gbit/s
echo '{"links": 3}' > "$dir/run/hosts.json"
refuses 'hosts.json: no list "links"' "$dir/sft.yaml" --hosts 4x8
rm -r "$dir/run"

# roles that share devices: as many ranks a device; weights into each engine
plan '
places = sum((x["host_of"] for x in p["hosts"]["roles"]), [])
assert [places.count(i) for i in range(4)] == [16] * 4, places
e = p["hosts"]["roles"][1]
assert e["sync_bytes_into_engine"] == p["roles"][1]["step"]["weight_sync"]["bytes"]
assert e["sync_bytes_into_host"] == e["sync_bytes_into_engine"]' "$dir/rlvr.yaml" --hosts 4x8
"$CROLL" plan "$dir/rlvr.yaml" --hosts 4x8 --link 12.3GB/s > "$dir/out" 2> "$dir/err" || fail "text"
for part in 'hosts    4 with 8 devices each' 'actor_train     h1 0-15, h2 16-31' 'into a host                   12.3 GB/s  (--link)' \
    'a meeting of all its ranks is 2 messages' 'weights to actor_infer, once a step:' 'actor_train by fsdp_size' '<- the file' \
    'products of a device          not known'; do
    grep -qF -- "$part" "$dir/out" || { cat "$dir/out"; fail "text: no $part"; }
done

# on GPUs device_mapping says where ranks are
gpus="h1 0-7, h2 8-15, h3 16-23, h4 24-31"
"$CROLL" plan "$dir/rlvr.yaml" --hosts 4x8 --device h100 > "$dir/out" 2> "$dir/err" || fail "text for GPUs"
for role in actor_train actor_infer; do
    grep -qx -- "  $role  *$gpus" "$dir/out" || { cat "$dir/out"; fail "$role on GPUs"; }
done
plan 'places = [x["host_of"] for x in p["hosts"]["roles"]]
assert places == [[0] * 4 + [1] * 4, [1] * 4 + [2] * 4], places' "$dir/rlvr.yaml" --hosts a:12,b:12,c:12 --device cuda \
    num_gpus_per_node=4 'actor_train.device_mapping=list(range(0,8))' 'actor_infer.device_mapping=list(range(4,12))'
refuses 'no host has room for device 8 of device_mapping (ranks: 1)' "$dir/rlvr.yaml" --hosts a:12,b:12 \
    --device cuda num_gpus_per_node=4 'actor_train.device_mapping=list(range(0,8))' 'actor_infer.device_mapping=list(range(4,12))'

# in a Slurm job its hosts, as a run has them; a list that is given need not be of it; what a run refuses is a warning
mkdir "$dir/bin"
printf '#!/bin/sh\nprintf "n1\\nn2\\n"\n' > "$dir/bin/scontrol"
chmod +x "$dir/bin/scontrol"
in_job() { PATH=$dir/bin:$PATH SLURM_JOB_ID=7 SLURM_JOB_NODELIST='n[1-2]' SLURM_TASKS_PER_NODE="$1(x2)" "${@:2}"; }
in_job 16 plan 'assert hosts == 2 and h["host_of"] == [i // 16 for i in range(32)], h' "$dir/sft.yaml" --link 1GB/s
in_job 16 plan 'assert hosts == 4, hosts' "$dir/sft.yaml" --hosts 4x8
in_job 16 plan 'assert "hosts" not in p' "$dir/sft.yaml" --world 64
in_job 1 plan 'assert "hosts" not in p' "$dir/sft.yaml"
grep -q 'plan: warning: without hosts .*: Slurm job 7 .* has room for 2 ranks' "$dir/warned" || fail "no warning of a small job"
in_job 16 "$CROLL" run "$dir/sft.yaml" --hosts a:32 > "$dir/out" 2> "$dir/err"
[ $? = 2 ] && grep -q 'a is no host of Slurm job 7' "$dir/err" || fail "a run beyond its job"

# what a GPU keeps, and its data sheet
plan 'keeps = sum(x["bytes"] for x in r["device_keeps"]); assert all(x["source"] for x in r["device_keeps"])
assert 0.5e9 < keeps < 3e9 and p["memory_bytes"] == 143771 * 2 ** 20
near(p["device_peak_bytes"], r["peak_bytes"]["total"] + keeps + 9 * 2 ** 21)' "$dir/sft.yaml" --device h200
plan 'assert "device_keeps" not in r' "$dir/sft.yaml"
plan 'assert "device_keeps" in r and "memory_bytes" not in p' "$dir/sft.yaml" --device cuda
# 1,024 ranks in seconds
plan 'assert len(p["hosts"]["choices"]) == 8' "$dir/sft.yaml" --world 1024 --hosts 128x8 --device h100 --link 400GB/s

refuses '--link 400 is not a rate' "$dir/sft.yaml" --hosts 4x8 --link 400
refuses '--link and --rates are of a plan with --hosts' "$dir/sft.yaml" --link 1GB/s
refuses '--device h1000: cpu, cuda, or a GPU by name' "$dir/sft.yaml" --device h1000
for shape in 70000x8 0x8 8x 8x8x8; do refuses "--hosts $shape: hosts x devices" "$dir/sft.yaml" --hosts $shape; done
# hosts are counted in devices, those without a rank are named; a GPU has the memory that nvidia-smi shows of it
refuses '--hosts 2x8: 16 devices, device_mapping of the roles names 32' "$dir/rlvr.yaml" --hosts 2x8
"$CROLL" plan "$dir/rlvr.yaml" --hosts 7x8 --device h100 > "$dir/out" 2> "$dir/err" || fail "7x8"
grep -q '^hosts    7 with 8 devices each; 3 of them have no rank' "$dir/out" || fail "idle hosts: $(grep ^hosts "$dir/out")"
plan 'assert p["memory_bytes"] == 81559 * 2 ** 20, p["memory_bytes"]' "$dir/rlvr.yaml" --device h100
refuses "room for 16 ranks" "$dir/sft.yaml" --hosts a:8,b:8
refuses 'cannot open' "$dir/sft.yaml" --hosts 4x8 --rates "$dir/none"
echo '{"device": "test", "product_flops_per_s": -1}' > "$dir/rates"
refuses 'product_flops_per_s is not a number above 0' "$dir/sft.yaml" --hosts 4x8 --rates "$dir/rates"
echo "$number plans"
