"""What ppo.py, run_losses.py and replay.py share: their command line, and a run of croll for each of their cases."""
import argparse, json, os, pathlib, subprocess, tempfile


def arguments(doc, steps, tolerance):
    p = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--croll", default="build/release/croll")
    p.add_argument("--model", required=True)
    p.add_argument("--only", default="")
    p.add_argument("--steps", type=int, default=steps)
    p.add_argument("--tolerance", type=float, default=tolerance)
    p.add_argument("--keep", help="a folder for the runs")
    a = p.parse_args()
    a.model = os.path.abspath(a.model)
    a.home = pathlib.Path(a.keep or tempfile.mkdtemp()).absolute()
    a.home.mkdir(exist_ok=True)
    return a


def prepare(a, yaml, scorer, rows):
    """The files of all runs."""
    (a.home / "score").write_text(scorer)
    os.chmod(a.home / "score", 0o755)
    (a.home / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (a.home / "run.yaml").write_text(yaml.format(model=a.model, out=a.home / "unused", home=a.home, steps=a.steps))


said = ""  # stdout of the last command


def croll(a, *words):
    """True: exit code 0; else what it said is printed."""
    global said
    done = subprocess.run([a.croll, *map(str, words)], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    said = done.stdout
    if done.returncode:
        print("FAILED", " ".join(map(str, words)), done.stderr[-900:])
    return done.returncode == 0


def each(a, cases, overrides, check):
    """A run of each case, and what check(case, run, words) says of it: True if it is right. Returns how many are not."""
    bad = 0
    for number, case in enumerate(cases):
        words, run = overrides(case), a.home / f"case{number}"
        if a.only in " ".join(words):
            bad += not (croll(a, "run", a.home / "run.yaml", f"output_dir={run}", "--overwrite", *words) and check(case, run, words))
    return bad
