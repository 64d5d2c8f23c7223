#!/usr/bin/env python3
"""A GGUF file for llama.cpp of a Hugging Face Llama in bf16, with its byte-level BPE. Needs the packages gguf, safetensors, torch.

usage: make_gguf.py MODEL_DIR OUT.gguf
Matrices are stored in bf16, norms in float32. llama.cpp rotates neighbouring elements of a head, Transformers the halves of a
head: rows of q and k change places so that both compute the same.
"""
import argparse
import json
import pathlib

NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
         "post_attention_layernorm": "ffn_norm"}
TOP = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight", "lm_head.weight": "output.weight"}


def name_of(key):
    if key in TOP:
        return TOP[key]
    _, _, layer, part = key[:-len(".weight")].split(".", 3)
    return f"blk.{layer}.{NAMES[part]}.weight"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", type=pathlib.Path)
    p.add_argument("out")
    a = p.parse_args()
    import gguf
    import torch
    from safetensors.torch import load_file
    c = json.loads((a.model / "config.json").read_text())
    tokenizer = json.loads((a.model / "tokenizer.json").read_text())
    heads, kv_heads = c["num_attention_heads"], c["num_key_value_heads"]
    w = gguf.GGUFWriter(a.out, "llama")
    w.add_block_count(c["num_hidden_layers"])
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(heads)
    w.add_head_count_kv(kv_heads)
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_rope_freq_base(c.get("rope_theta") or c["rope_parameters"]["rope_theta"])
    w.add_rope_dimension_count(c["hidden_size"] // heads)
    w.add_vocab_size(c["vocab_size"])
    w.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    tokens = [None] * c["vocab_size"]
    for token, i in tokenizer["model"]["vocab"].items():
        tokens[i] = token
    special = {t["id"]: t["content"] for t in tokenizer["added_tokens"]}
    for i, token in special.items():
        tokens[i] = token
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("smollm")
    w.add_token_list([t or f"[unused{i}]" for i, t in enumerate(tokens)])
    w.add_token_types([gguf.TokenType.CONTROL if i in special else gguf.TokenType.NORMAL for i in range(len(tokens))])
    w.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]])
    w.add_bos_token_id(c["bos_token_id"])
    w.add_eos_token_id(c["eos_token_id"])
    for file in sorted(a.model.glob("*.safetensors")):
        for key, x in load_file(file).items():
            for part, num in (("q_proj", heads), ("k_proj", kv_heads)):
                if part in key:
                    x = x.reshape(num, 2, -1, x.shape[-1]).transpose(1, 2).reshape(x.shape)
            if x.dim() == 1:
                w.add_tensor(name_of(key), x.float().numpy())
            else:
                x = x.to(torch.bfloat16).contiguous()
                w.add_tensor(name_of(key), x.view(torch.uint8).numpy(), raw_dtype=gguf.GGMLQuantizationType.BF16)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    main()
