"""report.json and report.md."""
import json
import os
import re
import time

from gpu_check.steps import BARS


def read_speeds(said):
    """The speeds in what bench/gpu_speed has printed, and what is wrong with them."""
    speeds = []
    for line in said.splitlines():
        if line.startswith("{"):
            try:
                speed = json.loads(line)
                speed["what"] + speed["unit"], 0 if "missing" in speed else speed["value"] + 0
            except (ValueError, KeyError, TypeError):
                return speeds, [f"bench/gpu_speed printed a line that is not a speed: {line.strip()[:100]}"]
            speeds.append(speed)
    wrong = [f"{s['what']}: {s.get('missing') or s['fault']}" for s in speeds if "missing" in s or "fault" in s]
    return speeds, wrong if speeds else ["bench/gpu_speed printed no speed"]


def ending_of(said, num=12):
    """What says why a step failed: its first line that names an error, and its last ones."""
    lines = said.splitlines()
    first = next((i for i, line in enumerate(lines[:-num]) if re.search(r"error|failed|assert", line, re.I)), None)
    return [line[:200] for line in ([] if first is None else [lines[first]]) + lines[-num:]]


def bars(speeds):
    found = []
    for name, pattern, unit, least in BARS:
        shares = [s["share"] for s in speeds if re.search(pattern, s["what"], re.I) and s["unit"] == unit and isinstance(s.get("share"), (int, float))]
        found.append({"bar": name, "share": min(shares) if shares else None,
                      "result": "not measured" if not shares else "met" if min(shares) >= least else "not met"})
    return found


def cell(text):
    return str(text).replace("|", "/").replace("\n", " ")


def speed_row(s):
    peer = f"{s['peer']}: {s['peer_value']:g}" if "peer_value" in s else s.get("peer_missing", "")
    rate = s["missing"] if "missing" in s else f"{s['value']:g} {s['unit']}"
    share = f"{s['share']:.0%}" if isinstance(s.get("share"), (int, float)) else ""
    return f"| {cell(s['what'])} | {cell(rate)} | {cell(peer)} | {cell(s.get('limit', ''))} | {share} |"


def markdown(r):
    out = ["# gpu-check", "", f"**{r['result']}**: {r['summary']}", ""]
    for key in ("date", "machine", "gpus", "ranks", "toolkit", "libraries", "commit", "programs", "log"):
        out.append(f"- {key}: {'; '.join(r[key]) if isinstance(r[key], list) else r[key]}")
    out += ["", "GPUs: name, memory, driver, compute capability.", "", "## Steps", "", "| step | result | seconds | what | command | line of the log |",
            "| --- | --- | --- | --- | --- | --- |"]
    out += ["| " + " | ".join(cell(s[k]) for k in ("step", "result", "seconds", "what", "command", "line")) + " |" for s in r["steps"]]
    out += ["", "## Speeds", ""]
    if r["speeds"]:
        out += ["| what | rate | peer | limit | share of the limit |", "| --- | --- | --- | --- | --- |", *map(speed_row, r["speeds"])]
    else:
        out.append("None was measured.")
    out += ["", "| bar | share | result |", "| --- | --- | --- |"]
    out += [f"| {b['bar']} | {'' if b['share'] is None else format(b['share'], '.0%')} | {b['result']} |" for b in r["bars"]]
    for s in r["steps"]:
        if s["said"]:
            out += ["", f"## Of the log of {s['step']}", "", *(f"    {line}" for line in s["said"])]
    return "\n".join(out) + "\n"


def named(results, kind):
    return [s["step"] for s in results if s["result"].startswith(kind)]


def write(folder, about, results, speeds, built, is_over, stop):
    """Writes both files, whole in each moment. (what all of it comes to, one line about the steps)"""
    failed = ["build"] * (built != "ok") + named(results, "failed")
    is_empty = is_over and not stop and not failed and all(s["result"].startswith("skipped") for s in results)
    result = "stopped" if stop else "unfinished" if not is_over else "failed" if failed else "nothing was checked" if is_empty else "passed"
    summary = f"{len(named(results, 'ok'))} of {len(results)} steps ok"
    for kind, names in (("failed", failed), *((k, named(results, k)) for k in ("incomplete", "skipped", "running", "not run"))):
        summary += f", {kind}: {', '.join(names)}" if names else ""
    summary += f", stopped by {stop}" if stop else ""
    r = {"result": result, "summary": summary, "date": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()), **about, "build": built,
         "steps": results, "speeds": speeds, "bars": bars(speeds)}
    for name, text in (("report.json", json.dumps(r, indent=1) + "\n"), ("report.md", markdown(r))):
        with open(f"{folder}/{name}.part", "w") as out:
            out.write(text)
        os.replace(f"{folder}/{name}.part", f"{folder}/{name}")
    return result, summary
