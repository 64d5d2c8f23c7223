#!/usr/bin/env python3
"""rouge.py -- ROUGE of pairs of texts and stems of words by rouge_score and NLTK, for tests/unit/rewards_vision.c.

    tests/parity/rouge.py > tests/parity/rouge.json

The mean F-measure of rouge1, rouge2 and rougeL with stems, as VideoR1's reward takes it. Words are made of stems and the endings that
the algorithm knows, so that each of its rules is met. The file is committed. Needs the Python packages rouge_score and nltk.
"""
import json, random, sys

from nltk.stem.porter import PorterStemmer
from rouge_score import rouge_scorer

r = random.Random(4)
ENDINGS = ("s es ies sses ss ied eed ed ing y ational tional enci anci izer bli alli entli eli ousli ization ation ator alism iveness fulness ousness aliti "
           "iviti biliti fulli logi icate ative alize iciti ical ful ness al ance ence er ic able ible ant ement ment ent ion sion tion ou ism ate iti "
           "ous ive ize e ll le atoring ization bled ating izing").split()
STEMS = "tr hop fall fizz fil agr plast sk d l abc relat condit syll toy yell y yo controll adjust adopt hope cease rate roll ow box tray 7up gener oper".split()
WORDS = "skies sky dying lying tying news innings inning outings outing cannings canning howe proceed exceed succeed die dies ties cries tied spied cried relationally operationally educationally conditionally".split()
words = WORDS + [s + e for s in STEMS for e in r.sample(ENDINGS, 24)] + ["".join(r.choice("abeilosty") for _ in range(r.randint(3, 9))) for _ in range(200)]
words = sorted({w for w in words if len(w) > 2})
stems = {w: PorterStemmer().stem(w) for w in words}
scorer = rouge_scorer.RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=True)
TALK = ("The cats are running; the DOG runs home! A red car, 2 cars-and 3.5 m/s of it: running, runs, ran. Caf\u00e9 \u6c49\u5b57 under_score "
        "conditional conditions relational happiness happy is it").split()


def text(n): return " ".join(r.choice(TALK) for _ in range(n))


pairs = [("", ""), ("a", ""), ("", "a b"), ("the same text", "the same text"), ("\u6c49\u5b57", "\u6c49\u5b57"), ("one", "one")]
for _ in range(50):
    a = text(r.randint(1, 14))
    b = " ".join(w for w in a.split() if r.random() < 0.7) if r.random() < 0.5 else text(r.randint(1, 14))
    pairs.append((a, b))
out = [[a, b, sum(s.fmeasure for s in scorer.score(a, b).values()) / 3] for a, b in pairs]
json.dump(dict(stems=stems, pairs=out), sys.stdout, separators=(",", ":"))
