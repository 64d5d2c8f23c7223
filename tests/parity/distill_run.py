#!/usr/bin/env python3
"""distill_run.py -- two steps of distillation on given answers, whole models in float64, for tests/e2e/run_distill.sh.

    python tests/parity/distill_run.py build/release/croll tests/parity     (Transformers, PyTorch, on the CPU)

distill_run.json: `rows`: questions and answers of the task of sums; `cases`: six objectives x top-k 4, 64 or the whole vocabulary x on the
answers or on all tokens, and other settings: of each the losses and the norm of the gradient of two steps of 4 rows, by torch's
autograd and AdamW over Transformers' Qwen3, student and teacher from `croll init` with two seeds. Written down here as the formulas read:
position t counts if the token t + 1 is learnt."""
import json, os, pathlib, subprocess, sys, tempfile

sys.path.append(sys.path.pop(0))  # tokenizers.py of this folder is not the package
import torch, transformers

torch.set_num_threads(1)
KINDS = "forward_kl", "reverse_kl", "adaptive_kl", "skewed_forward_kl", "skewed_reverse_kl", "js_divergence"
STEPS, BATCH = 2, 4
STANDARD = dict(kd_objective="forward_kl", logits_topk=64, distill_on_prompt=False, distill_loss_weight=0.5, kd_temperature=1.0,
                teacher_temperature=1.0, adaptive_kl_alpha=0.5, skew_lambda=0.1, kd_normalize="tail")


def kl(a, b):
    return (a * (a.log() - b.log())).sum(-1)


def distance(c, p, q):
    kind, l, e = c["kd_objective"], c["skew_lambda"], 1e-9
    if kind == "forward_kl":
        return kl(p, q)
    if kind == "reverse_kl":
        return kl(q, p)
    if kind == "adaptive_kl":
        small, order = torch.sort(p, -1)
        far = (p - q).abs().detach()
        is_tail = torch.zeros_like(p).scatter(-1, order, (small.cumsum(-1) <= c["adaptive_kl_alpha"]).double())
        t, h = (far * is_tail).sum(-1), (far * (1 - is_tail)).sum(-1)
        return h / (h + t) * kl(p, q) + t / (h + t) * kl(q, p)
    if kind == "skewed_forward_kl":
        return kl(p, l * p + (1 - l) * q)
    if kind == "skewed_reverse_kl":
        return kl(q, (1 - l) * p + l * q)
    m = (p + q) / 2
    return ((p * ((p + e).log() - (m + e).log())).sum(-1) + (q * ((q + e).log() - (m + e).log())).sum(-1)) / 2


def entries(c, teacher, student):
    """p and q of each row of logits, over the words that count."""
    zt = teacher / (c["kd_temperature"] * c["teacher_temperature"])
    zs = student / c["kd_temperature"]
    p, q, k = zt.softmax(-1), zs.softmax(-1), c["logits_topk"]
    if k == 0 or k >= p.shape[-1]:
        return p, q
    top = zt.topk(k, -1).indices
    if c["kd_normalize"] == "topk":
        return zt.gather(-1, top).softmax(-1), zs.gather(-1, top).softmax(-1)
    rest = torch.ones_like(p).scatter(-1, top, 0.0)
    return (torch.cat([x.gather(-1, top), (x * rest).sum(-1, keepdim=True)], -1) for x in (p, q))


def losses(c, teacher, student, rows):
    """Sums over learnt tokens: to the teacher, and of the answers; how many there are."""
    far, nll, num = 0, 0, 0
    for ids, prompt in rows:
        x = torch.tensor([ids])
        with torch.no_grad():
            zt = teacher(x).logits[0]
        first = 1 if c["distill_on_prompt"] else prompt
        zs, zt = student(x).logits[0, first - 1:-1], zt[first - 1:-1]
        far = far + distance(c, *entries(c, zt, zs)).sum()
        nll = nll - zs.log_softmax(-1).gather(-1, x[0, first:, None]).sum()
        num += len(ids) - first
    return far / num, nll / num, num


def run(c, folder, rows):
    load = lambda name: transformers.AutoModelForCausalLM.from_pretrained(f"{folder}/{name}", dtype=torch.float64)
    student, teacher = load("model"), load("teacher").requires_grad_(False)
    adamw = torch.optim.AdamW(student.parameters(), lr=1e-3, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.0)
    out = []
    for step in range(STEPS):
        far, nll, num = losses(c, teacher, student, rows[step * BATCH:(step + 1) * BATCH])
        loss = (1 - c["distill_loss_weight"]) * nll + c["distill_loss_weight"] * far
        adamw.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        adamw.step()
        out.append(dict(loss=loss.item(), distill=far.item(), student=nll.item(), norm=norm.item(), tokens=num))
    return out


def cases():
    for kind in KINDS:
        for k in 0, 4, 64:
            for prompt in False, True:
                yield dict(kd_objective=kind, logits_topk=k, distill_on_prompt=prompt)
    for kind, k in ("forward_kl", 4), ("reverse_kl", 4), ("adaptive_kl", 64):
        yield dict(kd_objective=kind, logits_topk=k, kd_normalize="topk")
        yield dict(kd_objective=kind, logits_topk=k, kd_temperature=1.7, teacher_temperature=0.8, distill_loss_weight=1.0)
    yield dict(logits_topk=0, kd_temperature=1.7, teacher_temperature=0.8, distill_loss_weight=0.85)
    yield dict(kd_objective="adaptive_kl", logits_topk=4, adaptive_kl_alpha=0.2)
    yield dict(kd_objective="skewed_reverse_kl", logits_topk=4, skew_lambda=0.4)


if __name__ == "__main__":
    croll = os.path.realpath(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["scripts/make_sums", folder], check=True, stdout=sys.stderr)
        subprocess.run(["cp", "-r", folder + "/model", folder + "/teacher"], check=True)
        subprocess.run([croll, "init", folder + "/model"], check=True, stdout=sys.stderr)
        subprocess.run([croll, "init", folder + "/teacher", "--seed", "7"], check=True, stdout=sys.stderr)
        texts = [json.loads(x) for x in open(folder + "/sft.jsonl")][:STEPS * BATCH]
        tokenizer, rows = transformers.AutoTokenizer.from_pretrained(folder + "/model"), []
        for x in texts:
            chat = [dict(role="user", content=x["instruction"]), dict(role="assistant", content=x["output"])]
            prompt = tokenizer.apply_chat_template(chat[:1], tokenize=False, add_generation_prompt=True)
            whole = tokenizer.apply_chat_template(chat, tokenize=False).removesuffix("\n")  # as ROLL
            ids = tokenizer(whole, add_special_tokens=False)["input_ids"]
            rows.append((ids, len(tokenizer(prompt, add_special_tokens=False)["input_ids"])))
        done = [dict(keys=c, steps=run({**STANDARD, **c}, folder, rows)) for c in cases()]
    text = ["{\"rows\":[\n" + ",\n".join(json.dumps(x) for x in texts) + "],",
            "\"cases\":[\n" + ",\n".join(json.dumps(x) for x in done) + "]}"]
    (pathlib.Path(sys.argv[2]) / "distill_run.json").write_text("\n".join(text) + "\n")
