"""pictures.py FOLDER [NUM] -- pictures of 1024 x 1024 (three of four JPEG, one PNG) and rows.jsonl, a chat with one of them a row.

For the time until rows with images are loaded (bench/README.md). Needs Pillow and numpy; pictures are smooth shapes with some noise, as photographs are."""
import json, pathlib, sys

import numpy as np
from PIL import Image

folder, num = pathlib.Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 400
folder.mkdir(parents=True, exist_ok=True)
draws = np.random.default_rng(5)
with open(folder / "rows.jsonl", "w") as rows:
    for i in range(num):
        coarse = Image.fromarray(draws.integers(0, 256, (16, 16, 3), dtype=np.uint8)).resize((1024, 1024), Image.BICUBIC)
        levels = np.asarray(coarse).astype(np.int16) + draws.integers(-6, 7, (1024, 1024, 1), dtype=np.int16)
        name = f"{i}.{'png' if i % 4 == 3 else 'jpg'}"
        Image.fromarray(levels.clip(0, 255).astype(np.uint8)).save(folder / name, quality=90)
        asked = dict(role="user", content=[dict(type="image", image=name), dict(type="text", text="What is it?")])
        rows.write(json.dumps(dict(messages=[asked, dict(role="assistant", content="A picture.")])) + "\n")
