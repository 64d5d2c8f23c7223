#!/usr/bin/env python3
"""Log-probs, gradients and greedy answers of chats with images and videos for tests/e2e/logprobs_images.sh and generate_images.sh: those of Transformers in float64.

    tests/parity/logprobs_images.py --make DIR             DIR/qwen2_5_vl, qwen3_vl, qwen3_vl_moe: tiny models without weights
    croll init DIR/MODEL --seed 5                          for each of them
    tests/parity/logprobs_images.py --numbers DIR > tests/parity/logprobs_images.json

Each line has a model, a request of `croll logprobs --image-folder tests/parity/images` with 0 to 3 images or videos, the log-probs that it must answer, and GREEDY ids of
`croll generate --temperature 0` after it.
A last line of each model has the gradient of the mean cross entropy of all of them: for each parameter but experts' its norm and a projection.
Images go through Qwen2VLImageProcessorPil, lists of frames through Qwen2VLVideoProcessor or Qwen3VLVideoProcessor; their placeholders, and Qwen3-VL's times, are
written out here. --make needs nothing but Python; --numbers needs torch,
transformers and pillow (12.1 or older).
"""
import json, pathlib, subprocess, sys

IMAGES = pathlib.Path("tests/parity/images")
PAD, START, END, VIDEO = "<|image_pad|>", "<|vision_start|>", "<|vision_end|>", "<|video_pad|>"
TEXT = dict(hidden_size=64, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-6, num_hidden_layers=2,
            max_position_embeddings=4096, tie_word_embeddings=False, initializer_range=0.15, bos_token_id=None, eos_token_id=0)
VISION = dict(hidden_size=32, intermediate_size=50, num_heads=2, patch_size=4, spatial_merge_size=2, temporal_patch_size=2, in_channels=3,
              out_hidden_size=64, depth=2, initializer_range=0.15)
MODELS = {
    "qwen2_5_vl": ("Qwen2_5_VLForConditionalGeneration", dict(rope_theta=10000.0, rope_scaling=dict(type="mrope", mrope_section=[2, 3, 3])),
                   dict(hidden_act="silu", window_size=16, fullatt_block_indexes=[1], tokens_per_second=2)),
    "qwen3_vl": ("Qwen3VLForConditionalGeneration", dict(head_dim=16, rope_theta=10000.0, rope_scaling=dict(rope_type="default", mrope_section=[4, 2, 2])),
                 dict(hidden_act="gelu_pytorch_tanh", num_position_embeddings=36, deepstack_visual_indexes=[0])),
    "qwen3_vl_moe": ("Qwen3VLMoeForConditionalGeneration",
                     dict(head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, rope_theta=10000.0,
                          rope_scaling=dict(rope_type="default", mrope_section=[4, 2, 2])),
                     dict(hidden_act="gelu_pytorch_tanh", num_position_embeddings=36, deepstack_visual_indexes=[0])),
}
PROCESSOR = dict(image_processor_type="Qwen2VLImageProcessor", patch_size=4, merge_size=2, temporal_patch_size=2, min_pixels=1024, max_pixels=4096,
                 image_mean=[0.48145466, 0.4578275, 0.40821073], image_std=[0.26862954, 0.26130258, 0.27577711])
JOINT = dict({k: v for k, v in PROCESSOR.items() if "pixels" not in k and k != "image_processor_type"}, video_processor_type="Qwen3VLVideoProcessor",
             size=dict(shortest_edge=4096, longest_edge=8192))  # of all frames together; Qwen2.5-VL's videos have the limits of its images
TEMPLATE = ("{% for m in messages %}{{ m.role }}:{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
            "{% if p.type == 'image' %}" + START + PAD + END + "{% elif p.type == 'video' %}" + START + VIDEO + END + "{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %};{% endfor %}")
CHATS = [["3+4=?"], [0, "how many?"], ["a ", 1, " b"], [2, 3, "which?"], [4, "x", 5, "y", 6, "z"],
         [dict(frames=[0, 1, 2]), "what?"], ["a", dict(frames=[3, 4, 5, 6], fps=1), "b", dict(frames=[7, 0], sample_fps=4), "c"], [0, dict(frames=[2, 5, 1, 4, 7], fps=3), "d"]]
GREEDY = 16
FILES = ["png_rgb.png", "jpeg_420.jpeg", "webp_lossy.webp", "png_interlaced.png", "jpeg_exif_be.jpeg", "png_palette_8.png", "jpeg_cmyk.jpeg"]
FRAMES = ["jpeg_444.jpeg", "jpeg_gray_progressive.jpeg", "jpeg_ycck.jpeg", "png_gray.png", "png_gray_1.png", "png_gray_16.png", "png_palette_4.png", "webp_lossless.webp"]  # all of one size


