#!/usr/bin/env python3
"""step_<model>_2_ranks of bench/dist.c in PyTorch, two ranks of one thread over Gloo: DistributedDataParallel and SGD with
momentum, or, for zero1, FSDP (fully_shard that keeps parameters after forward) and AdamW

   python3 bench/peers/torch_dist.py mnist|resnet50|vit [ddp|zero1]"""
import os
import statistics
import sys
import tempfile
import time

os.environ["OMP_NUM_THREADS"] = "1"
import torch
import torch.distributed as dist
from torch import nn


def mnist():
    return nn.Sequential(nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5, padding=2),
                         nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(7 * 7 * 64, 1024), nn.ReLU(),
                         nn.Linear(1024, 10))


def build(name):
    if name == "mnist":
        return mnist(), (32, 1, 28, 28), 10
    import torchvision
    return {"resnet50": torchvision.models.resnet50, "vit": torchvision.models.vit_b_16}[name](), (4, 3, 224, 224), 1000


def rank_of_two(rank, folder, name, way):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    net, shape, classes = build(name)
    if way == "zero1":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        fully_shard(net, mesh=init_device_mesh("cpu", (2,)), reshard_after_forward=False)
        optim = torch.optim.AdamW(net.parameters(), lr=1e-4)
    else:
        net = nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True)
        optim = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    rounds, times = (15, 5) if name == "mnist" else (5, 1)
    wall, cpu = [], []
    for r in range(-2, rounds):
        begin, c = time.perf_counter(), time.process_time()
        for _ in range(times):
            x, y = torch.randn(shape), torch.randint(0, classes, shape[:1])
            optim.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optim.step()
        if r >= 0:
            wall.append((time.perf_counter() - begin) / times)
            cpu.append((time.process_time() - c) / times)
    if rank == 0:
        print(f"step_{name}_2_ranks_torch_{'fsdp' if way == 'zero1' else 'ddp'}\t{1e3 * statistics.median(wall):.4g}\tms\t"
              f"{1e3 * statistics.median(cpu):.1f} ms of CPU; torch {torch.__version__}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main():
    name, way = sys.argv[1], (sys.argv + ["ddp"])[2]
    with tempfile.TemporaryDirectory() as folder:
        other = os.fork()
        rank_of_two(0 if other else 1, folder, name, way)
        if not other:
            os._exit(0)
        os.waitpid(other, 0)


if __name__ == "__main__":
    sys.exit(main())
# MIT licence: see LICENSE.
