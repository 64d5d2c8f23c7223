"""vision_models.py -- tiny Qwen2.5-VL, Qwen3-VL and Qwen3-VL-MoE models of Transformers, for tests/unit/models_vl_numbers.c.

    python tests/parity/vision_models.py tests/parity      (Transformers 5.23 and PyTorch, on the CPU)

vision_trees.txt: every module with its class and every parameter with its shape, and the names that save_pretrained gives them.
vision_models.json: log-probs and gradients in float64 of packed batches. Weights, pixels and the gradient that comes in are
functions of a name and an index (`noise`), so the file has none of them; of a gradient it has the norm and two projections
on noise. `own_log_prob` and `own_grad` are the largest errors of Transformers itself in float32, `own_bf16` is its median error
in bfloat16 (a token that is routed to other experts is off by far more): what a test may allow is a multiple of them. Position ids are those of Transformers 4.x, written down here and compared with 5.x where the two agree."""
import contextlib, copy, json, pathlib, struct, sys, tempfile, warnings, zlib

if __name__ == "__main__":
    sys.path.append(sys.path.pop(0))  # tokenizers.py of this folder is not the package
import numpy as np
import torch
import transformers as tf

warnings.filterwarnings("ignore")
torch.set_num_threads(1)
TEXT = dict(vocab_size=97, hidden_size=64, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2,
            rms_norm_eps=1e-6, bos_token_id=1, eos_token_id=2, pad_token_id=None)
VISION = dict(hidden_size=32, intermediate_size=50, num_heads=2, patch_size=4, spatial_merge_size=2,
              temporal_patch_size=2, in_channels=3, out_hidden_size=64)
IDS = dict(image_token_id=90, video_token_id=91, vision_start_token_id=92, vision_end_token_id=93)
IMAGE, VIDEO, START, END = IDS.values()
SEED = 0


def rope(section):
    return dict(rope_parameters=dict(rope_type="default", rope_theta=10000.0, mrope_section=section))


def qwen2_5_vl():
    return tf.Qwen2_5_VLForConditionalGeneration(tf.Qwen2_5_VLConfig(
        text_config=TEXT | rope([2, 3, 3]) | dict(num_hidden_layers=2), **IDS, attn_implementation="eager",
        vision_config=VISION | dict(depth=2, window_size=16, fullatt_block_indexes=[1], tokens_per_second=2)))


def qwen3_vl():
    return tf.Qwen3VLForConditionalGeneration(tf.Qwen3VLConfig(
        text_config=TEXT | rope([4, 2, 2]) | dict(num_hidden_layers=4, head_dim=16), **IDS, attn_implementation="eager",
        vision_config=VISION | dict(depth=4, num_position_embeddings=36, deepstack_visual_indexes=[0, 2, 3])))


def qwen3_vl_moe():
    return tf.Qwen3VLMoeForConditionalGeneration(tf.Qwen3VLMoeConfig(
        text_config=TEXT | rope([4, 2, 2]) | dict(num_hidden_layers=3, head_dim=16, num_experts=4, num_experts_per_tok=2,
                                                  moe_intermediate_size=24, mlp_only_layers=[1], tie_word_embeddings=False),
        **IDS, attn_implementation="eager", experts_implementation="eager",
        vision_config=VISION | dict(depth=2, num_position_embeddings=36, deepstack_visual_indexes=[1])))


# ---------------------------------------------------------------- trees
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


# ---------------------------------------------------------------- numbers
def noise(name, num):
    """[-1, 1) from a name and an index, the same in C: a 32-bit mix of crc32(name) + index; another SEED, other names."""
    x = (np.arange(num, dtype=np.uint64) + zlib.crc32((f"{SEED} " * bool(SEED) + name).encode())) & 0xFFFFFFFF
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
        x = ((x ^ (x >> np.uint64(shift))) * np.uint64(factor)) & np.uint64(0xFFFFFFFF)
    return x.astype(np.float64) / 2.0 ** 31 - 1


def named(model, what):
    """(name, view of what(parameter)), experts one by one."""
    for name, p in model.named_parameters():
        x, (at, _, last) = what(p), name.rpartition(".")
        if not at.endswith("experts"):
            yield name, x
            continue
        for e in range(len(x)):
            half = x.shape[1] // 2
            parts = dict(gate_proj=x[e, :half], up_proj=x[e, half:]) if last == "gate_up_proj" else dict(down_proj=x[e])
            yield from ((f"{at}.{e}.{k}.weight", v) for k, v in parts.items())


@contextlib.contextmanager
def in_float64():
    """What a model of Transformers computes in float32 whatever its dtype (norms, the angles of a rope, softmax) is float64, too."""
    kept = torch.float32, torch.Tensor.float
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    try:
        yield
    finally:
        torch.float32 = torch.float = kept[0]
        torch.Tensor.float = kept[1]


def set_weights(model):
    for name, p in named(model, lambda p: p.data):
        x = noise(name, p.numel()) * (0.2 if p.dim() == 1 else 1.7 / (p.numel() / p.shape[0]) ** 0.5)
        if name.endswith("weight") and p.dim() == 1:
            x += 1
        if "embed" in name and "patch" not in name:
            x = noise(name, p.numel())
        p.copy_(torch.tensor(x.astype(np.float32).astype(np.float64)).reshape(p.shape))


