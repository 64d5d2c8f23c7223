#!/usr/bin/env python3
"""vision.py -- vision towers of Transformers with tiny shapes: rows, deepstack features and gradients.

    tests/parity/vision.py > tests/parity/vision.json

The file is committed; tests/unit/models_vision.c makes the same weights, pixels and gradients of rows (draws())
and compares. Needs the Python packages torch, transformers and numpy. float32, eager attention.
"""
import json, math, sys

import numpy, torch, transformers
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLVisionConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VisionTransformerPretrainedModel
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLVisionConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

TEXT = dict(vocab_size=64, hidden_size=12, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=1, head_dim=8, rms_norm_eps=1e-6, max_position_embeddings=128)
TOP = dict(image_token_id=60, video_token_id=61, vision_start_token_id=62, vision_end_token_id=63)
CASES = [
    # windows of 2 x 2 tokens, cut at both edges; frames of more and of fewer patches than a tile of 64 keys
    dict(config=dict(model_type="qwen2_5_vl", architectures=["Qwen2_5_VLForConditionalGeneration"], **TOP,
                     text_config=dict(model_type="qwen2_5_vl_text", rope_scaling=dict(type="mrope", mrope_section=[2, 1, 1]), **TEXT),
                     vision_config=dict(model_type="qwen2_5_vl", depth=3, hidden_size=32, intermediate_size=44, num_heads=2,
                                        patch_size=2, spatial_merge_size=2, temporal_patch_size=2, window_size=8,
                                        out_hidden_size=12, fullatt_block_indexes=[1], in_channels=3, hidden_act="silu")),
         grids=[[1, 6, 14], [1, 4, 4], [2, 4, 6]]),
    # a frame of two rows, one larger than the table of positions; features after the first and the last block
    dict(config=dict(model_type="qwen3_vl", architectures=["Qwen3VLForConditionalGeneration"], **TOP,
                     text_config=dict(model_type="qwen3_vl_text", rope_scaling=dict(rope_type="default", mrope_section=[2, 1, 1]), **TEXT),
                     vision_config=dict(model_type="qwen3_vl", depth=3, hidden_size=40, intermediate_size=52, num_heads=2,
                                        patch_size=2, spatial_merge_size=2, temporal_patch_size=2, out_hidden_size=12,
                                        num_position_embeddings=36, deepstack_visual_indexes=[0, 2], in_channels=3,
                                        hidden_act="gelu_pytorch_tanh")),
         grids=[[1, 2, 2], [1, 10, 8], [3, 4, 6]]),
]


def draws(name, num):
    """Numbers of [-1, 1) that depend on the name and the index: exact in float32."""
    seed = 2166136261
    for byte in name.encode():
        seed = ((seed ^ byte) * 16777619) & 0xFFFFFFFF
    x = (numpy.arange(num, dtype=numpy.uint64) * 2654435761 + seed) & 0xFFFFFFFF
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x ^= x >> shift
        x = (x * factor) & 0xFFFFFFFF
    x ^= x >> 16
    return ((x >> 8).astype(numpy.float32) / numpy.float32(1 << 23)) - numpy.float32(1)


def rows(name, *shape):
    return torch.from_numpy(draws(name, math.prod(shape)).reshape(shape))


def weight(name, shape):
    x = draws(name, math.prod(shape)).reshape(shape)
    if name.endswith(".bias"):
        x = x * numpy.float32(0.25)
    elif len(shape) == 1:
        x = 1 + x * numpy.float32(0.25)
    elif name != "pos_embed.weight":
        x = x * numpy.float32(2 / math.sqrt(math.prod(shape[1:])))
    return torch.from_numpy(x)


def run(case):
    vision = case["config"]["vision_config"]
    if case["config"]["model_type"] == "qwen3_vl":
        tower = Qwen3VLVisionModel._from_config(Qwen3VLVisionConfig(**vision), attn_implementation="eager")
    else:
        tower = Qwen2_5_VisionTransformerPretrainedModel._from_config(Qwen2_5_VLVisionConfig(**vision),
                                                                      attn_implementation="eager")
    with torch.no_grad():
        for name, p in tower.named_parameters():
            p.copy_(weight(name, tuple(p.shape)))
    grids = torch.tensor(case["grids"])
    num = int(grids.prod(1).sum())
    pixels = rows("pixels", num, 3 * 2 * vision["patch_size"] ** 2)
    out = tower(pixels, grids)
    features = [out.pooler_output] + list(getattr(out, "deepstack_features", None) or [])
    loss = sum((f * rows("grad%d" % i, *f.shape)).sum() for i, f in enumerate(features))
    loss.backward()
    grads = {}
    for name, p in tower.named_parameters():
        g = p.grad.double().flatten()
        grads[name] = [g.norm().item(), (g * rows("dot." + name, g.numel()).double()).sum().item()]
    return dict(case, features=[[float("%.9g" % x) for x in f.detach().flatten().tolist()] for f in features], grads=grads)


json.dump(dict(versions=dict(torch=torch.__version__, transformers=transformers.__version__), cases=[run(c) for c in CASES]), sys.stdout)
print()
