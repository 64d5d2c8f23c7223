"""parquet_bytes.py -- Parquet files put together byte by byte, without a library: one page a column, PLAIN, not compressed.

    python tests/parity/parquet_bytes.py ROWS.jsonl OUT.parquet [GROUPS]   rows with text, numbers, objects and lists, in row groups

For tests and scripts that have no pyarrow (e2e/eval, e2e/rows_forms, scripts/make_pictures: rows may have bytes, too); parquet_files.py makes of its
parts what pyarrow cannot write."""
import json, struct, sys

def varint(n):
    out = b""
    while n > 127:
        out, n = out + bytes([n & 127 | 128]), n >> 7
    return out + bytes([n])


def zigzag(n):
    return varint(n << 1 if n >= 0 else (-n << 1) - 1)


def thrift(fields):
    """A struct of the compact protocol: {id: value}; bool, int (i64), str, bytes, dict, list of dict or of str; (n,) is an i32."""
    out, last = b"", 0
    for number, x in sorted(fields.items()):
        kind = (1 if x else 2) if isinstance(x, bool) else 6 if isinstance(x, int) else 5 if isinstance(x, tuple) else \
            8 if isinstance(x, (str, bytes)) else 12 if isinstance(x, dict) else 9
        out += bytes([number - last << 4 | kind]) if number - last < 16 else bytes([kind]) + zigzag(number)
        last = number
        if isinstance(x, bool): continue
        if isinstance(x, list):
            out += bytes([min(len(x), 15) << 4 | (12 if isinstance(x[0], dict) else 5 if isinstance(x[0], tuple) else 8)]) + (varint(len(x)) if len(x) > 14 else b"")
        for e in x if isinstance(x, list) else [x]:
            e = e.encode() if isinstance(e, str) else e
            out += zigzag(e) if isinstance(e, int) else zigzag(e[0]) if isinstance(e, tuple) else thrift(e) if isinstance(e, dict) else varint(len(e)) + e
    return out + b"\0"


BOOLEAN, INT32, INT64, INT96, FLOAT, DOUBLE, BYTES, FIXED = range(8)
REQUIRED, OPTIONAL, REPEATED = range(3)
UTF8, MAP, MAP_KEY_VALUE, LIST = 0, 1, 2, 3


def leaf(name, repetition, kind, converted=None, **more):
    out = {1: (kind,), 3: (repetition,), 4: name}
    return out | ({6: (converted,)} if converted is not None else {}) | more.get("more", {})


def group(name, repetition, num, converted=None, more={}):
    return {3: (repetition,), 4: name, 5: (num,)} | ({6: (converted,)} if converted is not None else {}) | more


def levels(values, width):
    """As one bit-packed run, with its length."""
    if not width: return b""
    bits = sum(v << i * width for i, v in enumerate(values))
    groups = (len(values) + 7) // 8
    data = varint(groups << 1 | 1) + bits.to_bytes(groups * width, "little")
    return struct.pack("<I", len(data)) + data


def column(kind, reps, defs, max_rep, max_def, values, codec=0, encoding=0, level_encoding=3, page_type=0, crc=None, num=None, header={}, place={}, before=b""):
    data = levels(reps, max_rep.bit_length()) + levels(defs, max_def.bit_length()) + values
    head = {1: (page_type,), 2: (len(data),), 3: (len(data),), 5: {1: (len(defs),), 2: (encoding,), 3: (level_encoding,), 4: (level_encoding,)}}
    if crc is not None: head[4] = (crc,)
    return dict(page=before + thrift({k: v for k, v in (head | header).items() if v is not None}) + data, head=len(before), num=len(defs) if num is None else num, kind=kind, codec=codec, place=place)


def other_page(kind, data, num=0):
    """A dictionary (2) or an index (1), to go before a data page."""
    return thrift({1: (kind,), 2: (len(data),), 3: (len(data),)} | ({7: {1: (num,), 2: (0,)}} if kind == 2 else {})) + data


def file_of(schema, columns, num_rows, footer={}):
    return file_of_groups(schema, [(columns, num_rows)], num_rows, footer)


