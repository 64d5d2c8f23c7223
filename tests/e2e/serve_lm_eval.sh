#!/bin/bash
# lm-eval's local-completions against `croll serve`: multiple_choice, loglikelihood, rolling and generate_until of own tasks,
# remote tokenizer, one and four requests at a time. Numbers are sums over `croll logprobs`, exactly, and those of lm-eval's
# `hf` model on the same folder to 1e-4. Needs lm_eval, torch and transformers. Not covered: lm-eval's chat models.
. tests/e2e/serve.inc
needs lm_eval torch transformers
serve
client lm_eval_tasks <<'END2'
import json, logging, os, sys, urllib.request
url, tmp = sys.argv[1], sys.argv[2]
os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", HF_HOME=tmp + "/hf", OPENAI_API_KEY="", TOKENIZERS_PARALLELISM="false")
logging.disable(logging.WARNING)
os.makedirs(tmp + "/tasks")
docs = [{"q": f"{a}+{b}=", "choices": [str(a + b), str(a + b + 1), str(a * 10)], "answer": 0, "text": f"{a}+{b}={a + b}. " * (1 + a % 5)}
        for a in range(3, 9) for b in (4, 17)]
with open(tmp + "/tasks/docs.jsonl", "w") as f:
    f.writelines(json.dumps(d) + "\n" for d in docs)
def task(name, kind, target, metrics, more=""):
    with open(f"{tmp}/tasks/{name}.yaml", "w") as f:
        f.write(f"task: {name}\ndataset_path: json\ndataset_kwargs:\n  data_files:\n    test: {tmp}/tasks/docs.jsonl\n"
                f"test_split: test\noutput_type: {kind}\n{target}metric_list:\n" + "".join(f"  - metric: {m}\n" for m in metrics) + more)
task("t_choice", "multiple_choice", 'doc_to_text: "{{q}}"\ndoc_to_choice: "{{choices}}"\ndoc_to_target: "{{answer}}"\n', ["acc", "acc_norm"])
task("t_ll", "loglikelihood", 'doc_to_text: "{{q}}"\ndoc_to_target: "{{choices[0]}}"\n', ["perplexity", "acc"])
task("t_rolling", "loglikelihood_rolling", 'doc_to_text: ""\ndoc_to_target: "{{text}}"\n', ["word_perplexity", "bits_per_byte"])
task("t_until", "generate_until", 'doc_to_text: "{{q}}"\ndoc_to_target: "{{choices[0]}}"\n', ["exact_match"],
     'generation_kwargs:\n  until: ["."]\n  max_gen_toks: 12\n  do_sample: false\n')
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager
names = ["t_choice", "t_ll", "t_rolling", "t_until"]
def evaluate(model, model_args):
    r = simple_evaluate(model=model, model_args=model_args, tasks=names, batch_size=8, log_samples=True, bootstrap_iters=0,
                        task_manager=TaskManager(include_path=tmp + "/tasks", include_defaults=False))
    return {n: sorted(r["samples"][n], key=lambda s: s["doc_id"]) for n in names}
base = f"model=s,base_url={url}/v1/completions,tokenizer_backend=remote,max_length=256"
one, four = (evaluate("local-completions", f"{base},num_concurrent={n}") for n in (1, 4))
hf = evaluate("hf", f"pretrained={tmp}/home/model,dtype=float32,device=cpu,max_length=256")
def post(path, body):
    r = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(r, timeout=60))
def ids(text):
    return post("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]
info = json.load(urllib.request.urlopen(url + "/tokenizer_info", timeout=60))
prefix = ids(info["eos_token"])
assert len(prefix) == 1, prefix
sys.path.insert(0, tmp)
from logprobs import numbers
wanted, got = [], []
def expect(context, text, value):
    wanted.append((context, context + text if text is not None else None))
for run in (one, four):
    for name in ("t_choice", "t_ll", "t_rolling"):
        for s in run[name]:
            for i, r in enumerate(s["resps"]):
                a = list(s["arguments"].values())[i] if isinstance(s["arguments"], dict) else s["arguments"][i]
                a = list(a.values()) if isinstance(a, dict) else list(a)
                value = r[0] if isinstance(r, (list, tuple)) else r
                if name == "t_rolling":
                    wanted.append((prefix, prefix + ids(a[0])))
                else: # no context here ends with a space
                    wanted.append((ids(a[0]), ids(a[0] + a[1])))
                got.append(value)
lines = numbers([whole for _, whole in wanted], "--rank")
for (context, whole), value, line in zip(wanted, got, lines):
    total = sum(line["logprobs"][len(context) - 1:])
    greedy = all(rank == 1 for rank in line["rank"][len(context) - 1:])
    number, is_greedy = value if isinstance(value, (list, tuple)) else (value, greedy)
    assert float(number) == total and str(is_greedy) == str(greedy), (context, whole, value, total, greedy)
num = 0
for name in names:
    for a, b, c in zip(one[name], four[name], hf[name], strict=True):
        assert a["resps"] == b["resps"], (name, a["resps"], b["resps"])
        for x, y in zip(a["resps"], c["resps"], strict=True):
            x, y = x[0], y[0]
            num += 1
            if name == "t_until":
                assert x == y, (name, x, y)
                continue
            x, y = (x[0], y[0]) if isinstance(x, (list, tuple)) else (x, y)
            assert abs(float(x) - float(y)) < 1e-4, (name, x, y)
assert len({x for x in map(str, got)}) > 50, "the numbers are all the same"
print(f"lm-eval: {len(got)} numbers are those of croll logprobs, {num} those of hf")
END2
