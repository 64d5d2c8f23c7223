"""parquet_files.py -- Parquet files that pyarrow writes, with the rows that pyarrow reads from them, for tests/unit/parquet_rows.c.

    python tests/parity/parquet_files.py tests/parity/parquet             (pyarrow 26)
    python tests/parity/parquet_files.py --check BENCH_PARQUET [SEED]     200 tables of random types, rows and options: equal rows to those of the tables

NAME.parquet and NAME.jsonl (what to_pylist says, in the form of docs/data.md), or NAME.error (a part of the message that refuses it).
Files that pyarrow cannot write (lists of two levels, an unknown codec, ..) are put together here, byte by byte; pyarrow reads those
of them that are valid."""
import base64, datetime as dt, decimal, json, math, pathlib, random, struct, subprocess, sys, tempfile, uuid, zlib

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe

from parquet_bytes import *

decimal.getcontext().prec = 100


# ---- rows as docs/data.md has them ----

def fraction(ns):
    return f".{ns:09d}" if ns % 1000 else f".{ns // 1000:06d}" if ns else ""


def day_time(ns):
    s = ns // 10**9
    return f"{s // 3600:02d}:{s // 60 % 60:02d}:{s % 60:02d}" + fraction(ns % 10**9)


def value(x, t):
    """Of a pyarrow scalar's to-be-JSON, by its type; x: the scalar."""
    if not x.is_valid:
        return None
    if isinstance(t, pa.BaseExtensionType):
        if t.extension_name == "arrow.uuid":
            return str(x.as_py())
        return value(x.value, t.storage_type)
    if pa.types.is_struct(t):
        return {f.name: value(x[i], f.type) for i, f in enumerate(t)}
    if pa.types.is_map(t):
        pairs = [(value(p["key"], t.key_type), value(p["value"], t.item_type)) for p in x.values]
        return dict(pairs) if pa.types.is_string(t.key_type) else [list(p) for p in pairs]
    if pa.types.is_list(t) or pa.types.is_large_list(t) or pa.types.is_fixed_size_list(t):
        return [value(e, t.value_type) for e in x.values]
    if pa.types.is_dictionary(t):
        return value(x.dictionary[x.index.as_py()], t.value_type)
    if pa.types.is_binary(t) or pa.types.is_large_binary(t) or pa.types.is_fixed_size_binary(t):
        return base64.b64encode(x.as_py()).decode()
    if pa.types.is_floating(t):
        f = float(x.as_py())
        return f if math.isfinite(f) else None
    if pa.types.is_decimal(t):
        return format(x.as_py(), "f")
    if pa.types.is_date(t):
        return x.as_py().isoformat()
    if pa.types.is_time(t):
        return day_time(x.value * {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}[t.unit])
    if pa.types.is_timestamp(t):
        ns = x.value * {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}[t.unit]
        day = dt.date(1970, 1, 1) + dt.timedelta(days=ns // (86400 * 10**9))
        return f"{day.isoformat()}T{day_time(ns % (86400 * 10**9))}" + ("Z" if t.tz else "")
    if pa.types.is_duration(t):
        return x.value
    return x.as_py()


def rows_of(table):
    columns = [table.column(i) for i in range(table.num_columns)]
    return [{name: value(c[r], c.type) for name, c in zip(table.column_names, columns)} for r in range(table.num_rows)]


# ---- tables ----

TEXT = ["", "a", "two\nlines \"quoted\" \\", "größer", "日本語", "🙂 end", "nul\0in it", "x" * 70, "same", "same", None, "tab\t"]
UTC = dt.timezone.utc


def cycle(values, num):
    return [values[i % len(values)] for i in range(num)]


def scalars(num=13):
    when = [dt.datetime(2024, 5, 1, 12, 34, 56, 123456), dt.datetime(1969, 12, 31, 23, 59, 59, 999000), dt.datetime(1, 1, 1), None,
            dt.datetime(9999, 12, 31, 23, 59, 59), dt.datetime(2000, 2, 29, 0, 0, 0)]
    ints = lambda bits, signed: [0, 1, (1 << bits - signed) - 1, -(1 << bits - 1) if signed else 7, None, 100]
    columns = {f"{'' if s else 'u'}int{b}": pa.array(cycle(ints(b, s), num), getattr(pa, f"{'' if s else 'u'}int{b}")())
               for b in (8, 16, 32, 64) for s in (True, False)}
    columns |= dict(
        flag=pa.array(cycle([True, False, None, True, True], num)),
        half=pa.array(cycle([0.0, 1.5, -2.25, 65504.0, 6e-8, None], num), pa.float16()),
        single=pa.array(cycle([0.1, -0.0, 3.4e38, 1e-45, None, 16777216.0], num), pa.float32()),
        double=pa.array(cycle([0.1, 1e15, 1e16, 1.0, -5e-324, None, 1.7976931348623157e308, 1 / 3], num), pa.float64()),
        text=pa.array(cycle(TEXT, num)),
        large=pa.array(cycle(TEXT, num), pa.large_string()),
        raw=pa.array(cycle([b"", b"\0\xff", b"abc", None, bytes(range(256))], num)),
        fixed=pa.array(cycle([b"12345", None, b"\xff\0\1\2\3"], num), pa.binary(5)),
        day=pa.array(cycle([dt.date(1970, 1, 1), dt.date(1600, 2, 29), None, dt.date(2038, 1, 19)], num)),
        t_ms=pa.array(cycle([0, 86399999, None, 1234567], num), pa.time32("ms")),
        t_us=pa.array(cycle([0, 86399999999, None, 1000001], num), pa.time64("us")),
        t_ns=pa.array(cycle([0, 86399999999999, None, 1000000], num), pa.time64("ns")),
        s=pa.array(cycle([w.replace(microsecond=0) if w else w for w in when], num), pa.timestamp("s")),
        ms=pa.array(cycle([w.replace(microsecond=w.microsecond // 1000 * 1000) if w else w for w in when], num), pa.timestamp("ms")),
        us=pa.array(cycle(when, num), pa.timestamp("us")),
        ns=pa.array(cycle([0, -1, None, 1714566896123456789, -9223372036854775807], num), pa.timestamp("ns")),
        utc=pa.array(cycle(when, num), pa.timestamp("us", "UTC")),
        berlin=pa.array(cycle(when, num), pa.timestamp("us", "Europe/Berlin")),
        span=pa.array(cycle([0, -5, None, 10**15], num), pa.duration("us")),
        nothing=pa.nulls(num),
        choice=pa.array(cycle(["a", "b", None, "a"], num)).dictionary_encode())
    return pa.table(columns)


def decimals(num=6):
    D = decimal.Decimal
    columns = {}
    for name, t in (("small", pa.decimal128(5, 2)), ("middle", pa.decimal128(18, 0)), ("wide", pa.decimal128(38, 10)),
                    ("wider", pa.decimal256(76, 20)), ("fractions", pa.decimal128(9, 9))):
        digits, scale = t.precision, t.scale
        top = D(10 ** digits - 1).scaleb(-scale)
        columns[name] = pa.array(cycle([D(0), top, -top, D(1).scaleb(-scale), None, D(-1).scaleb(-scale)], num), t)
    return pa.table(columns)


def nested(num=9):
    r = random.Random(5)
    maybe = lambda make: None if r.random() < 0.2 else make()
    text = lambda: r.choice(TEXT)
    some = lambda make: [make() for _ in range(r.choice([0, 1, 1, 2, 5]))]
    message = pa.struct([("role", pa.string()), ("content", pa.string())])
    node = pa.struct([("a", pa.int32()), ("b", pa.list_(pa.struct([("c", pa.string()), ("d", pa.list_(pa.float64()))])))])
    ints = lambda: maybe(lambda: r.randrange(-9, 9))
    columns = dict(
        id=pa.array(range(num)),
        messages=pa.array([some(lambda: {"role": "user", "content": text()}) for _ in range(num)], pa.list_(message)),
        ints=pa.array([maybe(lambda: some(ints)) for _ in range(num)], pa.list_(pa.int64())),
        deep=pa.array([maybe(lambda: some(lambda: maybe(lambda: some(lambda: maybe(lambda: some(ints)))))) for _ in range(num)],
                      pa.list_(pa.list_(pa.list_(pa.int32())))),
        tree=pa.array([maybe(lambda: {"a": ints(), "b": maybe(lambda: some(lambda: maybe(lambda: {
            "c": text(), "d": maybe(lambda: some(lambda: maybe(r.random)))})))}) for _ in range(num)], node),
        by_name=pa.array([maybe(lambda: [(f"k{i}", ints()) for i in range(r.randrange(4))]) for _ in range(num)],
                         pa.map_(pa.string(), pa.int32())),
        by_number=pa.array([maybe(lambda: [(i, some(text)) for i in range(r.randrange(4))]) for _ in range(num)],
                           pa.map_(pa.int32(), pa.list_(pa.string()))),
        three=pa.array([[1.5, None, float(i)] for i in range(num)], pa.list_(pa.float32(), 3)),
        large=pa.array([some(text) for _ in range(num)], pa.large_list(pa.string())),
        images=pa.array([maybe(lambda: some(lambda: {"bytes": r.randbytes(r.randrange(60)), "path": maybe(lambda: "a.png")}))
                         for _ in range(num)], pa.list_(pa.struct([("bytes", pa.binary()), ("path", pa.string())]))))
    return pa.table(columns)


def chats(num=6):
    return pa.table(dict(
        id=[str(i) for i in range(num)],
        messages=[[{"role": "user", "content": f"{i}+{i * 7}=?"}, {"role": "assistant", "content": str(i * 8)}] for i in range(num)],
        reward_model=[{"ground_truth": str(i * 8), "style": "rule"} for i in range(num)],
        difficulty=pa.array([i / 10 for i in range(num)], pa.float32()),
        tag=["sums"] * num))


def numbers(num=700):
    r = random.Random(3)
    return pa.table(dict(
        up=pa.array([i * 3 + 10**9 for i in range(num)]), wild=pa.array([r.randrange(-2**63, 2**63) for _ in range(num)]),
        wide=pa.array([r.randrange(-2**60, 2**60) for _ in range(num)]), small=pa.array([r.choice([None, 0, 5]) for _ in range(num)], pa.int32()),
        wild32=pa.array([r.randrange(-2**31, 2**31) for _ in range(num)], pa.int32()),
        real=pa.array([round(r.random(), 3) for _ in range(num)]), single=pa.array([round(r.random(), 2) for _ in range(num)], pa.float32())))


def texts(num=300):
    r = random.Random(4)
    return pa.table(dict(path=[f"/data/part-{i // 50}/file-{i:05d}.txt" for i in range(num)], word=[r.choice(TEXT) for _ in range(num)],
                         raw=[r.randbytes(r.randrange(5)) for _ in range(num)],
                         fixed=pa.array([struct.pack(">I", i) + b"\1\2" for i in range(num)], pa.binary(6)),
                         flag=pa.array([r.choice([True, False, None]) for _ in range(num)])))


def everything(table, encoding):
    """column_encoding: this one for the columns that have it."""
    def has(t):
        if encoding == "DELTA_BINARY_PACKED": return pa.types.is_integer(t)
        if encoding == "DELTA_LENGTH_BYTE_ARRAY": return pa.types.is_string(t) or t == pa.binary()
        if encoding == "DELTA_BYTE_ARRAY": return pa.types.is_string(t) or t == pa.binary() or pa.types.is_fixed_size_binary(t)
        if encoding == "BYTE_STREAM_SPLIT": return pa.types.is_integer(t) or pa.types.is_floating(t) or pa.types.is_fixed_size_binary(t)
        if encoding == "RLE": return pa.types.is_boolean(t)
        return True
    return dict(use_dictionary=False, column_encoding={f.name: encoding for f in table.schema if has(f.type)})


def write_pyarrow(folder):
    put = lambda name, table, **options: pq.write_table(table, folder / f"{name}.parquet", **dict(dict(store_schema=False), **options))
    put("scalars", scalars(), store_schema=True, compression="none")
    put("scalars_2", scalars(), data_page_version="2.0", write_page_checksum=True)
    put("scalars_10", scalars().drop(["ns", "t_ns", "half"]), version="1.0", use_dictionary=False)
    put("decimals", decimals())
    put("decimals_ints", decimals(), store_decimal_as_integer=True, use_dictionary=False)
    put("nested", nested(), store_schema=True)
    put("nested_2", nested(), data_page_version="2.0", compression="zstd")
    some = nested().select(["messages", "deep", "tree"])
    put("nested_groups", some, write_statistics=False, row_group_size=7, data_page_size=64, write_batch_size=3)
    put("nested_pages", some, write_statistics=False, data_page_size=1, write_batch_size=1, use_dictionary=False, compression="none")
    put("nested_items", some, use_compliant_nested_type=False)
    for codec in ("none", "snappy", "gzip", "brotli", "zstd", "lz4"):
        put(f"chats_{codec}", chats(), compression=codec)
        put(f"chats_{codec}_2", chats(4), compression=codec, data_page_version="2.0", use_dictionary=False, write_page_checksum=True)
    for encoding in ("PLAIN", "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"):
        put(f"numbers_{encoding.lower()}", numbers(24), **everything(numbers(2), encoding))
    put("numbers_delta_2", numbers(150).drop(["real", "single"]), data_page_version="2.0", data_page_size=400, **everything(numbers(2), "DELTA_BINARY_PACKED"))
    put("numbers_dictionary", numbers(40), compression="none")
    for encoding in ("PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY", "RLE", "BYTE_STREAM_SPLIT"):
        put(f"texts_{encoding.lower()}", texts(20), **everything(texts(2), encoding))
    put("texts_dictionary", texts(50), dictionary_pagesize_limit=300, data_page_size=100, write_batch_size=10)
    put("texts_pages", texts(30), data_page_size=50, write_batch_size=5, write_page_index=True, write_page_checksum=True)
    put("int96", scalars(12).select(["ns", "text"]), use_deprecated_int96_timestamps=True)
    put("no_rows", chats(0), store_schema=True)
    put("no_groups", chats(0).slice(0, 0))
    put("one_row", chats(1), compression="gzip")
    for encoding in ("DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"):
        put(f"one_row_{encoding.lower()}", texts(1), **everything(texts(1), encoding))
    put("all_null", pa.table(dict(a=pa.nulls(9, pa.string()), b=pa.nulls(9, pa.list_(pa.int64())), c=pa.nulls(9, pa.struct([("d", pa.int8())])))))
    put("required", pa.table([pa.array([1, 2, 3]), pa.array(["a", "b", "c"])], schema=pa.schema(
        [pa.field("n", pa.int64(), nullable=False), pa.field("t", pa.string(), nullable=False)])), data_page_version="2.0")
    put("not_finite", pa.table(dict(x=[math.nan, 1.0, math.inf, -math.inf, None], h=pa.array([1.0, math.inf, None, -0.5, 2.0], pa.float16()))))
    put("many_columns", write_statistics=False, table=pa.table({f"column {i}": [i, None] for i in range(20)}))
    put("names", pa.table({"with \"quotes\"": [1], "with.dots": [2], "größe": [3], "": [4], "nested": pa.array([{"with.dots": 5, "\\": 6}])}))
    put("uuid", pa.table(dict(u=pa.array([uuid.UUID(int=i * 2**100 + 7).bytes for i in range(3)], pa.uuid()),
                              j=pa.array(['{"a": 1}', None, "[]"], pa.json_()))), store_schema=True)
    put("pandas", chats(5).append_column("__index_level_0__", pa.array(range(5))).replace_schema_metadata(
        {"pandas": "{}", "huggingface": '{"info": {"features": {}}}'}), store_schema=True)
    put("long_run", pa.table(dict(b=[7] * 600)), compression="zstd")
    put("grouped", numbers(45), write_statistics=False, row_group_size=20, compression="zstd")
    put("bad_text", pa.table(dict(a=["ok", "x"], b=["ä", "b"])), compression="none", use_dictionary=False, write_statistics=False)
    damage(folder / "bad_text.parquet", "ä".encode(), b"\xff\xfe")
    put("bad_crc", pa.table(dict(a=["some text to be changed"] * 2)), compression="none", write_page_checksum=True)
    damage(folder / "bad_crc.parquet", b"some text", b"xome text")


def damage(path, old, new):
    data = path.read_bytes()
    assert data.count(old) >= 1, path
    path.write_bytes(data.replace(old, new, 1))


class Kms(pe.KmsClient):
    def __init__(self, config): super().__init__()
    def wrap_key(self, key, master): return base64.b64encode(key)
    def unwrap_key(self, wrapped, master): return base64.b64decode(wrapped)


def write_encrypted(folder):
    for name, plain in (("encrypted", False), ("encrypted_columns", True)):
        config = pe.EncryptionConfiguration(footer_key="f", column_keys={"c": ["a"]}, plaintext_footer=plain, double_wrapping=False)
        keys = pe.CryptoFactory(Kms).file_encryption_properties(pe.KmsConnectionConfig(), config)
        with pq.ParquetWriter(folder / f"{name}.parquet", pa.schema([("a", pa.string()), ("b", pa.int64())]), encryption_properties=keys) as w:
            w.write_table(pa.table(dict(a=["x"], b=[1])))


# ---- files that pyarrow does not write ----

def write_handmade(folder):
    put = lambda name, *a, **k: (folder / f"{name}.parquet").write_bytes(file_of(*a, **k))
    # [[1, 2], [], null]
    three = column(INT32, [0, 1, 0, 0], [2, 2, 1, 0], 1, 2, plain([1, 2]))
    put("list_two_levels", [group("a", OPTIONAL, 1, LIST), leaf("element", REPEATED, INT32)], [three], 3)
    put("list_array", [group("a", OPTIONAL, 1, LIST), group("array", REPEATED, 1), leaf("x", REQUIRED, INT32)], [three], 3)
    put("list_tuple", [group("a", OPTIONAL, 1, LIST), group("a_tuple", REPEATED, 1), leaf("x", REQUIRED, INT32)], [three], 3)
    put("list_bag", [group("a", OPTIONAL, 1, LIST), group("bag", REPEATED, 1), leaf("array_element", REQUIRED, INT32)], [three], 3)
    pair = column(INT32, [0, 1, 0, 0], [2, 2, 1, 0], 1, 2, plain([7, 8]))
    put("list_groups", [group("a", OPTIONAL, 1, LIST), group("element", REPEATED, 2), leaf("x", REQUIRED, INT32), leaf("y", REQUIRED, INT32)],
        [three, pair], 3)
    bare = column(INT32, [0, 1, 0], [1, 1, 0], 1, 1, plain([1, 2]))
    put("repeated", [leaf("a", REPEATED, INT32)], [bare], 2)
    put("repeated_group", [group("a", REPEATED, 1), leaf("x", REQUIRED, INT32)], [bare], 2)
    keys = column(BYTES, [0, 1, 0, 0], [2, 2, 1, 0], 1, 2, plain([b"k", b"l"]))
    put("map_key_value", [group("m", OPTIONAL, 1, MAP_KEY_VALUE), group("map", REPEATED, 2), leaf("key", REQUIRED, BYTES, UTF8),
                          leaf("value", REQUIRED, INT32)], [keys, three], 3)
    one = lambda **k: column(INT32, [], [0, 0], 0, 0, plain([5, 6]), **k)
    a = [leaf("a", REQUIRED, INT32)]
    crc = lambda data: struct.unpack("<i", struct.pack("<I", zlib.crc32(data)))[0]
    coded = lambda index, *pages: column(INT32, [], [0, 0], 0, 0, bytes([3, 3, index]), encoding=8,
                                         before=b"".join((other_page(2, plain([5, 6]), 2),) + pages))
    put("dictionary_far", a, [coded(0b001000, other_page(1, bytes(20000)))], 2)  # indices 0 and 1; an index of pages lies between
    put("no_bytes", [leaf("a", OPTIONAL, INT32)], [column(INT32, [], [0, 0], 0, 0, bytes([4, 0]), codec=1, page_type=3, header={
        5: None, 8: {1: (2,), 2: (2,), 3: (2,), 4: (0,), 5: (2,), 6: (0,)}})], 2)
    put("crc", a, [one(crc=crc(plain([5, 6])))], 2)
    refused = dict(
        encrypted="it is encrypted", encrypted_columns="it has encrypted columns", bad_crc="page 1: it is damaged: its CRC is another one",
        bad_text="row 1: row group 0, column b: a text is not UTF-8")
    def refuse(name, why, *args, **more):
        put(name, *args, **more)
        refused[name] = why
    refuse("codec_lzo", "row group 0, column a: it is compressed with LZO", a, [one(codec=3)], 2)
    refuse("codec_hadoop", "it is compressed with LZ4 (of Hadoop", a, [one(codec=5)], 2)
    refuse("codec_99", "it is compressed with codec 99, which is unknown", a, [one(codec=99)], 2)
    refuse("encoding_4", "page 1: its values have the encoding BIT_PACKED, which is not read", a, [one(encoding=4)], 2)
    refuse("encoding_77", "its values have the encoding 77, which is unknown", a, [one(encoding=77)], 2)
    refuse("encoding_type", "the encoding DELTA_LENGTH_BYTE_ARRAY, which is not read for their type", a, [one(encoding=6)], 2)
    refuse("no_dictionary", "it is coded by a dictionary, and its column has none", a, [one(encoding=8)], 2)
    refuse("levels_packed", "its levels have the encoding 4 (4: BIT_PACKED)", [leaf("a", OPTIONAL, INT32)],
           [column(INT32, [], [1, 1], 0, 1, plain([5, 6]), level_encoding=4)], 2)
    refuse("page_kind", "page 1: it is of the kind 9, which is unknown", a, [one(page_type=9)], 2)
    refuse("elsewhere", "it is in another file", a, [one(place={1: "other.parquet"})], 2)
    refuse("interval", "of the logical type INTERVAL on FIXED_LEN_BYTE_ARRAY", [leaf("a", REQUIRED, FIXED, 21, more={2: (12,)})],
           [column(FIXED, [], [0], 0, 0, bytes(12))], 1)
    refuse("geometry", "of the logical type GEOMETRY on BYTE_ARRAY", [leaf("a", REQUIRED, BYTES, more={10: {17: {}}})],
           [column(BYTES, [], [0], 0, 0, plain([b"x"]))], 1)
    refuse("variant", "a group of a logical type that is not read", [group("v", REQUIRED, 1, more={10: {16: {}}}), leaf("metadata", REQUIRED, BYTES)],
           [column(BYTES, [], [0], 0, 0, plain([b"x"]))], 1)
    refuse("type_9", "has a type that the format does not have", [leaf("a", REQUIRED, 9)], [one()], 2)
    refuse("same_names", "two columns of a row have the name", a + a, [one(), one()], 2)
    refuse("map_of_one", "is called a map", [group("m", REQUIRED, 1, MAP), group("kv", REPEATED, 1), leaf("key", REQUIRED, BYTES)],
           [column(BYTES, [0], [1], 1, 1, plain([b"x"]))], 1)
    refuse("list_of_two", "is called a list", [group("l", REQUIRED, 2, LIST)] + a + [leaf("b", REQUIRED, INT32)], [one(), one()], 2)
    refuse("rows_2_40", "is said to have 1099511627776 rows", a, [one(num=1 << 40)], 1 << 40)
    refuse("values_2_40", "page 2: it is missing: 1099511627774 values are not there", [leaf("a", REPEATED, INT32)],
           [column(INT32, [0, 0], [1, 1], 1, 1, plain([5, 6]), num=1 << 40)], 2)
    refuse("page_2_31", "page 1: it has 2147483647 values, and its column only 2 more", a,
           [one(header={5: {1: (2**31 - 1,), 2: (0,), 3: (3,), 4: (3,)}})], 2)
    refuse("bytes_2_31", "page 1: it has 2147483647 bytes, 1073741824 are the limit", a, [one(codec=6, header={2: (2**31 - 1,)})], 2)
    refuse("zstd_of_none", "page 1: it is no page of 1000000000 bytes compressed with ZSTD", a, [one(codec=6, header={2: (10**9,)})], 2)
    refuse("missing_values", "its values are damaged, or end early", a, [column(INT32, [], [0] * 3, 0, 0, plain([5, 6]))], 3)
    refuse("missing_bits", "its values are damaged, or end early", [leaf("a", REQUIRED, BOOLEAN)], [column(BOOLEAN, [], [0] * 9, 0, 0, b"\1")], 9)
    refuse("index_7", "its values are damaged, or end early", a, [coded(0b111000)], 2)
    refuse("level_3", "its levels are damaged", [group("a", OPTIONAL, 1), leaf("b", OPTIONAL, INT32)],
           [column(INT32, [], [2, 3], 0, 2, plain([1, 2]))], 2)
    refuse("same_names_inside", "two columns of s have the name", [group("s", REQUIRED, 2)] + a + a, [one(), one()], 2)
    refuse("missing_page", "page 2: it is missing: 5 values are not there", a, [one(num=7)], 7)
    refuse("other_levels", "column a.y: its levels are not those of its rows",
           [group("a", OPTIONAL, 1, LIST), group("element", REPEATED, 2), leaf("x", REQUIRED, INT32), leaf("y", REQUIRED, INT32)],
           [three, column(INT32, [0, 0, 0], [2, 1, 0], 1, 2, plain([7]))], 3)
    refuse("other_nulls", "column a.y: its levels are not those of its rows",
           [group("a", OPTIONAL, 2), leaf("x", REQUIRED, INT32), leaf("y", REQUIRED, INT32)],
           [column(INT32, [], [1, 0], 0, 1, plain([1])), column(INT32, [], [1, 1], 0, 1, plain([1, 2]))], 2)
    refuse("first_level", "row 1: row group 0, column a: its levels are not those of its rows", [leaf("a", REPEATED, INT32)],
           [column(INT32, [1, 0], [1, 1], 1, 1, plain([1, 2]))], 1)
    refuse("more_values", "it has more values than rows", a, [column(INT32, [], [0] * 3, 0, 0, plain([5, 6, 7]))], 2)
    huge = 2**31 - 1
    (folder / "rows_twice_2_31.parquet").write_bytes(file_of_groups(a, [([one(num=huge)], huge)] * 2, 2 * huge))
    refused["rows_twice_2_31"] = "it is said to have 4294967294 rows"
    for name, why in refused.items():
        (folder / f"{name}.error").write_text(why + "\n")


# ---- random tables ----

def random_type(r, depth):
    flat = [pa.bool_(), pa.int8(), pa.uint32(), pa.int64(), pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.string(), pa.binary(),
            pa.binary(7), pa.date32(), pa.time64("us"), pa.timestamp("ms"), pa.timestamp("us", "UTC"), pa.decimal128(12, 3)]
    if depth == 0 or r.random() < 0.5:
        return r.choice(flat)
    inner = lambda: random_type(r, depth - 1)
    return r.choice([lambda: pa.list_(inner()), lambda: pa.struct([(f"f{i}", inner()) for i in range(r.randrange(1, 4))]),
                     lambda: pa.map_(pa.string(), inner()), lambda: pa.map_(pa.int16(), inner())])()


def random_value(r, t, p_null, small):
    if r.random() < p_null: return None
    if pa.types.is_boolean(t): return r.random() < 0.5
    if pa.types.is_integer(t):
        bits, signed = t.bit_width, pa.types.is_signed_integer(t)
        return r.randrange(5) if small else r.randrange(-(1 << bits - 1) if signed else 0, 1 << bits - signed)
    if pa.types.is_floating(t): return float(r.randrange(4)) if small else r.gauss(0, 100)
    if pa.types.is_string(t): return r.choice(TEXT[:-2]) or "" if small else "".join(r.choice("abäß日🙂\n\"") for _ in range(r.randrange(12)))
    if pa.types.is_fixed_size_binary(t) and not pa.types.is_decimal(t): return bytes([r.randrange(3)]) * t.byte_width if small else r.randbytes(t.byte_width)
    if pa.types.is_binary(t): return r.randbytes(r.randrange(3 if small else 20))
    if pa.types.is_date(t): return dt.date.fromordinal(r.randrange(1, 3000000))
    if pa.types.is_time(t): return dt.time(r.randrange(24), r.randrange(60), r.randrange(60), r.choice([0, 5, 123456]))
    if pa.types.is_timestamp(t):
        w = dt.datetime(r.randrange(1, 10000), r.randrange(1, 13), 1, r.randrange(24), 0, 1, r.choice([0, 123000]))
        return w.replace(tzinfo=UTC) if t.tz else w
    if pa.types.is_decimal(t): return decimal.Decimal(r.randrange(-10**t.precision + 1, 10**t.precision)).scaleb(-t.scale)
    num = r.choice([0, 1, 2, 7])
    if pa.types.is_list(t): return [random_value(r, t.value_type, p_null, small) for _ in range(num)]
    if pa.types.is_map(t):
        return [(str(i) if pa.types.is_string(t.key_type) else i, random_value(r, t.item_type, p_null, small)) for i in range(num)]
    return {f.name: random_value(r, f.type, p_null, small) for f in t}


def random_file(r, path):
    num = r.choice([1, 10, 100, 700])
    fields = [(f"c{i}", random_type(r, r.randrange(4)), r.choice([0, 0.1, 0.9]), r.random() < 0.5) for i in range(r.randrange(1, 6))]
    table = pa.table({n: pa.array([random_value(r, t, p, small) for _ in range(num)], t) for n, t, p, small in fields})
    options = dict(compression=r.choice(["none", "snappy", "gzip", "brotli", "zstd", "lz4"]), data_page_version=r.choice(["1.0", "2.0"]),
                   row_group_size=r.choice([3, 64, 10000]), data_page_size=r.choice([1, 50, 2000, 1 << 20]), write_batch_size=r.choice([1, 7, 1024]),
                   write_page_checksum=r.random() < 0.5, store_schema=r.random() < 0.5, use_compliant_nested_type=r.random() < 0.5,
                   dictionary_pagesize_limit=r.choice([50, 1 << 20]))
    options |= dict(use_dictionary=True) if r.random() < 0.4 else everything(table, r.choice(
        ["PLAIN", "DELTA_BINARY_PACKED", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY", "BYTE_STREAM_SPLIT"]))
    pq.write_table(table, path, **options)
    return table, options


def check(program, seed):
    with tempfile.TemporaryDirectory() as tmp:
        path = pathlib.Path(tmp) / "x.parquet"
        for k in range(200):
            table, options = random_file(random.Random(seed * 1000 + k), path)
            got = subprocess.run([program, "print", path], capture_output=True, text=True)
            want = rows_of(table)
            rows = [json.loads(line) for line in got.stdout.split("\n")[:-1]]
            if got.returncode or rows != want:
                first = next((i for i, (a, b) in enumerate(zip(rows, want)) if a != b), min(len(rows), len(want)))
                sys.exit(f"table {k} of seed {seed}: row {first} differs: {rows[first:first + 1]} {want[first:first + 1]}\n{got.stderr}\n{table.schema}\n{options}")
    print(f"200 tables of seed {seed}: all rows are equal")


if sys.argv[1] == "--check":
    check(sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 1)
else:
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    write_pyarrow(folder)
    write_encrypted(folder)
    write_handmade(folder)
    for path in sorted(folder.glob("*.parquet")):
        if not path.with_suffix(".error").exists():
            text = "".join(json.dumps(row, ensure_ascii=False, separators=(",", ":"), allow_nan=False) + "\n" for row in rows_of(pq.ParquetFile(path, page_checksum_verification=True).read()))
            path.with_suffix(".jsonl").write_text(text)
    size = sum(p.stat().st_size for p in folder.iterdir())
    print(f"{len(list(folder.glob('*.jsonl')))} files that are read, {len(list(folder.glob('*.error')))} that are refused, {size} bytes")
