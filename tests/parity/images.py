#!/usr/bin/env python3
"""images.py -- images as Transformers loads and processes them: pixels, patches, grids.

    tests/parity/images.py --check build/release/croll     200 drawn images, 1 x 1 to 4k, of every type, through `croll image`
    tests/parity/images.py --write-videos tests/parity/videos.json      lists of those, as Qwen2VLVideoProcessor and Qwen3VLVideoProcessor cut them
    tests/parity/images.py --write tests/parity/images     the small ones of them, with digests of their pixels and values

Nothing is downloaded: images are drawn from a seed. What `--write` makes is committed; tests/unit/images_golden.c reads it. Needs the
Python packages pillow (12.1 or older: later ones may resize columns first), torch, torchvision, transformers and numpy. Decoded
pixels must be equal, and values, in Pillow's form (Qwen2VLImageProcessorPil) and in torchvision's (Qwen2VLImageProcessor): every bit.
So must those of models of one size of image: SigLIP's and BiT's (DINOv2) processors in both forms, Prismatic's, which is written here.
"""
import argparse, hashlib, io, json, pathlib, struct, subprocess, sys, tempfile, warnings, zlib

sys.path.append(sys.path.pop(0))  # tokenizers.py of this folder is not the package
import numpy
import torchvision.transforms.functional as TVF
from PIL import Image, ImageOps
from transformers.image_transforms import convert_to_rgb
from transformers.image_utils import load_image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor
from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor
from transformers.models.bit.image_processing_bit import BitImageProcessor
from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
from transformers.models.siglip.image_processing_siglip import SiglipImageProcessor

warnings.filterwarnings("ignore")
CLIP = dict(image_mean=[0.48145466, 0.4578275, 0.40821073], image_std=[0.26862954, 0.26130258, 0.27577711])
MODELS = { # what preprocessor_config.json of the hub has
    "qwen2_5_vl": dict(patch_size=14, min_pixels=3136, max_pixels=12845056, **CLIP),
    "qwen3_vl": dict(patch_size=16, size=dict(shortest_edge=65536, longest_edge=16777216), image_mean=[0.5] * 3, image_std=[0.5] * 3),
    "small": dict(patch_size=2, min_pixels=64, max_pixels=1024, **CLIP),
}
FORMS = {"pil": Qwen2VLImageProcessorPil, "torchvision": Qwen2VLImageProcessor}
VIDEOS = { # the class, and what video_preprocessor_config.json has
    "each": (Qwen2VLVideoProcessor, dict(patch_size=2, merge_size=2, temporal_patch_size=2, min_pixels=64, max_pixels=700, **CLIP)),
    "each_capped": (Qwen2VLVideoProcessor, dict(patch_size=2, merge_size=2, temporal_patch_size=2, min_pixels=64, max_pixels=700, cap_pixels_per_frame=True, max_video_tokens=60, **CLIP)),
    "joint": (Qwen3VLVideoProcessor, dict(patch_size=2, merge_size=2, temporal_patch_size=2, size=dict(shortest_edge=800, longest_edge=2900), image_mean=[0.5] * 3, image_std=[0.5] * 3)),
    "joint_capped": (Qwen3VLVideoProcessor, dict(patch_size=2, merge_size=2, temporal_patch_size=2, size=dict(shortest_edge=100, longest_edge=4000), cap_pixels_per_frame=True,
                                                 max_video_tokens=20, image_mean=[0.5] * 3, image_std=[0.5] * 3)),
    "large": (Qwen3VLVideoProcessor, dict(patch_size=16, merge_size=2, temporal_patch_size=2, size=dict(shortest_edge=4096, longest_edge=25165824), image_mean=[0.5] * 3, image_std=[0.5] * 3)),
    "hub": (Qwen2VLVideoProcessor, dict(patch_size=14, merge_size=2, temporal_patch_size=2, min_pixels=3136, max_pixels=12845056, **CLIP)),
}
BACKENDS = {"SiglipImageProcessor": dict(pil=SiglipImageProcessorPil, torchvision=SiglipImageProcessor),
            "BitImageProcessor": dict(pil=BitImageProcessorPil, torchvision=BitImageProcessor)}
