#!/usr/bin/env python3
"""text.py - writes tests/golden/text: what other people's tokenizers and language models make of text of ours

usage: tests/text.py [part ...]      parts: ngram (default: all)

Offline. Needs PyPI's kenlm, and in KENLM_BUILD its build_binary (compiled from the sources in the same package).
Everything comes from the seed below, so that a run without changes changes nothing.
"""
import math
import os
import random
import subprocess
import sys
import tempfile

here = os.path.dirname(os.path.abspath(__file__))
golden = os.path.join(here, 'golden', 'text')
os.makedirs(golden, exist_ok=True)


def write(name, data):
    mode = 'wb' if isinstance(data, bytes) else 'w'
    with open(os.path.join(golden, name), mode, **({} if mode == 'wb' else {'encoding': 'utf-8', 'newline': ''})) as f:
        f.write(data)


# --- sentences of a small grammar ------------------------------------------------------------------------------

NOUNS = 'cat dog bird tree river house stone fish cloud ship'.split()
VERBS = 'sees likes follows finds leaves knows'.split()
WORDS = 'a the small old red quiet and but then again'.split()


def sentence(r):
    out = []
    while not out or r.random() < 0.5:
        out += [r.choice(['a', 'the'])] + r.sample(['small', 'old', 'red', 'quiet'], r.choice([0, 0, 1, 2]))
        out += [r.choice(NOUNS), r.choice(VERBS), r.choice(['a', 'the']), r.choice(NOUNS)]
        out += r.choice([[], [], ['and'], ['but', 'then'], ['again']])
    return out


# --- n-grams ---------------------------------------------------------------------------------------------------

def arpa(order, sentences, unk=True):
    """Absolute discounting, 0.4, with back-off; n-grams of order 3 that came once are left out."""
    counts = [{} for _ in range(order)]
    for s in sentences:
        w = ['<s>'] + s + ['</s>']
        for n in range(1, order + 1):
            for i in range(len(w) - n + 1):
                g = tuple(w[i:i + n])
                counts[n - 1][g] = counts[n - 1].get(g, 0) + 1
    for n in range(2, order):
        counts[n] = {g: c for g, c in counts[n].items() if c > 1}
    prob = [{} for _ in range(order)]
    backoff = [{} for _ in range(order)]
    total = sum(c for g, c in counts[0].items() if g != ('<s>',))
    for g, c in counts[0].items():
        prob[0][g] = 0 if g == ('<s>',) else 0.95 * c / total
    if unk:
        prob[0][('<unk>',)] = 0.05
    for n in range(1, order):
        mass, lower, sums = {}, {}, {}
        for g, c in counts[n].items():
            sums[g[:-1]] = sums.get(g[:-1], 0) + c
        for g, c in counts[n].items():
            prob[n][g] = (c - 0.4) / (sums[g[:-1]] + 1)
            mass[g[:-1]] = mass.get(g[:-1], 0) + prob[n][g]
            lower[g[:-1]] = lower.get(g[:-1], 0) + prob[n - 1].get(g[1:], 1e-4)
        for h in mass:
            backoff[n - 1][h] = (1 - mass[h]) / max(1e-3, 1 - lower[h])
    out = ['\\data\\'] + [f'ngram {n + 1}={len(prob[n])}' for n in range(order)]
    for n in range(order):
        out += ['', f'\\{n + 1}-grams:']
        for g in sorted(prob[n]):
            p = -99 if prob[n][g] <= 0 else math.log10(prob[n][g])
            tail = f'\t{math.log10(backoff[n][g]):.6g}' if g in backoff[n] else ''
            out.append(f'{p:.6g}\t{" ".join(g)}{tail}')
    return '\n'.join(out + ['', '\\end\\', ''])


def ngrams():
    import kenlm
    r = random.Random(7)
    train = [sentence(r) for _ in range(100)]
    write('ngram.arpa', arpa(4, train))
    write('nounk.arpa', arpa(2, train[:60], unk=False))
    tests = [sentence(r) for _ in range(26)] + [["zebra"], ['a', 'zebra', 'sees', 'the', 'cat'], ['cat', 'cat', 'cat'], []]
    kinds = {'probing': ['probing'], 'trie': ['trie'], 'quant': ['-q', '6', '-b', '5', 'trie'],
             'array': ['-a', '255', 'trie'], 'both': ['-q', '6', '-b', '5', '-a', '4', 'trie']}
    with tempfile.TemporaryDirectory() as tmp:
        files = {'arpa': os.path.join(golden, 'ngram.arpa'), 'nounk': os.path.join(golden, 'nounk.arpa')}
        for name, args in kinds.items():
            files[name] = os.path.join(golden, f'ngram.{name}')
            subprocess.run([os.environ['KENLM_BUILD'], '-T', tmp + '/t'] + args + [files['arpa'], files[name]], check=True,
                           stderr=subprocess.DEVNULL)
        lines = []
        for name, path in files.items():
            m = kenlm.Model(path)
            for s in tests:
                lines.append('\t'.join([name, ' '.join(s)] + [f'{p:.7g}' for p, _, _ in m.full_scores(' '.join(s))]))
        write('ngram.tsv', '\n'.join(lines) + '\n')


PARTS = {'ngram': ngrams}
for part in sys.argv[1:] or PARTS:
    PARTS[part]()
