"""text_models.py -- tiny text models of Transformers, for tests/unit/models_text_numbers.c.

    python tests/parity/text_models.py tests/parity      (Transformers 5.24 and PyTorch, on the CPU)

text_models.json: Gemma 3 (layers with a window and without, a rope for each, norms with an offset and after each part, an
embedding times sqrt(hidden), query_pre_attn_scalar) and a value head (ForTokenClassification with one label): what the model
says of each token but the last of its sequence, and gradients, in float64. Weights and the gradient that comes in are `noise`,
as in vision_models.py; each case has the config.json that Transformers writes."""
import json, pathlib, sys

sys.path.append(sys.path.pop(0))  # tokenizers.py of this folder is not the package
import numpy as np
import torch
import transformers as tf

from vision_models import in_float64, noise, set_weights, words

SIZES = dict(vocab_size=97, hidden_size=64, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-6,
             bos_token_id=1, eos_token_id=2, pad_token_id=3, attn_implementation="eager")
SEQUENCES = [words(f"plain {k}", n) for k, n in enumerate((9, 14))]


def gemma3():
    return tf.Gemma3ForCausalLM(tf.Gemma3TextConfig(
        **SIZES, num_hidden_layers=3, head_dim=16, query_pre_attn_scalar=24, sliding_window=4, tie_word_embeddings=True,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"], max_position_embeddings=256,
        rope_parameters=dict(full_attention=dict(rope_type="linear", factor=4.0, rope_theta=5000.0),
                             sliding_attention=dict(rope_type="default", rope_theta=100.0))))


def value_head():
    return tf.Qwen2ForTokenClassification(tf.Qwen2Config(**SIZES, num_hidden_layers=2, num_labels=1, classifier_dropout=0.0))


def outputs(model, ids):
    """Of all tokens but the last: values, or log-probs of the next one."""
    out = model(input_ids=torch.tensor([ids])).logits[0][:-1]
    return out[:, 0] if out.shape[-1] == 1 else out.log_softmax(-1).gather(1, torch.tensor(ids)[1:, None])[:, 0]


def run(model, dtype):
    model = model.to(dtype)
    model.zero_grad()
    out = torch.cat([outputs(model, ids) for ids in SEQUENCES])
    (out * torch.tensor(noise("grad", len(out))).to(dtype)).sum().backward()
    grads = {n: p.grad.double().numpy().ravel() for n, p in model.named_parameters() if p.grad is not None}
    return out.detach().double().numpy(), grads


def projections(name, g):
    return [float(f"{x:.12g}") for x in (np.linalg.norm(g), g @ noise(f"first {name}", g.size), g @ noise(f"second {name}", g.size))]


def case(model, name, of=lambda n: n, **extra):
    """of: the name that croll has for a parameter."""
    with in_float64():
        want, grads = run(model, torch.float64)
    single, grads32 = run(model, torch.float32)
    worst = max(np.linalg.norm(grads32[n] - g) / np.linalg.norm(g) for n, g in grads.items() if np.linalg.norm(g) > 0)
    config = {k: v for k, v in json.loads(model.config.to_json_string(use_diff=False)).items() if v is not None and "label" not in k}
    return dict(name=name, config=config, own=float(np.abs(single - want).max()), own_grad=float(worst), out=want.tolist(),
                grad={of(n): projections(of(n), g) for n, g in grads.items()}, **extra)


def write(path, cases):
    for c in cases:
        print(c["name"], c["own"], c["own_grad"])
    path.write_text("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]\n")


def made(make):
    torch.manual_seed(0)
    with in_float64():
        model = make().eval().double()
    set_weights(model)
    return model


if __name__ == "__main__":
    write(pathlib.Path(sys.argv[1]) / "text_models.json", [case(made(gemma3), "gemma3"), case(made(value_head), "value_head")])
