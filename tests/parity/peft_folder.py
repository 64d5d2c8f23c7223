"""peft_folder.py -- adapters that PEFT saves, for tests/unit/models_peft.c, and PEFT's reading of those that croll writes.

    python tests/parity/peft_folder.py tests/parity                       (PEFT 0.21, Transformers 5.24 and PyTorch, on the CPU)
    python tests/parity/peft_folder.py --check FOLDER                     FOLDER: written by `unit_models_peft FOLDER`

tests/parity/peft, peft_moe, peft_words: adapter_config.json and adapter_model.safetensors as save_pretrained makes them of a tiny Qwen2,
of a Qwen3-MoE with adapters of experts and routers, and of a Qwen3 with one of its embedding and modules_to_save, and model.json, its config.json with the log-probs of PEFT in float64.
peft_older: an adapter of that Qwen3-MoE with a tensor for each expert, as older PEFT had them; the log-probs are those of PEFT
0.21, which converts it. Weights are `noise`, as in text_models.py.
--check: PEFT loads FOLDER/ADAPTER on FOLDER/base (base_moe for ADAPTER moe*, base_words for words*); no key may be missing or unexpected, and its log-probs must be those of
FOLDER/ADAPTER/log_probs.json to 1e-5."""
import json, pathlib, sys, tempfile

sys.path.append(sys.path.pop(0))  # tokenizers.py of this folder is not the package
import peft
import safetensors.torch
import torch
import transformers as tf

import lora
import text_models as t


def qwen2():
    return tf.Qwen2ForCausalLM(tf.Qwen2Config(**t.SIZES, num_hidden_layers=2, tie_word_embeddings=True))


def log_probs(model):
    with torch.no_grad():
        return torch.cat([t.outputs(model, ids) for ids in t.SEQUENCES]).tolist()


def write_json(folder, model, log_probs):
    config = json.loads(model.config.to_json_string(use_diff=False))
    (folder / "model.json").write_text(json.dumps(dict(config={k: v for k, v in config.items() if v is not None and "label" not in k},
                                                       log_probs=log_probs)) + "\n")


def write(folder, make, *spec):
    folder.mkdir(exist_ok=True)
    model = lora.adapted(make, *spec)
    for name, p in model.named_parameters():
        if p.requires_grad:
            p.data = p.data.float() * (1.25 if "modules_to_save" in name else 1)
    with tempfile.TemporaryDirectory() as tmp:
        model.save_pretrained(tmp)
        for name in "adapter_config.json", "adapter_model.safetensors":
            (folder / name).write_bytes((pathlib.Path(tmp) / name).read_bytes())
    write_json(folder, model.base_model.model, log_probs(model.double()))


def write_older(folder, make, rank):
    folder.mkdir(exist_ok=True)
    base, tensors = t.made(make), {}
    for layer in range(2):
        for name, (out, into) in {"self_attn.q_proj": (64, 64), **{f"mlp.experts.{e}.{k}_proj": (64, 24) if k == "down" else (24, 64)
                                                                 for e in range(4) for k in ("gate", "up", "down")}}.items():
            for factor, shape in ("A", (rank, into)), ("B", (out, rank)):
                key = f"model.layers.{layer}.{name}.lora_{factor}.weight"
                x = lora.noise(key, shape[0] * shape[1]) * 0.6 / shape[1] ** 0.5
                tensors["base_model.model." + key] = torch.tensor(x.astype("float32")).reshape(shape)
    safetensors.torch.save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(dict(
        peft_type="LORA", task_type="CAUSAL_LM", r=rank, lora_alpha=3 * rank, inference_mode=True,
        target_modules=["q_proj", "gate_proj", "up_proj", "down_proj"]), indent=2) + "\n")
    write_json(folder, base, log_probs(peft.PeftModel.from_pretrained(base, folder).eval().double()))


def check(folder):
    for adapter in sorted(folder.glob("*/adapter_config.json")):
        is_moe = adapter.parent.name.startswith("moe")
        how = dict(dtype=torch.float32, attn_implementation="eager") | (dict(experts_implementation="eager") if is_moe else {})
        of = folder / ("base_moe" if is_moe else "base_words" if adapter.parent.name.startswith("words") else "base")
        base = tf.AutoModelForCausalLM.from_pretrained(of, **how)
        config = peft.LoraConfig.from_pretrained(adapter.parent)
        config.inference_mode = False
        model = peft.get_peft_model(base, config)
        result = peft.set_peft_model_state_dict(model, safetensors.torch.load_file(adapter.parent / "adapter_model.safetensors"))
        missing = [k for k in result.missing_keys if "lora_" in k or "modules_to_save" in k]
        model = peft.PeftModel.from_pretrained(
            tf.AutoModelForCausalLM.from_pretrained(of, **how), adapter.parent)
        got, want = log_probs(model.eval().double()), json.loads((adapter.parent / "log_probs.json").read_text())
        error = max(abs(x - y) for x, y in zip(got, want, strict=True))
        print(f"{adapter.parent.name}: {len(missing)} missing, {len(result.unexpected_keys)} unexpected, largest difference {error:.2g}")
        if missing or result.unexpected_keys or error > 1e-5:
            sys.exit(1)


if __name__ == "__main__":
    if sys.argv[1] == "--check":
        check(pathlib.Path(sys.argv[2]))
    else:
        to = pathlib.Path(sys.argv[1])
        write(to / "peft", qwen2, "q_proj,layers.1.mlp.down_proj,v_proj", 2, 3.0, True)
        write(to / "peft_moe", lora.qwen3_moe, "all-linear", 2, 3.0, False)
        write(to / "peft_words", lora.qwen3(False), "q_proj,embed_tokens", 3, 4.0, False,
              dict(target_modules=["q_proj", "embed_tokens"], modules_to_save=["lm_head", "norm"]))
        write_older(to / "peft_older", lora.qwen3_moe, 2)
