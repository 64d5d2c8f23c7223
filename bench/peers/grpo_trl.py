#!/usr/bin/env python3
"""TRL's GRPOTrainer on the task and with the settings of grpo_torch.py (loss dapo, fp32, no recompute).

usage: grpo_trl.py MODEL ROWS [--prompts 32] [--group 16] [--max-new 16] [--lr 5e-4] [--steps 20] [--beta 0]
One JSON line: median seconds between the ends of steps, of its generation (TRL's _generate) and of the rest; the first
step is not counted. start_s: from the process's birth to the first step.
"""
import common
import tempfile, time
from grpo_torch import parser, reward, tasks


def main():
    p = parser(__doc__)
    p.add_argument('--bf16', action='store_true', help="TRL's default: autocast to bf16")
    p.add_argument('--ckpt', action='store_true', help="TRL's default: gradient checkpointing")
    a = p.parse_args()
    torch = common.set_threads(a.threads)
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    starts, ends, cpu, gen_s, score_s, rewards, lengths = [], [], [], [], [], [], []

    class Timed(GRPOTrainer):
        def _generate(self, prompts):
            t = time.perf_counter()
            out = super()._generate(prompts)
            gen_s.append(time.perf_counter() - t)
            return out

        def _calculate_rewards(self, *args, **kw):
            t = time.perf_counter()
            out = super()._calculate_rewards(*args, **kw)
            score_s.append(time.perf_counter() - t)
            return out

    class Clock(TrainerCallback):
        def on_step_begin(self, *_, **__):
            if not starts:
                starts.append(common.process_age())
                ends.append(time.perf_counter())

        def on_step_end(self, *_, **__):
            ends.append(time.perf_counter())
            cpu.append(time.process_time())

        def on_log(self, args, state, control, logs=None, **_):
            if 'reward' in (logs or {}):
                rewards.append(logs['reward'])
                lengths.append(logs['completions/mean_length'])

    def sums(completions, ground_truth, **_):
        return [reward(g, c) for c, g in zip(completions, ground_truth)]

    tok = AutoTokenizer.from_pretrained(a.model)
    if tok.pad_token is None:
        tok.pad_token = tok.eos_token
    model = AutoModelForCausalLM.from_pretrained(a.model, dtype=torch.float32)
    data = Dataset.from_list([{'prompt': p, 'ground_truth': g} for p, g in tasks(a.rows, tok)])
    with tempfile.TemporaryDirectory() as out:
        cfg = GRPOConfig(
            output_dir=out, use_cpu=True, bf16=a.bf16, gradient_checkpointing=a.ckpt, seed=a.seed, report_to='none',
            per_device_train_batch_size=a.prompts * a.group, num_generations=a.group, gradient_accumulation_steps=1,
            max_completion_length=a.max_new, temperature=1.0, beta=a.beta, learning_rate=a.lr, max_steps=a.steps,
            lr_scheduler_type='constant', adam_beta2=0.95, weight_decay=0.0, max_grad_norm=1.0, logging_steps=1,
            save_strategy='no', disable_tqdm=True, optim='adamw_torch_fused')
        trainer = Timed(model=model, args=cfg, train_dataset=data, processing_class=tok, reward_funcs=sums,
                        callbacks=[Clock()])
        from transformers.trainer_callback import PrinterCallback
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    step = [y - x for x, y in zip(ends, ends[1:])]
    rest = [s - g for s, g in zip(step, gen_s)]
    step_m = common.median(step[1:])
    common.emit('trl', 'sums %dx%dx%d beta %g%s%s' % (
                    a.prompts, a.group, a.max_new, a.beta, ' bf16' if a.bf16 else '', ' ckpt' if a.ckpt else ''),
                seconds_per_step=step_m, seconds_per_step_best=min(step[1:]), first_step_s=step[0],
                generate_s=common.median(gen_s[1:]), train_s=common.median(rest[1:]),
                reward_fn_s=common.median(score_s[1:]), cpu_s=min(y - x for x, y in zip(cpu, cpu[1:])),
                response_tokens_per_s=a.prompts * a.group * common.median(lengths) / step_m, start_s=starts[0],
                total_s=common.process_age(), steps=a.steps, threads=a.threads,
                reward_first3=sum(rewards[:3]) / 3, reward_last5=sum(rewards[-5:]) / len(rewards[-5:]),
                response_len=common.median(lengths))


if __name__ == '__main__':
    main()
