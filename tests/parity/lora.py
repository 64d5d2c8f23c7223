"""lora.py -- LoRA of PEFT on tiny Llama, Qwen2 (biases), Qwen3 (tied or not), Qwen3-MoE (ParamWrapper), Gemma 3 (an embedding with a
factor) and the language model of Qwen3-VL, for tests/unit/models_adapters.c.

    python tests/parity/lora.py tests/parity              (PEFT 0.21, Transformers 5.24 and PyTorch, on the CPU)
    python tests/parity/lora.py FOLDER --seed 7 --hidden 96 --layers 3 --rank 5 (2 layers or more) && build/release/unit_models_adapters FOLDER/lora.json

lora.json: log-probs and the gradients of every A and B, and of modules_to_save, in float64, targets by list, by a regular expression and
by all-linear, of embeddings, too; then 20 steps of AdamW, in float64, too: A and B, and the log-probs, after them. Weights, A and B too, and the gradient that comes in are
`noise`, as in text_models.py. `own` are the largest errors of PEFT itself in float32, which bound those of croll's release
build; a build in float64 (preset float64) is held to 1e-9."""
import argparse, copy, json, pathlib, re, sys

sys.path.append(sys.path.pop(0))  # tokenizers.py of this folder is not the package
import numpy as np
import peft
import torch
import transformers as tf

import text_models as t
import vision_models as v
from vision_models import noise

STEPS, ADAM = 20, dict(lr=1e-3, betas=(0.9, 0.95), eps=1e-4, weight_decay=0.1)
SIZES = dict(t.SIZES, num_hidden_layers=2)


def llama():
    return tf.LlamaForCausalLM(tf.LlamaConfig(**SIZES, tie_word_embeddings=False))


def qwen2():
    return tf.Qwen2ForCausalLM(tf.Qwen2Config(**SIZES, tie_word_embeddings=False))


def qwen3(tied):
    return lambda: tf.Qwen3ForCausalLM(tf.Qwen3Config(**SIZES, head_dim=16, tie_word_embeddings=tied))


def gemma3():
    config = t.gemma3().config
    config.tie_word_embeddings = False
    return tf.Gemma3ForCausalLM(config)


def qwen3_moe():
    return tf.Qwen3MoeForCausalLM(tf.Qwen3MoeConfig(**SIZES, head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24,
                                                    experts_implementation="eager", tie_word_embeddings=False))


