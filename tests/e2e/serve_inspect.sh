#!/bin/bash
# Inspect against `croll serve`: its openai-api provider generates, reads log-probs, and takes a chat beyond the context as
# model_length; an evaluation of four samples runs. Needs inspect_ai and openai.
. tests/e2e/serve.inc
needs inspect_ai openai
printf 'alice sk-alice-1 score,generate\n' >$tmp/keys && chmod 600 $tmp/keys
serve --keys $tmp/keys
HOME=$tmp CROLL_API_KEY=sk-alice-1 CROLL_BASE_URL=$url/v1 client inspect_client <<'END2'
import asyncio, os, sys
os.environ["INSPECT_LOG_DIR"] = sys.argv[2] + "/logs"
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import GenerateConfig, get_model
from inspect_ai.scorer import includes
model = get_model("openai-api/croll/s", config=GenerateConfig(max_tokens=8, temperature=0, logprobs=True, top_logprobs=2))
out = asyncio.run(model.generate("12+3="))
assert out.stop_reason in ("stop", "max_tokens") and out.usage.output_tokens > 0, out
assert len(out.choices[0].logprobs.content[0].top_logprobs) == 2
long = asyncio.run(get_model("openai-api/croll/s").generate("1+" * 300))
assert long.stop_reason == "model_length", long
log, = eval(Task(dataset=[Sample(input=f"{a}+1=", target=str(a + 1)) for a in range(4)], scorer=includes()), model="openai-api/croll/s",
            max_tokens=8, display="none", log_dir=sys.argv[2] + "/logs")
assert log.status == "success" and len(log.samples) == 4, log.error
print("Inspect: generate, model_length, an evaluation")
END2
