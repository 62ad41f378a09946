#!/usr/bin/env python3
"""torch_sequence - PyTorch's recurrent layers, for bench/sequence.c

usage: torch_sequence.py THREADS

Reads lines "MODE t n in hidden layers ways lengths rounds" from standard input and answers each with the
seconds of one of `rounds` runs, forward and backward: sequence.c runs its own in between. MODE is lstm, gru
or rnn; lengths 1: packed sequences of t / 2 to t steps."""
import sys
import time

import torch

torch.set_num_threads(int(sys.argv[1]))
MODULES = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU, "rnn": torch.nn.RNN}
KEPT = {}


def setup(mode, t, n, inputs, hidden, layers, ways, lengths):
    torch.manual_seed(1)
    net = MODULES[mode](inputs, hidden, layers, bidirectional=ways == 2)
    x = torch.rand(t, n, inputs, requires_grad=True)
    if lengths:
        steps = torch.tensor([t - (i * 7919) % (t // 2 + 1) for i in range(n)])
        pack = lambda: torch.nn.utils.rnn.pack_padded_sequence(x, steps, enforce_sorted=False)
        unpack = lambda y: torch.nn.utils.rnn.pad_packed_sequence(y, total_length=t)[0]
    else:
        pack, unpack = lambda: x, lambda y: y
    dy = torch.rand(t, n, ways * hidden)

    def run():
        net.zero_grad(set_to_none=True)
        x.grad = None
        unpack(net(pack())[0]).backward(dy)
    return run


print(torch.__version__, torch.get_num_threads(), flush=True)
for line in sys.stdin:
    mode, *numbers = line.split()
    *shape, rounds = map(int, numbers)
    key = (mode, *shape)
    if key not in KEPT:
        KEPT.clear()
        KEPT[key] = setup(*key)
        KEPT[key]()
    start = time.perf_counter()
    for _ in range(rounds):
        KEPT[key]()
    print((time.perf_counter() - start) / rounds, flush=True)
# MIT licence: see LICENSE.
