#!/usr/bin/env python3
"""sampling.py -- what one row of logits is drawn from, by the logits processors of Transformers.

    tests/parity/sampling.py > tests/parity/sampling.json

Each case has settings, logits, a prompt and a response, and the log-probs after all processors in the order in which
Transformers applies them (null: cannot be drawn). Presence and frequency penalties, which Transformers does not have,
are OpenAI's formula after the repetition penalty, as in vLLM. unit_engine_sampling holds cr_draw against it. Needs the
Python packages torch and transformers.
"""
import json

import torch
from transformers import (LogitsProcessorList, MinNewTokensLengthLogitsProcessor, MinPLogitsWarper,
                          PrefixConstrainedLogitsProcessor, RepetitionPenaltyLogitsProcessor,
                          SequenceBiasLogitsProcessor, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper)

V, PROMPT, RESPONSE = 40, [3, 17, 3, 39], [5, 8, 5, 17, 5, 8, 30]
BIAS = {5: 2.5, 9: -100.0, 17: -1.25, 30: 0.5, 22: 3.0}
ALLOWED, ENDS = [2, 5, 8, 9, 17, 22, 30, 35], [2, 22, 31]
CASES = [
    dict(bias=BIAS),
    dict(presence_penalty=1.5),
    dict(frequency_penalty=0.7),
    dict(presence_penalty=-1, frequency_penalty=2, temperature=0.7),
    dict(repetition_penalty=1.4, presence_penalty=0.5, frequency_penalty=0.25),
    dict(repetition_penalty=1.4, bias=BIAS),  # the penalty looks at the sign of the biased logit
    dict(allowed=ALLOWED),
    dict(min_new_tokens=8, ends=ENDS),
    dict(min_new_tokens=7, ends=ENDS),  # there are 7: no more effect
    dict(allowed=ALLOWED, min_new_tokens=8, ends=ENDS, bias=BIAS, temperature=1.3),
    dict(allowed=ALLOWED, top_k=5, presence_penalty=2),
    dict(allowed=ALLOWED, top_k=20),  # more than are allowed
    dict(allowed=ALLOWED, top_p=0.8, bias=BIAS),
    dict(allowed=ALLOWED, min_p=0.2, frequency_penalty=-0.5),
    dict(min_new_tokens=9, ends=ENDS, top_k=12, top_p=0.9, min_p=0.02, repetition_penalty=1.2, presence_penalty=0.3,
         frequency_penalty=0.4, bias=BIAS, temperature=0.8),
]


class Penalties:
    def __init__(self, presence, frequency):
        self.presence, self.frequency = presence, frequency

    def __call__(self, ids, z):
        count = torch.bincount(ids[0, len(PROMPT):], minlength=V).to(z.dtype)
        return z - self.frequency * count - self.presence * (count > 0)


def processors(c):
    p = LogitsProcessorList()
    if "bias" in c:
        p.append(SequenceBiasLogitsProcessor({(k,): v for k, v in c["bias"].items()}))
    if "repetition_penalty" in c:
        p.append(RepetitionPenaltyLogitsProcessor(c["repetition_penalty"]))
    p.append(Penalties(c.get("presence_penalty", 0), c.get("frequency_penalty", 0)))
    if "min_new_tokens" in c:
        p.append(MinNewTokensLengthLogitsProcessor(len(PROMPT), c["min_new_tokens"], c["ends"]))
    if "allowed" in c:
        p.append(PrefixConstrainedLogitsProcessor(lambda *_: c["allowed"], num_beams=1))
    if "temperature" in c:
        p.append(TemperatureLogitsWarper(c["temperature"]))
    if "top_k" in c:
        p.append(TopKLogitsWarper(c["top_k"]))
    if "top_p" in c:
        p.append(TopPLogitsWarper(c["top_p"]))
    if "min_p" in c:
        p.append(MinPLogitsWarper(c["min_p"]))
    return p


torch.manual_seed(5)
cases = []
for c in CASES:
    logits = (2 * torch.randn(V, dtype=torch.float64)).round(decimals=3)
    z = processors(c)(torch.tensor([PROMPT + RESPONSE]), logits.clone()[None])[0]
    log_probs = torch.log_softmax(z, 0).tolist()
    bias = c.get("bias", {})
    case = dict(c, logits=logits.tolist(), log_probs=[round(x, 9) if x > -1e30 else None for x in log_probs])
    case["bias"] = dict(ids=list(bias), values=list(bias.values()))
    cases.append(case)
print(json.dumps(dict(prompt=PROMPT, response=RESPONSE, cases=cases)).replace("}, {", "},\n{"))
