#!/usr/bin/env python3
"""tokenizers.py -- two small tokenizers and the ids that Hugging Face's library gives for texts.

    tests/parity/tokenizers.py [FOLDER]

Trains them on the sentences below and writes FOLDER/bytes (byte-level BPE after a pattern, as Qwen) and
FOLDER/pieces (BPE over characters with byte fallback, as Llama 2), each with tokenizer.json and cases.jsonl. FOLDER is
tests/parity/tokenizers/, whose files unit_text_tokenizer reads. Exit code 77 where the package is missing.
"""
import json, pathlib, sys

sys.path = [p for p in sys.path if pathlib.Path(p or ".").resolve() != pathlib.Path(__file__).resolve().parent]
try:
    import tokenizers as hf
    from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
except ImportError:
    print("skipped: needs the Python package tokenizers")
    sys.exit(77)

CORPUS = """A gradient is summed before it is sent, and sent before it is used.
The reader of a line wants the line; the writer of the line has other plans.
Ten ranks wait for one rank, and the one rank waits for the ten.
What's measured is remembered; what isn't measured was never there, they'll say.
In 2031 the 12 oldest machines of the hall were still the fastest ones.
Größe, naïveté, façade: words that came from elsewhere and stayed.""".splitlines()
TEXTS = ["", " ", "the ranks wait", "  two spaces,  again\n\nand lines\t", "It isn't 2031; they'll wait.", "Größe naïveté",
         "e\u0301 is \u00e9 when composed", "\u4f60\u597d, \U0001f600!", "<|endoftext|>the<|im_start|> line", "<s>a line</s> <unk>",
         "THE THE the   the", "a\u00a0b\u3000c", "1234567 12.5e-3", "\u2581under\u2581", "\r\n\r\n x"]


def by_bytes():
    t = hf.Tokenizer(models.BPE())
    t.normalizer = normalizers.NFC()
    words = r"(?i:'s|'t|'ll)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(words), "isolated"),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    t.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=300, show_progress=False,
                                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    t.add_special_tokens(["<|endoftext|>", "<|im_start|>"])
    return t


def by_pieces():
    special = ["<unk>", "<s>", "</s>"]
    normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    t = hf.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.normalizer = normalizer
    trainer = trainers.BpeTrainer(vocab_size=420, show_progress=False, special_tokens=special + [f"<0x{b:02X}>" for b in range(256)],
                                  initial_alphabet=["\u2581"])
    t.train_from_iterator(CORPUS, trainer)
    model = json.loads(t.to_str())["model"]  # bytes are pieces of the model, not tokens of their own
    merges = [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in model["merges"]]
    t = hf.Tokenizer(models.BPE(model["vocab"], merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.normalizer = normalizer
    t.add_special_tokens([AddedToken(s, normalized=False, special=True) for s in special])
    t.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    t.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return t


def main():
    home = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).with_suffix(""))
    for name, t in (("bytes", by_bytes()), ("pieces", by_pieces())):
        folder = home / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tokenizer.json").write_text(json.dumps(json.loads(t.to_str()), ensure_ascii=False, separators=(",", ":")) + "\n")
        with open(folder / "cases.jsonl", "w") as out:
            for text in TEXTS:
                ids = t.encode(text).ids
                case = {"text": text, "ids": ids, "decoded": t.decode(ids, skip_special_tokens=False)}
                out.write(json.dumps(case, ensure_ascii=False) + "\n")
        if name == "pieces":
            (folder / "special_tokens_map.json").write_text('{"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}\n')
        print(f"{folder}: {t.get_vocab_size()} tokens, {len(TEXTS)} cases")


main()
