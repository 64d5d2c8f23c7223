#!/usr/bin/env python3
"""SwanLab beside a run of croll: every line of metrics.jsonl comes on stdin.

    track_with: exec python3 examples/track_swanlab.py
    tracker_kwargs: {project: my_project, experiment_name: my_run, logdir: swanlog}

tracker_kwargs are the keyword arguments of swanlab.init; the API key is SwanLab's own: `swanlab login`, or
SWANLAB_API_KEY in the environment.
"""
import json
import os
import sys

import swanlab


def main():
    kwargs = json.loads(os.environ.get("CROLL_TRACKER_KWARGS", "{}"))
    kwargs.pop("login_kwargs", None)
    kwargs.setdefault("project", "croll")
    kwargs.setdefault("experiment_name", os.environ.get("CROLL_EXP_NAME"))
    swanlab.init(**kwargs)
    for line in sys.stdin:
        values = json.loads(line)
        swanlab.log(values, step=values.pop("step"))
    swanlab.finish()


if __name__ == "__main__":
    main()
