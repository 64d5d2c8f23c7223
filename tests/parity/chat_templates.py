#!/usr/bin/env python3
"""chat_templates.py -- croll's chat templates against jinja2 in Transformers' settings.

    tests/parity/chat_templates.py [build/release] [--keep FILE]

Templates in the style of the families, a long list of expressions, and, where trl is installed, the
published templates that it carries, over conversations with tools, reasoning, parts and Unicode. Writes
the cases with jinja2's texts to a file and has build/release/unit_text_chat compare. Exit code 77 and
a reason where jinja2 is missing.
"""
import datetime, importlib.util, json, os, pathlib, random, subprocess, sys, tempfile

try:
    import jinja2, jinja2.ext, jinja2.sandbox
except ImportError:
    print("skipped: needs the Python package jinja2")
    sys.exit(77)

EPOCH = 1721952000  # 26 Jul 2024


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_text"), [], [], body).set_lineno(line)

    def _text(self, caller):
        return caller()


def environment():
    def refuse(message):
        raise jinja2.exceptions.TemplateError(message)

    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                       extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = lambda x, ensure_ascii=False, indent=None, separators=None, sort_keys=False: json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    class Namespace(jinja2.utils.Namespace):  # as Transformers: no underscore in front
        def __init__(*args, **kwargs):
            self, values = args[0], dict(*args[1:], **kwargs)
            for name in values:
                Namespace.check(name)
            jinja2.utils.Namespace.__init__(self, values)

        def __setitem__(self, name, value):
            Namespace.check(name)
            jinja2.utils.Namespace.__setitem__(self, name, value)

        @staticmethod
        def check(name):
            if isinstance(name, str) and name.startswith("_"):
                raise jinja2.exceptions.SecurityError(name)

    env.globals["namespace"] = Namespace
    env.globals["raise_exception"] = refuse
    env.globals["strftime_now"] = datetime.datetime.fromtimestamp(EPOCH, datetime.timezone.utc).strftime
    return env


ENV = environment()


def oracle(template, variables):
    try:
        return ENV.from_string(template).render(**variables)
    except Exception:
        return None


# ---- conversations ----

def text_parts(text):
    return [dict(type="text", text=text)]


TOOLS = [dict(type="function", function=dict(
    name="get_weather", description="The weather of a place, \"now\" <b> & 'later' é",
    parameters=dict(type="object", required=["place"], properties=dict(
        place=dict(type="string", description="Where"), days=dict(type="integer", enum=[1, 2, 3]),
        deep=dict(type="array", items=dict(type="object", properties=dict(x=dict(type="number", default=1.5)))),
        either=dict(type=["string", "null"]), flag=dict(type="boolean", nullable=True))))),
    dict(type="function", function=dict(name="stop", description="Ends it.", parameters=dict(type="object", properties={})))]
CALL = dict(type="function", id="call_00001", function=dict(name="get_weather", arguments=dict(place="Zürich", days=2, x=[1.0, 1e-7, True, None])))
CALL2 = dict(type="function", id="call_00002", function=dict(name="stop", arguments={}))


