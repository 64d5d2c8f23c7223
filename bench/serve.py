#!/usr/bin/env python3
"""croll serve and its peers under load, one JSON line a case.

usage: serve.py CROLL MODEL_DIR [--dtype fp32|bf16] [--seconds 10] [--cases score,one,added,health,tls,idle,streams,alone] [--servers croll,hf,llamacpp]
score: 32 clients, log-probs of prompts of 128 ids. one: a client, the same. added (croll): what one client waits beside
the model's own time for its line, which the access log has (model_ms), request by request, with the most likely token of each place and without; and
floor: what two threads that wake each other add without doing anything. health: GET /health, 32 clients. tls: score over HTTPS
(croll). idle: memory with 1,000 connections that are silent (croll). streams: 16 clients, 64 tokens each, greedy. alone:
`croll logprobs` with the same prompts, without its start (the difference of two runs). Needs wrk, openssl and, beside CROLL, bench_latency; hf is bench/peers/serve_hf.py (FastAPI, uvicorn,
Transformers); llamacpp (streams only) is bench/peers/serve_llamacpp.py with the model as --gguf.
"""
import argparse, concurrent.futures, http.client, json, os, random, re, resource, socket, subprocess, sys, tempfile, time

HERE = os.path.dirname(os.path.abspath(__file__))
PROMPT, CLIENTS, STREAMS, NEW = 128, 32, 16, 64

WRK = """
local bodies, at = {}, 0
for line in io.lines(%r) do bodies[#bodies + 1] = line end
wrk.method, wrk.headers["Content-Type"] = "POST", "application/json"
function request() at = at %% #bodies + 1; return wrk.format(nil, nil, nil, bodies[at]) end
"""
DONE = """
function done(s, l, r)
  io.write(string.format('RESULT {"requests":%d,"seconds":%.6f,"p50_ms":%.4f,"p99_ms":%.4f,"errors":%d}\\n', s.requests, s.duration / 1e6,
    l:percentile(50) / 1e3, l:percentile(99) / 1e3, s.errors.connect + s.errors.read + s.errors.write + s.errors.status + s.errors.timeout))
end
"""


def free_port():
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        return s.getsockname()[1]


class Server:
    """A process that answers at self.port; memory() is its resident MB."""
    def __init__(self, command, port, seconds=120):
        self.port = port
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.time() + seconds
        while time.time() < end and self.process.poll() is None:
            try:
                c = http.client.HTTPConnection('127.0.0.1', port, timeout=2)
                c.request('GET', '/ready' if 'serve' in command[1:2] else '/v1/models')
                if c.getresponse().status in (200, 404):
                    return
            except OSError:
                pass
            time.sleep(0.1)
        self.stop()
        raise SystemExit('no answer from ' + ' '.join(command))

    def memory(self):
        with open(f'/proc/{self.process.pid}/status') as f:
            return int(re.search(r'VmRSS:\s+(\d+)', f.read())[1]) / 1024

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


def wrk(url, clients, seconds, bodies=None):
    with tempfile.NamedTemporaryFile('w', suffix='.lua') as script:
        script.write((WRK % bodies if bodies else '') + DONE)
        script.flush()
        out = subprocess.run(['wrk', '-t1', f'-c{clients}', f'-d{seconds}s', '--timeout', '60s', '-s', script.name, url], capture_output=True,
                             text=True).stdout
    r = json.loads(re.search(r'RESULT (.*)', out)[1])
    return {**r, 'requests_per_s': r['requests'] / r['seconds']}


