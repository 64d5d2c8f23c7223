#!/usr/bin/env python3
"""A model as a service with FastAPI, uvicorn and Transformers: what one writes in an afternoon, with batching.

usage: serve_hf.py MODEL_DIR --port N [--dtype fp32|bf16] [--most 32]
POST /v1/completions with a prompt of ids. max_tokens 0 or 1 with echo and logprobs: log-probs of the prompt by one forward.
Else greedy samples of exactly max_tokens. What waits when the model is free is one batch (at most --most requests of one
kind and max_tokens, padded on the left).
"""
import common


def main():
    p = common.parser(__doc__)
    p.add_argument('model')
    p.add_argument('--port', type=int, required=True)
    p.add_argument('--dtype', default='fp32', choices=['fp32', 'bf16'])
    p.add_argument('--most', type=int, default=32)
    a = p.parse_args()
    torch = common.set_threads(a.threads)
    import asyncio
    import fastapi
    import uvicorn
    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained(a.model, dtype=torch.bfloat16 if a.dtype == 'bf16' else torch.float32)
    model.eval()
    app, queue = fastapi.FastAPI(), asyncio.Queue()

    def pad(prompts):
        most = max(map(len, prompts))
        ids = torch.tensor([[0] * (most - len(x)) + x for x in prompts])
        mask = torch.tensor([[0] * (most - len(x)) + [1] * len(x) for x in prompts])
        return ids, mask

    @torch.inference_mode()
    def run(kind, prompts):
        ids, mask = pad(prompts)
        if kind > 1:
            out = model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=kind, min_new_tokens=kind, pad_token_id=0)
            return [row[ids.shape[1]:].tolist() for row in out]
        logits = model(input_ids=ids, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0)).logits
        scores = logits[:, :-1].float().log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0]
        return [[None] + row[-(len(x) - 1):].tolist() if len(x) > 1 else [None] for row, x in zip(scores, prompts)]

    async def work():
        loop, rest = asyncio.get_running_loop(), []
        while True:
            batch = rest or [await queue.get()]
            while not queue.empty():
                batch.append(queue.get_nowait())
            kind = batch[0][0]
            now = [x for x in batch if x[0] == kind][:a.most]
            rest = [x for x in batch if x not in now]
            answers = await loop.run_in_executor(None, run, kind, [x[1] for x in now])
            for (_, _, future), answer in zip(now, answers):
                future.set_result(answer)

    @app.on_event('startup')
    async def start():
        app.state.work = asyncio.create_task(work())

    @app.get('/health')
    async def health():
        return {'status': 'ok'}

    @app.post('/v1/completions')
    async def completions(body: dict):
        prompt, kind = body['prompt'], max(1, body['max_tokens'])
        future = asyncio.get_running_loop().create_future()
        await queue.put((kind, prompt, future))
        answer = await future
        usage = {'prompt_tokens': len(prompt), 'completion_tokens': kind if kind > 1 else 0}
        if kind > 1:
            return {'choices': [{'index': 0, 'token_ids': answer}], 'usage': usage}
        return {'choices': [{'index': 0, 'logprobs': {'token_logprobs': answer}}], 'usage': usage}

    uvicorn.run(app, host='127.0.0.1', port=a.port, log_level='error')


if __name__ == '__main__':
    main()