def conversations():
    u = lambda t: dict(role="user", content=t)
    a = lambda t, **more: dict(role="assistant", content=t, **more)
    s = lambda t: dict(role="system", content=t)
    tool = lambda t: dict(role="tool", content=t, name="get_weather", tool_call_id="call_00001")
    talks = [
        [u("What is 1+1?")], [s("Be terse."), u("What is 1+1?")], [u("hi"), a("hello"), u("1+1?")],
        [s("Be terse."), u("hi"), a("<think>\nadd\n</think>\n\n2"), u("sure?")], [u("")], [u("\n a \n\n")],
        [u("你好 🤗 é")], [u("a"), a("<think>x</think>y</think>z"), u("b"), a("c"), u("d")], [s(""), u("x")],
        [u("\u0000 nul")], [u("a"), u("b")], [a("first"), u("b")], [u("q"), a("<think>\nr\n</think>\n\nfinal")],
        [u("q"), a("final", reasoning_content="because\n", thinking="because\n")], [s("only")],
        [u("w?"), a("Let me see.", tool_calls=[CALL]), tool("{\"t\": 3}"), a("3 degrees"), u("thanks")],
        [u("w?"), dict(role="assistant", tool_calls=[CALL, CALL2]), tool("3"), tool("4"), a("done")],
        [u("w?"), a("", tool_calls=[CALL], reasoning_content="need a tool", thinking="need a tool"), tool("3")],
        [s("S"), u("w?"), a("x", tool_calls=[CALL["function"]]), tool(dict(t=3, ok=True))],
        [u("<tool_response>x</tool_response>"), a("y"), u("  z  ")],
        [dict(role="user", content=text_parts("look ") + [dict(type="image")] + text_parts(" here"))],
        [dict(role="system", content=text_parts("S")), dict(role="user", content=text_parts("a") + [dict(type="image", image="x.png"), dict(type="video")]),
         dict(role="assistant", content=text_parts("b")), u("c")],
        [dict(role="developer", content="D"), u("x")], [dict(role="weird", content="x")],
    ]
    rng = random.Random(7)
    alphabet = ["a", "Bc", " ", "\n", "\t", "é", "ß", "<", "&", "'", '"', "\\", "{{", "%}", "🤗", "\u00a0", "\u2028", "</think>", "<think>", "0"]
    words = lambda: "".join(rng.choice(alphabet) for _ in range(rng.randint(0, 12)))
    for _ in range(12):
        talk = [s(words())] if rng.random() < 0.4 else []
        for _ in range(rng.randint(0, 3)):
            talk += [u(words()), a(words())]
        talks.append(talk + [u(words())])
    return talks


def variable_sets():
    for i, talk in enumerate(conversations()):
        for j, more in enumerate((dict(), dict(tools=TOOLS), dict(enable_thinking=False), dict(add_generation_prompt=False, date_string="1 Jan 2025"))):
            if i >= 24 and j:
                break
            yield dict(dict(messages=talk, tools=None, documents=None, add_generation_prompt=True,
                            bos_token="<s>", eos_token="</s>", pad_token="<pad>"), **more)


# ---- templates of our own, in the style of the families ----

