#!/usr/bin/env python3
"""A bare GRPO loop in torch + transformers on the sums of the quickstart: what TRL costs beyond the mathematics.

usage: grpo_torch.py MODEL ROWS [--prompts 32] [--group 16] [--max-new 16] [--lr 5e-4] [--steps 20] [--beta 0]
MODEL and ROWS are output/quickstart/sft_model and sums.train.jsonl (scripts/quickstart makes both). Samples with the
KV cache at temperature 1, rewards 1.0 for the right number in the last \\boxed{}, advantage
(r - mean) / (std + 1e-6) per group, loss = token mean of -ratio * advantage (+ beta * k3), clip 1.0, one AdamW step.
One JSON line: median seconds of a step and of its two halves, rewards by step, and start_s, from the process's birth to
the first step. max_log_prob_diff is |log-prob at sampling - log-prob in training|: not zero in torch.
"""
import common
import json, random, re, time


def tasks(path, tok):
    """[(prompt as the chat template renders it, ground truth)]"""
    with open(path) as f:
        rows = [json.loads(line) for line in f]
    return [(tok.apply_chat_template(json.loads(r['messages']), tokenize=False, add_generation_prompt=True), r['ground_truth'])
            for r in rows]


def reward(truth, response):
    boxes = re.findall(r'\\boxed{([^}]*)}', response)
    return float(bool(boxes) and boxes[-1].strip() == truth)


def parser(doc):
    p = common.parser(doc, repeat=1)
    p.add_argument('model')
    p.add_argument('rows')
    p.add_argument('--prompts', type=int, default=32)
    p.add_argument('--group', type=int, default=16)
    p.add_argument('--max-new', type=int, default=16)
    p.add_argument('--lr', type=float, default=5e-4)
    p.add_argument('--steps', type=int, default=20)
    p.add_argument('--beta', type=float, default=0.0)
    p.add_argument('--seed', type=int, default=0)
    return p


def sample(torch, model, tok, prompts, group, max_new):
    """Left-padded prompts, then one token a step. Returns prompt ids, mask, response ids, response mask, log-probs."""
    eos = tok.eos_token_id
    rows = [i for p in prompts for i in [tok(p)['input_ids']] * group]
    width, n = max(map(len, rows)), len(rows)
    ids, mask = torch.zeros((n, width), dtype=torch.long), torch.zeros((n, width), dtype=torch.long)
    for b, row in enumerate(rows):
        ids[b, width - len(row):], mask[b, width - len(row):] = torch.tensor(row), 1
    pos = (mask.cumsum(1) - 1).clamp(min=0)
    out = model(input_ids=ids, attention_mask=mask, position_ids=pos, use_cache=True, logits_to_keep=1)
    done, seen, last = torch.zeros(n, dtype=torch.bool), mask, pos[:, -1:]
    tokens, masks, log_probs = [], [], []
    for _ in range(max_new):
        lp = torch.log_softmax(out.logits[:, -1].float(), -1)
        new = torch.multinomial(lp.exp(), 1)
        masks.append(~done)
        log_probs.append(lp.gather(1, new)[:, 0])
        new = torch.where(done[:, None], eos, new)
        tokens.append(new[:, 0])
        done = done | (new[:, 0] == eos)
        if done.all() or len(tokens) == max_new:
            break
        seen, last = torch.cat([seen, torch.ones(n, 1, dtype=torch.long)], 1), last + 1
        out = model(input_ids=new, attention_mask=seen, position_ids=last, past_key_values=out.past_key_values,
                    use_cache=True)
    return ids, mask, torch.stack(tokens, 1), torch.stack(masks, 1), torch.stack(log_probs, 1)


def token_log_probs(torch, model, ids, mask, response, response_mask):
    full, fmask = torch.cat([ids, response], 1), torch.cat([mask, response_mask.long()], 1)
    logits = model(input_ids=full, attention_mask=fmask, position_ids=(fmask.cumsum(1) - 1).clamp(min=0),
                   use_cache=False, logits_to_keep=response.shape[1] + 1).logits[:, :-1]
    return torch.log_softmax(logits.float(), -1).gather(2, response[..., None])[..., 0]


def main():
    a = parser(__doc__).parse_args()
    torch = common.set_threads(a.threads)
    from transformers import AutoModelForCausalLM, AutoTokenizer
    torch.manual_seed(a.seed)
    rng = random.Random(a.seed)
    tok = AutoTokenizer.from_pretrained(a.model)
    model = AutoModelForCausalLM.from_pretrained(a.model, dtype=torch.float32)
    ref = AutoModelForCausalLM.from_pretrained(a.model, dtype=torch.float32).eval() if a.beta else None
    opt = torch.optim.AdamW(model.parameters(), lr=a.lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    train = tasks(a.rows, tok)
    start, rewards, gen_s, train_s, lengths, cpu, diff = common.process_age(), [], [], [], [], [], 0.0
    for _ in range(a.steps):
        t0, c0 = time.perf_counter(), time.process_time()
        chosen = rng.sample(train, a.prompts)
        with torch.no_grad():
            ids, mask, response, rmask, lp_infer = sample(torch, model, tok, [prompt for prompt, _ in chosen], a.group,
                                                          a.max_new)
        r = torch.tensor([reward(chosen[i // a.group][1], tok.decode(response[i][rmask[i]], skip_special_tokens=True))
                          for i in range(len(ids))])
        t1 = time.perf_counter()
        g = r.view(-1, a.group)
        adv = ((g - g.mean(1, keepdim=True)) / (g.std(1, keepdim=True) + 1e-6)).view(-1, 1)
        lp, m = token_log_probs(torch, model, ids, mask, response, rmask), rmask.float()
        each = -(lp - lp.detach()).exp() * adv
        if ref:
            with torch.no_grad():
                d = token_log_probs(torch, ref, ids, mask, response, rmask) - lp.detach()
            d = d + lp.detach() - lp
            each = each + a.beta * (d.exp() - d - 1)
        ((each * m).sum() / m.sum()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        t2 = time.perf_counter()
        cpu.append(time.process_time() - c0)
        gen_s.append(t1 - t0)
        train_s.append(t2 - t1)
        rewards.append(r.mean().item())
        lengths.append(m.sum(1).mean().item())
        diff = max(diff, ((lp.detach() - lp_infer).abs() * m).max().item())
    step = [x + y for x, y in zip(gen_s, train_s)]
    common.emit('torch-grpo', 'sums %dx%dx%d beta %g' % (a.prompts, a.group, a.max_new, a.beta),
                seconds_per_step=common.median(step), seconds_per_step_best=min(step), generate_s=common.median(gen_s),
                train_s=common.median(train_s), response_tokens_per_s=a.prompts * a.group * common.median(lengths) /
                common.median(step), cpu_s=min(cpu), start_s=start, total_s=common.process_age(),
                steps=a.steps, threads=a.threads,
                reward_first3=sum(rewards[:3]) / 3, reward_last5=sum(rewards[-5:]) / len(rewards[-5:]),
                response_len=common.median(lengths), max_log_prob_diff=diff)


if __name__ == '__main__':
    main()
