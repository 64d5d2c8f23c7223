"""500 detections for `croll score detection`, and what they are worth by a plain loop in float64.

    score_detection.py lines > LINES        rows with responses
    score_detection.py check THRESHOLD < ANSWERS    exit 1 and the first that differ by more than 1e-12

Matches are found by search over all pairs that are left, average precision by the definition (the largest precision at each recall or
beyond), each threshold anew. THRESHOLD: average, dynamic (step 0 to 99 of 100) or one of the thresholds.
"""
import functools, json, random, sys
from fractions import Fraction

IOUS = [0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.99]
LABELS = ["cat", "Dog", "red Car", "\u00c9clair"]
NAMES = ["iou_max_label_first", "iou_max_iou_first", "iou_completeness", "map", "map50", "map75"]


def make(case):
    r = random.Random(case)
    draw = (lambda a, b: r.randint(a, b)) if case % 3 else (lambda a, b: r.uniform(a, b))

    def box(near=None):
        if near and r.random() < 0.8:
            x = [v + draw(-12, 12) if r.random() < 0.7 else v for v in near["bbox_2d"]]
            if x[0] <= x[2] and x[1] <= x[3]:
                label = near["label"] if r.random() < 0.8 else r.choice(LABELS)
                return dict(bbox_2d=x, label=label)
        x, y = draw(0, 80), draw(0, 80)
        return dict(bbox_2d=[x, y, x + draw(0, 60), y + draw(1, 60)], label=r.choice(LABELS[: 1 + case % 4]))

    gold = []
    for _ in range(r.randint(1, 8) if case else 130):
        gold.append(box(r.choice(gold) if gold and r.random() < 0.4 else None))
    predicted = [box(r.choice(gold)) for _ in range(r.randint(0, len(gold) + 4))]
    if case == 0: predicted = [dict(g) for g in gold[:-2]]
    if case % 7 == 0: predicted = [dict(g) for g in gold] + predicted[:1]
    if case % 11 == 0 and predicted: predicted.append(dict(predicted[0], label="other"))  # the same place again
    if case % 13 == 0: predicted.append(dict(bbox_2d=[9, 9, 3, 12], label="cat"))  # no box
    if case % 17 == 0: predicted.append(dict(bbox_2d=[9, 9, 13, "x"], label="cat"))
    if case % 12 == 6:  # in pixels of an image of 252 x 140
        for p in predicted: p["bbox_2d"] = [v if isinstance(v, str) else v * s / 1000 for v, s in zip(p["bbox_2d"], [252, 140] * 2)]
    text = json.dumps(predicted, ensure_ascii=False)
    if case % 4 == 1: text = text.replace('"', "'")
    if case % 5 == 2: text = "[" + text + "]"
    if case % 19 == 3 and len(predicted) > 1: text = text[: text.rindex("}") - 9]  # cut off
    form = ["so\n<answer>\n%s\n</answer>", "<answer>%s</answer>", "\n<answer>\n%s\n</answer>\n</answer>", "%s", "\n<answer>\n[%s\n</answer>"]
    ratio = {n: round(r.random(), 2) for n in NAMES if r.random() < 0.8}
    ratio["map"] = ratio.get("map") or 0.5
    model = dict(ground_truth="<answer>%s</answer>" % json.dumps(gold), verifier_parm=dict(det_reward_ratio=ratio))
    if case % 3 == 0: model.update(accuracy_ratio=0.9, format_ratio=0.3)
    row = dict(id=case, step=case % 100, reward_model=model, response=form[min(case % 9, 4) if case % 9 < 5 else 0] % text)
    if case % 6 == 0:
        model["verifier_parm"]["det_verifier_normalized"] = True
        row.update(model_type="qwen2_5_vl" if case % 12 else "qwen3_vl", image_sizes=[[140, 252], [7, 7]])
    return row


def boxes(text):
    if "<answer>" not in text or "</answer>" not in text.split("<answer>", 1)[1]: return None
    text = text.split("<answer>", 1)[1].split("</answer>", 1)[0].strip().lower()
    text = text.replace("[[", "[").replace("]]", "]")
    if not text.endswith("]"): text = text.rsplit("},", 1)[0] + "}]"
    try:
        items = json.loads(text.replace("'", '"').replace("\\", ""))
    except ValueError:
        return None
    found = {}
    for item in items if isinstance(items, list) else []:
        place = item.get("bbox_2d")
        if all(isinstance(x, (int, float)) for x in place) and place[0] <= place[2] and place[1] <= place[3]:
            found.setdefault(tuple(place), item["label"])
    return list(found.items()) or None