def make(folder):
    subprocess.run(["scripts/make_sums", str(folder / "sums")], check=True, stdout=subprocess.DEVNULL)
    words = folder / "sums/model"
    tokenizer = json.loads((words / "tokenizer.json").read_text())
    vocab = 1 + max([*tokenizer["model"]["vocab"].values(), *(t["id"] for t in tokenizer["added_tokens"])])
    for token in (PAD, START, END, VIDEO):
        tokenizer["added_tokens"].append(dict(id=vocab, content=token, single_word=False, lstrip=False, rstrip=False, normalized=False, special=True))
        vocab += 1
    for name, (architecture, text, vision) in MODELS.items():
        text = dict(TEXT, vocab_size=vocab + 4, **text)
        model = folder / name
        model.mkdir()
        ids = dict(image_token_id=vocab - 4, video_token_id=vocab - 1, vision_start_token_id=vocab - 3, vision_end_token_id=vocab - 2)
        (model / "config.json").write_text(json.dumps(dict(model_type=name, architectures=[architecture], tie_word_embeddings=False, **ids,
                                                           text_config=dict(text, model_type=name + "_text"), vision_config=dict(VISION, **vision))))
        (model / "tokenizer.json").write_text(json.dumps(tokenizer))
        (model / "tokenizer_config.json").write_bytes((words / "tokenizer_config.json").read_bytes())
        (model / "chat_template.jinja").write_text(TEMPLATE)
        (model / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
        if name != "qwen2_5_vl":
            (model / "video_preprocessor_config.json").write_text(json.dumps(JOINT))


def fps_of(video):
    return video.get("sample_fps", video.get("fps", 2))


def written(part, grids, has_times):
    """A part of a chat as the model is given it."""
    if isinstance(part, str):
        return part
    t, h, w = next(grids)
    pads = h * w // 4
    if isinstance(part, int):
        return START + PAD * pads + END
    if not has_times:
        return START + VIDEO * (t * pads) + END
    n = len(part["frames"])
    times = [(2 * i + min(2 * i + 1, n - 1)) / 2 / fps_of(part) for i in range(t)]
    return "".join(f"<{time:.1f} seconds>" + START + VIDEO * pads + END for time in times)


def content_of(part):
    if isinstance(part, str):
        return dict(type="text", text=part)
    if isinstance(part, int):
        return dict(type="image", image=FILES[part])
    return dict(type="video", video=[FRAMES[i] for i in part["frames"]], **{k: v for k, v in part.items() if k != "frames"})


def numbers(folder):
    sys.path.append(sys.path.pop(0))  # tokenizers.py of this folder is not the package
    import torch, transformers
    from tokenizers import Tokenizer
    from transformers.image_utils import load_image
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
    from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor

    processor = Qwen2VLImageProcessorPil(**{k: v for k, v in PROCESSOR.items() if k != "image_processor_type"})
    each = Qwen2VLVideoProcessor(**{k: v for k, v in PROCESSOR.items() if k != "image_processor_type"})
    joint = Qwen3VLVideoProcessor(**{k: v for k, v in JOINT.items() if k != "video_processor_type"})
    for name, (architecture, _, _) in MODELS.items():
        has_times = name != "qwen2_5_vl"
        experts = dict(experts_implementation="eager") if "moe" in name else {}
        model = getattr(transformers, architecture).from_pretrained(folder / name, dtype=torch.float64, attn_implementation="eager", **experts).eval()
        tokenizer = Tokenizer.from_file(str(folder / name / "tokenizer.json"))
        sums, num = 0, 0
        for chat in CHATS:
            kwargs, images, videos = {}, [p for p in chat if isinstance(p, int)], [p for p in chat if isinstance(p, dict)]
            if images:
                kwargs = dict(processor(images=[load_image(str(IMAGES / FILES[i])) for i in images], return_tensors="pt"))
                kwargs["pixel_values"] = kwargs["pixel_values"].double()
            if videos:
                frames = [[load_image(str(IMAGES / FRAMES[i])) for i in v["frames"]] for v in videos]
                kwargs |= (joint if has_times else each)(videos=frames, do_sample_frames=False, return_tensors="pt")
                kwargs["pixel_values_videos"] = kwargs["pixel_values_videos"].double()
                if not has_times:
                    kwargs["second_per_grid_ts"] = [2 / fps_of(v) for v in videos]
            grids = [iter(kwargs[k].tolist()) if k in kwargs else None for k in ("image_grid_thw", "video_grid_thw")]
            text = "user:" + "".join(written(part, grids[isinstance(part, dict)], has_times) for part in chat)
            ids = torch.tensor([tokenizer.encode(text + ";", add_special_tokens=False).ids])
            if kwargs:
                kwargs["mm_token_type_ids"] = (ids == model.config.image_token_id).int() + 2 * (ids == model.config.video_token_id).int()
            logits = model(input_ids=ids, **kwargs).logits[0, :-1]
            own = torch.log_softmax(logits, -1).gather(1, ids[0, 1:, None])[:, 0]
            sums, num = sums - own.sum(), num + len(own)
            with torch.no_grad():
                answer = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=GREEDY, output_logits=True,
                                        return_dict_in_generate=True, **kwargs)
            margin = min((lambda top: (top[0] - top[1]).item())(step[0].topk(2).values) for step in answer.logits)
            assert margin > 1e-4, (name, chat, margin)  # float32 takes the same ids
            content = [content_of(p) for p in chat]
            print(json.dumps(dict(model=name, request=dict(id=len(images) + 10 * len(videos), messages=[dict(role="user", content=content)]), input_ids=ids[0].tolist(),
                                  logprobs=[round(x, 7) for x in own.tolist()],
                                  greedy=answer.sequences[0, ids.shape[1]:].tolist())))
        (sums / num).backward()
        grads = {k: v.grad.reshape(-1) for k, v in model.named_parameters() if ".experts." not in k}
        print(json.dumps(dict(model=name, loss=sums.item() / num, tokens=num,
                              grads={k: [float(f"{x:.7g}") for x in (g.norm().item(), (g * (torch.arange(len(g)) % 7 - 3)).sum().item())] for k, g in grads.items()})))


def main():
    what, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    make(folder) if what == "--make" else numbers(folder)


main()
