"""lora.py -- LoRA of PEFT on tiny Llama, Qwen2 (biases) and Qwen3 (tied or not), for tests/unit/models_adapters.c.

    python tests/parity/lora.py tests/parity      (PEFT 0.21, Transformers 5.24 and PyTorch, on the CPU)

lora.json: log-probs and the gradients of every A and B in float64, targets by list, by a regular expression and by all-linear.
Weights, A and B too, and the gradient that comes in are `noise`, as in text_models.py."""
import pathlib, sys

sys.path.append(sys.path.pop(0))  # tokenizers.py of this folder is not the package
import peft
import transformers as tf

import text_models as t
from vision_models import noise


def llama():
    return tf.LlamaForCausalLM(tf.LlamaConfig(**t.SIZES, num_hidden_layers=2, tie_word_embeddings=False))


def qwen2():
    return tf.Qwen2ForCausalLM(tf.Qwen2Config(**t.SIZES, num_hidden_layers=2, tie_word_embeddings=False))


def qwen3(tied):
    return lambda: tf.Qwen3ForCausalLM(tf.Qwen3Config(**t.SIZES, num_hidden_layers=2, head_dim=16, tie_word_embeddings=tied))


CASES = [("llama list", llama, "q_proj,v_proj,down_proj", 4, 8.0, False),
         ("qwen2 all-linear", qwen2, "all-linear", 3, 4.0, False),
         ("qwen2 regex", qwen2, r"model\.layers\.\d+\.(self_attn\.[kvo]_proj|mlp\.gate_proj)", 2, 7.0, True),
         ("qwen3 tied", qwen3(True), "layers.1.self_attn.k_proj,up_proj", 5, 16.0, True),
         ("qwen3 untied", qwen3(False), "all-linear", 8, 16.0, False)]


def croll(name):
    return name.removeprefix("base_model.model.").replace(".default", "")


def adapted(make, target, rank, alpha, rslora):
    is_text = target == "all-linear" or any(c in target for c in "*$|(")
    model = peft.get_peft_model(t.made(make), peft.LoraConfig(
        task_type="CAUSAL_LM", target_modules=target if is_text else target.split(","), r=rank, lora_alpha=alpha, use_rslora=rslora))
    for name, p in model.named_parameters():
        if p.requires_grad:
            x = noise(croll(name), p.numel()) * 0.6 / p.shape[1] ** 0.5
            p.data = t.torch.tensor(x.astype("float32").astype("float64")).reshape(p.shape)
    return model.eval().double()


if __name__ == "__main__":
    t.write(pathlib.Path(sys.argv[1]) / "lora.json",
            [t.case(adapted(make, *spec), name, croll, adapters=dict(zip(("target", "rank", "alpha", "use_rslora"), spec)))
             for name, make, *spec in CASES])
