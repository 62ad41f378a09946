#!/usr/bin/env python3
"""mnist_step_2_ranks of bench/dist.c in PyTorch: DistributedDataParallel over Gloo, two ranks of one thread

   python3 bench/peers/torch_dist.py"""
import os
import statistics
import sys
import tempfile
import time

os.environ["OMP_NUM_THREADS"] = "1"
import torch
import torch.distributed as dist
from torch import nn

ROUNDS = 15


def rank_of_two(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    net = nn.Sequential(nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5, padding=2),
                        nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(7 * 7 * 64, 1024), nn.ReLU(),
                        nn.Linear(1024, 10), nn.LogSoftmax(1))
    net = nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True)
    optim = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    x, y = torch.randn(32, 1, 28, 28), torch.randint(0, 10, (32,))
    wall, cpu = [], []
    for r in range(ROUNDS + 1):
        begin, c = time.perf_counter(), time.process_time()
        for _ in range(5):
            optim.zero_grad()
            nn.functional.nll_loss(net(x), y).backward()
            optim.step()
        if r:
            wall.append((time.perf_counter() - begin) / 5)
            cpu.append((time.process_time() - c) / 5)
    if rank == 0:
        print(f"mnist_step_2_ranks_torch\t{1e3 * statistics.median(wall):.4g}\tms\t"
              f"{1e3 * statistics.median(cpu):.2f} ms of CPU; joint batch 64, one thread each; torch {torch.__version__}")
    dist.barrier()
    dist.destroy_process_group()


def main():
    with tempfile.TemporaryDirectory() as folder:
        other = os.fork()
        rank_of_two(0 if other else 1, folder)
        if not other:
            os._exit(0)
        os.waitpid(other, 0)


if __name__ == "__main__":
    sys.exit(main())