def streams(port, prompts):
    def one(prompt):
        body = {'prompt': prompt, 'max_tokens': NEW, 'temperature': 0, 'ignore_eos': True}
        c = http.client.HTTPConnection('127.0.0.1', port, timeout=600)
        c.request('POST', '/v1/completions', json.dumps(body), {'Content-Type': 'application/json'})
        r = c.getresponse()
        answer = json.loads(r.read())
        assert r.status == 200, answer
        return answer['usage']['completion_tokens']

    with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
        list(pool.map(one, prompts[:2]))
        begin = time.perf_counter()
        num = sum(pool.map(one, prompts[:2 * STREAMS]))
        return {'tokens_per_s': num / (time.perf_counter() - begin), 'tokens': num}


def alone(croll, model, dtype, prompts):
    """Tokens a second of `croll logprobs`, from the difference of many prompts and few."""
    def run(num):
        lines = ''.join(json.dumps({'id': i, 'input_ids': prompts[i % len(prompts)]}) + '\n' for i in range(num))
        begin = time.perf_counter()
        subprocess.run([croll, 'logprobs', model, f'model_args.dtype={dtype}'], input=lines, text=True, check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)
        return time.perf_counter() - begin
    few, many = 200, 3200
    times = [run(many) - run(few) for _ in range(3)]
    return {'tokens_per_s': (many - few) * PROMPT / sorted(times)[1]}


def certificate(folder):
    cert, key = folder + '/cert.pem', folder + '/key.pem'
    subprocess.run(['openssl', 'req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-days', '1', '-subj',
                    '/CN=localhost', '-keyout', key, '-out', cert], check=True, capture_output=True)
    return ['--tls-cert', cert, '--tls-key', key]


def idle(server, num=1000):
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)
    before = server.memory()
    sockets = [socket.create_connection(('127.0.0.1', server.port)) for _ in range(num)]
    for s in sockets:
        s.sendall(b'GET /health HTTP/1.1\r\nHost: a\r\n\r\n')
    for s in sockets:
        assert s.recv(4096).startswith(b'HTTP/1.1 200')
    return {'connections': num, 'more_mb': server.memory() - before, 'mb': server.memory()}


