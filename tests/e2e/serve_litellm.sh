#!/bin/bash
# LiteLLM against `croll serve`: chats (hosted_vllm/), completions (text-completion-openai/), streams, errors as its classes. Needs
# litellm. Not covered: its proxy.
. tests/e2e/serve.inc
needs litellm
printf 'alice sk-alice-1 score,generate\n' >$tmp/keys && chmod 600 $tmp/keys
serve --keys $tmp/keys
export LITELLM_LOCAL_MODEL_COST_MAP=True # nothing is fetched
snippet litellm
client litellm_client <<'END2'
import os, sys
os.environ.update(LITELLM_LOCAL_MODEL_COST_MAP="True", HF_HUB_OFFLINE="1")
import litellm
url = sys.argv[1] + "/v1"
chat = dict(model="hosted_vllm/s", api_base=url, api_key="sk-alice-1", messages=[{"role": "user", "content": "12+3="}], num_retries=0)
r = litellm.completion(**chat, max_tokens=6, temperature=0, logprobs=True, top_logprobs=2)
assert r.choices[0].message.content is not None and r.usage.completion_tokens > 0, r
assert len(r.choices[0].logprobs.content[0].top_logprobs) == 2
text = "".join(x.choices[0].delta.content or "" for x in litellm.completion(**chat, max_tokens=6, temperature=0, stream=True))
assert text == r.choices[0].message.content, (text, r)
plain = dict(model="text-completion-openai/s", api_base=url, api_key="sk-alice-1", num_retries=0)
t = litellm.text_completion(**plain, prompt="12+3=", max_tokens=5, temperature=0, logprobs=1)
assert t.choices[0].finish_reason in ("stop", "length"), t
def fails(kind, call):
    try:
        call()
    except kind:
        return
    raise AssertionError(f"no {kind}")
fails(litellm.ContextWindowExceededError, lambda: litellm.completion(**dict(chat, messages=[{"role": "user", "content": "1+" * 300}])))
fails(litellm.AuthenticationError, lambda: litellm.completion(**dict(chat, api_key="sk-no")))
fails(litellm.NotFoundError, lambda: litellm.completion(**dict(chat, model="hosted_vllm/other")))
print("LiteLLM: chat, stream, completion, three errors")
END2
