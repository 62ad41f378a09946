#!/usr/bin/env python3
"""text.py - writes tests/golden/text: what other people's tokenizers and language models make of text of ours

usage: tests/text.py [part ...]      parts: ngram, tokenizers, unigram_training, unicode, peers (default: all)

Offline. Needs PyPI's tokenizers, tiktoken and sentencepiece, Debian's unicode-data, ../shared/data/text for the part peers, kenlm, and in KENLM_BUILD its build_binary (compiled from the sources in the same package).
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


# --- tokenizers ------------------------------------------------------------------------------------------------

LANGUAGES = """The quick brown fox jumps over the lazy dog; it's what we'll say, isn't it? I'm sure they'd agree: you've seen 1234567 of 42.
Der schnelle braune Fuchs springt über den faulen Hund. Größe, Straße, Äpfel, Öl und Übermut: fünf Wörter.
Le café était fermé à Noël; où êtes-vous allés? Ça coûte 3,50 €. L'œuvre naïve d'un garçon.
El niño comió piñas y cantó: ¡qué alegría! ¿Dónde está la señora?
Быстрая коричневая лиса прыгает через ленивую собаку. Ещё чуть-чуть, и всё будет хорошо.
Η γρήγορη καφέ αλεπού πηδάει πάνω από τον τεμπέλη σκύλο. Ὁ βίος βραχύς.
吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。カタカナとひらがな、漢字。
敏捷的棕色狐狸跳过了懒狗。今天天气很好,我们去公园吧。
빠른 갈색 여우가 게으른 개를 뛰어넘는다. 안녕하세요, 반갑습니다.
الثعلب البني السريع يقفز فوق الكلب الكسول. مرحبا بالعالم
השועל החום המהיר קופץ מעל הכלב העצלן. שלום עולם
तेज़ भूरी लोमड़ी आलसी कुत्ते के ऊपर कूदती है। नमस्ते दुनिया
สุนัขจิ้งจอกสีน้ำตาลกระโดดข้ามสุนัขขี้เกียจ
for (int i = 0; i < n; i++) { sum += a[i] * b[i]; } // inner product
def f(x, *args, **kw): return {'a': x ** 2, "b": [y for y in args if y != None]}
<html><body class="x">&amp; text</body></html> https://example.org/a/b?c=d&e=f#g user@example.org
"""


def corpus():
    r = random.Random(5)
    lines = LANGUAGES.strip().split('\n')
    out = []
    for i in range(1500):
        s = ' '.join(sentence(r))
        out.append(s[0].upper() + s[1:] + r.choice('..!?'))
        if i % 5 == 0:
            out.append(r.choice(lines))
    return '\n'.join(out) + '\n'


def strings():
    """Everything that may go wrong: categories, marks, Hangul, emoji, spaces, line ends, digits, code, long words."""
    import unicodedata
    r = random.Random(9)
    old = set()  # code points of Unicode 7: the tables of the wheels are of various ages
    for line in open('/usr/share/unicode/DerivedAge.txt', encoding='utf-8'):
        fields = line.split('#')[0].split(';')
        if len(fields) == 2 and float(fields[1]) <= 7:
            ends = fields[0].strip().split('..')
            old.update(range(int(ends[0], 16), int(ends[-1], 16) + 1))
    lines = LANGUAGES.strip().split('\n')
    out = ['', ' ', '  ', '\n', '\r\n', '\t', 'a', ' a', 'a ', '  a  b  ', 'a\n', 'a\r\nb', 'a\n\n\nb', '\n\n', ' \n \n ', 'a  \n  b   ',
           "it's I'm you're we've he'd they'll", "IT'S I'M YOU'RE WE'VE HE'D THEY'LL", "'s's't'", "don\u2019t", "x'\u017f y'S z'LL",
           '1', '12', '123', '1234', '12345678', '1,234.56', '\u0661\u0662\u0663', '\u00bd\u2460\u2167', '3.14e-10', 'a1b2c3', '0x1F',
           'e\u0301', '\u00e9', 'a\u0300\u0316\u0301', '\u1e9b\u0323', '\u212b\u00c5A\u030a', '\ufb01\ufb02', '\u0130I\u0131i', '\u00df\u1e9e', '\u03a3\u03c3\u03c2',
           '\ud55c\uae00', '\u1112\u1161\u11ab', '\u1100\u1161', '\uac00\u11a8', '\uff21\uff42\uff23', '\uff76\uff9e', '\u3000x\u3000', '\u00a0x\u00a0y', '\u2003\u2009z',
           '\u200b\u200c\u200d', 'a\u200db', '\ufeffbom', '\u00adsoft', '\u2028\u2029', '\x00nul\x00', 'a\x00b', '\x01\x02\x1f\x7f', '\x85\x8f\x9f', '\ufffd', '\ufffe',
           '\U0001f600', '\U0001f468\u200d\U0001f469\u200d\U0001f467', '\U0001f44d\U0001f3fd', '\U0001f1e9\U0001f1ea\U0001f1eb', '\u2764\ufe0f', '1\ufe0f\u20e3',
           '\u2581', '\u2581a', 'a\u2581b', '\u2581\u2581', ' \u2581 ', '##a', '[CLS]', '[MASK]', 'a[SEP]b', '[UNK] [unk]', '<s>', '</s>', '<unk>', '<0x41>', '<|end|>', 'x<|end|>y',
           ' <|end|> <|end|>', '<|end|', 'user <sep> symbol', 'a<sep>b', '<sep>', '\u4e2d\u6587abc', 'abc\u4e2d\u6587', '\u3042\u30a2\u6f22', '\u30fc\u30fc', '\U00020000\U0002a700',
           '$+<=>^`|~', '!"#%&\'()*,-./:;?@[\\]_{}', '\u00a1\u00bf\u2014\u2026\u201c\u201d', 'HelloWorldFooBAR', 'HTTPServer', 'iPhone', '\u00c9COLE', '\u01c5\u01c4', 'a/b//c\n/', 'x/\n/',
           'a' * 50, 'a' * 100, 'a' * 101, 'ab' * 3000, 'word ' * 60, ' ' * 30 + 'x', '\u00e9' * 101, '\u3042' * 300, '\n' * 20, '.' * 40, '-' * 33 + 'x', '9' * 25]
    out += lines
    for category in 'Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cf Co'.split():
        chars = [chr(c) for c in range(0x110000) if c in old and unicodedata.category(chr(c)) == category and not 0xd800 <= c < 0xe000]
        for _ in range(5):
            some = [r.choice(chars) for _ in range(r.randint(1, 6))]
            out.append(''.join(r.choice(['', ' ', 'a', '1', '.']) + c for c in some))
    words = [w for line in lines for w in line.split(' ')]
    while len(out) < 640:
        n = r.randint(1, 12)
        s = ''.join(r.choice(words + NOUNS + VERBS) + r.choice([' ', ' ', ' ', '  ', '', '\n', ', ', '\t']) for _ in range(n))
        if r.random() < 0.2:
            s = ''.join(r.choice([c, c, c.upper(), c + '\u0301']) for c in s)
        out.append(s)
    return out


def crc(values):
    import zlib
    return f'{zlib.crc32(" ".join(map(str, values)).encode()):08x}'


def check_line(ids, offsets, text):
    import zlib
    flat = [x for pair in offsets for x in pair]
    return f'{crc(ids)} {crc(flat)} {zlib.crc32(text.encode("utf-8", "replace")):08x}'


def hf(name, tok, texts, lines):
    tok.save(os.path.join(golden, name + '.json'), pretty=False)
    import unicodedata
    for i, s in enumerate(texts):
        if name == 'words' and any(unicodedata.category(c) in ('Co', 'Cn') for c in s):
            continue  # the wheel's UnicodeScripts loses text of no script
        e = tok.encode(s)
        lines.append(f'{name}\t{i}\t{check_line(e.ids, e.offsets, tok.decode(e.ids, skip_special_tokens=False))}')
    for i in range(0, 60, 2):
        e = tok.encode(texts[i * 9 % 600], texts[(i + 1) * 9 % 600])
        lines.append(f'{name}\tp{i}\t{check_line(e.ids, e.offsets, "")} {crc(e.type_ids)} {crc(e.special_tokens_mask)}')


def tokenizers_():
    import json
    import sentencepiece as spm
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    text, texts, lines = corpus(), strings(), []
    write('strings.json', json.dumps(texts, ensure_ascii=False))
    source = [text]
    splits = {'gpt2': None, 'llama3': LLAMA3, 'qwen2': QWEN2, 'o200k': O200K, 'cl100k': CL100K}
    for name, split in splits.items():
        t = Tokenizer(models.BPE())
        if name == 'qwen2':
            t.normalizer = normalizers.NFC()
        t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False) if not split else pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(split), 'isolated'), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        t.decoder = decoders.ByteLevel()
        t.train_from_iterator(source, trainers.BpeTrainer(vocab_size=600, special_tokens=['<|end|>'], show_progress=False,
                                                          initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
        if name == 'gpt2':
            t.post_processor = processors.ByteLevel(trim_offsets=True)
        hf(name, t, texts, lines)
    # RoBERTa: a space in front, its post-processor, padding and truncation in the file
    t = Tokenizer.from_file(os.path.join(golden, 'gpt2.json'))
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    t.add_special_tokens(['<s>', '</s>', '<pad>'])
    t.post_processor = processors.RobertaProcessing(('</s>', t.token_to_id('</s>')), ('<s>', t.token_to_id('<s>')), True, True)
    t.enable_truncation(20, stride=3)
    t.enable_padding(pad_id=t.token_to_id('<pad>'), pad_token='<pad>', pad_to_multiple_of=8)
    hf('roberta', t, texts, lines)
    # BERT
    for name, lower in [('bert', True), ('bert_cased', False)]:
        t = Tokenizer(models.WordPiece(unk_token='[UNK]'))
        t.normalizer = normalizers.BertNormalizer(lowercase=lower)
        t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        t.decoder = decoders.WordPiece()
        t.train_from_iterator(source, trainers.WordPieceTrainer(vocab_size=700, show_progress=False,
                                                                special_tokens=['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]']))
        cls, sep = t.token_to_id('[CLS]'), t.token_to_id('[SEP]')
        t.post_processor = processors.TemplateProcessing(single='[CLS] $A [SEP]', pair='[CLS] $A [SEP] $B:1 [SEP]:1',
                                                         special_tokens=[('[CLS]', cls), ('[SEP]', sep)])
        if not lower:
            t.enable_truncation(15, strategy='longest_first', direction='left')
            t.enable_padding(length=16, direction='left', pad_id=0, pad_token='[PAD]')
        hf(name, t, texts, lines)
    # Unigram as T5 and XLM-R have it, with byte fallback
    for name, scheme, fallback in [('unigram', 'always', False), ('unigram_bytes', 'first', True)]:
        t = Tokenizer(models.Unigram())
        t.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(' {2,}'), ' ')]) if not fallback else normalizers.NFKD()
        t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
        t.decoder = decoders.Metaspace(prepend_scheme=scheme)
        special = ['<unk>', '<s>', '</s>'] + ([f'<0x{b:02X}>' for b in range(256)] if fallback else [])
        t.train_from_iterator(source, trainers.UnigramTrainer(vocab_size=500 + len(special), show_progress=False, special_tokens=special, unk_token='<unk>'))
        j = json.loads(t.to_str())
        j['added_tokens'] = [a for a in j['added_tokens'] if not a['content'].startswith('<0x')]
        j['model']['byte_fallback'] = fallback
        if name == 'unigram':  # what needs PCRE2 in C: written as a string
            j['normalizer'] = {'type': 'Sequence', 'normalizers': [{'type': 'NFKC'}, {'type': 'Replace', 'pattern': {'String': '  '}, 'content': ' '}]}
        if fallback:
            j['decoder'] = {'type': 'Sequence', 'decoders': [{'type': 'ByteFallback'}, {'type': 'Metaspace', 'replacement': '\u2581', 'prepend_scheme': scheme, 'split': True}]}
        hf(name, Tokenizer.from_str(json.dumps(j)), texts, lines)
    # character BPE: Llama 2's shape, and an end of word
    t = Tokenizer(models.BPE(unk_token='<unk>', fuse_unk=True, byte_fallback=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend('\u2581'), normalizers.Replace(' ', '\u2581')])
    t.decoder = decoders.Sequence([decoders.Replace('\u2581', ' '), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(' ', 1, 0)])
    special = ['<unk>', '<s>', '</s>'] + [f'<0x{b:02X}>' for b in range(256)]
    t.train_from_iterator([w for w in text.replace('\n', ' ').split(' ')], trainers.BpeTrainer(vocab_size=800, special_tokens=special, show_progress=False, limit_alphabet=120))
    j = json.loads(t.to_str())
    j['added_tokens'] = [a for a in j['added_tokens'] if not a['content'].startswith('<0x')]
    j['post_processor'] = json.loads(processors.TemplateProcessing(single='<s> $A', pair='<s> $A <s>:1 $B:1', special_tokens=[('<s>', 1)]).__getstate__())
    hf('llama', Tokenizer.from_str(json.dumps(j)), texts, lines)
    t = Tokenizer(models.BPE(unk_token='<unk>', end_of_word_suffix='</w>'))
    t.normalizer = normalizers.Sequence([normalizers.Strip(), normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()])
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation('merged_with_previous'), pre_tokenizers.Digits(True)])
    t.decoder = decoders.BPEDecoder()
    t.train_from_iterator(source, trainers.BpeTrainer(vocab_size=400, special_tokens=['<unk>'], end_of_word_suffix='</w>', show_progress=False, limit_alphabet=60))
    hf('suffix', t, texts, lines)
    # words
    t = Tokenizer(models.WordLevel(unk_token='<unk>'))
    t.normalizer = normalizers.Nmt()
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.UnicodeScripts()])
    t.train_from_iterator(source, trainers.WordLevelTrainer(vocab_size=300, special_tokens=['<unk>'], show_progress=False))
    t.add_tokens([__import__('tokenizers').AddedToken('the old', single_word=True), __import__('tokenizers').AddedToken('<sep>', lstrip=True, rstrip=True, normalized=False)])
    hf('words', t, texts, lines)
    # sentencepiece
    with tempfile.NamedTemporaryFile('w', suffix='.txt', encoding='utf-8') as f:
        f.write(text)
        f.flush()
        for name, kind, more in [('sp_unigram', 'unigram', {}), ('sp_bpe', 'bpe', dict(byte_fallback=True, character_coverage=0.98, normalization_rule_name='identity')),
                                 ('sp_raw', 'unigram', dict(normalization_rule_name='identity', add_dummy_prefix=False, remove_extra_whitespaces=False,
                                                            user_defined_symbols=['<sep>'], split_by_whitespace=False))]:
            spm.SentencePieceTrainer.train(input=f.name, model_prefix=os.path.join(golden, name), model_type=kind, vocab_size=700 if kind == 'unigram' else 900,
                                           hard_vocab_limit=False, minloglevel=2, num_threads=1, **more)
            os.remove(os.path.join(golden, name + '.vocab'))
            sp = spm.SentencePieceProcessor(model_file=os.path.join(golden, name + '.model'))
            for i, s in enumerate(texts):
                if '\x00' in s:
                    continue
                p = sp.encode(s, return_type='proto')
                ids = [x.id for x in p.pieces]
                chars = [len(s.encode()[:at].decode('utf-8', 'ignore')) for x in p.pieces for at in (x.begin, x.end)]
                lines.append(f'{name}\t{i}\t{check_line(ids, zip(chars[::2], chars[1::2]), sp.decode(ids))}')
    write('tokenizers.tsv', '\n'.join(lines) + '\n')


def best_way(word, scores):
    """The score of the best pieces of a word."""
    best = [0] + [-math.inf] * len(word)
    for end in range(1, len(word) + 1):
        best[end] = max((best[k] + scores.get(word[k:end], -math.inf) for k in range(max(0, end - 16), end)), default=-math.inf)
    return best[-1]


def unigram_training():
    """Text of made-up words with endings, and how probable it is with the pieces that sentencepiece learns of it."""
    import sentencepiece as spm
    r = random.Random(11)
    syllables = [a + b for a in 'bdfgklmnprstv' for b in 'aeiou']
    stems = [''.join(r.choice(syllables) for _ in range(r.randint(1, 3))) for _ in range(300)]
    ends = ['', '', '', 's', 'ing', 'ed', 'er', 'ness', 'ly']
    words = [r.choice(stems[:10 + int(290 * r.random() ** 2)]) + r.choice(ends) for _ in range(6000)]
    text = '\n'.join(' '.join(words[i:i + 12]) for i in range(0, len(words), 12)) + '\n'
    write('unigram_train.txt', text)
    with tempfile.TemporaryDirectory() as folder:
        spm.SentencePieceTrainer.train(input=os.path.join(golden, 'unigram_train.txt'), model_prefix=folder + '/m', model_type='unigram',
                                       vocab_size=300, normalization_rule_name='identity', minloglevel=2, num_threads=1)
        sp = spm.SentencePieceProcessor(model_file=folder + '/m.model')
    scores = {sp.id_to_piece(i): sp.get_score(i) for i in range(3, sp.get_piece_size())}
    write('unigram_train.tsv', f'{sum(best_way(chr(0x2581) + w, scores) for w in words):.3f}\t{sum(len(sp.encode(w)) for w in words)}\n')


def digest(values):
    """Of integers, 32 bits each."""
    import array
    import zlib
    return f'{zlib.crc32(array.array("i", list(values)).tobytes()):08x}'


def unicode_():
    """What the Unicode database says of each code point, in its own words: nothing of tests/unicode.py is used."""
    def rows(name):
        for line in open('/usr/share/unicode/' + name, encoding='utf-8'):
            fields = [f.strip() for f in line.split('#')[0].split(';')]
            if len(fields) > 1:
                ends = fields[0].split('..')
                yield int(ends[0], 16), int(ends[-1], 16) + 1, fields
    names = 'Cn Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cs Co'.split()
    n = 0x110000
    category, combining, lower, part, first = [0] * n, [0] * n, list(range(n)), {}, 0
    for c, _, f in rows('UnicodeData.txt'):
        first = c if not f[1].endswith('Last>') else first
        category[first:c + 1] = [names.index(f[2])] * (c + 1 - first)
        combining[c] = int(f[3])
        if f[13]:
            lower[c] = int(f[13], 16)
        if f[5]:
            part[c] = (f[5][0] != '<', [int(x, 16) for x in f[5].split() if x[0] != '<'])
    white = {c for a, b, f in rows('PropList.txt') if f[1] == 'White_Space' for c in range(a, b)}
    excluded = {c for a, b, f in rows('DerivedNormalizationProps.txt') if f[1] == 'Full_Composition_Exclusion' for c in range(a, b)}
    script = ['Unknown'] * n
    for a, b, f in rows('Scripts.txt'):
        script[a:b] = [f[1]] * (b - a)

    def whole(c, compatible):
        if 0xac00 <= c < 0xd7a4:
            s = c - 0xac00
            return [0x1100 + s // 588, 0x1161 + s % 588 // 28] + ([0x11a7 + s % 28] if s % 28 else [])
        if c in part and (part[c][0] or compatible):
            return [x for y in part[c][1] for x in whole(y, compatible)]
        return [c]
    out = [('category', digest(category)), ('white', digest(sorted(white))), ('combining', digest(combining))]
    out += [('lower', digest([lower[c] if c != 0x130 else 0x69 for c in range(n)]))]
    for name, compatible in ('canonical', False), ('compatible', True):
        out.append((name, digest([x for c in range(n) for w in [whole(c, compatible)] for x in [len(w)] + w])))
    pairs = [(p[1][0], p[1][1], c) for c, p in sorted(part.items()) if p[0] and len(p[1]) == 2]
    out.append(('compose', digest([0 if c in excluded else c for a, b, c in pairs])))
    out.append(('pairs', ' '.join(f'{a:x} {b:x}' for a, b, c in pairs)))
    out.append(('script', digest([x for c in range(n) for x in script[c].encode()])))
    write('unicode.tsv', ''.join(f'{a}\t{b}\n' for a, b in out))


def stems():
    """Words that begin alike, so that no two pairs of WordPiece's trainer come equally often: its order would be chance."""
    state, words = 12345, []

    def draw(n):
        nonlocal state
        state = (state * 1103515245 + 12345) % 2 ** 31
        return (state >> 16) % n
    for _ in range(40):
        stem = ''.join(chr(97 + draw(26)) for _ in range(7))
        for length in range(2, 8):
            words += [stem[:length]] * (1 + draw(40))
    return ' '.join(words)