LINEARS = [f"{x}_proj" for x in ("q", "k", "v", "o", "gate", "up", "down")]
# name, model, lora_target of croll, rank, alpha (None: 2 x rank), rslora; arguments of LoraConfig where they are others than that target
CASES = [("llama list", llama, "q_proj,v_proj,down_proj", 4, 8.0, False, {}),
         ("qwen2 all-linear", qwen2, "all-linear", 3, None, False, {}),
         ("qwen2 regex", qwen2, r"model\.layers\.\d+\.(self_attn\.[kvo]_proj|mlp\.gate_proj)", 2, 7.0, True, {}),
         ("qwen3 tied", qwen3(True), "layers.1.self_attn.k_proj,up_proj", 5, 16.0, True, {}),
         ("qwen3 untied", qwen3(False), "all-linear", 8, 16.0, False, {}),
         ("qwen3_moe all", qwen3_moe, "all-linear,all-router", 2, 6.0, False, dict(target_modules="all-linear")),
         ("qwen3_moe list", qwen3_moe, "k_proj,gate_proj,up_proj", 2, 5.0, True, {}),
         ("qwen3_moe parameters", qwen3_moe, "q_proj,experts.gate_up_proj,experts.down_proj", 3, 6.0, False,
          dict(target_modules=["q_proj"], target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"])),
         ("qwen3_vl list", v.qwen3_vl, "q_proj,o_proj,gate_proj,up_proj,down_proj", 3, 6.0, False, {}),
         ("llama embedding", llama, "embed_tokens,q_proj", 3, 5.0, True, {}),
         ("gemma3 embedding", gemma3, "all-linear,all-embedding", 2, None, False, dict(target_modules=LINEARS + ["embed_tokens"])),
         ("qwen2 saved", qwen2, "q_proj,v_proj", 2, 3.0, False,
          dict(target_modules=["q_proj", "v_proj"], modules_to_save=["lm_head", "embed_tokens", "norm", "layers.1.mlp"])),
         ("qwen3_moe saved", qwen3_moe, "k_proj,embed_tokens", 2, 3.0, False,
          dict(target_modules=["k_proj", "embed_tokens"], modules_to_save=["mlp.gate", "k_norm", "o_proj"]))]


def views(model):
    """(croll's name, what it has of a parameter): the experts of a layer one by one, A of an embedding transposed."""
    modules = dict(model.named_modules())
    for name, p in model.named_parameters():
        if not p.requires_grad:
            continue
        if ".modules_to_save." in name:
            yield name.removeprefix("base_model.model.").replace(".modules_to_save.default", ""), p, lambda x: x
            continue
        path, _, factor = name.removesuffix(".weight").removesuffix(".default").rpartition(".")
        short, wrapper = path.removeprefix("base_model.model.").replace(".base_layer", ""), modules[path]
        num = getattr(wrapper, "num_experts", 1)
        if num == 1:
            yield f"{short}.{factor}.weight", p, (lambda x: x.T) if factor == "lora_embedding_A" else lambda x: x
            continue
        rank, is_wide = p.shape[0 if factor == "lora_A" else 1] // num, wrapper.parameter_name == "gate_up_proj"
        for e in range(num):
            if factor == "lora_A":
                yield f"{short}.{e}.{wrapper.parameter_name}.lora_A.weight", p, lambda x, e=e: x[e * rank:(e + 1) * rank]
            elif not is_wide:
                yield f"{short}.{e}.down_proj.lora_B.weight", p, lambda x, e=e: x[:, e::num]
            else:
                half = p.shape[0] // 2
                yield f"{short}.{e}.gate_proj.lora_B.weight", p, lambda x, e=e: x[:half, e::num]
                yield f"{short}.{e}.up_proj.lora_B.weight", p, lambda x, e=e: x[half:, e::num]


def adapted(make, target, rank, alpha, rslora, told={}):
    is_text = target == "all-linear" or any(c in target for c in "*$|(")
    model = peft.get_peft_model(t.made(make), peft.LoraConfig(
        task_type="CAUSAL_LM", r=rank, lora_alpha=2 * rank if alpha is None else alpha, use_rslora=rslora,
        **(told or dict(target_modules=target if is_text else target.split(",")))))
    for name, p, view in views(model):
        part = view(p.data)
        if "lora_" not in name:
            continue
        x = noise(name, part.numel()) * 0.6 / part.shape[1] ** 0.5
        part.copy_(torch.tensor(x.astype("float32").astype("float64")).reshape(part.shape))
    return model.eval().double()


def pieces(model, what):
    return {name: view(what(p)).detach().double().numpy().ravel() for name, p, view in views(model)}


def loss(model):
    out = torch.cat([t.outputs(model, ids) for ids in t.SEQUENCES])
    return out, (out * torch.tensor(noise("grad", len(out))).to(out.dtype)).sum()


def run(model, dtype):
    """Log-probs and gradients; log-probs and parameters after the steps."""
    model = copy.deepcopy(model).to(dtype)
    adam = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], **ADAM)
    for step in range(STEPS):
        adam.zero_grad()
        out, total = loss(model)
        total.backward()
        if step == 0:
            first = out.detach().double().numpy(), pieces(model, lambda p: p.grad)
        adam.step()
    return *first, loss(model)[0].detach().double().numpy(), pieces(model, lambda p: p.data)


def worst(got, want):
    return float(max(np.linalg.norm(got[n] - x) / np.linalg.norm(x) for n, x in want.items() if np.linalg.norm(x) > 0))


def case(name, make, *spec):
    model = adapted(make, *spec)
    with v.in_float64():
        out, grads, after, trained = run(model, torch.float64)
    single, grads32, after32, trained32 = run(model, torch.float32)
    config = {k: x for k, x in json.loads(model.config.to_json_string(use_diff=False)).items() if x is not None and "label" not in k}
    return dict(name=name, config=config, own=float(np.abs(single - out).max()), own_grad=worst(grads32, grads),
                own_after=float(np.abs(after32 - after).max()), own_trained=worst(trained32, trained),
                adapters=dict(target=spec[0], rank=spec[1], alpha=2 * spec[1] if spec[2] is None else spec[2], use_rslora=spec[3],
                              saved=",".join(spec[4].get("modules_to_save", []))),
                out=out.tolist(), after=after.tolist(), adam=dict(ADAM, steps=STEPS),
                grad={n: t.projections(n, g) for n, g in grads.items()}, trained={n: t.projections(n, x) for n, x in trained.items()})


if __name__ == "__main__":
    args = argparse.ArgumentParser()
    args.add_argument("folder", type=pathlib.Path)
    for key in "seed", "hidden", "layers", "rank":
        args.add_argument(f"--{key}", type=int, default=0)
    args = args.parse_args()
    if args.hidden:
        SIZES["hidden_size"], SIZES["intermediate_size"] = args.hidden, args.hidden * 3 // 2 + 1
    if args.layers:
        SIZES["num_hidden_layers"] = args.layers
    v.SEED = args.seed
    t.SEQUENCES[:] = [v.words(f"plain {k}", len(ids)) for k, ids in enumerate(t.SEQUENCES)]
    cases = [case(name, make, target, args.rank or rank, *rest) | dict(seed=args.seed) for name, make, target, rank, *rest in CASES]
    for c in cases:
        print(c["name"], *(f"{k} {c[k]:.2g}" for k in ("own", "own_grad", "own_after", "own_trained")))
    (args.folder / "lora.json").write_text("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]\n")
