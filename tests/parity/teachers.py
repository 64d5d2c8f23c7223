#!/usr/bin/env python3
"""teachers.py -- on-policy distillation with two teachers by tag, its advantages in float64.

    python tests/parity/teachers.py build/release/croll     (Transformers, PyTorch, on the CPU)

Runs one step of the pure form (student and teachers from `croll init` with three seeds, two tags, coefficients 0.5 and 2) and computes the advantage
of every token of its rollouts again: minus the coefficient of the row's teacher times the difference of the log-probs. Prints the largest
difference; exit code 1 above 1e-5."""
import json, os, pathlib, subprocess, sys, tempfile

sys.path.append(sys.path.pop(0))  # tokenizers.py of this folder is not the package
import torch, transformers

torch.set_num_threads(1)
COEFS = dict(odd=0.5, even=2.0)


def block(model, tag):
    return (f"{{model_args: {{model_name_or_path: {model}, dtype: fp32}}, strategy_args: {{strategy_name: fsdp2_infer}}, device_mapping: [0], "
            f"tag_included: [{tag}], opd_kl_coef: {COEFS[tag]}}}")


def log_probs(model, x):
    ids = torch.tensor([x["prompt_ids"] + x["ids"]])
    with torch.no_grad():
        z = model(ids).logits[0, len(x["prompt_ids"]) - 1:-1].log_softmax(-1)
    return z.gather(-1, torch.tensor(x["ids"])[:, None])[:, 0]


if __name__ == "__main__":
    croll = os.path.realpath(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["scripts/make_sums", folder], check=True, stdout=sys.stderr)
        for name, seed in ("odd", 7), ("even", 8):
            subprocess.run(["cp", "-r", folder + "/model", f"{folder}/{name}"], check=True)
            subprocess.run([croll, "init", f"{folder}/{name}", "--seed", str(seed)], check=True, stdout=sys.stderr)
        subprocess.run([croll, "init", folder + "/model"], check=True, stdout=sys.stderr)
        with open(folder + "/rows.jsonl", "w") as out:
            for i, line in enumerate(open(folder + "/sums.train.jsonl")):
                out.write(json.dumps({**json.loads(line), "tag": "even" if i % 2 else "odd"}) + "\n")
        subprocess.run([croll, "run", "configs/quickstart/opd.yaml", f"output_dir={folder}/run", "track_with=none", "validation=null", "max_steps=1",
                        f"student_train.model_args.model_name_or_path={folder}/model", f"student_infer.model_args.model_name_or_path={folder}/model",
                        f"student_train.data_args.file_name=[{folder}/rows.jsonl]", "rewards.math_rule.tag_included=[odd, even]",
                        f"teacher={{x: {block(folder + '/odd', 'odd')}, y: {block(folder + '/even', 'even')}}}"], check=True, stdout=sys.stderr)
        load = lambda name: transformers.AutoModelForCausalLM.from_pretrained(f"{folder}/{name}", dtype=torch.float64)
        models, far, tags = {name: load(name) for name in ("model", "odd", "even")}, 0.0, set()
        rows = [json.loads(x) for x in open(folder + "/run/rollouts/step-000000.jsonl")]
        for x in rows:
            want = -COEFS[x["tag"]] * (log_probs(models["model"], x) - log_probs(models[x["tag"]], x))
            got = torch.tensor(x["advantage"], dtype=torch.float64).expand(len(x["ids"]))
            far, tags = max(far, ((got - want).abs() / (1 + want.abs())).max().item()), tags | {x["tag"]}
    print(f"{len(rows)} samples, {sum(len(x['ids']) for x in rows)} tokens, tags {', '.join(sorted(tags))}: largest difference {far:.2g}")
    sys.exit(far > 1e-5 or tags != {"odd", "even"})
