#!/usr/bin/env python3
"""dpo_images.py -- four steps of DPO on pairs with pictures by Transformers in float64, for tests/e2e/run_images.sh.

    python tests/parity/dpo_images.py build/release/croll > tests/parity/dpo_images.json     (torch, Transformers, pillow, on the CPU)

The pairs are the first of scripts/make_pictures, in order, the model is what `croll init` makes there; log-probs, the loss (sigmoid), its gradient and AdamW are
Transformers' and torch's. A line a step: what croll calls actor/loss, rewards/.., logps/.., nll_loss and actor_train/grad_norm."""
import json, os, pathlib, subprocess, sys, tempfile

sys.path.append(sys.path.pop(0))  # tokenizers.py of this folder is not the package
import torch, transformers
from tokenizers import Tokenizer
from transformers.image_utils import load_image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

STEPS, BATCH, BETA = 4, 4, 0.1
PAD, START, END = "<|image_pad|>", "<|vision_start|>", "<|vision_end|>"


def answers(folder, model, tokenizer, processor, row):
    """Log-probs of the tokens of both answers."""
    out, images = [], {}
    question = row["instruction"]
    if "images" in row:
        images = dict(processor(images=[load_image(str(folder / "pictures" / f)) for f in row["images"]], return_tensors="pt"))
        images["pixel_values"] = images["pixel_values"].double()
        question = question.replace("<image>", START + PAD * (int(images["image_grid_thw"][0].prod()) // 4) + END)
    prompt = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    first = len(tokenizer.encode(prompt, add_special_tokens=False).ids)
    for answer in (row["chosen"], row["rejected"]):
        ids = torch.tensor([tokenizer.encode(prompt + answer + "<|im_end|>\n", add_special_tokens=False).ids])
        types = dict(mm_token_type_ids=(ids == model.config.image_token_id).int()) if images else {}
        logits = model(input_ids=ids, **images, **types).logits[0, :-1]
        out.append(torch.log_softmax(logits, -1).gather(1, ids[0, 1:, None])[first - 1:, 0])
    return out


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name) / "pictures"
        subprocess.run(["scripts/make_pictures", str(folder)], check=True, stdout=sys.stderr)
        subprocess.run([os.path.realpath(sys.argv[1]), "init", str(folder / "model")], check=True, stdout=sys.stderr)
        load = lambda: transformers.Qwen2_5_VLForConditionalGeneration.from_pretrained(folder / "model", dtype=torch.float64, attn_implementation="eager").eval()
        settings = json.loads((folder / "model/preprocessor_config.json").read_text())
        processor = Qwen2VLImageProcessorPil(**{k: v for k, v in settings.items() if k != "image_processor_type"})
        tokenizer = Tokenizer.from_file(str(folder / "model/tokenizer.json"))
        rows = [json.loads(line) for line in open(folder / "pairs.jsonl")]
        policy, reference = load(), load()
        optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3, eps=1e-6, weight_decay=0)
        for step in range(STEPS):
            losses, sums, tokens = [], [], 0
            for row in rows[step * BATCH:(step + 1) * BATCH]:
                own = answers(folder, policy, tokenizer, processor, row)
                with torch.no_grad():
                    ref = answers(folder, reference, tokenizer, processor, row)
                c, r = ((a - b).sum() for a, b in zip(own, ref))
                losses.append(-torch.nn.functional.logsigmoid(BETA * (c - r)))
                sums.append([BETA * c.item(), BETA * r.item(), own[0].sum().item(), own[1].sum().item()])
                tokens += len(own[0])
            loss = sum(losses) / BATCH
            optimizer.zero_grad()
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            optimizer.step()
            chosen, rejected, chosen_log_probs, rejected_log_probs = (sum(x) / BATCH for x in zip(*sums))
            numbers = {"actor/loss": loss.item(), "rewards/chosen": chosen, "rewards/rejected": rejected, "rewards/margins": chosen - rejected,
                       "logps/chosen": chosen_log_probs, "logps/rejected": rejected_log_probs, "nll_loss": -chosen_log_probs * BATCH / tokens,
                       "actor_train/grad_norm": norm.item()}
            print(json.dumps({k: float(f"{v:.9g}") for k, v in numbers.items()}))


main()
