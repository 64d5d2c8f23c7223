"""The steps of scripts/gpu-check in the order of their value, and the speeds that a GPU should reach."""
import json
import re

PROGRAM = re.compile(r"(croll|(unit|mesh|cuda|bench)_\w+)$")  # of the build folder


class Step:
    """Commands: a program of the build folder, a script of the tree or a program of the machine, its arguments, what is set for it alone (a dict).

    kind: "right" fails if a command fails, is ended at its limit or skips itself, or if the whole time is up before it; "tool" fails if a command
    does, but is incomplete where it has too little time, and skipped without the program that its commands begin with; "speed" is never more than
    incomplete; "facts" is ok. in_sim: it ends in minutes on the simulated GPU. check: what is wrong in its output. reads: files of the tree that
    its programs read."""

    def __init__(self, name, limit_s, what, *commands, kind="right", needs_model=False, in_sim=True, check=None, reads=()):
        self.name, self.limit_s, self.what, self.commands, self.kind = name, limit_s, what, commands, kind
        self.needs_model, self.in_sim, self.check, self.reads = needs_model, in_sim, check, reads
        self.tool = commands[0][0] if kind == "tool" else None

    def words(self):
        return [word for command in self.commands for word in command if isinstance(word, str)]

    def programs(self):
        return {word for word in self.words() if PROGRAM.match(word)}


def sees_a_gpu(said):
    """What is wrong in the lines of `croll doctor --json`."""
    found = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    bad = [f"{f['name']}: {f['found']}" for f in found if f["name"] in ("cuda", "gpu") and f["status"] != "ok"]
    return "; ".join(bad) if {"cuda", "gpu"} <= {f["name"] for f in found} else "no line about cuda and gpu"


FACTS = ("nvidia-smi -q | head -60", "nvidia-smi topo -m", "df -h / /dev/shm", "free -g", "nproc", "ldconfig -p | grep -E 'cublasLt|nccl|cudart'",
         "python3 -c 'import torch; print(torch.__version__, torch.version.cuda)'")

# small sizes, and every kind of kernel: a tool makes a kernel 10 to 100 times slower
WATCHED = (["cuda_device"], ["unit_kernels_devices", "norms"], ["unit_kernels_devices", "flat_ranges"], ["unit_kernels_devices", "moves"],
           ["unit_kernels_devices", "experts"], ["unit_kernels_devices", "head"], ["unit_kernels_attention", "attention"])

# a kernel, and what launches it
PROFILED = {"wgmma_product": ["bench_products", "1", "bf16", "1", "8192x2048x2048", {"CROLL_CUDA_PRODUCTS": "own"}],
            "attend_packed_wgmma": ["bench_ops", "1", "attention=8192x16x8x128"],
            "grad_of_keys_wgmma": ["bench_ops", "1", "attention=8192x16x8x128"],
            "grad_of_rows_wgmma": ["bench_ops", "1", "attention=8192x16x8x128"],
            "add_norm_parts": ["bench_ops", "1", "rmsnorm=65536x2048"]}


def watched(tool, what):
    words = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "86", "--report-api-errors", "no"]
    return Step(tool, 120, f"compute-sanitizer {tool}: {what}", *([*words, *command] for command in WATCHED), kind="tool")


def profiled():
    words = ["ncu", "--clock-control", "none", "--set", "basic", "--csv", "--launch-count", "1", "--kernel-name"]
    return Step("ncu", 60, "Nsight Compute's basic rows of the kernels that take longest", *([*words, f"regex:{name}", *c] for name, c in PROFILED.items()), kind="tool")


def speed(name, limit_s, what, *options):
    return Step(name, limit_s, what, ["bench/gpu_speed", *options], kind="speed")