def file_of_groups(schema, groups, num_rows, footer={}):
    out, listed = b"PAR1", []
    for columns, num in groups:
        chunks = []
        for c in columns:
            meta = {1: (c["kind"],), 2: [(0,), (3,)], 3: ["x"], 4: (c["codec"],), 5: c["num"], 6: len(c["page"]), 7: len(c["page"]), 9: len(out) + c["head"]}
            if c["head"]: meta[11] = len(out)
            chunks.append({2: len(out), 3: meta} | c["place"])
            out += c["page"]
        listed.append({1: chunks, 2: len(out), 3: num})
    end = thrift({1: (1,), 2: [group("root", REQUIRED, sum(1 for _ in roots(schema)))] + schema, 3: num_rows, 4: listed} | footer)
    return out + end + struct.pack("<I", len(end)) + b"PAR1"


def roots(schema):
    """Where the fields of the root begin."""
    def end(i):
        num = schema[i].get(5, (0,))[0]
        i += 1
        for _ in range(num): i = end(i)
        return i
    i = 0
    while i < len(schema):
        yield i
        i = end(i)


def plain(values):
    return b"".join(struct.pack("<i", v) if isinstance(v, int) else struct.pack("<I", len(v)) + v for v in values)


# ---- JSON lines ----

def form(values):
    """What values of one place are: ("leaf", type), ("text", BYTES), ("list", form) or ("object", {name: form}); every one may be null."""
    values = [v for v in values if v is not None]
    if not values: return "text", BYTES
    if all(isinstance(v, dict) for v in values):
        return "object", {name: form([v.get(name) for v in values]) for name in dict.fromkeys(k for v in values for k in v)}
    if all(isinstance(v, list) for v in values): return "list", form([e for v in values for e in v])
    for what, types in ((BOOLEAN, bool), (INT64, int), (DOUBLE, (int, float)), (BYTES, bytes)):
        if all(isinstance(v, types) for v in values): return "leaf", what
    if all(isinstance(v, str) for v in values): return "text", BYTES
    sys.exit(f"values of several types: {values[:3]}")


def schema_of(name, what):
    kind, inner = what
    if kind in ("leaf", "text"): return [leaf(name, OPTIONAL, inner, UTF8 if kind == "text" else None)]
    if kind == "list": return [group(name, OPTIONAL, 1, LIST), group("list", REPEATED, 1)] + schema_of("element", inner)
    return [group(name, OPTIONAL, len(inner))] + [e for n, f in inner.items() for e in schema_of(n, f)]


def leaves(what, rep=0, top=1):
    """(type, levels of repetition and definition) of each column."""
    kind, inner = what
    if kind in ("leaf", "text"): return [(inner, rep, top)]
    if kind == "list": return leaves(inner, rep + 1, top + 2)
    return [x for f in inner.values() for x in leaves(f, rep, top + 1)]


def shred(value, what, out, rep, depth, there):
    """Append (rep, def, value) to each column of out. there: the definition level around the value."""
    kind, inner = what
    if value is None or value == [] and kind == "list":
        for column in out: column.append((rep, there + (value is not None), None))
    elif kind in ("leaf", "text"):
        out[0].append((rep, there + 1, value))
    elif kind == "list":
        for i, v in enumerate(value): shred(v, inner, out, depth + 1 if i else rep, depth + 1, there + 2)
    else:
        for name, f in inner.items():
            num = len(leaves(f))
            shred(value.get(name), f, out[:num], rep, depth, there + 1)
            out = out[num:]


def packed(kind, values):
    if kind == BOOLEAN: return sum(v << i for i, v in enumerate(values)).to_bytes((len(values) + 7) // 8, "little")
    return b"".join(struct.pack("<q", v) if kind == INT64 else struct.pack("<d", v) if kind == DOUBLE else plain([v if isinstance(v, bytes) else v.encode()]) for v in values)


def of_rows(rows, num_groups=1):
    what = form(rows)
    schema = [e for n, f in what[1].items() for e in schema_of(n, f)]
    size, groups = -(-len(rows) // num_groups) or 1, []
    kinds = [x for f in what[1].values() for x in leaves(f)]
    for first in range(0, len(rows), size):
        out = [[] for _ in kinds]
        for row in rows[first:first + size]: shred(row, what, out, 0, 0, -1)
        groups.append(([column(kind, [r for r, _, _ in c], [d for _, d, _ in c], rep, top, packed(kind, [v for _, d, v in c if d == top]))
                        for (kind, rep, top), c in zip(kinds, out)], len(rows[first:first + size])))
    return file_of_groups(schema, groups, len(rows))


if __name__ == "__main__":
    lines = [json.loads(line) for line in open(sys.argv[1])]
    open(sys.argv[2], "wb").write(of_rows(lines, int(sys.argv[3]) if len(sys.argv) > 3 else 1))
