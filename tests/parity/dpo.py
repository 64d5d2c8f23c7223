#!/usr/bin/env python3
"""dpo.py -- losses over pairs in float64, and 20 steps of TRL's DPOTrainer, for tests/unit/rl_pairs.c and tests/e2e/run_dpo.sh.

    python tests/parity/dpo.py build/release/croll tests/parity     (TRL 1.16, Transformers, PyTorch, on the CPU)

dpo.json: `losses`: each loss with its gradient by torch's autograd, written down here pair by pair as the papers do; `rows`: pairs of
the task of sums; `trl`: for sigmoid, robust and the normalised IPO loss, rewards and weights of the trainer over these rows, in order, from
the model that `croll init` makes of scripts/make_sums. Of each weight its sum with `noise` is kept, and its norm."""
import json, os, pathlib, random, subprocess, sys, tempfile

sys.path.append(sys.path.pop(0))  # tokenizers.py of this folder is not the package
import torch

LENGTHS = [(3, 5), (1, 1), (7, 2), (4, 4)]  # of chosen and rejected answers
STEPS, BATCH = 20, 4


def pair_loss(kind, beta, e, c, r, nc, nr):
    """c, r: log-ratios of the answers to the reference, sums over nc and nr tokens."""
    log_sigmoid = torch.nn.functional.logsigmoid
    margin = beta * (c - r)
    if kind == "sigmoid":
        return -(1 - e) * log_sigmoid(margin) - e * log_sigmoid(-margin)
    if kind == "robust":
        return (-(1 - e) * log_sigmoid(margin) + e * log_sigmoid(-margin)) / (1 - 2 * e)
    if kind == "hinge":
        return torch.clamp(1 - margin, min=0)
    if kind == "ipo":
        return (c / nc - r / nr - 1 / (2 * beta)) ** 2
    if kind == "ipo_sum":
        return (c - r - 1 / (2 * beta)) ** 2
    assert kind == "apo_zero"
    return 1 - torch.sigmoid(beta * c) + torch.sigmoid(beta * r)


def loss_case(kind, beta, e, alpha, scale):
    g = torch.Generator().manual_seed(5)
    n = sum(c + r for c, r in LENGTHS)
    ref = -torch.rand(n, generator=g, dtype=torch.float64).mul(2).round(decimals=3) - 0.1
    policy = (ref + scale * torch.randn(n, generator=g, dtype=torch.float64).round(decimals=3)).requires_grad_()
    at, losses, nll, tokens, rewards = 0, [], 0, 0, []
    for nc, nr in LENGTHS:
        chosen, rejected, at = slice(at, at + nc), slice(at + nc, at + nc + nr), at + nc + nr
        c, r = (policy - ref)[chosen].sum(), (policy - ref)[rejected].sum()
        losses.append(pair_loss(kind, beta, e, c, r, nc, nr))
        nll, tokens = nll - policy[chosen].sum(), tokens + nc
        rewards.append((beta * c.item(), beta * r.item(), policy[chosen].sum().item(), policy[rejected].sum().item()))
    loss = sum(losses) / len(losses) + alpha * nll / tokens
    loss.backward()
    mean = [sum(x[k] for x in rewards) / len(rewards) for k in range(4)]
    return dict(loss_type=kind, beta=beta, label_smoothing=e, rpo_alpha=alpha, log_probs=policy.tolist(), ref=ref.tolist(),
                loss=loss.item(), grad=policy.grad.tolist(), nll=(nll / tokens).item(), chosen=mean[0], rejected=mean[1],
                accuracies=sum(x[0] > x[1] for x in rewards) / len(rewards), chosen_log_probs=mean[2], rejected_log_probs=mean[3])


