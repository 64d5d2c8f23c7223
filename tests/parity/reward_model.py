#!/usr/bin/env python3
"""Scores of reward models (ForSequenceClassification with one label) for tests/e2e/reward_model.sh: those of Transformers in float64.

    tests/parity/reward_model.py --make DIR                       DIR/llama, qwen2, qwen3: tiny models with random weights ($CROLL init) and a score
    tests/parity/reward_model.py --convert MODEL OUT              a language model's folder as a reward model, its head made of numbers by name
    tests/parity/reward_model.py --numbers DIR > tests/parity/reward_model.json

Each line has a model, and a line of `croll score` with the score that it must get: samples of 1 to 40 tokens, some with padding at the end, some of
nothing else, and one whose prompt is empty. --make and --convert need nothing but Python and croll; --numbers needs torch and transformers.
"""
import array, json, math, os, pathlib, random, subprocess, sys, zlib

sys.path[0] = "tests/e2e"  # not this folder, whose tokenizers.py is no package
import tensors

TEXT = dict(vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-6,
            max_position_embeddings=64, initializer_range=0.15, rope_theta=10000.0, tie_word_embeddings=False, bos_token_id=None, eos_token_id=1, torch_dtype="float32")
MODELS = {
    "llama": dict(TEXT, model_type="llama", architectures=["LlamaForCausalLM"], pad_token_id=0),
    "qwen2": dict(TEXT, model_type="qwen2", architectures=["Qwen2ForCausalLM"], pad_token_id=1),
    "qwen3": dict(TEXT, model_type="qwen3", architectures=["Qwen3ForCausalLM"], head_dim=16, tie_word_embeddings=True, pad_token_id=96),
}


def convert(model, out, **more):
    """Labels and shapes of `more` go into config.json; score is [1, hidden_size] in float32."""
    out.mkdir(exist_ok=True)
    for file in model.iterdir():
        if file.is_file():
            (out / file.name).write_bytes(file.read_bytes())
    config = json.loads((model / "config.json").read_text())
    config["architectures"] = [config["architectures"][0].replace("ForCausalLM", "ForSequenceClassification")]
    config.update(id2label={"0": "LABEL_0"}, label2id={"LABEL_0": 0}, **more)
    (out / "config.json").write_text(json.dumps(config))
    all = tensors.read(str(model))
    all.pop("lm_head.weight", None)
    size = config["hidden_size"]
    head = array.array("f", ((zlib.crc32(f"score {i}".encode()) / 2**31 - 1) * 3 / math.sqrt(size) for i in range(size)))
    all["score.weight"] = ("F32", [1, size], head.tobytes())
    tensors.write(str(out), all)


def make(folder):
    for name, config in MODELS.items():
        words = folder / (name + "_words")
        words.mkdir()
        (words / "config.json").write_text(json.dumps(config))
        subprocess.run([os.environ["CROLL"], "init", str(words), "--seed", "5"], check=True, stdout=subprocess.DEVNULL)
        convert(words, folder / name)
        all, row = tensors.read(str(folder / name)), 4 * config["hidden_size"]
        dtype, shape, data = all["model.embed_tokens.weight"]
        pad = config["pad_token_id"] * row  # croll init has zeros there
        all["model.embed_tokens.weight"] = (dtype, shape, data[:pad] + data[7 * row:8 * row] + data[pad + row:])
        tensors.write(str(folder / name), all)


def lines(name, config):
    random.seed(name)
    pad, draw = config["pad_token_id"], lambda n: [random.randrange(2, 96) for _ in range(n)]
    cases = [(draw(5), draw(9)), (draw(1), []), ([], draw(7)), (draw(20), draw(19) + [1]), (draw(4), draw(5) + [1, pad, pad]), ([pad] * 3, draw(3) + [pad]),
             ([pad], [pad, pad]), (draw(3) + [pad] + draw(2), draw(6))]
    for i, (prompt, response) in enumerate(cases):
        yield dict(id=str(i), response="", prompt_ids=prompt, response_ids=response)


def numbers(folder):
    import torch
    from transformers import AutoModelForSequenceClassification
    for name, config in MODELS.items():
        model = AutoModelForSequenceClassification.from_pretrained(folder / name, dtype=torch.float64).eval()
        assert model.config.num_labels == 1
        for line in lines(name, config):
            with torch.no_grad():
                score = model(torch.tensor([line["prompt_ids"] + line["response_ids"]])).logits.item()
            print(json.dumps(dict(model=name, line=line, score=score)))


if __name__ == "__main__":
    what, folders = sys.argv[1], [pathlib.Path(p) for p in sys.argv[2:]]
    {"--make": make, "--convert": convert, "--numbers": numbers}[what](*folders)
