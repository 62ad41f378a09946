"""torch_text_steps.py - steps of training in PyTorch, CPU seconds of a job each time its name comes (bench/text_steps.c)

usage: torch_text_steps.py threads     jobs: nano, lstm, gpt2, each with :compile behind it; memory: MB at most
"""
import resource
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(int(sys.argv[1]))


class Block(nn.Module):
    def __init__(self, d, heads, bias):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(d, bias=bias), nn.LayerNorm(d, bias=bias)
        self.qkv, self.out = nn.Linear(d, 3 * d, bias=bias), nn.Linear(d, d, bias=bias)
        self.up, self.down = nn.Linear(d, 4 * d, bias=bias), nn.Linear(4 * d, d, bias=bias)

    def forward(self, x):
        n, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(n, t, d))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate='tanh'))


class Gpt(nn.Module):
    def __init__(self, words, layers, d, heads, context, bias):
        super().__init__()
        self.words, self.places = nn.Embedding(words, d), nn.Embedding(context, d)
        self.blocks = nn.Sequential(*[Block(d, heads, bias) for _ in range(layers)])
        self.norm = nn.LayerNorm(d, bias=bias)

    def forward(self, x):
        x = self.words(x) + self.places.weight[:x.shape[1]]
        return F.linear(self.norm(self.blocks(x)), self.words.weight)


class Lstm(nn.Module):
    def __init__(self, words, d):
        super().__init__()
        self.words, self.lstm = nn.Embedding(words, d), nn.LSTM(d, d, 2, batch_first=True)
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, words, bias=False)

    def forward(self, x):
        return self.head(self.norm(self.lstm(self.words(x))[0]))


MAKERS = {'nano': (lambda: Gpt(65, 4, 128, 4, 64, False), 65, 12, 64, 5), 'lstm': (lambda: Lstm(10000, 256), 10000, 20, 35, 2),
          'gpt2': (lambda: Gpt(50257, 12, 768, 12, 1024, True), 50257, 1, 512, 1)}
jobs = {}


def make(name):
    kind, _, how = name.partition(':')
    maker, words, batch, length, steps = MAKERS[kind]
    m = maker()
    optim = torch.optim.AdamW(m.parameters(), lr=1e-4, fused=True)
    net = torch.compile(m) if how == 'compile' else m

    def run():
        for _ in range(steps):
            ids = torch.randint(0, words, (batch, length + 1))
            loss = F.cross_entropy(net(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
            optim.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(m.parameters(), 1)
            optim.step()
    run(), run()
    return run


print(f'PyTorch {torch.__version__}, {sys.argv[1]} threads', flush=True)
for line in sys.stdin:
    name = line.strip()
    if name == 'memory':
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, flush=True)
        continue
    if name not in jobs:
        jobs[name] = make(name)
    start = time.process_time()
    jobs[name]()
    print(time.process_time() - start, flush=True)
# MIT licence: see LICENSE.