IMAGENET = [0.484375, 0.455078125, 0.40625], [0.228515625, 0.2236328125, 0.224609375]
HALF = [0.5] * 3, [0.5] * 3
# models of one size of image: the patch sizes of their towers, and what preprocessor_config.json has
def prismatic(strategy, *towers):
    return [t[1] for t in towers], dict(image_processor_type="PrismaticImageProcessor", image_resize_strategy=strategy, use_fused_vision_backbone=len(towers) > 1,
        input_sizes=[[3, t[0], t[0]] for t in towers], interpolations=["bicubic"] * len(towers), means=[t[2][0] for t in towers], stds=[t[2][1] for t in towers])
VIEWS = {
    "letterbox": prismatic("letterbox", (56, 14, HALF), (64, 16, IMAGENET)), "naive": prismatic("resize-naive", (224, 14, IMAGENET), (224, 14, HALF)),
    "crop": prismatic("resize-crop", (63, 9, IMAGENET)), "letterbox_one": prismatic("letterbox", (55, 9, IMAGENET)),
    "siglip": ([16], dict(image_processor_type="SiglipImageProcessor", size=dict(height=96, width=96), image_mean=HALF[0], image_std=HALF[1])),
    "bit": ([14], dict(image_processor_type="BitImageProcessor", size=dict(shortest_edge=65), crop_size=dict(height=56, width=56), image_mean=IMAGENET[0], image_std=IMAGENET[1])),
}


def chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def pack_rows(x, depth):
    """[h, w, channels] of numbers below 2^depth as PNG's rows, each with filter 0."""
    h = x.shape[0]
    if depth == 16:
        rows = x.astype(">u2").reshape(h, -1).view(numpy.uint8)
    elif depth == 8:
        rows = x.astype(numpy.uint8).reshape(h, -1)
    else:
        bits = (x.reshape(h, -1, 1) >> numpy.arange(depth - 1, -1, -1)) & 1
        rows = numpy.packbits(bits.astype(numpy.uint8).reshape(h, -1), axis=1)
    return b"".join(b"\0" + row.tobytes() for row in rows)


def png(x, depth, colour, extra=b"", interlaced=False):
    h, w, _ = x.shape
    passes = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)] if interlaced else [(0, 0, 1, 1)]
    parts = [x[y::dy, z::dx] for y, z, dy, dx in passes]
    data = b"".join(pack_rows(p, depth) for p in parts if p.size)
    head = struct.pack(">IIBBBBB", w, h, depth, colour, 0, 0, int(interlaced))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + extra + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def tiff(orientation, order="<"):
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(order + "I", 8)
    return head + struct.pack(order + "H", 2) + struct.pack(order + "HHII", 0x10F, 2, 3, 0x616263) + \
        struct.pack(order + "HHIHH", 0x112, 3, 1, orientation, 0) + bytes(4)


def xmp(orientation):
    return f'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF><rdf:Description tiff:Orientation="{orientation}"/></rdf:RDF></x:xmpmeta>'.encode()


