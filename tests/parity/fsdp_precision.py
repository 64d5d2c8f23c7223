#!/usr/bin/env python3
"""fsdp_precision.py -- gradients of PyTorch's fully_shard with a MixedPrecisionPolicy of each module (C11).

    tests/parity/fsdp_precision.py > tests/parity/fsdp_precision.json

A tiny Qwen3 on two ranks over gloo: bf16, with some modules in float32 (param_dtype and reduce_dtype float32,
inputs cast at their border, output_dtype bf16). Weights and ids are functions of names and numbers that
tests/unit/models_precision.c has, too. The file is committed. Needs the Python packages torch and transformers.
"""
import json, os, sys, tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import Qwen3Config, Qwen3ForCausalLM, logging

CASES = [
    dict(dtype="bfloat16", fp32=[]),
    dict(dtype="bfloat16", fp32=["model.layers.1"]),
    dict(dtype="bfloat16", fp32=["model.layers.0", "model.layers.1", "model.layers.2"]),
    dict(dtype="float32", fp32=[]),
]
LENGTHS, VOCAB, WORLD, M = (17, 9), 61, 2, 0xFFFFFFFF


def values(name, count):
    """Uniform in [-1/4, 1/4), exact in float32."""
    h = 2166136261
    for c in name.encode():
        h = (h ^ c) * 16777619 & M
    x = (torch.arange(count, dtype=torch.int64) * 2654435761 + h) & M
    x = ((x ^ (x >> 15)) * 2246822519) & M
    x = ((x ^ (x >> 13)) >> 8) & 0xFFFFFF
    return (x.double() / 2**25 - 0.25).float()


def build():
    config = Qwen3Config(vocab_size=VOCAB, hidden_size=24, intermediate_size=40, num_hidden_layers=3, head_dim=8,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-6,
                         rope_theta=10000.0, tie_word_embeddings=False, attn_implementation="eager")
    model = Qwen3ForCausalLM(config).float()
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(values(name, p.numel()).view_as(p) + (1 if p.dim() == 1 else 0))
    return model


def keep_rotary_float32(model):
    """Transformers rounds cos and sin to the dtype of the embeddings; modules in float32 want them exact."""
    rotary = model.model.rotary_emb
    plain = rotary.forward
    rotary.forward = lambda x, position_ids: plain(x.float(), position_ids)


def wrap(model, case, mesh, force_sum):
    half = MixedPrecisionPolicy(param_dtype=getattr(torch, case["dtype"]), reduce_dtype=torch.float32)
    full = MixedPrecisionPolicy(param_dtype=torch.float32, reduce_dtype=torch.float32, output_dtype=half.param_dtype)
    for name in case["fp32"]:
        fully_shard(model.get_submodule(name), mesh=mesh, mp_policy=full)
    for i, layer in enumerate(model.model.layers):
        if f"model.layers.{i}" not in case["fp32"]:
            fully_shard(layer, mesh=mesh, mp_policy=half)
    fully_shard(model, mesh=mesh, mp_policy=half)
    if force_sum:
        model.set_force_sum_reduction_for_comms(True)


def averages(mesh, force_sum):
    """gloo of some releases returns the sum instead of the mean."""
    m = torch.nn.Linear(4, 4, bias=False)
    fully_shard(m, mesh=mesh)
    if force_sum:
        m.set_force_sum_reduction_for_comms(True)
    m(torch.full((1, 4), float(dist.get_rank() + 1))).sum().backward()
    return torch.allclose(m.weight.grad.full_tensor(), torch.full((4, 4), (WORLD + 1) / 2))


def run(case, mesh, force_sum):
    model = build()
    keep_rotary_float32(model)
    wrap(model, case, mesh, force_sum)
    seq = dist.get_rank()
    ids = torch.tensor([[(i * 7 + seq * 13 + i * i * 3 + 3) % VOCAB for i in range(LENGTHS[seq])]])
    z = model(ids).logits[0, :-1].float()
    loss = torch.nn.functional.cross_entropy(z, ids[0, 1:], reduction="sum") / sum(n - 1 for n in LENGTHS)
    (loss * WORLD).backward()  # the reduction takes the mean over ranks
    total = loss.detach().clone()
    dist.all_reduce(total)
    grads = {n: p.grad.full_tensor() for n, p in model.named_parameters()}
    some = {n: [float(f"{x:.6g}") for x in g.reshape(-1)[:48].tolist()] for n, g in grads.items()
            if g.dim() == 1 or n.endswith(("k_proj.weight", "up_proj.weight"))}
    return dict(case, loss=total.item(), grads=some)


def rank_main(rank, store, out):
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD)
    mesh = init_device_mesh("cpu", (WORLD,))
    force_sum = not averages(mesh, False)
    if force_sum and not averages(mesh, True):
        sys.exit("fully_shard over gloo neither averages nor sums")
    cases = [run(case, mesh, force_sum) for case in CASES]
    if rank == 0:
        with open(out, "w") as f:
            json.dump(dict(torch=torch.__version__, cases=cases), f)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out.json")
        mp.spawn(rank_main, args=(os.path.join(folder, "store"), out), nprocs=WORLD)
        print(open(out).read())