def percentiles(name, values):
    values = sorted(values)
    return {f'{name}p50_ms': values[len(values) // 2], f'{name}p99_ms': values[len(values) * 99 // 100]}


def added(a, folder, bodies):
    """Of each request: the client's time, and what the service says that the model took of it."""
    latency, log = os.path.join(os.path.dirname(os.path.abspath(a.croll)), 'bench_latency'), folder + '/log'
    plain, num, kinds = folder + '/plain', 1000 * a.seconds, {}
    with open(bodies) as f, open(plain, 'w') as g:
        g.writelines(json.dumps({**json.loads(line), 'logprobs': 0}) + '\n' for line in f)
    with Server(command_of(a, 'croll', port := free_port(), log), port):
        for kind, path in ('most likely', bodies), ('plain', plain):
            out = subprocess.run([latency, 'client', str(port), path, str(num), '/v1/completions'], capture_output=True, text=True, check=True).stdout
            kinds[kind] = {x: float(ms) for x, ms in (line.split() for line in out.splitlines()[100:])}
            time.sleep(1) # the log is written four times a second
    with open(log) as f:
        lines = [json.loads(line) for line in f]
    lines = [x for x in lines if x['route'] == '/v1/completions']
    for i, (kind, ms) in enumerate(kinds.items()):
        own = {x['id']: x for x in lines[i * num:(i + 1) * num]}
        model = sorted(own[x]['model_ms'] for x in ms)[len(ms) // 2]
        emit('croll', f'added, {kind}', a.model, requests=len(ms), **percentiles('', [t - own[x]['model_ms'] for x, t in ms.items()]), model_ms=model,
             **percentiles('whole_', ms.values()))
        floor = [latency, 'floor', str(num), str(os.path.getsize(bodies) // 64), str(own[next(iter(ms))]['bytes']), str(model)]
        emit('floor', f'added, {kind}', a.model, **json.loads(subprocess.run(floor, capture_output=True, text=True, check=True).stdout))


def emit(server, case, model, **fields):
    short = {k: float(f'{v:.5g}') if isinstance(v, float) else v for k, v in fields.items()}
    print(json.dumps({'peer': server, 'case': f'serve {os.path.basename(os.path.normpath(model))} {case}', **short}), flush=True)


def command_of(a, server, port, log='none'):
    if server == 'croll':
        return [a.croll, 'serve', a.model, f'model_args.dtype={a.dtype}', '--listen', f'127.0.0.1:{port}', '--access-log', log, *a.more]
    if server == 'llamacpp':
        return [a.python_llamacpp, f'{HERE}/peers/serve_llamacpp.py', a.gguf, '--port', str(port)]
    return [sys.executable, f'{HERE}/peers/serve_{server}.py', a.model, '--port', str(port), '--dtype', a.dtype]


def measure(a, server, bodies, prompts):
    with Server(command_of(a, server, port := free_port()), port) as s:
        url = f'http://127.0.0.1:{port}'
        if server == 'llamacpp': # no log-probs of prompts
            emit(server, 'streams', a.model, **streams(port, prompts))
            return
        if 'score' in a.cases:
            wrk(url + '/v1/completions', CLIENTS, 2, bodies)
            r = wrk(url + '/v1/completions', CLIENTS, a.seconds, bodies)
            emit(server, 'score', a.model, **r, tokens_per_s=r['requests_per_s'] * PROMPT)
        if 'one' in a.cases:
            emit(server, 'one', a.model, **wrk(url + '/v1/completions', 1, a.seconds, bodies))
        if 'health' in a.cases:
            emit(server, 'health', a.model, **wrk(url + '/health', CLIENTS, a.seconds))
        if 'idle' in a.cases and server == 'croll':
            emit(server, 'idle', a.model, **idle(s))
        if 'streams' in a.cases:
            emit(server, 'streams', a.model, **streams(port, prompts))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('croll')
    p.add_argument('model')
    p.add_argument('--dtype', default='fp32', choices=['fp32', 'bf16'])
    p.add_argument('--seconds', type=int, default=10)
    p.add_argument('--cases', default='score,one,added,health,tls,idle,streams,alone', type=lambda x: x.split(','))
    p.add_argument('--servers', default='croll,hf', type=lambda x: x.split(','))
    p.add_argument('--gguf', help='llamacpp: the model in its format')
    p.add_argument('--python-llamacpp', default=sys.executable, help='llamacpp: a Python with the package xllamacpp')
    p.add_argument('--more', default=[], nargs='*', help='arguments of croll serve')
    a = p.parse_args()
    with open(os.path.join(a.model, 'config.json')) as f:
        vocab = json.load(f)['vocab_size']
    rng = random.Random(0)
    prompts = [[rng.randrange(3, vocab) for _ in range(PROMPT)] for _ in range(64)]
    with tempfile.TemporaryDirectory() as folder:
        bodies = folder + '/bodies'
        with open(bodies, 'w') as f:
            f.writelines(json.dumps({'prompt': x, 'max_tokens': 1, 'echo': True, 'logprobs': 1, 'temperature': 0}) + '\n' for x in prompts)
        for server in a.servers:
            measure(a, server, bodies, prompts)
        if 'added' in a.cases and 'croll' in a.servers:
            added(a, folder, bodies)
        if 'tls' in a.cases and 'croll' in a.servers:
            a.more = certificate(folder) + a.more
            port = free_port()
            process = subprocess.Popen(command_of(a, 'croll', port), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            while not process.stdout.readline().startswith('ready'):
                assert process.poll() is None
            emit('croll', 'tls', a.model, **wrk(f'https://127.0.0.1:{port}/v1/completions', CLIENTS, a.seconds, bodies))
            process.terminate()
            process.wait()
        if 'alone' in a.cases:
            emit('croll logprobs', 'alone', a.model, **alone(a.croll, a.model, a.dtype, prompts))


if __name__ == '__main__':
    main()