def runs():
    """Ids of runs of one character, which have many ways of equal score: rounding decides. The last one's score is below -100,000."""
    import sentencepiece as spm
    from sentencepiece import sentencepiece_model_pb2 as pb
    model = pb.ModelProto()
    pieces = [('<unk>', 0, 2), ('<s>', 0, 3), ('</s>', 0, 3), ('\u2581', -3.774301767349243, 1), ('.', -3.5008492469787598, 1),
              ('......', -7.288172721862793, 1), ('-', -5.132013320922852, 1), ('--', -7.80125617980957, 1)]
    for piece, score, kind in pieces:
        model.pieces.add(piece=piece, score=score, type=kind)
    model.trainer_spec.model_type = 1
    sp = spm.SentencePieceProcessor(model_proto=model.SerializeToString())
    texts = [c * n for c in '.-' for n in range(1, 301)] + ['.' * 130000]
    return f'runs\t{len(texts)}\t{digest([x for s in texts for x in sp.encode(s) + [-1]])}'


def peers():
    """Merges learnt; what truncation cuts off; tiktoken; whole files of ../shared, by vocabularies that are there."""
    import json
    import sentencepiece as spm
    import tiktoken
    from tokenizers import BertWordPieceTokenizer, ByteLevelBPETokenizer, Tokenizer, models, pre_tokenizers, trainers
    lines, texts = [], strings()
    made_up = open(os.path.join(golden, 'unigram_train.txt'), encoding='utf-8').read()
    for name, text in [('words', made_up), ('strings', '\n'.join(texts))]:
        t = Tokenizer(models.BPE())
        t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        t.train_from_iterator([text], trainers.BpeTrainer(vocab_size=1500, show_progress=False, special_tokens=['<|end|>'], min_frequency=2,
                                                          initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
        tokens = '\n'.join(t.id_to_token(i) for i in range(t.get_vocab_size()))
        lines.append(f'merges\t{name}\t{t.get_vocab_size()}\t{digest(tokens.encode())}')
    t = Tokenizer(models.WordPiece(unk_token='[UNK]'))
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.train_from_iterator([stems()], trainers.WordPieceTrainer(vocab_size=280, show_progress=False, min_frequency=2,
                                                               special_tokens=['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]']))
    joined = [s for s in map(t.id_to_token, range(5, t.get_vocab_size())) if len(s.removeprefix('##')) > 1]
    lines.append(f'pieces\t{len(joined)}\t{digest(chr(10).join(joined).encode())}')
    r = random.Random(13)
    for name in ['bert', 'roberta', 'llama', 'unigram', 'gpt2']:
        t = Tokenizer.from_file(os.path.join(golden, name + '.json'))
        while sum(line.startswith('cut\t' + name) for line in lines) < 40:
            a, b, pair, left, pad_left = r.randrange(600), r.randrange(600), r.random() < .6, r.random() < .3, r.random() < .3
            most, strategy, length = r.randint(8, 40), r.randrange(3), r.choice([0, 8, 30])
            stride = r.randint(0, 2)
            t.enable_truncation(most, stride=stride, strategy=['longest_first', 'only_first', 'only_second'][strategy], direction='left' if left else 'right')
            t.enable_padding(direction='left' if pad_left else 'right', pad_id=3, pad_type_id=1, pad_token='?', length=length or None)
            try:
                e = t.encode(texts[a], texts[b] if pair else None)
                parts = [e] + e.overflowing
            except BaseException:  # no room for the first text, no second one, a panic
                continue
            said = digest([x for p in parts for q in (p.ids, p.type_ids, p.special_tokens_mask, p.attention_mask) for x in q])
            lines.append(f'cut\t{name}\t{a} {b if pair else -1} {most} {stride} {strategy} {int(left)} {int(pad_left)} {length}\t{len(parts)}\t{said}')
    for name in sorted(f[:-5] for f in os.listdir(golden) if f.endswith('.json') and f != 'strings.json'):
        t = Tokenizer.from_file(os.path.join(golden, name + '.json'))
        t.no_truncation(), t.no_padding()
        ids = t.encode('abcdefg' * 1430).ids
        lines.append(f'long\t{name}\t{len(ids)}\t{digest(ids)}')
    for name, split in [('cl100k', CL100K), ('o200k', O200K)]:
        vocab = json.load(open(os.path.join(golden, name + '.json'), encoding='utf-8'))['model']['vocab']
        byte_of = {c: b for b, c in zip(BYTES, CHARS)}
        ranks = {bytes(byte_of[c] for c in k): v - 1 for k, v in vocab.items() if v}
        t = tiktoken.Encoding(name, pat_str=split, mergeable_ranks=ranks, special_tokens={})
        lines.append(f'tiktoken\t{name}\t{len(texts)}\t{digest([x for s in texts for x in t.encode_ordinary(s) + [-1]])}')
    text = os.path.join(here, '..', '..', 'shared', 'data', 'text')
    files = ['gutenberg/war_and_peace_2600-0.txt', 'sentencepiece/botchan.txt', 'sentencepiece/wagahaiwa_nekodearu.txt', 'tinyshakespeare/input.txt', 'wikitext-2/test.txt']
    gpt2 = [text + '/gpt2/' + f for f in ('encoder.json', 'vocab.bpe')]
    gpt2 = ByteLevelBPETokenizer(*gpt2)
    bert = BertWordPieceTokenizer(text + '/bert/bert-base-uncased-vocab.txt')
    for f in files:
        s = open(os.path.join(text, f), encoding='utf-8', newline='').read()
        for name, e in [('gpt2', gpt2.encode(s)), ('bert', bert.encode(s, add_special_tokens=False))]:
            lines.append(f'file\t{name}\t{f}\t{len(e.ids)}\t{digest(e.ids)}\t{digest([x for o in e.offsets for x in o])}')
        for name in ['test_model', 'test_ja_model', 'librispeech_unigram5000']:
            sp = spm.SentencePieceProcessor(model_file=f'{text}/sentencepiece/{name}.model')
            ids = [x for line in s.split('\n') for x in sp.encode(line) + [-1]]
            lines.append(f'file\t{name}\t{f}\t{len(ids)}\t{digest(ids)}\t0')
    lines.append(runs())
    write('peers.tsv', '\n'.join(lines) + '\n')


BYTES = [b for b in range(256) if 33 <= b < 127 or 161 <= b < 173 or b >= 174]
BYTES += [b for b in range(256) if b not in BYTES]
CHARS = [chr(b) if i < 188 else chr(256 + i - 188) for i, b in enumerate(BYTES)]
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace('{1,3}', '')
CL100K = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
O200K = '|'.join([r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
                  r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
                  r'\p{N}{1,3}', r' ?[^\s\p{L}\p{N}]+[\r\n/]*', r'\s*[\r\n]+', r'\s+(?!\S)', r'\s+'])

PARTS = {'ngram': ngrams, 'tokenizers': tokenizers_, 'unigram_training': unigram_training, 'unicode': unicode_, 'peers': peers}
os.environ['TOKENIZERS_PARALLELISM'] = 'false'
for part in sys.argv[1:] or PARTS:
    PARTS[part]()
# MIT licence: see LICENSE.
