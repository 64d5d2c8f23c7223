#!/usr/bin/env python3
"""llama.cpp's own server, from the package xllamacpp, which brings it compiled (this Python is --python-llamacpp of bench/serve.py).

usage: serve_llamacpp.py MODEL.gguf --port N [--slots 16] [--length 256] [--threads 2]
MODEL.gguf: what llama.cpp's convert_hf_to_gguf.py makes of a Hugging Face folder, in the dtype that is compared. The server has no
log-probs of prompts: samples only.
"""
import argparse, threading


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('model')
    p.add_argument('--port', type=int, required=True)
    p.add_argument('--slots', type=int, default=16)
    p.add_argument('--length', type=int, default=256)
    p.add_argument('--threads', type=int, default=2)
    a = p.parse_args()
    import xllamacpp
    params = xllamacpp.CommonParams()
    params.model.path = a.model
    params.port, params.n_parallel, params.n_ctx = a.port, a.slots, a.slots * a.length
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = a.threads
    params.n_gpu_layers, params.cache_prompt, params.warmup = 0, False, True
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    threading.Event().wait()


if __name__ == '__main__':
    main()
