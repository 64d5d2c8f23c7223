#!/usr/bin/env python3
"""Numbers of some lines for tests/e2e/logprobs.sh: log_softmax of Transformers' logits in float64.

    scripts/make_sums DIR && croll init DIR/model --seed 5
    tests/parity/logprobs.py DIR/model > tests/parity/logprobs.json

Each line is a request of `croll logprobs` with what it must answer: logprobs, entropy, rank, the three most likely ids,
and candidates (the same ids at all places, or a list for each).
"""
import json
import sys

sys.path.pop(0)  # a script beside this one has the name of a package
import torch
from transformers import AutoModelForCausalLM

TOP = 3


def numbers(model, ids, candidates):
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, :-1]
    log_probs = torch.log_softmax(logits, -1)
    label = torch.tensor(ids[1:])
    own = log_probs.gather(1, label[:, None])
    top = torch.sort(log_probs, dim=-1, descending=True, stable=True)
    lists = candidates if candidates and isinstance(candidates[0], list) else [candidates] * len(label)
    return {
        "logprobs": own[:, 0].tolist(),
        "entropy": (-(log_probs.exp() * log_probs).sum(-1)).tolist(),
        "rank": (1 + (logits > logits.gather(1, label[:, None])).sum(-1)).tolist(),
        "top_ids": top.indices[:, :TOP].tolist(),
        "top_logprobs": top.values[:, :TOP].tolist(),
        "candidate_logprobs": [[row[i].item() for i in some] for row, some in zip(log_probs, lists)],
    }


def main():
    model = AutoModelForCausalLM.from_pretrained(sys.argv[1], torch_dtype=torch.float64).eval()
    vocab = model.config.vocab_size
    lines = [([1, 2, 3], [5, 3, 200]),
             ([7, 7, 7, 9, 250, 31], [[1], [2, 3, 4], [], [9, 250], [31]]),
             ([i * 37 % vocab for i in range(40)], [0, vocab - 1]),
             ([100], [4])]
    for k, (ids, candidates) in enumerate(lines):
        print(json.dumps({"id": k, "input_ids": ids, "candidates": candidates,
                          "answer": numbers(model, ids, candidates)}))


main()
