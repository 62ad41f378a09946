"""tokenizers_text.py - tokenizers, tiktoken and sentencepiece: seconds of a job each time its name comes (bench/tokenizers.c)

usage: tokenizers_text.py folder      the folder of ../shared/data/text; CPU seconds, one thread
"""
import os
import sys
import time

os.environ['TOKENIZERS_PARALLELISM'] = 'false'
os.environ['RAYON_NUM_THREADS'] = '1'
import sentencepiece
import tiktoken
import tokenizers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

folder = sys.argv[1]
text = open(os.path.join(folder, 'gutenberg/war_and_peace_2600-0.txt'), encoding='utf-8', newline='').read()
gpt2 = (os.path.join(folder, 'gpt2/encoder.json'), os.path.join(folder, 'gpt2/vocab.bpe'))


def hf_gpt2():
    t = Tokenizer(models.BPE.from_file(*gpt2))
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    return t


def hf_bert():
    vocab = {w: i for i, w in enumerate(open(os.path.join(folder, 'bert/bert-base-uncased-vocab.txt'), encoding='utf-8').read().split('\n')[:-1])}
    t = Tokenizer(models.WordPiece(vocab, unk_token='[UNK]'))
    t.normalizer = normalizers.BertNormalizer()
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return t


def train():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.train_from_iterator([text], trainers.BpeTrainer(vocab_size=8192, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))


from tiktoken.load import data_gym_to_mergeable_bpe_ranks
ranks = data_gym_to_mergeable_bpe_ranks(gpt2[1], gpt2[0])
tik = tiktoken.Encoding('gpt2', pat_str=__import__('tiktoken_ext.openai_public', fromlist=['x']).r50k_pat_str, mergeable_ranks=ranks,
                        special_tokens={'<|endoftext|>': 50256})
fast, bert = hf_gpt2(), hf_bert()
sp = sentencepiece.SentencePieceProcessor(model_file=os.path.join(folder, 'sentencepiece/test_model.model'))
jobs = {'gpt2:tokenizers': lambda: fast.encode(text), 'gpt2:tiktoken': lambda: tik.encode_ordinary(text),
        'wordpiece:tokenizers': lambda: bert.encode(text), 'unigram:sentencepiece': lambda: sp.encode(text), 'train:tokenizers': train,
        'load:tokenizers': hf_gpt2}
made = 'build/bench-vocabularies/'  # by bench/tokenizers.c


def load_ranks():
    return tiktoken.Encoding('made', pat_str=__import__('tiktoken_ext.openai_public', fromlist=['x']).r50k_pat_str,
                             mergeable_ranks=tiktoken.load.load_tiktoken_bpe(made + 'ranks.tiktoken'), special_tokens={})


for name in ('bpe.json', 'wordpiece.json', 'unigram.json'):
    jobs[name + ':tokenizers'] = lambda name=name: Tokenizer.from_file(made + name)
jobs['ranks.tiktoken:tiktoken'] = load_ranks
jobs['unigram.model:sentencepiece'] = lambda: sentencepiece.SentencePieceProcessor(model_file=made + 'unigram.model')
print(f'tokenizers {tokenizers.__version__}, tiktoken {tiktoken.__version__}, sentencepiece {sentencepiece.__version__}', flush=True)
for line in sys.stdin:
    start = time.process_time()
    jobs[line.strip()]()
    print(time.process_time() - start, flush=True)
# MIT licence: see LICENSE.
