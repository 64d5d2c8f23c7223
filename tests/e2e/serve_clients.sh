#!/bin/bash
# croll serve as the openai package sees it: completions, chats, streams with usage, n, log-probs, errors as classes.
# Needs a Python with that package: $CROLL_CLIENTS_PYTHON (default python3). Not covered: other clients.
. tests/e2e/serve.inc
needs openai
printf 'alice sk-alice-1 score,generate\n' >$tmp/keys && chmod 600 $tmp/keys
serve --keys $tmp/keys
snippet openai
client openai_client <<'END'
import sys
import openai
url = sys.argv[1] + "/v1"
c = openai.OpenAI(base_url=url, api_key="sk-alice-1", max_retries=0)
assert [m.id for m in c.models.list().data] == ["s"] and c.models.retrieve("s").id == "s"
r = c.completions.create(model="s", prompt=["12+3=", "4+4="], max_tokens=6, n=2, seed=7, logprobs=2)
assert [x.index for x in r.choices] == [0, 1, 2, 3] and r.usage.completion_tokens > 0
for x in r.choices:
    assert len(x.logprobs.tokens) == len(x.logprobs.token_logprobs) == len(x.logprobs.top_logprobs) > 0
messages = [{"role": "user", "content": "12+3="}]
whole = c.chat.completions.create(model="s", messages=messages, max_tokens=8, temperature=0, logprobs=True, top_logprobs=3)
assert whole.choices[0].message.role == "assistant" and whole.choices[0].finish_reason in ("stop", "length")
for t in whole.choices[0].logprobs.content:
    assert len(t.top_logprobs) == 3 and t.top_logprobs[0].logprob == t.logprob
text, usage = "", None
for chunk in c.chat.completions.create(model="s", messages=messages, max_tokens=8, temperature=0, stream=True,
                                       stream_options={"include_usage": True}):
    usage = chunk.usage or usage
    for x in chunk.choices:
        text += x.delta.content or ""
assert text == whole.choices[0].message.content, (text, whole.choices[0].message.content)
assert usage == whole.usage or usage.total_tokens == whole.usage.total_tokens
raw = c.completions.with_raw_response.create(model="s", prompt=[49, 50], max_tokens=1, extra_body={"unknown": 1})
assert raw.headers["x-croll-ignored"] == "unknown" and raw.headers["x-request-id"]
def fails(kind, code, call):
    try:
        call()
    except kind as e:
        assert e.code == code, e.code
        return e
    raise AssertionError(f"no {kind}")
fails(openai.NotFoundError, "model_not_found", lambda: c.completions.create(model="x", prompt="a"))
e = fails(openai.BadRequestError, "context_length_exceeded", lambda: c.completions.create(model="s", prompt="a", max_tokens=10**6))
assert "maximum context length is" in e.message
e = fails(openai.BadRequestError, "invalid_value", lambda: c.completions.create(model="s", prompt=[[1], [1, 10**6]]))
assert e.param == "prompt[1][1]"
fails(openai.BadRequestError, "unsupported_parameter", lambda: c.completions.create(model="s", prompt="a", extra_body={"structured_outputs": {"regex": "a"}}))
fails(openai.ConflictError, "weights_mismatch", lambda: c.completions.create(
    model="s", prompt="a", extra_body={"croll": {"expect_weights": "00000000"}}))
bad = openai.OpenAI(base_url=url, api_key="sk-no", max_retries=0)
fails(openai.AuthenticationError, "invalid_api_key", lambda: bad.models.list())
END