FAMILIES = {
    "plain": "{% for m in messages %}{{'<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    "llama2": """{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}{% set head = messages[0]['content'] %}{% else %}{% set rest = messages %}{% set head = false %}{% endif %}
{% for m in rest %}
{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate user/assistant') }}{% endif %}
{% if loop.index0 == 0 and head != false %}{% set content = '<<SYS>>\\n' + head + '\\n<</SYS>>\\n\\n' + m['content'] %}{% else %}{% set content = m['content'] %}{% endif %}
{% if m['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif m['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}
{% endfor %}""",
    "llama3": """{{- bos_token }}
{%- if custom_tools is defined %}{%- set tools = custom_tools %}{%- endif %}
{%- if not date_string is defined %}{%- if strftime_now is defined %}{%- set date_string = strftime_now("%d %b %Y") %}{%- else %}{%- set date_string = "26 Jul 2024" %}{%- endif %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set head = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}{%- set head = "" %}{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\nToday: " + date_string + "\\n\\n" + head + "<|eot_id|>" }}
{%- for m in messages %}
    {%- if not (m.role == 'tool' or 'tool_calls' in m) %}
        {{- '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n'+ m['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in m %}
        {%- if not m.tool_calls|length == 1 %}{{- raise_exception("one call at once!") }}{%- endif %}
        {%- set call = m.tool_calls[0].function %}
        {{- '{"name": "' + call.name + '", "parameters": ' }}{{- call.arguments | tojson }}{{- "}<|eot_id|>" }}
    {%- else %}
        {%- if m.content is mapping or m.content is iterable %}{{- m.content | tojson }}{%- else %}{{- m.content }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
""",
    "qwen3": """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- "# Functions <tools>" }}{%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}{{- "\\n</tools><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0].role == 'system' %}{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{%- endif %}
{%- endif %}
{%- set ns = namespace(multi=true, last=messages|length - 1) %}
{%- for m in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi and m.role == "user" and m.content is string and not(m.content.startswith('<tool_response>') and m.content.endswith('</tool_response>')) %}
        {%- set ns.multi = false %}{%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for m in messages %}
    {%- if m.content is string %}{%- set content = m.content %}{%- else %}{%- set content = '' %}{%- endif %}
    {%- if (m.role == "user") or (m.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + m.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif m.role == "assistant" %}
        {%- set thought = '' %}
        {%- if m.reasoning_content is string %}{%- set thought = m.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last and (loop.last or (not loop.last and thought)) %}
            {{- '<|im_start|>' + m.role + '\\n<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}{{- '<|im_start|>' + m.role + '\\n' + content }}{%- endif %}
        {%- for call in m.tool_calls %}
            {%- if (loop.first and content) or (not loop.first) %}{{- '\\n' }}{%- endif %}
            {%- if call.function %}{%- set call = call.function %}{%- endif %}
            {{- '<tool_call>\\n{"name": "' }}{{- call.name }}{{- '", "arguments": ' }}
            {%- if call.arguments is string %}{{- call.arguments }}{%- else %}{{- call.arguments | tojson }}{%- endif %}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif m.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' }}{{- content }}{{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}""",
    "vision": """{% set image_count = namespace(value=0) %}{% for m in messages %}{% if loop.first and m['role'] != 'system' %}<|im_start|>system
You are helpful.<|im_end|>
{% endif %}<|im_start|>{{ m['role'] }}
{% if m['content'] is string %}{{ m['content'] }}<|im_end|>
{% else %}{% for part in m['content'] %}{% if part['type'] == 'image' or 'image' in part or 'image_url' in part %}{% set image_count.value = image_count.value + 1 %}{% if add_vision_id %}Picture {{ image_count.value }}: {% endif %}<|vision_start|><|image_pad|><|vision_end|>{% elif 'text' in part %}{{ part['text'] }}{% endif %}{% endfor %}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}""",
    "mistral": """{%- if messages[0]["role"] == "system" %}{%- set head = messages[0]["content"] %}{%- set rest = messages[1:] %}{%- else %}{%- set rest = messages %}{%- endif %}
{%- set user_messages = rest | selectattr("role", "equalto", "user") | list %}
{{- bos_token }}
{%- for m in rest | rejectattr("role", "equalto", "weird") %}
    {%- if m["role"] == "user" %}
        {%- if tools is not none and (m == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS][" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}{{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}{{- '"' + key + '": "' + val + '"' }}{%- else %}{{- '"' + key + '": ' + val|tojson }}{%- endif %}
                    {%- if not loop.last %}{{- ", " }}{%- endif %}
                {%- endfor %}{{- "}}" }}{%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}
            {%- endfor %}{{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and head is defined %}{{- "[INST]" + head + "\\n\\n" + m["content"] + "[/INST]" }}{%- else %}{{- "[INST]" + m["content"] + "[/INST]" }}{%- endif %}
    {%- elif m["role"] == "assistant" %}{{- " " + m["content"]|trim + eos_token}}{%- endif %}
{%- endfor %}""",
    "gemma": """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}{% for message in messages %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}""",
    "macros": """{%- macro show(spec, depth=0, mark='*') -%}
    {%- if spec is mapping -%}
        {%- for k, v in spec | dictsort -%}{{ '  ' * depth }}{{ mark }} {{ k }}:{{ '\\n' }}{{ show(v, depth + 1, mark=loop.cycle('-', '+')) }}{%- endfor -%}
    {%- elif spec is sequence and spec is not string -%}
        {%- for v in spec -%}{{ show(v, depth + 1) }}{%- endfor -%}
    {%- else -%}{{ '  ' * depth ~ spec ~ '\\n' }}{%- endif -%}
{%- endmacro -%}
{% macro wrap(name) %}<{{ name }}>{{ caller(name | upper) }}</{{ name }}>{% endmacro %}
{% for m in messages %}
    {% call(big) wrap(m.role) %}{{ big }}={{ m.content | default('none') }}{% endcall %}

    {% generation %}{{ show(m) }}{% endgeneration %}
{% endfor %}
{% set block %}  {{ tools | tojson(indent=2) }}  {% endset %}
{{ block | trim | indent(3) }}
{% filter upper %}{{ messages | map(attribute='role') | join(', ') }}{% endfilter %}
{% with x = 1, y = 'two' %}{{ x }}{{ y }}{% endwith %}{{ x is defined }}""",
}

# ---- expressions ----

DATA = dict(n=None, t=True, f=False, i=7, z=-3, x=2.5, big=1e22, small=1.5e-7, s="  Hello, World \n", u="äÖ🤗ñ", e="", q="it's \"q\"",
            l=[3, 1, 2], ll=[[1, "a"], [2, "b"]], d=dict(b=1, a="x", items=5, C=[1]), o=[dict(k="v1", n=2, p=dict(q=1)), dict(k="V0", n=1), dict(n=3)],
            mixed=[1, "a", None, True, 2.0, [], {}, "\n\\'\u00a0\u200b"])
EXPRESSIONS = r"""
n; t; f; i; z; x; big; small; s; u; e; q; l; ll; d; o; mixed; missing; missing is defined; [missing]; (1,); (); (1, 2); {}; {'a': n, 1: t}
1 + 2 * 3 - 4; 7 // 2; -7 // 2; 7 % 3; -7 % 3; 7 % -3; 7 / 2; 4 / 2; 2 ** 10; -2 ** 2; 1 / 0; 1.5 + 1; 1e3; 1.0; 100000.0 * 1e12; 0.1 + 0.2; 3 * 'ab'; [1] * 3; 'a' * -1; 5 - 'a'; 'a' + 1; n + 1; t + 1
'a' ~ 1 ~ n ~ t ~ 2.0; 'a' 'b' "c"; '\n\t\\\'\"\x41\u00e9\q\101'; "a'b" ~ 'c"d'; 1 ~ 2 + 3; 'a' + 'b' | upper; ('a' + 'b') | upper; -1 | abs; 'x' ~ s | trim
1 == 1.0; t == 1; 'a' == 'a'; [1, 2] == [1, 2]; d == d; n == f; missing == missing; missing == n; 1 < 2 < 3; 1 < 2 > 3; 'a' < 'b'; 'Z' < 'a'; [1, 2] < [1, 3]; 1 < 'a'; n < 1; 1 != 2; 3 >= 3; not 1 == 2; not t or t; t and i; f or e or 'last'; e and missing; not missing
'a' in 'abc'; '' in 'abc'; 'z' not in 'abc'; 1 in l; 9 in l; 'b' in d; 1 in 'abc'; 'x' in missing; n in mixed; 'a' in o; not 'a' in 'abc'; 1 in (1, 2); 2 in range(3)
'y' if t else 'n'; 'y' if f; ('y' if f) is defined; 'a' if f else 'b' if f else 'c'; (1 if t else 2) + 1
l[0]; l[-1]; l[3]; l[-4]; l['a']; l.0; u[0]; u[-1]; u[9]; s[0:3]; s[::-1]; u[1:]; u[:-1]; u[::2]; l[::-1]; l[1:]; l[:1]; l[5:]; l[-2:]; l[2:0:-1]; l[::0]; l[n:2]; l['a':]; d[1:]; (1, 2, 3)[1:]; range(5)[1:3]; range(10)[-1]; i[0]; n[0]; missing[0]; missing.a; d.b; d['b']; d.items; d['items']; d.zzz; d.zzz.y; d.get('b'); d.get('zz'); d.get('zz', 4); d.C[0]; d.keys() | list; d.values() | list; d.items() | list; s.foo; i.foo; d.pop('b'); l.append(1); d.update({}); d.__class__; s.__class__.__mro__; ''.join
s.strip(); s.lstrip(); s.rstrip(); s.strip(' \n'); 'xxaxx'.strip('x'); 'xyaxy'.lstrip('yx'); s.upper(); s.lower(); 'hello wORLD'.title(); 'hELLO'.capitalize(); u.upper(); u.lower(); "it's o'clock a-b".title()
'a,b,,c'.split(','); 'a,b,,c'.split(',', 1); 'a,b,,c'.rsplit(',', 1); ' a  b c '.split(); ' a  b c '.split(n, 1); ' a  b c '.rsplit(n, 1); ''.split(); ''.split(','); 'abc'.split(''); 'a--b'.split('--')[-1]; 'a\nb\r\nc\n'.splitlines(); 'a\nb\n'.splitlines(t); 'aXbX'.split('X', maxsplit=1); 'abc'.split(sep='b')
'hello'.startswith('he'); 'hello'.endswith('lo'); 'hello'.startswith(('a', 'he')); 'hello'.startswith(['he']); 'a'.startswith(1); 'abcabc'.replace('b', 'X'); 'abcabc'.replace('b', 'X', 1); 'abc'.replace('', '-'); 'äb'.replace('', '-'); 'abc'.find('c'); u.find('ñ'); 'abc'.find('z'); 'abcabc'.count('bc'); 'abc'.index('c'); 'abc'.index('z'); ', '.join(['a', 'b']); ', '.join([1]); ''.join(u); '12'.isdigit(); '1a'.isdigit(); ''.isdigit(); ' \n'.isspace(); 'prefix-x'.removeprefix('prefix-'); 'x.py'.removesuffix('.py'); 'abc'.nope(); '%s-%d%%' % ('a', 3); '%s' % 5; '%s' % d; '%s %s' % 1
s | trim; s | trim | length; 'xax' | trim('x'); 5 | trim; n | trim; missing | trim; u | length; d | length; l | count; missing | length; 5 | length; n | length; s | upper; s | lower; 'hello world-x (y)' | title; 'ABC def' | capitalize; 5 | upper; n | string; 5 | string; l | string; 1.0 | string; t | string
missing | default; missing | default('x'); n | default('x'); n | default('x', true); e | default('x', boolean=true); e | d('y', true); d.zz | default(d.b); missing.a | default('x'); i | default('x')
l | first; l | last; [] | first; [] | last; u | first; u | last; d | first; missing | first; l | join; l | join(', '); mixed | join('|'); o | join(',', attribute='n'); u | join('-'); d | join; n | join; l | list; u | list; d | list; (1, 2) | list; missing | list; n | list; l | reverse | list; u | reverse; l | sort; l | sort(reverse=true); ['b', 'A', 'c'] | sort; ['b', 'A', 'c'] | sort(case_sensitive=true); o | sort(attribute='n') | map(attribute='n') | list; mixed | sort; [1, 1, 2] | unique | list; ['a', 'A'] | unique | list; l | min; l | max; l | sum; o | sum(attribute='n'); [] | min; d | dictsort; d | dictsort(reverse=true); d | dictsort(true); d | items | list; missing | items | list; l | items
o | map(attribute='n') | list; o | map(attribute='k') | list; o | map(attribute='k', default='-') | list; o | map(attribute='p.q') | list; ['a', 'b'] | map('upper') | list; ['a', 'b'] | map('replace', 'a', 'z') | list; l | map('string') | join('+'); o | selectattr('k') | list | length; o | selectattr('k', 'defined') | list | length; o | selectattr('n', 'gt', 1) | map(attribute='n') | list; o | rejectattr('n', 'equalto', 1) | map(attribute='n') | list; o | selectattr('k', '==', 'v1') | first is defined; (o | selectattr('k', '==', 'v1') | list | first).n; mixed | select | list; mixed | select('string') | list; mixed | reject('none') | list; l | select('odd') | list; l | select('in', [1, 2]) | list; l | map('nope') | list; l | map; o | selectattr('n', 'nope') | list; l | selectattr
d | tojson; mixed | tojson; u | tojson; u | tojson(ensure_ascii=true); d | tojson(indent=2); [] | tojson(indent=2); {} | tojson(indent=2); d | tojson(separators=(',', ':')); d | tojson(sort_keys=true); d | tojson(indent=4, sort_keys=true); missing | tojson; '</script>&' | tojson; big | tojson; small | tojson; 1.0 | tojson; {1: 2, n: 3, t: 4} | tojson; l | reverse | tojson; q | tojson; '\x7f\x08\x0c\x1f' | tojson; (1, 2) | tojson; d.items() | tojson; range(3) | tojson; d | tojson(indent='\t')
'5' | int; '5.7' | int; 'x' | int; 'x' | int(3); 5.9 | int; -5.9 | int; n | int; t | int; ' 42 ' | int; '-3' | int; '1e3' | int; 3 | float; 2.5 | round; 3.5 | round; 2.567 | round(2); 7 | round; -3 | abs; -2.5 | abs; 'a\nb\n\nc' | indent; 'a\nb\n\nc' | indent(2, true); 'a\nb\n\nc' | indent(2, blank=true); 'a\nb' | indent('--'); 'a-b' | replace('-', '+'); 5 | replace(5, 6); 'aaa' | replace('a', 'b', 2); '%s!' | format('x'); '<' | safe; ('<' | safe) ~ '>'; ('<' | safe) + '>&'; '>' + ('<' | safe); d | tojson | safe; l | nope; 'a' | upper | lower | title
i is number; x is number; t is number; s is number; i is integer; t is integer; x is float; t is boolean; i is boolean; t is true; i is true; f is false; n is none; missing is none; missing is undefined; s is string; d is mapping; l is mapping; l is sequence; s is sequence; d is sequence; missing is sequence; missing is iterable; i is iterable; d.items() is sequence; (l | reverse) is sequence; (l | reverse) is iterable; range(3) is sequence; s is iterable; n is iterable; i is odd; i is even; i is divisibleby 7; i is divisibleby(2); i is eq 7; i is equalto(7); i is ne 7; i is gt 3; i is lt 3; i is ge 7; i is le(6); i is in [7]; 'a' is in 'abc'; 'abc' is lower; 'ABC' is upper; 'A1' is upper; '1' is upper; range is callable; s.strip is callable; i is callable; missing is callable; i is nope; i is not number; not i is number; i is number and t; i is defined and i is not none; d.b is defined; d.zz is not defined; t is sameas true; n is sameas none; i is string is string
range(3) | list; range(1, 4) | list; range(5, 0, -2) | list; range(0) | list; range(0, 5, 0); range(1000000); range(2.5); dict(a=1, b=2); dict({'x': 1}, y=2); namespace(a=1).a; namespace(a=1).b; namespace(a=1) is mapping; namespace({'q': 2}).q; namespace(_x=1); raise_exception('no'); strftime_now('%Y-%m-%d'); strftime_now('%d %b %Y'); strftime_now(''); strftime_now(5); nofunction(1); cycler is defined; i(1); 'a'(1)
l | length > 2; l | length + 1; not l | length; (l | length) == 3 and u | length == 4; l|length-1; i-1; i -1; -i; +i; - -i; -x; -s; i % 2 == 1; 'a' if i > 5 and i < 10 else 'b'; [1, 2,]; {'a': 1,}; (1 , ); [i for i in l]; a.b.c; l[0:2][::-1]; {'a': {'b': [1, 2]}}.a.b[1]; {'a': 1}['a']; [[1, 2], [3]][0][1]; "a" "b" ~ 'c'; 1_000; 0x10; 1.; .5; 1 if; 1 +; (1; [1; {1}; i is; i |; i.; @; 'unclosed; 08; 1.5.2; t is true is false
d.copy() == d; (1, 2).index(2); [1, 2, 2].count(2); [1].index(5); d.items() | first; d.keys() | join(','); d.values() | map('string') | join('/'); (d.items() | list)[0][1]; [1, 'a', (2,)] ~ ''; {'k': (1, 'b')} ~ ''; d | list | sort | join; 'abc' | list | last; [l, l] | map('first') | list; ll | map('join', '-') | list; 'a' in d.keys(); 5 in d.values(); ('b', 1) in d.items(); d.keys() | length; d.items()[0]; (l | map('string'))[0]; l | map('string') | length; (l | select) and 'yes'
""".strip().split("\n")

STATEMENTS = [
    "{% for a in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.previtem }}{{ loop.nextitem }};{% else %}none{% endfor %}",
    "{% for a in [] %}x{% else %}none{% endfor %}", "{% for a in missing %}x{% else %}none{% endfor %}", "{% for a in n %}x{% endfor %}", "{% for a in 5 %}x{% endfor %}",
    "{% for a in l if a > 1 %}{{ a }}{{ loop.last }}{{ loop.length }}{% else %}none{% endfor %}", "{% for a, b in ll %}{{ a }}{{ b }}{% endfor %}", "{% for a, b in l %}{{ a }}{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }},{% endfor %}", "{% for k in d %}{{ k }}{% endfor %}", "{% for c in u %}{{ c }}.{% endfor %}", "{% for a in l %}{% for b in l %}{{ loop.index }}{{ a }}{% endfor %}{{ loop.index }}{% endfor %}",
    "{% for a in l %}{% if a == 1 %}{% continue %}{% endif %}{{ a }}{% endfor %}", "{% for a in l %}{% if a == 1 %}{% break %}{% endif %}{{ a }}{% endfor %}!", "{% break %}",
    "{% for a in l %}{{ loop.changed(a > 1) }}{{ loop.cycle('x', 'y') }}{% endfor %}", "{% for a in 1, 2 %}{{ a }}{% endfor %}", "{% for a in range(3) %}{{ a }}{% endfor %}", "{% for a in l recursive %}{% endfor %}",
    "{% set x = 1 %}{% for a in l %}{{ x }}{% set x = a %}{{ x }}{% endfor %}{{ x }}", "{% set ns = namespace(c=0) %}{% for a in l %}{% set ns.c = ns.c + a %}{% endfor %}{{ ns.c }}", "{% set d.b = 2 %}", "{% set zz.b = 2 %}", "{% set ns = namespace() %}{% set ns._a = 1 %}",
    "{% if f %}{% set y = 1 %}{% else %}{% set y = 2 %}{% endif %}{{ y }}", "{% if f %}{% set y = 1 %}{% endif %}{{ y is defined }}", "{% if f %}a{% elif t %}b{% elif nope() %}c{% else %}d{% endif %}", "{% if n %}a{% endif %}b", "{% if t: %}a{% endif %}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set a = 1, 2 %}{{ a }}", "{% set (a, b) = ll %}{{ b }}", "{% set x %}a{{ i }}b{% endset %}[{{ x }}]", "{% set x | upper | trim %} a{{ i }}b {% endset %}[{{ x }}]", "{% set true = 1 %}", "{% set 1 = 2 %}",
    "{% macro m(a, b=2) %}{{ a }}-{{ b }};{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(b=5, a=4) }}{{ m() }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(c=2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, a=2) }}",
    "{% macro m(a) %}{{ g }}{% endmacro %}{% set g = 5 %}{{ m(1) }}", "{% macro m(k) %}{% if k %}{{ k }}{{ m(k - 1) }}{% endif %}{% endmacro %}{{ m(5) }}", "{% macro m(a, b) %}{{ b is defined }}{% endmacro %}{{ m(1) }}{{ m is defined }}", "{% macro m(a=1, b) %}{% endmacro %}",
    "{% macro m() %}{% set i = 9 %}{{ i }}{% endmacro %}{{ m() }}{{ i }}", "{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}in {{ i }}{% endcall %}", "{% macro m() %}x{% endmacro %}{% call m() %}y{% endcall %}", "{% macro m() %}{{ '<&' }}{% endmacro %}{{ m() + '>' }}{{ m() | upper | length }}",
    "{% set f2 = 3 %}{% macro m(a=f2) %}{{ a }}{% endmacro %}{{ m() }}", "{% macro m(a, b=a) %}{{ b }}{% endmacro %}{{ m(7) }}", "{% for a in l %}{% macro m() %}{{ a }}{% endmacro %}{{ m() }}{% endfor %}",
    "{% filter upper %}a{{ i }}b{% endfilter %}", "{% filter replace('a', 'b') | upper %}aa{% endfilter %}", "{% with a = 1, b = a %}{{ a }}{{ b }}{% endwith %}", "{% with %}{% set i = 1 %}{{ i }}{% endwith %}{{ i }}", "{% raw %}{{ i }}{% if %}{% endraw %}x", "{% raw -%}  a  {%- endraw %} b", "{% generation %}{{ i }}{% set i = 1 %}{% endgeneration %}{{ i }}",
    "a\n{% if t %}\nb\n{% endif %}\nc", "a\n  {% if t %}\n  b\n  {% endif %}  \nc\n", "a  {%- if t -%}  b  {%- endif -%}  c", "a\n  {%+ if t +%}\n b {% endif %}", "  {{ i }}  \n  {{- i -}}  \n x", "a {# c #} b\n  {# c #}\nd {#- c -#} e", "{# {{ i }} #}x\n", "x\n\n", "x\r\ny\r\n", "\n{% if t %}\n\n{% endif %}\n",
    "{% if t %}{{ '}}' }}{{ '{%' }}{% endif %}", "{{ {'a': {'b': 1}}['a'] }}", "{{ '{{' ~ '}}' }}", "{{ i }}{", "{{ i }}{ {", "{", "", "\n", "   ", "{{ i", "{% if t", "{% if t %}", "{% endif %}", "{% nope %}", "{# open", "{% raw %}", "{{ }}", "{% %}", "{% if %}{% endif %}", "{% for %}{% endfor %}", "{% for a in %}{% endfor %}", "{% for a b in l %}{% endfor %}",
    "{{ i }} é {{ u }}", "{%if t%}x{%endif%}", "{%- if t %}\n  x\n{%- endif %}", "{{i}}{{-i-}}{{ i }}", "{% set a = 'x' -%}\n\n  {{ a }}", "{% set gen = l | map('string') %}{{ gen | list }}{{ gen | list }}", "{% set x = [] %}{% set x = x + [1] %}{{ x }}", "{% include 'x' %}", "{% extends 'x' %}", "{% import 'x' as y %}", "{% do l %}",
    "{{ loop }}", "{% for a in l %}{{ loop.nope }}{% endfor %}", "{% for loop in l %}{{ loop }}{% endfor %}", "{% set loop = 3 %}{{ loop }}", "{{ self }}", "{% block a %}x{% endblock %}", "{{ range }}", "{{ d.items }}", "{{ d.get }}", "{{ namespace() }}", "{% set x = i %}{% if t %}{% set x = x + 1 %}{% endif %}{{ x }}", "{{ [1, 2, 3] | batch(2) | list }}", "{{ 1, 2 }}", "{{ *l }}", "{{ range(*l) }}",
    "{%- for a in l -%}\n  {{ a }}\n{%- endfor %}\n", "{% for a in l %}\n  {% if a %}\n    {{ a }}\n  {% endif %}\n{% endfor %}\n", "  {% raw %}  x  {% endraw %}  ", "a{#- c #}\nb{# c -#}\n\nc", "{% if t %}\t\n{%- endif +%}\nz", "x\n \t{% if t %}y{% endif %}\u00a0\n", "{{ '\n' }}|{{ 'a\r\nb' }}",
]
# The text of these is a memory address, or an object that no template prints.
NO_TEXT = {"{{ loop }}", "{{ range }}", "{{ d.items }}", "{{ d.get }}", "{{ namespace() }}", "{{ self }}"}
# What croll refuses by intention, and says so (jinja/jinja.h).
REFUSED = {"{% for a in l recursive %}{% endfor %}", "{% for a in l %}{{ loop.nope }}{% endfor %}", "{% block a %}x{% endblock %}", "{{ [1, 2, 3] | batch(2) | list }}",
           "{{ d.items }}", "{{ ''.join }}", "{{ 1_000 }}", "{{ 0x10 }}", "{{ range(*l) }}", "{{ d.__class__ }}", "{% raw %}",
           "{{ range(5)[1:3] }}", "{{ l | items }}", "{{ l | map }}", "{{ l | selectattr }}"}


def cases():
    for name, template in FAMILIES.items():
        for variables in variable_sets():
            yield name, template, variables
    for line in EXPRESSIONS:
        for e in line.split("; "):
            yield "expression", "{{ " + e + " }}", DATA
    for template in STATEMENTS:
        yield "statement", template, DATA
    found = importlib.util.find_spec("trl")
    folder = pathlib.Path(found.origin).parent / "chat_templates" if found else None
    files = sorted(folder.glob("*.jinja")) if folder and folder.exists() else []
    print(f"{len(files)} published templates" if files else "published templates left out: needs the Python package trl")
    for file in files:
        for variables in variable_sets():
            yield file.stem, file.read_text(), variables


def main():
    arguments = [a for a in sys.argv[1:] if a != "--keep"]
    keep = arguments.pop() if "--keep" in sys.argv else None
    build = pathlib.Path(arguments[0] if arguments else "build/release")
    path = keep or tempfile.mktemp(suffix=".jsonl")
    count = failing = 0
    with open(path, "w") as out:
        for name, template, variables in cases():
            if template in NO_TEXT:
                continue
            text = None if template in REFUSED else oracle(template, variables)
            count, failing = count + 1, failing + (text is None)
            out.write(json.dumps(dict(name=name, template=template, vars=variables, text=text)) + "\n")
    print(f"{count} cases, {failing} of them errors")
    done = subprocess.run([build / "unit_text_chat"], env=dict(os.environ, CROLL_CHAT_CASES=path, SOURCE_DATE_EPOCH=str(EPOCH)))
    if not keep:
        os.unlink(path)
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
