#!/bin/bash
# croll serve with several models by name: each answers with its own numbers and names its weights, alone and when both
# are asked for scores and samples at the same time; names and versions that are not there; on one rank and on two.
# Not covered: other weights while it runs (e2e/serve_updates.sh).
. tests/e2e/serve.inc
make_model
cp -r $tmp/home/model $tmp/other
"$CROLL" init $tmp/other --seed 7 --overwrite >/dev/null
refuse() {
    local pattern=$1 code=0
    shift
    timeout 120 "$CROLL" serve "$@" --listen 127.0.0.1:0 --access-log none >$tmp/out 2>$tmp/err || code=$?
    [ $code = 2 ] && tail -n 1 $tmp/err | grep -q -- "$pattern" || fail "$*: exit code $code, no $pattern: $(cat $tmp/err)"
}
refuse 'two models have the name a' a=$tmp/home/model a=$tmp/other
refuse 'NAME=MODEL comes before' $tmp/home/model a=$tmp/other
refuse 'for one MODEL' a=$tmp/other --served-model-name b
refuse 'model b' a=$tmp/other b=$tmp/absent

cat >$tmp/client.py <<'PY'
import concurrent.futures, json, os, sys, urllib.error, urllib.request
from logprobs import numbers
url, tmp = sys.argv[1:3]
def post(path, body):
    r = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(r, timeout=60) as answer:
        return json.load(answer), answer.headers["x-croll-weights"]
def code(path, body=None):
    try:
        urllib.request.urlopen(urllib.request.Request(url + path, body and json.dumps(body).encode()), timeout=120)
    except urllib.error.HTTPError as e:
        return e.code, json.load(e)["error"]["code"]
    return 200, None
folders = {"a": tmp + "/home/model", "b": tmp + "/other"}
prompts = [[(37 * i + 11 * t) % 256 for t in range(4 + 7 * i)] for i in range(12)]
wanted = lambda folder: [line["logprobs"] for line in numbers(prompts, model=folder)]
want = {name: wanted(folder) for name, folder in folders.items()}
assert want["a"] != want["b"]
models = json.load(urllib.request.urlopen(url + "/v1/models"))["data"]
assert [m["id"] for m in models] == ["a", "b"] and [m["root"] for m in models] == list(folders.values()), models
sha = {m["id"]: m["croll"]["weights_sha256"] for m in models}
assert sha["a"] != sha["b"]
score = lambda name, i: {"model": name, "prompt": [prompts[i]], "max_tokens": 0, "prompt_logprobs": 0}
def check(name, i):
    answer, weights = post("/v1/completions", score(name, i))
    got = [next(iter(x.values()))["logprob"] for x in answer["choices"][0]["prompt_logprobs"][1:]]
    assert got == want[name][i] and weights == sha[name], (name, i)
    assert answer["model"] == name and answer["croll"]["weights_sha256"] == sha[name], answer
sample = lambda name, i: post("/v1/completions", {"model": name, "prompt": [prompts[i]], "max_tokens": 30, "seed": 3, "n": 2, "ignore_eos": True})[0]["choices"]
for name in "ab":
    check(name, 5)
alone = {} if "--score-only" in sys.argv else {(name, i): sample(name, i) for name in "ab" for i in range(4)}
assert not alone or alone["a", 1] != alone["b", 1]
with concurrent.futures.ThreadPoolExecutor(16) as pool: # rounds and steps of both models at the same time
    checks = [pool.submit(check, name, i) for i in range(12) for name in "ab" for _ in range(3)]
    samples = {key: pool.submit(sample, *key) for key in alone}
    for c in checks:
        c.result()
    assert {key: f.result() for key, f in samples.items()} == alone
