"""prismatic.py -- tiny Prismatic models in PyTorch, for tests/unit/models_prismatic.c.

    python tests/parity/prismatic.py tests/parity      (Transformers 5.23 and PyTorch, on the CPU)

The vision transformers, the features that Prismatic takes of them, the projectors and how an image comes into a sequence are
written down here, with the names that the port to Transformers has (timm's for a tower); the language model is Transformers' Llama. Towers
are compared with SiglipVisionModel, Dinov2Model and Dinov2WithRegistersModel of Transformers before anything is written.

prismatic.json: config.json, log-probs and gradients in float64 of packed rows with and without an image. Weights, pixels and the gradient
that comes in are functions of a name and an index (vision_models.py), so the file has none of them; of a gradient it has the norm and two
projections. `own_log_prob` and `own_grad` are the largest errors of this code in float32, `own_bf16` the median in bfloat16. A parameter without a
gradient in PyTorch (the last block of a tower, its last norm) is listed in `unused`."""
import copy, json, pathlib, sys, warnings

sys.path.append(sys.path.pop(0))  # tokenizers.py of this folder is not the package
import numpy as np
import torch
import torch.nn.functional as F
import transformers as tf
from torch import nn

from vision_models import in_float64, noise, set_weights, words

warnings.filterwarnings("ignore")
torch.set_num_threads(1)
TEXT = dict(model_type="llama", vocab_size=97, hidden_size=48, intermediate_size=70, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, rms_norm_eps=1e-6, bos_token_id=1, eos_token_id=2)
SIGLIP = dict(model_type="siglip_vision_model", hidden_size=32, intermediate_size=50, num_hidden_layers=3, num_attention_heads=2,
              image_size=12, patch_size=4, hidden_act="gelu_pytorch_tanh")
DINO = dict(model_type="dinov2", hidden_size=40, mlp_ratio=2, num_hidden_layers=4, num_attention_heads=2, image_size=18, patch_size=6,
            hidden_act="gelu")
REGISTERS = DINO | dict(model_type="dinov2_with_registers", num_register_tokens=3)
BASE = dict(architectures=["PrismaticForConditionalGeneration"], model_type="prismatic", image_token_id=95, text_config=TEXT)
CONFIGS = dict(
    linear=BASE | dict(arch_specifier="linear", vision_towers=[SIGLIP]),
    mlp=BASE | dict(arch_specifier="no-align+gelu-mlp", vision_towers=[REGISTERS]),
    fused=BASE | dict(arch_specifier="no-align+fused-gelu-mlp", vision_towers=[DINO, SIGLIP]))


# ---------------------------------------------------------------- the module tree
class LayerScale(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale_factor = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * self.scale_factor


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.qkv, self.proj = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        p = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        return self.proj((p @ v).transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, width, wide, tanh):
        super().__init__()
        self.fc1, self.fc2, self.kind = nn.Linear(width, wide), nn.Linear(wide, width), "tanh" if tanh else "none"

    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x), approximate=self.kind))


class Block(nn.Module):
    def __init__(self, c, wide, scaled):
        super().__init__()
        d = c["hidden_size"]
        self.norm1, self.attn = nn.LayerNorm(d, eps=1e-6), Attention(d, c["num_attention_heads"])
        self.norm2, self.mlp = nn.LayerNorm(d, eps=1e-6), Mlp(d, wide, c["hidden_act"] != "gelu")
        self.ls1, self.ls2 = (LayerScale(d), LayerScale(d)) if scaled else (nn.Identity(), nn.Identity())

    def forward(self, x):
        x = x + self.ls1(self.attn(self.norm1(x)))
        return x + self.ls2(self.mlp(self.norm2(x)))