STEPS = [
    Step("machine", 10, "driver, memory, room, libraries of NVIDIA's, as the machine names them", *(["sh", "-c", f"{fact} 2>&1"] for fact in FACTS), kind="facts"),
    Step("doctor", 30, "what the binary finds: driver, GPU, cuBLASLt's algorithms and whether their rows keep their bits", ["croll", "doctor", "--json"], check=sees_a_gpu),
    Step("first", 30, "the first call of attention (tensor maps, wgmma), of croll's own products, of cuBLASLt's", ["bench_ops", "1", "attention=192x2x1x128"],
         *(["bench_products", "1", "bf16", "1", "200x512x256", {"CROLL_CUDA_PRODUCTS": way}] for way in ("own", "library"))),
    Step("kernels", 60, "every operation against the cpu; rows alone and in company", ["unit_kernels_devices"]),
    Step("attention", 60, "attention packed, cached, and its gradient, against the cpu and by bits", ["unit_kernels_attention"]),
    Step("long", 45, "attention of sequences of 300, 2049 and 5000, packed and over the cache, by bytes, and against float64 by PyTorch",
         ["unit_kernels_attention_long", "whole"], in_sim=False, reads=("tests/parity/attention.json",)),
    Step("log_probs", 45, "log-probs, filters and draws against the cpu", ["unit_kernels_log_probs"]),
    Step("memory", 30, "memory, streams, events", ["cuda_device"], ["cuda_probe"]),
    Step("graphs", 30, "recorded steps (CUDA graphs) have the bits of the same steps without", ["cuda_engine_graphs"]),
    speed("ops", 75, "products, attention, bytes a second, beside cuBLAS and PyTorch where they are", "--only", "^(?!train|decode)"),
    speed("decode", 45, "tokens a second of the generation, greedy and with top_k 100, top_p 0.99", "--no-peers", "--only", "^decode"),
    speed("train", 60, "tokens a second of training", "--no-peers", "--only", "^train"),
    profiled(),
    Step("bits", 40, "what generation says of its tokens are the bits of logprobs, fp32 and bf16", ["tests/e2e/device_step.sh", "generation"]),
    Step("engine", 40, "the engine's batches, prefixes and sampling", *([f"unit_engine_{name}"] for name in ("batching", "prefixes", "sampling")), in_sim=False,
         reads=("tests/parity/sampling.json",)),
    Step("cut_matrix", 90, "gradients of 1, 2 and 4 ranks, however model and batch are cut, against one rank",
         *(["scripts/mpi", ranks, "mesh_cut_matrix", {"CUT_NUM": num}] for ranks, num in (("1", "4"), ("2", "8"), ("4", "16")))),
    Step("sft", 40, "gradient of each tensor, and losses of fine-tuning over its updates, against the cpu", ["tests/e2e/device_step.sh", "gradient", "sft"]),
    Step("runs", 90, "runs of rlvr against the cpu: reward, loss, gradient of each step", ["tests/e2e/device_run.sh"], needs_model=True, in_sim=False),
    Step("rlvr", 180, "the quickstart's reinforcement: the score rises, log-probs of generation = of training in each step",
         ["tests/e2e/run_learns.sh"], needs_model=True, in_sim=False),
    speed("peers", 120, "training and decoding beside FSDP2 with torch.compile, vLLM, Transformers", "--only", "^(train|decode)"),
    watched("memcheck", "access past an allocation, misaligned"),
    watched("racecheck", "races in shared memory"),
    watched("initcheck", "reads of memory that nothing wrote"),
    watched("synccheck", "barriers that not all threads reach"),
]

# Least shares of the limit, from below what is predicted for an H100 (docs/cuda.md): name, `what` and unit of bench/gpu_speed. Of several the lowest counts.
BARS = [
    ("copy: 85 % of memory speed", r"^copy", "GB/s", 0.85),
    ("products by cuBLASLt, 8192 rows: 55 %", r"^gemm \w+ 8192x.*cuBLASLt", "TFLOP/s", 0.55),
    ("attention, heads of 128: 38 %", r"^attention causal.*128$", "TFLOP/s", 0.38),
    ("its gradient: 20 %", r"^attention backward.*128$", "TFLOP/s", 0.20),
    ("log-probs: 34 %", r"^log-probs \d", "TFLOP/s", 0.34),
    ("their gradient: 28 %", r"^log-probs backward", "TFLOP/s", 0.28),
    ("AdamW: 80 % of memory speed", r"^adamw", "GB/s", 0.80),
    ("RMSNorm: 60 % of memory speed", r"^rmsnorm \d", "GB/s", 0.60),
    ("its gradient: 45 % of memory speed", r"^rmsnorm backward", "GB/s", 0.45),
    ("decode, 0.6B, 1 sequence, greedy: 10 % of memory speed", r"^decode.*0\.6B, 1 sequence.*greedy$", "tokens/s", 0.10),
    ("decode, 0.6B, 64 sequences, greedy: 40 % of memory speed", r"^decode.*0\.6B, 64 sequence.*greedy$", "tokens/s", 0.40),
    ("training, 1.7B shape, bf16: 30 % MFU", r"^train.*1\.7B", "tokens/s", 0.30),
]
