#!/usr/bin/env python3
"""optimizers.py -- an sft run of croll with optim: muon and groups of parameters, stepped again by torch's optimizers.

    tests/parity/optimizers.py --croll build/release/croll --model MODEL --data ROWS.jsonl [--steps 6]

Each step's gradient is taken from the moments in the run's checkpoints (float32). torch.optim.Muon has the matrices and
torch.optim.AdamW the rest, with the run's numbers; both begin with the run's weights and go on by themselves. Printed is how
far the weights are from the run's, relative to what they have moved: with torch's Newton-Schulz as it is, in bfloat16, and with
the same steps in float64. Exits 1 if the latter is above 1e-4, or the former above 0.2 (bfloat16 loses small singular values: about 0.13). MODEL: the quickstart's sft_model.
"""
import argparse, json, pathlib, subprocess, sys, tempfile

sys.path.pop(0)
import numpy, safetensors.torch, torch

parser = argparse.ArgumentParser()
parser.add_argument("--croll", required=True)
parser.add_argument("--model", required=True)
parser.add_argument("--data", required=True)
parser.add_argument("--steps", type=int, default=6)
a = parser.parse_args()

RATE, MUON, DECAY, B1, B2, MOMENTUM = 1e-3, 2e-2, 0.1, 0.9, 0.95, 0.9
NORMS = 3e-3  # the rate of norms
CASES = {"match_rms_adamw": True, "original": True, "spectral_unclamped": False}  # adjust_lr_fn: nesterov


def run(out, steps, adjust, nesterov):
    keys = [f"pretrain={a.model}", f"output_dir={out}", "track_with=none", f"max_steps={steps}", "save_steps=1", "validation=null",
            f"sft_train.data_args.file_name=[{a.data}]", "max_grad_norm=0", "sft_train.model_args.dtype=fp32"]
    training = dict(optim="muon", learning_rate=RATE, weight_decay=DECAY, adam_beta1=B1, adam_beta2=B2, lr_scheduler_type="constant",
                    warmup_steps=0, warmup_ratio=0, per_device_train_batch_size=8)
    keys += [f"sft_train.training_args.{k}={v}" for k, v in training.items()]
    keys += [f"sft_train.training_args.muon_args={{learning_rate: {MUON}, momentum: {MOMENTUM}, nesterov: {str(nesterov).lower()}, adjust_lr_fn: {adjust}}}",
             f"sft_train.training_args.param_groups=[{{params: '.*norm.*', learning_rate: {NORMS}, weight_decay: 0}}]"]
    done = subprocess.run([a.croll, "run", "configs/quickstart/sft.yaml", *keys], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stdout[-2000:] + done.stderr[-2000:])


def states(folder):
    """Masters and first moments by name, and whether a parameter is Muon's."""
    index = json.loads((folder / "state/sft_train.json").read_text())["params"]
    files = [numpy.fromfile(folder / f"state/sft_train.{f}", dtype="<f4") for f in ("master", "m")]
    cut = lambda x, e: torch.from_numpy(x[e["first"]:e["first"] + e["num"]].astype("f8"))
    return {n: (cut(files[0], e), cut(files[1], e), e.get("optim") == "muon") for n, e in index.items()}


def exact(grad, coefficients, steps, eps):
    c = coefficients
    x = grad.T if grad.size(0) > grad.size(1) else grad
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = c[0] * x + (c[1] * gram + c[2] * gram @ gram) @ x
    return x.T if grad.size(0) > grad.size(1) else x


def far(out, adjust, nesterov):
    shapes = {k: v.shape for k, v in safetensors.torch.load_file(str(pathlib.Path(a.model) / "model.safetensors")).items()}
    start = safetensors.torch.load_file(str(pathlib.Path(a.model) / "model.safetensors"))
    first = states(out / "first/checkpoint-0")
    params = {n: torch.nn.Parameter(start[n].double().reshape(shapes[n])) for n in first}
    begin = {n: p.detach().clone() for n, p in params.items()}
    muon = torch.optim.Muon([params[n] for n in first if first[n][2]], lr=MUON, weight_decay=DECAY, momentum=MOMENTUM, nesterov=nesterov, adjust_lr_fn=adjust)
    norms = [params[n] for n in first if "norm" in n]
    others = [params[n] for n in first if "norm" not in n and not first[n][2]]
    adamw = torch.optim.AdamW([{"params": norms, "lr": NORMS, "weight_decay": 0}, {"params": others}], lr=RATE, betas=(B1, B2), weight_decay=DECAY)
    old = {n: torch.zeros(p.numel(), dtype=torch.float64) for n, p in params.items()}
    for step in range(a.steps):
        now = states(out / f"checkpoint-{step}") if step else first
        for n, (_, m, is_muon) in now.items():
            b = MOMENTUM if is_muon else B1
            params[n].grad = ((m - b * old[n]) / (1 - b)).reshape(params[n].shape)
            old[n] = m
        muon.step()
        adamw.step()
    worst = {True: 0.0, False: 0.0}
    for n, (p, _, is_muon) in now.items():
        got, want = p.reshape(params[n].shape), params[n].detach()
        worst[is_muon] = max(worst[is_muon], float((got - want).norm() / (want - begin[n]).norm()))
    return worst[True], worst[False]


bad = False
with tempfile.TemporaryDirectory() as home:
    for adjust, nesterov in CASES.items():
        out = pathlib.Path(home) / adjust
        run(out, a.steps, adjust, nesterov)
        run(out / "first", 1, adjust, nesterov)  # no checkpoint is saved after step 0 of a longer run
        as_it_is = far(out, adjust, nesterov)
        module, kept = torch.optim._muon, torch.optim._muon._zeropower_via_newtonschulz
        module._zeropower_via_newtonschulz = exact
        in_float64 = far(out, adjust, nesterov)
        module._zeropower_via_newtonschulz = kept
        bad |= in_float64[0] > 1e-4 or as_it_is[0] > 0.2 or in_float64[1] > 1e-4
        print(f"{adjust}, nesterov {nesterov}: matrices {as_it_is[0]:.2e} (torch in bfloat16), {in_float64[0]:.2e} (in float64); AdamW's {in_float64[1]:.2e}")
sys.exit(bad)