def positions(ids, items, seconds, family):
    """get_rope_index of 4.x for one sequence. items: (is_video, t, h, w)."""
    if family.startswith("qwen3_vl"):
        items = [(v, 1, h, w) for v, t, h, w in items for _ in range(t)]
    out, at, nxt = [], 0, 0
    while at < len(ids):
        if ids[at] not in (IMAGE, VIDEO):
            out.append([nxt] * 3)
            at, nxt = at + 1, nxt + 1
            continue
        video, t, h, w = items.pop(0)
        rate = np.float32(seconds.pop(0) if video and family == "qwen2_5_vl" else 0)
        run = [[nxt + int(np.float32(np.float32(a) * rate) * np.float32(2)), nxt + b, nxt + c]
               for a in range(t) for b in range(h // 2) for c in range(w // 2)]
        out, at, nxt = out + run, at + len(run), max(map(max, run)) + 1
    return np.array(out).T


def words(salt, num):
    return [int((x + 1) * 45) % 90 for x in noise(f"ids {salt}", num)]


def sequences(family):
    """(ids, items, seconds) of three sequences: an image; a video and an image; text."""
    framed = family.startswith("qwen3_vl")
    run = lambda token, num: [START] + [token] * num + [END]
    frames = sum(([5 + k] + run(VIDEO, 4) for k in range(3)), []) if framed else run(VIDEO, 12)
    yield words("a", 7) + run(IMAGE, 15) + words("b", 9), [(False, 1, 6, 10)], []
    yield words("c", 3) + frames + words("d", 4) + run(IMAGE, 2) + words("e", 6), [(True, 3, 4, 4), (False, 1, 4, 2)], [0.75]
    yield words("f", 11), [], []


def pixels(item, num):
    return torch.tensor(noise(f"pixels {item}", num * 96).astype(np.float32).astype(np.float64)).reshape(num, 96)


def inputs(ids, items, first_item, pos):
    x = dict(input_ids=torch.tensor([ids]), position_ids=torch.tensor(pos)[:, None])
    for video, key, grid in ((False, "pixel_values", "image_grid_thw"), (True, "pixel_values_videos", "video_grid_thw")):
        mine = [(first_item + i, it[1:]) for i, it in enumerate(items) if it[0] == video]
        if mine:
            x[key] = torch.cat([pixels(i, t * h * w) for i, (t, h, w) in mine])
            x[grid] = torch.tensor([g for _, g in mine])
    return x


def run(model, batch, dtype):
    """Log-probs of every next token, in order, and the gradient of their sum weighted with noise."""
    model = copy.deepcopy(model).to(dtype)  # a copy: narrow dtypes round the buffers of rotary embeddings for good
    out, row = [], 0
    for x in batch:
        x = {k: v.to(dtype) if v.is_floating_point() else v for k, v in x.items()}
        lp = model(**x).logits[0].log_softmax(-1)[:-1].gather(1, x["input_ids"][0, 1:, None])[:, 0]
        (lp * torch.tensor(noise("grad", row + len(lp))[row:]).to(dtype)).sum().backward()
        row += len(lp)
        out.append(lp.detach().double().numpy())
    grads = {n: g.double().numpy().ravel() for n, g in named(model, lambda p: torch.zeros_like(p) if p.grad is None else p.grad)}
    return np.concatenate(out), grads


def case(model, name, batch, extra):
    with in_float64():
        want, grads = run(model, batch, torch.float64)
    single, grads32 = run(model, batch, torch.float32)
    half, _ = run(model, batch, torch.bfloat16)
    worst = max(np.linalg.norm(grads32[n] - g) / np.linalg.norm(g) for n, g in grads.items() if np.linalg.norm(g) > 0)
    dots = {n: [np.linalg.norm(g), g @ noise(f"first {n}", g.size), g @ noise(f"second {n}", g.size)] for n, g in grads.items()}
    return dict(family=model.config.model_type, name=name, own_log_prob=float(np.abs(single - want).max()), own_grad=float(worst),
                own_bf16=float(np.median(np.abs(half - want))), log_prob=want.tolist(), grad={n: [float(f"{x:.12g}") for x in v] for n, v in dots.items()}, **extra)


def cases(make):
    with in_float64():
        model = make().eval().double()
    set_weights(model)
    family = model.config.model_type
    plain = [words(f"plain {k}", n) for k, n in enumerate((9, 14))]
    axes = [np.array([[int((x + 1) * 20) for x in noise(f"axis {k} {a}", len(ids))] for a in range(3)]) for k, ids in enumerate(plain)]
    yield case(model, "axes", [dict(input_ids=torch.tensor([i]), position_ids=torch.tensor(p)[:, None]) for i, p in zip(plain, axes)],
               dict(ids=plain, mrope=[p.tolist() for p in axes], items=[], second_per_grid=[]))
    batch, ids, places, all_items, seconds = [], [], [], [], []
    for seq, items, sec in sequences(family):
        pos = positions(seq, list(items), list(sec), family)
        batch.append(inputs(seq, items, len(all_items), pos))
        if items and (family.startswith("qwen3_vl") or not sec):
            types = torch.tensor([[1 if i == IMAGE else 2 if i == VIDEO else 0 for i in seq]])
            new, _ = model.model.get_rope_index(mm_token_type_ids=types, **{k: v for k, v in batch[-1].items() if "id" in k and k != "position_ids"})
            assert (new[:, 0].numpy() == pos).all()
        ids.append(seq)
        places.append(pos.tolist())
        seconds += [sec[0] if it[0] else 0 for it in items]
        all_items += [[int(it[0]), *it[1:]] for it in items]
    yield case(model, "images", batch, dict(ids=ids, mrope=places, items=all_items, second_per_grid=seconds))


if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1])
    write_trees(folder / "vision_trees.txt")
    out = [c for make in (qwen2_5_vl, qwen3_vl, qwen3_vl_moe) for c in cases(make)]
    for c in out:
        print(c["family"], c["name"], c["own_log_prob"], c["own_grad"], c["own_bf16"])
    with open(folder / "vision_models.json", "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(c) for c in out) + "\n]\n")
