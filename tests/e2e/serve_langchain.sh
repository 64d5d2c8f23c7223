#!/bin/bash
# LangChain against `croll serve`: ChatOpenAI (invoke, stream, log-probs) and OpenAI (several prompts, n). Needs langchain_openai.
. tests/e2e/serve.inc
needs langchain_openai
printf 'alice sk-alice-1 score,generate\n' >$tmp/keys && chmod 600 $tmp/keys
serve --keys $tmp/keys --max-chat-tokens 16
snippet langchain_openai
client langchain_client <<'END2'
import sys
from langchain_openai import ChatOpenAI, OpenAI
at = dict(base_url=sys.argv[1] + "/v1", api_key="sk-alice-1", model="s", max_retries=0)
chat = ChatOpenAI(**at, temperature=0)
m = chat.invoke("12+3=") # no maximum: that of the service
assert isinstance(m.content, str) and 0 < m.usage_metadata["output_tokens"] <= 16, m
parts = [p for p in chat.stream("12+3=")]
assert "".join(p.content for p in parts) == m.content, (parts, m)
scored = ChatOpenAI(**at, temperature=0, max_completion_tokens=5, logprobs=True, top_logprobs=2).invoke("12+3=")
assert len(scored.response_metadata["logprobs"]["content"][0]["top_logprobs"]) == 2
llm = OpenAI(**at, max_tokens=6, n=2)
g = llm.generate(["12+3=", "4+4=", "7+1="])
assert [len(x) for x in g.generations] == [2, 2, 2] and g.llm_output["token_usage"]["completion_tokens"] > 0
assert OpenAI(**at, max_tokens=6, temperature=0).invoke("12+3=") == "".join(OpenAI(**at, max_tokens=6, temperature=0).stream("12+3="))
try:
    chat.invoke("1+" * 300)
    raise SystemExit("no error for a chat that is too long")
except Exception as e:
    assert getattr(e, "code", None) == "context_length_exceeded" or type(e).__name__ == "ContextOverflowError", repr(e)
print("LangChain: ChatOpenAI, OpenAI")
END2
