"""Reward functions as one writes them; run_functions.py gives them to croll. Arguments are asked for by name: `prompt`,
`response`, `row` (the whole line), any column of the data, and what docs/rewards.md lists (finish, step, response_ids ..).
A function returns a number, None (it says nothing of this sample) or a dictionary with the keys of an answer."""
import asyncio
import re


def boxed(response):
    """The content of the last \\boxed{..} without braces in it, or None."""
    found = re.findall(r"\\boxed\{([^{}]*)\}", response)
    return found[-1].strip() if found else None


def reward(prompt, response, row, **kw):
    """1 for the ground truth in a box."""
    return float(boxed(response) == str(row["ground_truth"]).strip())


def brief(response_tokens, finish):
    """From 1 for no token to 0 for 64 and more; nothing for a response that was cut off."""
    return None if finish == "length" else max(0.0, 1 - response_tokens / 64)


def batch(responses, ground_truth):
    """Many lines in one call, as a model on a GPU likes them: `responses`, not `response`, and every argument is a list."""
    return [float(boxed(text) == str(gold)) for text, gold in zip(responses, ground_truth)]


async def service(response, ground_truth):
    """A coroutine: many wait at the same time, here for nothing, else for an answer from far away."""
    await asyncio.sleep(0.01)
    return {"score": float(boxed(response) == str(ground_truth)), "detail": f"the service was asked about {ground_truth}"}
