#!/usr/bin/env python3
"""MLflow beside a run of croll: every line of metrics.jsonl comes on stdin.

    track_with: exec python3 examples/track_mlflow.py
    tracker_kwargs: {tracking_uri: http://localhost:5000, experiment: my_project, run_name: my_run}

Without tracking_uri it is MLFLOW_TRACKING_URI of the environment, or MLflow's default.
"""
import json
import os
import re
import sys

import mlflow


def main():
    kwargs = json.loads(os.environ.get("CROLL_TRACKER_KWARGS", "{}"))
    if "tracking_uri" in kwargs:
        mlflow.set_tracking_uri(kwargs["tracking_uri"])
    mlflow.set_experiment(kwargs.get("experiment", "croll"))
    with mlflow.start_run(run_name=kwargs.get("run_name", os.environ.get("CROLL_EXP_NAME"))):
        for line in sys.stdin:
            values = json.loads(line)
            step = values.pop("step")
            # a metric's name may have letters, digits and _ - . space : /
            mlflow.log_metrics({re.sub(r"[^\w\-. :/]", "_", k): v for k, v in values.items()}, step=step)


if __name__ == "__main__":
    main()
