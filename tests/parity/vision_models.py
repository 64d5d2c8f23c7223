"""vision_models.py -- tiny random Qwen2.5-VL and Qwen3-VL models of Transformers, for tests/unit/models_vl.c.

    python tests/parity/vision_models.py tests/parity      (Transformers 5.23 and PyTorch, on the CPU)

writes vision_trees.txt: every module with its class and every parameter with its shape, and the names that
save_pretrained gives them."""
import json, pathlib, struct, sys, tempfile, warnings

import torch
import transformers as tf

warnings.filterwarnings("ignore")
TEXT = dict(vocab_size=97, hidden_size=64, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2,
            rms_norm_eps=1e-6, bos_token_id=1, eos_token_id=2, pad_token_id=None)
VISION = dict(hidden_size=32, intermediate_size=50, num_heads=2, patch_size=4, spatial_merge_size=2,
              temporal_patch_size=2, in_channels=3, out_hidden_size=64)
IDS = dict(image_token_id=90, video_token_id=91, vision_start_token_id=92, vision_end_token_id=93)


def rope(section):
    return dict(rope_parameters=dict(rope_type="default", rope_theta=10000.0, mrope_section=section))


def qwen2_5_vl():
    return tf.Qwen2_5_VLForConditionalGeneration(tf.Qwen2_5_VLConfig(
        text_config=TEXT | rope([2, 3, 3]) | dict(num_hidden_layers=2), **IDS,
        vision_config=VISION | dict(depth=2, window_size=16, fullatt_block_indexes=[1], tokens_per_second=2)))


def qwen3_vl():
    return tf.Qwen3VLForConditionalGeneration(tf.Qwen3VLConfig(
        text_config=TEXT | rope([4, 2, 2]) | dict(num_hidden_layers=4, head_dim=16), **IDS,
        vision_config=VISION | dict(depth=4, num_position_embeddings=36, deepstack_visual_indexes=[0, 2, 3])))


def stored_names(model):
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        data = (pathlib.Path(folder) / "model.safetensors").read_bytes()
    header = json.loads(data[8:8 + struct.unpack("<Q", data[:8])[0]])
    return sorted(name for name in header if name != "__metadata__")


def write_trees(path):
    with open(path, "w") as out:
        for model in (qwen2_5_vl(), qwen3_vl()):
            print("model", model.config.model_type, file=out)
            for name, module in model.named_modules():
                print("module", name or ".", type(module).__name__, file=out)
                for key, p in module.named_parameters(recurse=False):
                    print("param", f"{name}.{key}", *p.shape, file=out)
            for name in stored_names(model):
                print("stored", name, file=out)


if __name__ == "__main__":
    write_trees(pathlib.Path(sys.argv[1]) / "vision_trees.txt")