@functools.lru_cache(None)
def iou(a, b):
    w, h = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    if w <= 0 or h <= 0: return 0.0
    return w * h / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - w * h)


def pairs_by_label(predicted, gold, t):
    left, out = list(range(len(predicted))), []
    for place, label in gold:
        near = [(iou(predicted[p][0], place), -p) for p in left if predicted[p][1] == label]
        if near and max(near)[0] >= t:
            out.append(max(near)[0])
            left.remove(-max(near)[1])
    return out


def pairs_by_iou(predicted, gold, t):
    ps, gs, out = set(range(len(predicted))), set(range(len(gold))), []
    while ps and gs:
        best = max((iou(predicted[p][0], gold[g][0]), -p, -g) for p in ps for g in gs)
        if best[0] < t: break
        ps.remove(-best[1]), gs.remove(-best[2])
        out.append(best[0] if predicted[-best[1]][1] == gold[-best[2]][1] else 0.0)
    return out


def combined(match, predicted, gold, t, c):
    m = match(predicted, gold, t)
    miss, wrong = 1 - len(m) / len(gold), 1 - len(m) / len(predicted)
    return (1 - c) * sum(m) / len(gold) + c * (1 - (miss + wrong) / 2)


def average_precision(predicted, gold, t):
    total, labels = 0.0, {label for _, label in gold}
    for label in labels:
        g = [place for place, l in gold if l == label]
        left, hits, points = set(range(len(g))), 0, []
        for k, (place, _) in enumerate([p for p in predicted if p[1] == label][:100]):
            best = max(((iou(place, g[i]), i) for i in left), default=(0, 0))
            if best[0] >= t:
                left.remove(best[1])
                hits += 1
            points.append((hits / len(g), hits / (k + 1)))
        total += sum(max((p for rc, p in points if rc >= r * 0.01), default=0.0) for r in range(101)) / 101
    return total / len(labels)


def worth(row, threshold):
    model = row["reward_model"]
    parm, response = model["verifier_parm"], row["response"]
    ar, fr = model.get("accuracy_ratio", 1.0), model.get("format_ratio", 0.1)
    gold, predicted = boxes(model["ground_truth"]), boxes(response)
    if predicted is None: return 0.0, 0.0
    if parm.get("det_verifier_normalized") and row["model_type"].startswith("qwen2_5"):
        size = [row["image_sizes"][0][1], row["image_sizes"][0][0]] * 2
        predicted = [(tuple(int(v / s * 1000) for v, s in zip(place, size)), label) for place, label in predicted]
    ratio = {n: parm["det_reward_ratio"].get(n, 0.0) for n in NAMES}
    part = Fraction(row["step"], 100)
    at = IOUS if threshold == "average" else [(0.85 if part <= 0.1 else 0.95 if part <= 0.25 else 0.99) if threshold == "dynamic" else float(threshold)]
    mean = lambda match: sum(combined(match, predicted, gold, t, ratio["iou_completeness"]) for t in at) / len(at)
    terms = dict(iou_max_label_first=mean(pairs_by_label), iou_max_iou_first=mean(pairs_by_iou),
                 map=sum(average_precision(predicted, gold, t) for t in IOUS[:10]) / 10,
                 map50=average_precision(predicted, gold, 0.5), map75=average_precision(predicted, gold, 0.75))
    size = 0.6 ** abs(len(predicted) - len(gold))
    accuracy = sum(ratio[n] * x * size for n, x in terms.items()) / sum(ratio[n] for n in terms)
    form = "\n<answer>\n" in response and response.count("\n</answer>") == 1
    return accuracy, accuracy * ar / (ar + fr) + form * fr / (ar + fr)


if sys.argv[1] == "lines":
    for case in range(500): print(json.dumps(make(case)))
else:
    answers, bad, right, worst = [json.loads(line) for line in sys.stdin], 0, 0, 0.0
    assert len(answers) == 500, len(answers)
    for a in answers:
        score, reward = worth(make(a["id"]), sys.argv[2])
        off = abs(a["reward"] - reward) + (abs(a["score"] - score) > 1e-8)
        worst, right = max(worst, off), right + (0 < score < 1)
        if a["status"] != "ok" or off > 1e-12:
            bad += 1
            if bad < 5: print("case", a, "wanted", score, reward)
    print("500 detections,", right, "in part, largest difference", worst)
    sys.exit(bad > 0 or right < 250)
