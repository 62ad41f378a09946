#!/usr/bin/env python3
"""unicode.py - writes fl/text/unicode.inc from the Unicode database (Debian: unicode-data)

usage: tests/unicode.py [folder]      default /usr/share/unicode

Runs, deltas and indices as bytes: what is small there is small here. fl/text/unicode.h says how they are read.
"""
import os
import sys

folder = sys.argv[1] if len(sys.argv) > 1 else '/usr/share/unicode'
CATEGORIES = 'Cn Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cs Co'.split()
SCRIPTS = []


def lines(name):
    for line in open(os.path.join(folder, name), encoding='utf-8'):
        line = line.split('#')[0].strip()
        if line:
            yield [field.strip() for field in line.split(';')]


def code_range(text):
    ends = text.split('..')
    return int(ends[0], 16), int(ends[-1], 16)


version = open(os.path.join(folder, 'PropList.txt'), encoding='utf-8').readline().split('-')[1].split('.txt')[0]
category, lower, single, compat, combining = {}, {}, {}, {}, {}
first = None
for f in lines('UnicodeData.txt'):
    c = int(f[0], 16)
    if f[1].endswith(', First>'):
        first = c
        continue
    for k in range(first if f[1].endswith(', Last>') else c, c + 1):
        category[k] = f[2]
    if f[13]:
        lower[c] = int(f[13], 16)
    if int(f[3]):
        combining[c] = int(f[3])
    if f[5]:
        parts = f[5].split()
        if parts[0].startswith('<'):
            compat[c] = [int(x, 16) for x in parts[1:]]
        else:
            single[c] = [int(x, 16) for x in parts]
excluded = set()
for f in lines('DerivedNormalizationProps.txt'):
    if f[1] == 'Full_Composition_Exclusion':
        a, b = code_range(f[0])
        excluded.update(range(a, b + 1))
white, script = set(), {}
for f in lines('PropList.txt'):
    if f[1] == 'White_Space':
        a, b = code_range(f[0])
        white.update(range(a, b + 1))
for f in lines('Scripts.txt'):
    a, b = code_range(f[0])
    if f[1] not in SCRIPTS:
        SCRIPTS.append(f[1])
    for c in range(a, b + 1):
        script[c] = f[1]
SCRIPTS.sort()
SCRIPTS.insert(0, 'Unknown')


def number(n, out):
    """Seven bits a byte, the low ones first; the last byte has no high bit."""
    while n >= 128:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)


def runs(of, default):
    """(length, value) of all code points."""
    out, c = [], 0
    while c < 0x110000:
        begin, value = c, of(c)
        while c < 0x110000 and of(c) == value:
            c += 1
        number(c - begin, out)
        out.append(value)
    return out


def zigzag(n):
    return 2 * n if n >= 0 else -2 * n - 1


def mapped(table):
    """Gap to the code point before, difference of what it maps to from the last difference, for each."""
    out, last, shift = [], 0, 0
    for c in sorted(table):
        number(c - last, out)
        number(zigzag(table[c] - c - shift), out)
        last, shift = c, table[c] - c
    return out


def decomposed(table):
    """Gap, 2 * length + excluded, then the characters, each as the difference from the one that stood there before."""
    out, last, before = [], 0, [0] * 20
    for c in sorted(table):
        number(c - last, out)
        number(2 * len(table[c]) + (c in excluded), out)
        for i, part in enumerate(table[c]):
            number(zigzag(part - before[i]), out)
            before[i] = part
        last = c
    return out


def cls(c):
    return CATEGORIES.index(category.get(c, 'Cn')) | (32 if c in white else 0)


tables = [
    ('class', runs(cls, 0)),
    ('script', runs(lambda c: SCRIPTS.index(script.get(c, 'Unknown')), 0)),
    ('combining', runs(lambda c: combining.get(c, 0), 0)),
    ('lower', mapped(lower)),
    ('canonical', decomposed(single)),
    ('compatible', decomposed(compat)),
]
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), '../fl/text/unicode.inc'), 'w') as out:
    out.write(f'/* fl/text/unicode.inc - classes, scripts, case and normal forms of Unicode {version}: tests/unicode.py writes it */\n')
    total = 0
    for name, data in tables:
        total += len(data)
        out.write(f'static const unsigned char fl__unicode_{name}[] = {{\n')
        line = '    '
        for b in data:
            item = f'{b},'
            if len(line) + len(item) > 108:
                out.write(line + '\n')
                line = '    '
            line += item
        out.write(line.rstrip() + '\n};\n')
    parts = sum(len(v) for v in single.values()) + sum(len(v) for v in compat.values())
    out.write(f'enum {{ FL__UNICODE_LOWER = {len(lower)}, FL__UNICODE_CANONICAL = {len(single)}, '
              f'FL__UNICODE_COMPATIBLE = {len(compat)}, FL__UNICODE_PARTS = {parts} }};\n')
    out.write('static const char *const fl__unicode_scripts[] = {\n    ')
    line = ''
    for i, s in enumerate(SCRIPTS):
        item = f'"{s}", '
        if len(line) + len(item) > 104:
            out.write(line.rstrip() + '\n    ')
            line = ''
        line += item
    out.write(line.rstrip().rstrip(',') + '\n};\n/* MIT licence: see LICENSE. */\n')
    print({name: len(data) for name, data in tables}, total, 'bytes')
# MIT licence: see LICENSE.