def rows_of_sums(sft):
    """Right answers against near ones."""
    draw, rows = random.Random(7), []
    for line in open(sft):
        question = json.loads(line)["instruction"]
        a, b = question.rstrip("=").split("+")
        right = int(a) + int(b)
        wrong = right + draw.choice([-100, -10, -1, 1, 10, 100, 1000])
        rows.append(dict(instruction=question, chosen=f"\\boxed{{{right}}}", rejected=f"\\boxed{{{wrong}}}"))
        if len(rows) == STEPS * BATCH:
            return rows


def noise(num):
    """Weights of a sum over num elements; run_dpo.sh has the same."""
    return [((i * 2654435761) % 4294967296) / 4294967296 - 0.5 for i in range(num)]


def trajectory(model, rows, **loss):
    import datasets, transformers, trl

    class Trainer(trl.DPOTrainer):
        def _get_train_sampler(self, *args, **kwargs):
            return torch.utils.data.SequentialSampler(self.train_dataset)

        def _compute_loss(self, *args, **kwargs):
            loss = super()._compute_loss(*args, **kwargs)
            losses.append(loss.item())
            return loss

    losses = []
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    chats = [dict(prompt=[dict(role="user", content=x["instruction"])], chosen=[dict(role="assistant", content=x["chosen"])],
                  rejected=[dict(role="assistant", content=x["rejected"])]) for x in rows]
    load = lambda: transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(load(), load(), trl.DPOConfig(
            output_dir=folder, per_device_train_batch_size=BATCH, num_train_epochs=1, learning_rate=1e-3, lr_scheduler_type="constant",
            adam_epsilon=1e-6, logging_steps=1, save_strategy="no", report_to=[], bf16=False, use_cpu=True, max_grad_norm=1.0,
            gradient_checkpointing=False, beta=0.1, **loss), train_dataset=datasets.Dataset.from_list(chats), processing_class=tokenizer)
        trainer.train()
    logs = [x for x in trainer.state.log_history if "rewards/margins" in x]
    sums = {}
    for name, p in trainer.model.named_parameters():
        x = p.detach().double().flatten()
        sums[name] = [x.dot(torch.tensor(noise(x.numel()), dtype=torch.float64)).item(), x.square().sum().sqrt().item()]
    return dict(loss=losses, margins=[x["rewards/margins"] for x in logs], chosen=[x["rewards/chosen"] for x in logs],
                accuracies=[x["rewards/accuracies"] for x in logs], grad_norm=[float(x["grad_norm"]) for x in logs], weights=sums)


if __name__ == "__main__":
    croll = os.path.realpath(sys.argv[1])
    losses = [loss_case(kind, beta, e, alpha, scale) for kind, e in (("sigmoid", 0), ("sigmoid", 0.2), ("ipo", 0), ("ipo_sum", 0), ("hinge", 0),
              ("robust", 0.1), ("apo_zero", 0)) for beta, alpha, scale in ((0.1, 0, 0.5), (0.7, 0.3, 2.0))]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["scripts/make_sums", folder], check=True, stdout=sys.stderr)
        subprocess.run([croll, "init", folder + "/model"], check=True, stdout=sys.stderr)
        rows = rows_of_sums(pathlib.Path(folder) / "sft.jsonl")
        cases = {name: trajectory(folder + "/model", rows, **loss) for name, loss in
                 dict(sigmoid={}, robust=dict(loss_type=["robust"], label_smoothing=0.1), ipo=dict(loss_type=["ipo"])).items()}
    text = ["{\"losses\":[\n" + ",\n".join(json.dumps(x) for x in losses) + "],",
            "\"lengths\":" + json.dumps([n for pair in LENGTHS for n in pair]) + ",",
            "\"rows\":[\n" + ",\n".join(json.dumps(x) for x in rows) + "],",
            "\"trl\":{\n" + ",\n".join(f"\"{name}\":{json.dumps(x)}" for name, x in cases.items()) + "}}"]
    (pathlib.Path(sys.argv[2]) / "dpo.json").write_text("\n".join(text) + "\n")
