"""peft_folder.py -- an adapter that PEFT saves, for tests/unit/models_peft.c, and PEFT's reading of one that croll writes.

    python tests/parity/peft_folder.py tests/parity/peft                  (PEFT 0.21, Transformers 5.24 and PyTorch, on the CPU)
    python tests/parity/peft_folder.py --check FOLDER                     FOLDER: written by `unit_models_peft FOLDER`

tests/parity/peft: adapter_config.json and adapter_model.safetensors as save_pretrained makes them of a tiny Qwen2, and
model.json, its config.json with the log-probs of PEFT in float64. Weights are `noise`, as in text_models.py.
--check: PEFT loads FOLDER/ADAPTER on FOLDER/base; no key may be missing or unexpected, and its log-probs must be those of
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


def write(folder):
    folder.mkdir(exist_ok=True)
    model = lora.adapted(qwen2, "q_proj,layers.1.mlp.down_proj,v_proj", 2, 3.0, True)
    for name, p in model.named_parameters():
        if p.requires_grad:
            p.data = p.data.float()
    with tempfile.TemporaryDirectory() as tmp:
        model.save_pretrained(tmp)
        for name in "adapter_config.json", "adapter_model.safetensors":
            (folder / name).write_bytes((pathlib.Path(tmp) / name).read_bytes())
    config = json.loads(model.base_model.model.config.to_json_string(use_diff=False))
    (folder / "model.json").write_text(json.dumps(dict(config={k: v for k, v in config.items() if v is not None and "label" not in k},
                                                       log_probs=log_probs(model.double()))) + "\n")


def check(folder):
    for adapter in sorted(folder.glob("*/adapter_config.json")):
        base = tf.AutoModelForCausalLM.from_pretrained(folder / "base", dtype=torch.float32, attn_implementation="eager")
        config = peft.LoraConfig.from_pretrained(adapter.parent)
        config.inference_mode = False
        model = peft.get_peft_model(base, config)
        result = peft.set_peft_model_state_dict(model, safetensors.torch.load_file(adapter.parent / "adapter_model.safetensors"))
        missing = [k for k in result.missing_keys if "lora_" in k]
        model = peft.PeftModel.from_pretrained(
            tf.AutoModelForCausalLM.from_pretrained(folder / "base", dtype=torch.float32, attn_implementation="eager"), adapter.parent)
        got, want = log_probs(model.eval().double()), json.loads((adapter.parent / "log_probs.json").read_text())
        error = max(abs(x - y) for x, y in zip(got, want, strict=True))
        print(f"{adapter.parent.name}: {len(missing)} missing, {len(result.unexpected_keys)} unexpected, largest difference {error:.2g}")
        if missing or result.unexpected_keys or error > 1e-5:
            sys.exit(1)


if __name__ == "__main__":
    check(pathlib.Path(sys.argv[2])) if sys.argv[1] == "--check" else write(pathlib.Path(sys.argv[1]))
