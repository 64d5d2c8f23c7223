#!/usr/bin/env python3
"""distill_images.py -- two steps of ROLL's distillation of vision-language models by Transformers in float64, for tests/e2e/run_images.sh.

    python tests/parity/distill_images.py build/release/croll > tests/parity/distill_images.json     (torch, Transformers, pillow, pyarrow, on the CPU)

Rows are the first of scripts/make_pictures' roll/problems, in order; student and teacher are what `croll init` makes there with two seeds. All tokens of a row
are learnt but the first and the places of its image. A line a step: losses, the gradient's norm, the number of tokens (distill_run.py has the distance)."""
import io, json, os, pathlib, subprocess, sys, tempfile

from distill_run import STANDARD, distance, entries
import pyarrow.parquet, torch, transformers
from PIL import Image
from tokenizers import Tokenizer
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

STEPS, BATCH, W = 2, 4, 0.85
PAD, START, END = "<|image_pad|>", "<|vision_start|>", "<|vision_end|>"


def encode(row, tokenizer, processor):
    """Arguments of a model, and which of its ids are learnt."""
    question = row["problem"] + "  Output final answer (number) in <answer> </answer> tags."
    more = {}
    if row["image"]:
        more = dict(processor(images=[Image.open(io.BytesIO(row["image"]["bytes"])).convert("RGB")], return_tensors="pt"))
        more["pixel_values"] = more["pixel_values"].double()
        question = START + PAD * (int(more["image_grid_thw"][0].prod()) // 4) + END + question
    text = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n{row['solution']}<|im_end|>"
    ids = torch.tensor([tokenizer.encode(text, add_special_tokens=False).ids])
    places = ids == tokenizer.token_to_id(PAD)
    if more:
        more["mm_token_type_ids"] = places.int()
    return dict(input_ids=ids, **more), ~places[0, 1:]


def losses(teacher, student, batch):
    far, nll, num = 0, 0, 0
    for x, is_learnt in batch:
        with torch.no_grad():
            zt = teacher(**x).logits[0, :-1][is_learnt]
        zs, ids = student(**x).logits[0, :-1][is_learnt], x["input_ids"][0, 1:][is_learnt]
        far = far + distance(STANDARD, *entries(STANDARD, zt, zs)).sum()
        nll = nll - zs.log_softmax(-1).gather(-1, ids[:, None]).sum()
        num += len(ids)
    return far / num, nll / num, num


def main():
    croll = os.path.realpath(sys.argv[1])
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name) / "pictures"
        run = lambda *words: subprocess.run(words, check=True, stdout=sys.stderr)
        run("scripts/make_pictures", str(folder))
        run("cp", "-r", str(folder / "model"), str(folder / "teacher"))
        run(croll, "init", str(folder / "model"))
        run(croll, "init", str(folder / "teacher"), "--seed", "7")
        load = lambda model: transformers.Qwen2_5_VLForConditionalGeneration.from_pretrained(
            folder / model, dtype=torch.float64, attn_implementation="eager").eval()
        settings = json.loads((folder / "model/preprocessor_config.json").read_text()) | dict(min_pixels=56 * 56, max_pixels=1024 * 1024)
        processor = Qwen2VLImageProcessorPil(**{k: v for k, v in settings.items() if k != "image_processor_type"})
        tokenizer = Tokenizer.from_file(str(folder / "model/tokenizer.json"))
        rows = pyarrow.parquet.read_table(folder / "roll/problems/train.parquet").slice(0, STEPS * BATCH).to_pylist()
        student, teacher = load("model"), load("teacher")
        optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3, eps=1e-6, weight_decay=0)
        for step in range(STEPS):
            far, nll, num = losses(teacher, student, [encode(r, tokenizer, processor) for r in rows[step * BATCH:(step + 1) * BATCH]])
            loss = (1 - W) * nll + W * far
            optimizer.zero_grad()
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
            optimizer.step()
            numbers = {"train/loss": loss.item(), "train/train_distill_loss": far.item(), "train/train_student_loss": nll.item(),
                       "student/grad_norm": norm.item(), "train/tokens": num}
            print(json.dumps({k: float(f"{v:.9g}") for k, v in numbers.items()}))


main()
