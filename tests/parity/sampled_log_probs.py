#!/usr/bin/env python3
"""Log-probs of a run's rollouts, computed again from Transformers' logits in float64.

    tests/parity/sampled_log_probs.py RUN MODEL [STEP ..]

RUN is an output_dir of `croll run`, MODEL the weights that sampled these steps (of step 0: pretrain). Settings come from
RUN/config.yaml, histories and kept ids from RUN/rollouts/step-N.jsonl; which ids the filters keep is found again, too,
with Transformers' logits processors. Prints the largest differences; exit code 1 above 1e-4 (fp32 runs).
"""
import json
import sys

sys.path.pop(0)  # a script beside this one has the name of a package
import torch
import yaml
from transformers import AutoModelForCausalLM
from transformers.generation.logits_process import (LogitsProcessorList, MinPLogitsWarper, RepetitionPenaltyLogitsProcessor,
                                                    TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper)


def processors(args):
    """(before filters, filters), in the order of generate()."""
    shape, filters = LogitsProcessorList(), LogitsProcessorList()
    if args.get("repetition_penalty", 1.0) != 1.0:
        shape.append(RepetitionPenaltyLogitsProcessor(float(args["repetition_penalty"])))
    if args.get("temperature", 1.0) != 1.0:
        shape.append(TemperatureLogitsWarper(float(args["temperature"])))
    if args.get("top_k", -1) > 0:
        filters.append(TopKLogitsWarper(int(args["top_k"])))
    if args.get("top_p", 1.0) < 1:
        filters.append(TopPLogitsWarper(float(args["top_p"])))
    if args.get("min_p", 0.0) > 0:
        filters.append(MinPLogitsWarper(float(args["min_p"])))
    return shape, filters


def check_sample(model, sample, is_raw, shape, filters, worst):
    ids = torch.tensor([sample["prompt_ids"] + sample["ids"]])
    start = len(sample["prompt_ids"])
    with torch.no_grad():
        logits = model(ids).logits[0].double()
    for t, token in enumerate(sample["ids"]):
        history, z = ids[:, :start + t], logits[start + t - 1:start + t]
        if not is_raw:
            z = shape(history, z.clone())
        kept = z
        if "kept_ids" in sample and sample["kept_ids"][t]:
            words = torch.tensor(sample["kept_ids"][t])
            kept = torch.full_like(z, -float("inf"))
            kept[0, words] = z[0, words]
            mine = set(sample["kept_ids"][t])
            theirs = set(torch.isfinite(filters(history, z.clone())[0]).nonzero()[:, 0].tolist())
            worst["tokens with other kept ids"] += mine != theirs
        if "log_mass" in sample:
            mass = float(torch.logsumexp(kept, -1) - torch.logsumexp(z, -1))
            worst["log_mass"] = max(worst["log_mass"], abs(mass - sample["log_mass"][t]))
        want = float(kept[0, token] - torch.logsumexp(kept, -1))
        worst["log_probs"] = max(worst["log_probs"], abs(want - sample["log_probs"][t]))
        worst["tokens"] += 1


def main():
    run, folder, steps = sys.argv[1], sys.argv[2], [int(x) for x in sys.argv[3:]] or [0]
    config = yaml.safe_load(open(f"{run}/config.yaml"))
    args = config["actor_infer"].get("generating_args") or {}
    is_raw = config.get("logprobs_mode", "sampled") == "raw" or args.get("temperature", 1.0) == 0
    shape, filters = processors(args)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    worst = {"tokens": 0, "log_probs": 0.0, "log_mass": 0.0, "tokens with other kept ids": 0}
    for step in steps:
        for line in open(f"{run}/rollouts/step-{step:06d}.jsonl"):
            check_sample(model, json.loads(line), is_raw, shape, filters, worst)
    print(json.dumps(worst))
    sys.exit(worst["tokens"] == 0 or worst["log_probs"] > 1e-4 or worst["log_mass"] > 1e-4)


main()
