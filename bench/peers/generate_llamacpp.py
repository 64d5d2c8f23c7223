#!/usr/bin/env python3
"""Tokens a second of one greedy stream in llama.cpp, as bench_decode measures croll's: 16 prompt tokens, an end held back, the first
run not counted. Needs the package xllamacpp, which brings llama.cpp compiled.

usage: generate_llamacpp.py MODEL.gguf [--new 64] [--threads 1] [--repeat 3]      (make_gguf.py makes the file)
llama.cpp's own figure (`timings`) of its server in this process: tokens after the first one and their time.
"""
import json
import statistics
import urllib.request

import common


def main():
    p = common.parser(__doc__)
    p.add_argument("model")
    p.add_argument("--new", type=int, default=64)
    a = p.parse_args()
    import xllamacpp
    params = xllamacpp.CommonParams()
    params.model.path = a.model
    params.port, params.n_parallel, params.n_ctx = 0, 1, 512
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = a.threads
    params.n_gpu_layers, params.cache_prompt, params.warmup = 0, False, True
    server = xllamacpp.Server(params)
    body = json.dumps(dict(prompt=[1] + [17 * t % 1000 for t in range(1, 16)], n_predict=a.new, temperature=0, ignore_eos=True)).encode()
    rates = []
    for _ in range(a.repeat + 1):
        r = urllib.request.Request(server.listening_address + "/completion", body, {"Content-Type": "application/json"})
        rates.append(json.load(urllib.request.urlopen(r))["timings"]["predicted_per_second"])
    print(json.dumps(dict(peer="llama.cpp", threads=a.threads, streams=1, new=a.new, tokens_per_s=round(statistics.median(rates[1:]), 2),
                          tokens_per_s_best=round(max(rates[1:]), 2), system=xllamacpp.get_system_info())), flush=True)


if __name__ == "__main__":
    main()
