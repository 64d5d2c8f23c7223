"""parquet_rows.py -- pyarrow on the file of bench_parquet: `parquet_rows.py FILE` writes it if it is not there (250,000 chats, 138 MB)
and says rows/s of CPU time of one thread: columns alone (read_table), Python's rows (to_pylist), rows as JSON text (and json.dumps)."""
import json, os, random, sys, time

import pyarrow as pa
import pyarrow.parquet as pq

NUM = 250_000
path = sys.argv[1]
if not os.path.exists(path):
    r = random.Random(1)
    words = ["".join(r.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(r.randrange(2, 10))) for _ in range(20_000)]
    text = lambda: " ".join(r.choice(words) for _ in range(40))
    table = pa.table(dict(id=[str(i) for i in range(NUM)],
                          messages=[[{"role": "user", "content": text()}, {"role": "assistant", "content": text()}] for _ in range(NUM)],
                          reward_model=[{"ground_truth": str(r.randrange(1000)), "style": "rule"} for _ in range(NUM)],
                          difficulty=[r.random() for _ in range(NUM)], index=range(NUM), tag=["sums"] * NUM))
    pq.write_table(table, path, row_group_size=20_000)
pa.set_cpu_count(1)
pa.set_io_thread_count(1)


def rate(what, work):
    begin = time.process_time()
    work()
    print(f"{what}: {NUM / (time.process_time() - begin):.0f} rows/s")


batches = lambda: pq.ParquetFile(path).iter_batches(1000, use_threads=False)
rate("read_table", lambda: pq.read_table(path, use_threads=False))
rate("to_pylist", lambda: [len(b.to_pylist()) for b in batches()])
rate("to_pylist and json.dumps", lambda: [len(json.dumps(row, ensure_ascii=False)) for b in batches() for row in b.to_pylist()])
