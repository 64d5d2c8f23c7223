#!/bin/bash
# TRL's VLLMClient against `croll serve`: get_sequence_logprobs gives the log-probs, ids and order of `croll logprobs`, whole and
# in chunks; generate gives samples whose log-probs are those of the sequences. Needs trl, torch, requests. The class asks for
# the package vllm, as docs/serve.md says: where it is not installed, the class must refuse, and a stub stands for it.
# Not covered: its routes for weights.
. tests/e2e/serve.inc
needs trl torch requests
serve
stub=$tmp/stub path=$tmp/stub
if $python -c 'import importlib.util, sys; sys.exit(not importlib.util.find_spec("vllm"))'; then
    echo "vllm is installed: it is what TRL imports"
    path=
else
    (snippet trl) >$tmp/without 2>&1 && fail "TRL works without the package vllm: docs/serve.md says that it does not"
    grep -qi 'vllm is not installed' $tmp/without || fail "TRL does not miss vllm: $(cat $tmp/without)"
fi
mkdir -p $stub/vllm $stub/vllm-0.30.0.dist-info
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.30.0\n' >$stub/vllm-0.30.0.dist-info/METADATA
cat >$stub/vllm/__init__.py <<'PY'
import importlib.abc, importlib.machinery, sys
__version__ = "0.30.0"
def __getattr__(name): # every name and every submodule is there
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {})
class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.startswith("vllm.") else None
    def create_module(self, spec): return None
    def exec_module(self, module): module.__getattr__ = __getattr__
sys.meta_path.append(Finder())
PY
PYTHONPATH=$path snippet trl
PYTHONPATH=$path client trl_client <<'END2'
import math, os, random, sys
os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, sys.argv[2])
from logprobs import numbers
from trl.generation.vllm_client import VLLMClient
c = VLLMClient(base_url=sys.argv[1])
assert c.model == "s"
random.seed(3)
K = 100
sequences = [[random.randrange(3, 250) for _ in range(random.choice([2, 5, 33, 90]))] for _ in range(12)]
lengths = [random.randrange(1, len(s)) for s in sequences]
whole = c.get_sequence_logprobs(sequences, lengths)
chunks = c.get_sequence_logprobs(sequences, lengths, chunk_size=5)
assert whole == chunks
want = numbers(sequences, "--top-logprobs", str(K))
num = 0
for i, (s, n, w) in enumerate(zip(sequences, lengths, want)):
    for t in range(n, len(s)):
        at = t - n
        ids, values = w["top_ids"][t - 1], w["top_logprobs"][t - 1]
        assert whole["logprob_token_ids"][i][at] == ids, (i, t)
        assert whole["logprobs"][i][at] == values, (i, t)
        assert whole["actual_token_ids"][i][at] == [s[t]]
        assert whole["actual_logprobs"][i][at] == [w["logprobs"][t - 1]], (i, t) # also beyond the first K
        num += 1
g = c.generate(sequences[:3], n=2, temperature=0.8, top_p=0.9, max_tokens=7, logprobs=3)
assert g["prompt_ids"] == sequences[:3] and len(g["completion_ids"]) == 6
lines = numbers([sequences[i // 2] + g["completion_ids"][i] for i in range(6)])
for i, ids in enumerate(g["completion_ids"]):
    raw = lines[i]["logprobs"][len(sequences[i // 2]) - 1:]
    for t, token in enumerate(ids):
        found = dict(zip(g["logprob_token_ids"][i][t], g["logprobs"][i][t]))
        assert 3 <= len(found) <= 4 and found[token] == raw[t], (i, t, found, raw[t])
text = c.generate(["12+3=", "4+4="], max_tokens=5)
assert len(text["completion_ids"]) == 2 and all(len(x) <= 5 for x in text["completion_ids"])
print(f"VLLMClient: {num} places of {K} log-probs, 6 samples")
END2
