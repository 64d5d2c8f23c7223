#!/usr/bin/env python3
"""Tokens per second of vLLM with random weights, as generate_hf.py counts them.

usage: generate_vllm.py MODEL_DIR [--batches 1,16,64] [--new 256] [--prompt-len 16] [--dtype fp32|bf16]
MODEL_DIR needs a config.json only. One JSON line a number of sequences, all of one engine; every sequence generates exactly
--new tokens, greedily, and its text is not made. Never run here.
"""
import common
import random


def main():
    p = common.parser(__doc__)
    p.add_argument('model')
    p.add_argument('--batches', default='1,16,64')
    p.add_argument('--new', type=int, default=256)
    p.add_argument('--prompt-len', type=int, default=16)
    p.add_argument('--dtype', default='bf16', choices=['fp32', 'bf16'])
    a = p.parse_args()
    from vllm import LLM, SamplingParams
    batches = [int(b) for b in a.batches.split(',')]
    llm = LLM(a.model, load_format='dummy', skip_tokenizer_init=True, dtype='bfloat16' if a.dtype == 'bf16' else 'float32',
              max_model_len=a.prompt_len + a.new, max_num_seqs=max(batches), gpu_memory_utilization=0.6,
              enable_prefix_caching=False)
    how = SamplingParams(temperature=0, max_tokens=a.new, ignore_eos=True, detokenize=False)
    draw = random.Random(0)
    for batch in batches:
        prompts = [{'prompt_token_ids': [draw.randrange(3, 500) for _ in range(a.prompt_len)]} for _ in range(batch)]
        out = []
        s = common.clock(lambda: out.extend(llm.generate(prompts, how, use_tqdm=False)), a.repeat)
        assert all(len(o.outputs[0].token_ids) == a.new for o in out)
        common.emit('vllm', 'generate b%d %s' % (batch, a.dtype), batch=batch, tokens_per_s=batch * a.new / common.median(s),
                    tokens_per_s_best=batch * a.new / min(s), new=a.new, repeat=a.repeat)


if __name__ == '__main__':
    main()