class PatchEmbed(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.proj = nn.Conv2d(3, c["hidden_size"], c["patch_size"], c["patch_size"])

    def forward(self, pixels):
        return self.proj(pixels).flatten(2).mT


class VisionTransformer(nn.Module):
    """Patches of the last block but one, without the last norm."""

    def __init__(self, c):
        super().__init__()
        d, siglip = c["hidden_size"], c["model_type"].startswith("siglip")
        self.c, self.side = c, c["image_size"] // c["patch_size"]
        self.registers = c.get("num_register_tokens", 0)
        before = 0 if siglip or self.registers else 1
        self.pos_embed = nn.Parameter(torch.zeros(1, self.side ** 2 + before, d))
        if not siglip:
            self.cls_token = nn.Parameter(torch.zeros(1, 1, d))
        if self.registers:
            self.reg_token = nn.Parameter(torch.zeros(1, self.registers, d))
        self.patch_embed = PatchEmbed(c)
        wide = c["intermediate_size"] if siglip else int(d * c["mlp_ratio"])
        self.blocks = nn.Sequential(*[Block(c, wide, not siglip) for _ in range(c["num_hidden_layers"])])
        self.norm = nn.LayerNorm(d, eps=1e-6)

    def forward(self, pixels):
        x, before = self.patch_embed(pixels), 0
        if self.registers:  # positions are of patches alone
            x, before = torch.cat([self.cls_token, self.reg_token, x + self.pos_embed], 1), 1 + self.registers
        elif hasattr(self, "cls_token"):
            x, before = torch.cat([self.cls_token, x], 1) + self.pos_embed, 1
        else:
            x = x + self.pos_embed
        for block in self.blocks[:-1]:
            x = block(x)
        return x[:, before:]


class VisionBackbone(nn.Module):
    def __init__(self, towers):
        super().__init__()
        self.featurizer = VisionTransformer(towers[0])
        if len(towers) > 1:
            self.fused_featurizer = VisionTransformer(towers[1])

    def forward(self, images):
        return torch.cat([t(x) for t, x in zip(self.children(), images)], 2)


class Projector(nn.Module):
    def __init__(self, kind, width, out):
        super().__init__()
        num = 1 + ("mlp" in kind) + ("fused" in kind)
        sizes = [width, 4 * width if num == 3 else out, out, out]
        self.num = num
        for i in range(num):
            setattr(self, f"fc{i + 1}", nn.Linear(sizes[i], sizes[i + 1]))

    def forward(self, x):
        for i in range(self.num):
            x = getattr(self, f"fc{i + 1}")(F.gelu(x) if i else x)
        return x


class Prismatic(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.vision_backbone = VisionBackbone(c["vision_towers"])
        width = sum(t["hidden_size"] for t in c["vision_towers"])
        self.projector = Projector(c["arch_specifier"], width, TEXT["hidden_size"])
        self.language_model = tf.LlamaForCausalLM(tf.LlamaConfig(**TEXT, attn_implementation="eager", tie_word_embeddings=False))

    def forward(self, ids, images):
        """Log-probs of ids[1:]; the patches stand after the first token and are no label."""
        x = self.language_model.get_input_embeddings()(torch.tensor([ids]))
        if images:
            patches = self.projector(self.vision_backbone(images))
            x = torch.cat([x[:, :1], patches, x[:, 1:]], 1)
        logits = self.language_model(inputs_embeds=x).logits[0, -len(ids):-1]
        return logits.log_softmax(-1).gather(1, torch.tensor(ids)[1:, None])[:, 0]


# ---------------------------------------------------------------- towers against those of Transformers
def split_qkv(own, k):
    return {f"{n}.{part}": getattr(own.attn.qkv, part).data.chunk(3)[i] for i, n in enumerate(k) for part in ("weight", "bias")}


def check_tower(own):
    c, d = own.c, own.c["hidden_size"]
    state, scaled = {}, not c["model_type"].startswith("siglip")
    if not scaled:
        keys = {k: v for k, v in c.items() if k != "model_type"}
        model = tf.SiglipVisionModel(tf.SiglipVisionConfig(**keys, attn_implementation="eager", vision_use_head=False))
        start = "" if hasattr(model, "encoder") else "vision_model."
        state[start + "embeddings.patch_embedding.weight"] = own.patch_embed.proj.weight.data
        state[start + "embeddings.patch_embedding.bias"] = own.patch_embed.proj.bias.data
        state[start + "embeddings.position_embedding.weight"] = own.pos_embed.data[0]
        where, names = start + "encoder.layers", dict(norm1="layer_norm1", norm2="layer_norm2", fc1="mlp.fc1", fc2="mlp.fc2", proj="self_attn.out_proj")
        qkv = [f"self_attn.{n}_proj" for n in "qkv"]
    else:
        keys = {k: v for k, v in c.items() if k != "model_type"} | dict(attn_implementation="eager", apply_layernorm=False)
        with_registers = own.registers > 0
        model = (tf.Dinov2WithRegistersModel(tf.Dinov2WithRegistersConfig(**keys)) if with_registers
                 else tf.Dinov2Model(tf.Dinov2Config(**keys)))
        state["embeddings.patch_embeddings.projection.weight"] = own.patch_embed.proj.weight.data
        state["embeddings.patch_embeddings.projection.bias"] = own.patch_embed.proj.bias.data
        state["embeddings.cls_token"] = own.cls_token.data
        state["embeddings.position_embeddings"] = own.pos_embed.data
        if with_registers:  # timm folds the position of the class token into it
            state["embeddings.position_embeddings"] = torch.cat([torch.zeros(1, 1, d, dtype=torch.double), own.pos_embed.data], 1)
            state["embeddings.register_tokens"] = own.reg_token.data
        where, names = "encoder.layer", dict(norm1="norm1", norm2="norm2", fc1="mlp.fc1", fc2="mlp.fc2", proj="attention.o_proj")
        qkv = [f"attention.{n}_proj" for n in "qkv"]
    for i, b in enumerate(own.blocks):
        parts = dict(norm1=b.norm1, norm2=b.norm2, fc1=b.mlp.fc1, fc2=b.mlp.fc2, proj=b.attn.proj)
        for k, m in parts.items():
            for part in ("weight", "bias"):
                state[f"{where}.{i}.{names[k]}.{part}"] = getattr(m, part).data
        state |= {f"{where}.{i}.{k}": v for k, v in split_qkv(b, qkv).items()}
        if scaled:
            state[f"{where}.{i}.layer_scale1.lambda1"], state[f"{where}.{i}.layer_scale2.lambda1"] = b.ls1.scale_factor.data, b.ls2.scale_factor.data
    model = model.double().eval()
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and all(k.split(".")[-2] in ("post_layernorm", "layernorm") or k.endswith("mask_token") for k in missing), (missing, unexpected)
    pixels = torch.tensor(noise("check", 3 * c["image_size"] ** 2)).reshape(1, 3, c["image_size"], c["image_size"])
    hidden = model(pixels, output_hidden_states=True).hidden_states[-2][:, (1 + own.registers) * scaled:]
    off = float((own(pixels) - hidden).detach().abs().max() / hidden.detach().abs().max())
    print("tower", c["model_type"], "differs from Transformers by", off)
    assert off < 1e-6  # softmax of SiglipVisionModel is in float32


# ---------------------------------------------------------------- numbers
def image(name, towers, dtype):
    """Each tower's own pixels, patch by patch as croll has them (row r: [3, p, p] of each tower), folded to [1, 3, size, size]."""
    side = towers[0]["image_size"] // towers[0]["patch_size"]
    widths = [3 * t["patch_size"] ** 2 for t in towers]
    rows = torch.tensor(noise(f"pixels {name}", side * side * sum(widths)).astype(np.float32)).to(dtype).reshape(side, side, -1)
    return [x.unflatten(-1, (3, t["patch_size"], t["patch_size"])).permute(2, 0, 3, 1, 4).reshape(1, 3, t["image_size"], t["image_size"])
            for t, x in zip(towers, rows.split(widths, -1))]


def run(model, batch, towers, dtype):
    model = copy.deepcopy(model).to(dtype)
    out, row, at = [], 0, 0
    for ids, has_image in batch:
        lp = model(ids, image(at, towers, dtype) if has_image else None)
        (lp * torch.tensor(noise("grad", row + len(lp))[row:]).to(dtype)).sum().backward()
        row, at = row + len(lp), at + has_image
        out.append(lp.detach().double().numpy())
    return np.concatenate(out), {n: p.grad.double().numpy().ravel() for n, p in model.named_parameters() if p.grad is not None}


def case(name, config):
    with in_float64():
        model = Prismatic(config).eval().double()
    set_weights(model)
    towers = config["vision_towers"]
    for tower in model.vision_backbone.children():
        check_tower(tower)
    batch = [([1] + words("a", 8), 1), ([1] + words("b", 11), 0), ([1] + words("c", 5), 1), ([1] + words("d", 1), 1)]
    with in_float64():
        want, grads = run(model, batch, towers, torch.float64)
    single, grads32 = run(model, batch, towers, torch.float32)
    half, _ = run(model, batch, towers, torch.bfloat16)
    worst = max(np.linalg.norm(grads32[n] - g) / np.linalg.norm(g) for n, g in grads.items() if np.linalg.norm(g) > 0)
    dots = {n: [np.linalg.norm(g), g @ noise(f"first {n}", g.size), g @ noise(f"second {n}", g.size)] for n, g in grads.items()}
    shapes = {n: list(p.shape) for n, p in model.named_parameters()}
    return dict(name=name, config=config, batch=batch, own_log_prob=float(np.abs(single - want).max()), own_grad=float(worst),
                own_bf16=float(np.median(np.abs(half - want))), log_prob=want.tolist(),
                grad={n: [float(f"{x:.12g}") for x in v] for n, v in dots.items()}, shape={n: shapes[n] for n in dots},
                unused=[n for n in shapes if n not in dots])


if __name__ == "__main__":
    cases = [case(name, config) for name, config in CONFIGS.items()]
    for c in cases:
        print(c["name"], c["own_log_prob"], c["own_grad"], c["own_bf16"], len(c["grad"]), "gradients", len(c["unused"]), "unused")
    with open(pathlib.Path(sys.argv[1]) / "prismatic.json", "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]\n")
