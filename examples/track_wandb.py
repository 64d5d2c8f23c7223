#!/usr/bin/env python3
"""Weights & Biases beside a run of croll: every line of metrics.jsonl comes on stdin.

    track_with: exec python3 examples/track_wandb.py
    tracker_kwargs: {project: my_project, name: my_run, tags: [grpo], mode: offline}

`exec python3 examples/track_wandb.py trackio` hands the same to Trackio, whose calls are alike. tracker_kwargs
are the keyword arguments of init (log_dir is wandb's dir); the API key is wandb's own: `wandb login`, or
WANDB_API_KEY in the environment.
"""
import importlib
import json
import os
import sys


def main():
    module = sys.argv[1] if len(sys.argv) > 1 else "wandb"
    tracker = importlib.import_module(module)
    kwargs = json.loads(os.environ.get("CROLL_TRACKER_KWARGS", "{}"))
    kwargs.pop("api_key", None)
    if "log_dir" in kwargs:
        kwargs["dir"] = kwargs.pop("log_dir")
    kwargs.setdefault("project", "croll")
    kwargs.setdefault("name", os.environ.get("CROLL_EXP_NAME"))
    run = tracker.init(**kwargs)
    for line in sys.stdin:
        values = json.loads(line)
        run.log(values, step=values.pop("step"))
    run.finish()


if __name__ == "__main__":
    main()