def draw(rng, w, h, channels, top=256):
    """Ramps, edges and noise: what shows a filter."""
    y, x = numpy.mgrid[0:h, 0:w]
    out = []
    for _ in range(channels):
        a, b, c = rng.uniform(-4, 4, 3)
        ramp = 0.5 + 0.5 * numpy.sin(a * x / max(w, 8) * 6 + b * y / max(h, 8) * 6 + c)
        ramp[(x // int(rng.integers(2, 40)) + y // int(rng.integers(2, 40))) % 2 == 0] *= rng.uniform(0, 1)
        ramp = ramp + rng.normal(0, 0.1, ramp.shape) * (rng.random() < 0.7)
        out.append(numpy.clip(ramp, 0, 1) * (top - 1))
    return numpy.stack(out, -1).round().astype(numpy.int64)


def save(x, mode, name, **options):
    to = io.BytesIO()
    x = x.astype(numpy.uint8)
    Image.fromarray(x[..., 0] if x.shape[-1] == 1 else x, mode).save(to, name, **options)
    return to.getvalue()


def jpeg(channels, **options):
    def make(rng, w, h):
        return save(draw(rng, w, h, channels), {1: "L", 3: "RGB", 4: "CMYK"}[channels], "JPEG", **options)
    return make


def ycck(rng, w, h):
    data = bytearray(jpeg(4, quality=90)(rng, w, h))
    data[data.index(b"Adobe") + 11] = 2
    return bytes(data)


def jpeg_turned(order, is_exif=True):
    def make(rng, w, h):
        how = int(rng.integers(0, 10))
        data = jpeg(3)(rng, w, h)
        body = b"Exif\0\0" + tiff(how, order) if is_exif else b"http://ns.adobe.com/xap/1.0/\0" + xmp(how % 10)
        return data[:2] + b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body + data[2:]
    return make


def png_of(depth, colour, extra=lambda rng: b"", interlaced=False):
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour]
    return lambda rng, w, h: png(draw(rng, w, h, channels, 1 << depth), depth, colour, extra(rng), interlaced)


def palette(num, alpha=False):
    def make(rng):
        colours = chunk(b"PLTE", rng.integers(0, 256, num * 3).astype(numpy.uint8).tobytes())
        return colours + (chunk(b"tRNS", rng.integers(0, 256, num // 2).astype(numpy.uint8).tobytes()) if alpha else b"")
    return make


def webp(channels, **options):
    def make(rng, w, h):
        return save(draw(rng, w, h, channels), {3: "RGB", 4: "RGBA"}[channels], "WEBP", **options)
    return make


def webp_turned(rng, w, h):
    """Where it can be, the chunk of alpha has an odd length, which a byte follows that belongs to none."""
    how = int(rng.integers(2, 9))
    for _ in range(8):
        data = webp(4, quality=int(rng.integers(40, 90)), exif=tiff(how))(rng, w, h)
        if b"ALPH" in data and data[data.index(b"ALPH") + 4] % 2:
            break
    return data


KINDS = {
    "jpeg_420": jpeg(3, quality=80, subsampling=2), "jpeg_422": jpeg(3, quality=90, subsampling=1), "jpeg_444": jpeg(3, quality=95, subsampling=0),
    "jpeg_gray": jpeg(1), "jpeg_progressive": jpeg(3, progressive=True, quality=60), "jpeg_gray_progressive": jpeg(1, progressive=True),
    "jpeg_rgb": jpeg(3, keep_rgb=True), "jpeg_cmyk": jpeg(4), "jpeg_ycck": ycck, "jpeg_restart": jpeg(3, restart_marker_blocks=3),
    "jpeg_exif_le": jpeg_turned("<"), "jpeg_exif_be": jpeg_turned(">"), "jpeg_xmp": jpeg_turned("", False),
    "png_rgb": png_of(8, 2), "png_gray": png_of(8, 0), "png_gray_alpha": png_of(8, 4), "png_rgba": png_of(8, 6),
    "png_gray_1": png_of(1, 0), "png_gray_2": png_of(2, 0), "png_gray_4": png_of(4, 0), "png_gray_16": png_of(16, 0),
    "png_rgb_16": png_of(16, 2), "png_gray_alpha_16": png_of(16, 4), "png_rgba_16": png_of(16, 6),
    "png_palette_1": png_of(1, 3, palette(2)), "png_palette_2": png_of(2, 3, palette(3)), "png_palette_4": png_of(4, 3, palette(16)),
    "png_palette_8": png_of(8, 3, palette(256)), "png_palette_alpha": png_of(8, 3, palette(200, True)),
    "png_gray_trns": png_of(8, 0, lambda rng: chunk(b"tRNS", b"\0\x64")), "png_rgb_trns": png_of(8, 2, lambda rng: chunk(b"tRNS", b"\0\x64" * 3)),
    "png_interlaced": png_of(8, 2, interlaced=True), "png_interlaced_4": png_of(4, 0, interlaced=True), "png_interlaced_16": png_of(16, 0, interlaced=True),
    "png_exif": png_of(8, 2, lambda rng: chunk(b"eXIf", tiff(int(rng.integers(1, 9)), ">"))),
    "png_xmp": png_of(8, 0, lambda rng: chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + xmp(6))),
    "png_gamma": png_of(8, 2, lambda rng: chunk(b"gAMA", struct.pack(">I", 45455))),
    "webp_lossy": webp(3, quality=80), "webp_lossless": webp(3, lossless=True), "webp_alpha": webp(4, quality=70),
    "webp_lossless_alpha": webp(4, lossless=True, exact=True), "webp_exif": webp_turned,
}
SIZES = [(1, 1), (1, 2), (2, 1), (1, 150), (150, 1), (3, 600), (7, 5), (13, 13), (14, 14), (28, 28), (29, 27), (32, 32), (42, 70), (48, 80), (64, 64),
         (100, 100), (131, 57), (224, 224), (320, 200), (333, 500), (640, 480), (511, 513), (800, 600)]
LARGE = [("jpeg_420", 3840, 2160), ("png_rgb", 3840, 2160), ("webp_lossy", 3840, 2160), ("jpeg_progressive", 4096, 2304), ("jpeg_exif_le", 3000, 4000),
         ("png_gray_16", 1920, 1080), ("jpeg_cmyk", 1920, 1080), ("png_interlaced", 1920, 1080), ("png_rgb", 6000, 40), ("png_gray", 4100, 20)]


def draw_all(num):
    """(name, bytes): each kind in turn, sizes in another turn; the large ones last."""
    rng = numpy.random.default_rng(33)
    kinds = list(KINDS)
    for i in range(num - len(LARGE)):
        kind, (w, h) = kinds[i % len(kinds)], SIZES[(i * 7 + i // len(kinds)) % len(SIZES)]
        yield f"{i:03}_{kind}_{w}x{h}", KINDS[kind](rng, w, h)
    for i, (kind, w, h) in enumerate(LARGE):
        yield f"{num - len(LARGE) + i:03}_{kind}_{w}x{h}", KINDS[kind](rng, w, h)


def load(path):
    """load_image's pixels alone: processors of Transformers 5.24 paint the colour of a tRNS chunk, which is left beside them, white."""
    image = load_image(str(path))
    image.info.pop("transparency", None)
    return image


def load_white(path):
    """Pixels of an open Pillow image, whose alpha processors of Transformers 5.24 blend with white."""
    image = ImageOps.exif_transpose(Image.open(path))
    if image.mode.startswith("I;16"):
        image.info.pop("transparency", None)  # Pillow has no such conversion
    return convert_to_rgb(image, return_numpy=True)


def processed(image, model, form):
    out = FORMS[form](**MODELS[model])(images=image, return_tensors="np" if form == "pil" else "pt")
    return numpy.asarray(out["pixel_values"], dtype=numpy.float32), [int(x) for x in out["image_grid_thw"][0]]


def prismatic_views(image, p):
    """PrismaticImageProcessor as its papers and files describe it: torchvision's steps on a Pillow image, once for each tower."""
    if p["image_resize_strategy"] == "letterbox":
        w, h = (max(image.size) - image.width) // 2, (max(image.size) - image.height) // 2
        image = TVF.pad(image, [w, h, w, h], fill=tuple(int(255 * m) for m in p["means"][-1]))
    out = []
    for (_, _, side), mean, std in zip(p["input_sizes"], p["means"], p["stds"]):
        one = TVF.resize(image, [side, side] if p["image_resize_strategy"] == "resize-naive" else side, TVF.InterpolationMode.BICUBIC)
        out.append(TVF.normalize(TVF.to_tensor(TVF.center_crop(one, [side, side])), mean, std).numpy())
    return out


def views(image, name, form):
    """Patches of all towers beside each other, row by row, and the grid."""
    sizes, p = VIEWS[name]
    kind = p["image_processor_type"]
    if kind == "PrismaticImageProcessor":
        made = prismatic_views(image, p)
    else:
        of = {k: v for k, v in p.items() if k != "image_processor_type"}
        made = [numpy.asarray(BACKENDS[kind][form](**of)(images=image, return_tensors="np" if form == "pil" else "pt")["pixel_values"], numpy.float32)[0]]
    n = made[0].shape[1] // sizes[0]
    cut = [v[:, :n * s, :n * s].reshape(3, n, s, n, s).transpose(1, 3, 0, 2, 4).reshape(n * n, -1) for v, s in zip(made, sizes)]
    return numpy.concatenate(cut, 1), [1, n, n]


def write_views(folder, name):
    """The processor, and a config.json with its towers."""
    sizes, p = VIEWS[name]
    sides = [s[2] for s in p["input_sizes"]] if "input_sizes" in p else [p.get("crop_size", p["size"])["height"]]
    (folder / name).mkdir()
    (folder / name / "preprocessor_config.json").write_text(json.dumps(p))
    (folder / name / "config.json").write_text(json.dumps(dict(image_token_id=9, text_config=dict(vocab_size=10),
        vision_towers=[dict(model_type="dinov2", image_size=side, patch_size=s) for side, s in zip(sides, sizes)])))


def forms_of(name):
    return ["pil"] if VIEWS[name][1]["image_processor_type"] == "PrismaticImageProcessor" else list(FORMS)


def write_processor(folder, model):
    (folder / model).mkdir()
    (folder / model / "preprocessor_config.json").write_text(json.dumps(dict(MODELS[model], image_processor_type="Qwen2VLImageProcessor", do_resize=True,
        do_rescale=True, do_normalize=True, resample=3, rescale_factor=1 / 255, merge_size=2, temporal_patch_size=2)))


def ask(croll, path, values, *options):
    ran = subprocess.run([croll, "image", str(path), "--values", str(values), *options], capture_output=True, text=True)
    return json.loads(ran.stdout) if ran.stdout else dict(error=ran.stderr)


def check(croll, num, first):
    bad = steps = exact = 0
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for model in MODELS:
            write_processor(folder, model)
        for model in VIEWS:
            write_views(folder, model)
        for i, (name, data) in enumerate(draw_all(num)):
            if i < first:
                continue
            path, values = folder / name, folder / "values"
            path.write_bytes(data)
            image, said = load(path), ask(croll, path, values)
            faults = []
            if "error" in said or values.read_bytes() != numpy.array(image).tobytes():
                faults.append(f"pixels: {said}")
            said = ask(croll, path, values, "--alpha", "white")
            if "error" in said or values.read_bytes() != load_white(path).tobytes():
                faults.append(f"pixels over white: {said}")
            one_size = list(VIEWS)[i % len(VIEWS)]
            asked = [(["qwen2_5_vl", "qwen3_vl"][i % 2], f) for f in FORMS] + [(one_size, f) for f in forms_of(one_size)]
            for model, form in asked:
                said = ask(croll, path, values, "--model", str(folder / model), "--resize", form)
                if model in VIEWS and "padded to a square" in said.get("error", ""):
                    continue
                try:
                    want, grid = (views if model in VIEWS else processed)(image, model, form)
                except ValueError as error:
                    if "error" not in said:
                        faults.append(f"{model}, {form}: taken, but {error}")
                    continue
                got = numpy.fromfile(values, dtype=numpy.float32) if "error" not in said else numpy.zeros(0)
                if got.size != want.size or said["grid"] != grid or said["tokens"] != grid[0] * grid[1] * grid[2] // (1 if model in VIEWS else 4):
                    faults.append(f"{model}, {form}: {said}, not {grid}")
                elif not numpy.array_equal(got, want.ravel()):
                    faults.append(f"{model}, {form}: {(got != want.ravel()).sum()} of {got.size} values differ, at most by {abs(got - want.ravel()).max():.3g}")
                else:
                    exact += got.size
                steps += 1
            bad += bool(faults)
            for fault in faults:
                print(f"{name}: {fault}")
            path.unlink()
    print(f"{num - first} images, {num - first - bad} with equal pixels, values, grids and tokens ({steps} times processed, {exact:,} values equal to the bit)")
    return bad != 0


def digest(x):
    return hashlib.sha256(x.tobytes()).hexdigest()


def write(folder):
    """One small image of each kind, and what is made of it."""
    folder.mkdir(exist_ok=True)
    rng = numpy.random.default_rng(34)
    cases = []
    for i, kind in enumerate(KINDS):
        name, data = f"{kind}.{kind.split('_')[0]}", KINDS[kind](rng, *[(19, 13), (9, 30), (40, 24)][i % 3])
        (folder / name).write_bytes(data)
        image = load(folder / name)
        case = dict(file=name, width=image.width, height=image.height, pixels=digest(numpy.array(image)), white=digest(load_white(folder / name)), processed=[])
        for model in ("small", "qwen2_5_vl"):
            for form in FORMS:
                values, grid = processed(image, model, form)
                case["processed"].append(dict(model=model, form=form, grid=grid, values=digest(values)))
        for model in VIEWS:
            for form in forms_of(model):
                values, grid = views(image, model, form)
                case["processed"].append(dict(model=model, form=form, grid=grid, values=digest(values)))
        cases.append(case)
    models = {m: dict(MODELS[m], image_processor_type="Qwen2VLImageProcessor") for m in ("small", "qwen2_5_vl")} | {m: p for m, (_, p) in VIEWS.items()}
    patches = {m: sizes for m, (sizes, _) in VIEWS.items()}
    lines = ",\n".join(json.dumps(c) for c in cases)
    (folder / "images.json").write_text(f'{{"models":{json.dumps(models)},\n"patches":{json.dumps(patches)},\n"cases":[\n{lines}\n]}}\n')


def write_videos(path):
    """Lists of 1 to 8 images of that folder, of one size each list; null: the processor takes none so short."""
    images = [c for c in json.loads((path.parent / "images/images.json").read_text())["cases"] if "alpha" not in c["file"] and "rgba" not in c["file"]]
    cases = []
    for size in ((19, 13), (9, 30), (40, 24)):
        files = [c["file"] for c in images if (c["width"], c["height"]) == size]
        for num in range(1, 9):
            frames = [files[(num + i) % len(files)] for i in range(num)]
            for name, (made, keys) in VIDEOS.items():
                case = dict(processor=name, frames=frames)
                try:
                    out = made(**keys)(videos=[[load(path.parent / "images" / f) for f in frames]], do_sample_frames=False, return_tensors="pt")
                    case |= dict(grid=out["video_grid_thw"][0].tolist(), values=digest(out["pixel_values_videos"].numpy()))
                except ValueError:
                    assert num == 1, case
                cases.append(case)
    keys = {name: dict(k, video_processor_type=made.__name__) for name, (made, k) in VIDEOS.items()}
    lines = ",\n".join(json.dumps(c) for c in cases)
    path.write_text(f'{{"processors":{json.dumps(keys)},\n"cases":[\n{lines}\n]}}\n')


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", metavar="CROLL")
    parser.add_argument("--write", metavar="FOLDER", type=pathlib.Path)
    parser.add_argument("--write-videos", metavar="FILE", type=pathlib.Path)
    parser.add_argument("--num", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="of the images that are drawn, the first that is looked at")
    args = parser.parse_args()
    if args.write:
        write(args.write)
    if args.write_videos:
        write_videos(args.write_videos)
    return check(args.check, args.num, args.first) if args.check else 0


sys.exit(main())