assert post("/v1/completions", dict(score("a", 2), model=None))[1] == sha["a"] # the first is the default
check_version = post("/v1/completions", score("b@1", 2))[1]
assert check_version == sha["b"], check_version
assert code("/v1/completions", score("b@2", 2)) == (404, "model_not_found")
assert code("/v1/completions", score("c", 2)) == (404, "model_not_found")
assert code("/v1/models/b") == (200, None) and code("/v1/models/c") == (404, "model_not_found")
assert code("/tokenizer_info?model=b") == (200, None) and code("/tokenizer_info?x=1&model=%63") == (404, "model_not_found")
assert post("/tokenize", {"model": "b", "prompt": "1+1"})[1] == sha["b"]
assert code("/v1/completions", dict(score("b", 2), croll={"expect_weights": sha["a"]})) == (409, "weights_mismatch")
metrics = urllib.request.urlopen(url + "/metrics").read().decode()
for name in "ab":
    assert f'croll_weights_info{{model="{name}",sha256="{sha[name]}",version="1"}} 1' in metrics, metrics
PY
# the script of the page /, run by node on stand-ins for its elements: all models are listed, the chosen one is asked
cat >$tmp/page.js <<'JS'
const [url, page, wanted] = process.argv.slice(2);
const element = () => ({value: "", hidden: true, textContent: "", className: "", style: {}, rows: [], children: [],
  tBodies: [], listeners: {}, append(x) { this.textContent += x.textContent ?? x; },
  insertRow() { const r = element(); this.rows.push(r); return r; }, insertCell() { return this.insertRow(); },
  replaceWith(body) { this.owner.tBodies = [Object.assign(body, {owner: this.owner})]; },
  replaceChildren(...all) { this.children = all; this.value = all[0].value; }, setAttribute() {},
  addEventListener(name, f) { this.listeners[name] = f; }});
const elements = {};
const find = id => elements[id] ??= (() => { const e = element(); e.tBodies = [Object.assign(element(), {owner: e})]; return e; })();
Object.assign(globalThis, {document: {getElementById: find, createElement: element},
  Option: function (text, value) { this.value = value; }});
const real = fetch, asked = [];
globalThis.fetch = (path, options) => { if (options.body) asked.push(JSON.parse(options.body)); return real(url + "/" + path, options); };
const until = async (holds, what) => { for (let i = 0; !holds(); i++) { if (i > 2000) throw new Error(what); await new Promise(r => setImmediate(r)); if (i % 20 === 0) await real(url + "/health"); } };
(async () => {
  const text = require("fs").readFileSync(page, "utf8");
  new Function("setTimeout", /<script>([^]*)<\/script>/.exec(text)[1])(() => 0);
  await until(() => find("routes").tBodies[0].rows.length > 0, "the page shows no routes");
  const listed = find("models").tBodies[0].rows.map(r => r.rows[0].textContent);
  if (listed.join() !== "a,b" || find("model").hidden || find("name").textContent !== "2 models") throw new Error("models: " + listed);
  find("model").value = wanted;
  for (const kind of ["complete", "chat", "score"]) {
    Object.assign(find("kind"), {value: kind});
    find("prompt").value = "1+2=";
    find("max_tokens").value = "2";
    find("temperature").value = "0";
    await find("form").listeners.submit({preventDefault() {}});
    if (find("note").className !== "under" || asked.at(-1).model !== wanted) throw new Error(kind + ": " + find("note").textContent);
  }
  process.exit(0);
})().catch(e => { console.error(e); process.exit(1); });
JS
has_node=$(command -v node || true)
[ -n "$has_node" ] || echo "node is not there: the script of the page is not run"
for ranks in "" "device_mapping=list(range(0,2)) --score-only"; do
    launch a=$tmp/home/model b=$tmp/other --access-log none model_args.dtype=fp32 $ranks
    [ $(grep -c '^ready: [ab], weights' $tmp/out) = 2 ] || fail "$(cat $tmp/out)"
    python3 $tmp/client.py $url $tmp "$CROLL" $ranks || fail "$ranks: $(cat $tmp/err)"
    [ -z "$has_node$ranks" ] || [ -n "$ranks" ] || { curl -sS -m $deadline $url/ >$tmp/page.html && timeout 120 node $tmp/page.js $url $tmp/page.html b; } || fail "the page"
    stop
done
echo "done"
