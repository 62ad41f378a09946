#!/usr/bin/env python3
"""The models of bench/models in PyTorch (1.13 or 2): bench/peers/torch_models.py vit --variant eager+huge --threads 2

Trains one model on a random batch, forward, backward and SGD with momentum, and prints the TSV line of
bench/README.md. Parts of a variant: eager or compile; channels-last; fused (the optimizer); huge (malloc
that keeps its memory, on huge pages); passive (OpenMP threads sleep while they wait); onepool (Debian's
OpenBLAS with OpenMP threads); mkl512 (MKL's AVX-512 on processors that are not Intel's). With --device
cuda: eager, or compile in one of PyTorch's modes, max-autotune or reduce-overhead; channels-last; fused;
f32 is strict, tf32 is TF32 everywhere, bf16 is autocast, as most programs have it, or with the part pure
bf16 parameters. Anything else is an error."""
import contextlib
import itertools
import json
import math
import os
import sys
import tempfile
import time

import common
import weights

ARGS = common.arguments(__doc__.split("\n")[0], list(common.PRESETS))

import torch
import torch.nn.functional as F
from torch import nn

NEW = int(torch.__version__.split(".")[0]) >= 2
VISION = ("alexnet", "vgg16", "resnet50", "resnet34", "detr", "capsule", "unet", "dcgan", "wgan")


# --- layers ------------------------------------------------------------------------------------------------

class Attention(nn.Module):
    """Of x to itself, or to `memory`."""

    def __init__(self, dim, heads, dropout=0.0, causal=False):
        super().__init__()
        self.heads, self.dropout, self.causal, self.flops = heads, dropout, causal, 0
        self.q, self.kv, self.out = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2) if NEW else \
            x.view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)

    def forward(self, x, memory=None):
        memory = x if memory is None else memory
        k, v = (self.split(y) for y in self.kv(memory).chunk(2, -1))
        q = self.split(self.q(x))
        self.flops = 4 * x.numel() * memory.shape[1]
        p = self.dropout if self.training else 0.0
        if NEW:
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=self.causal)
        else:
            s = torch.matmul(q / math.sqrt(q.shape[-1]), k.transpose(-2, -1))
            if self.causal:
                s = s + torch.full(s.shape[-2:], -math.inf).triu(1)
            y = torch.matmul(F.dropout(F.softmax(s, -1), p), v)
        return self.out(y.transpose(1, 2).reshape(x.shape))


class Block(nn.Module):
    """A transformer layer; with memory a decoder's."""

    def __init__(self, dim, heads, hidden, dropout=0.0, pre=True, act=F.relu, eps=1e-5, causal=False, memory=False):
        super().__init__()
        self.att, self.n1 = Attention(dim, heads, dropout, causal), nn.LayerNorm(dim, eps=eps)
        if memory:
            self.cross, self.n3 = Attention(dim, heads, dropout), nn.LayerNorm(dim, eps=eps)
        self.up, self.down, self.n2 = nn.Linear(dim, hidden), nn.Linear(hidden, dim), nn.LayerNorm(dim, eps=eps)
        self.drop, self.pre, self.act = nn.Dropout(dropout), pre, act

    def feed(self, x):
        return self.down(self.drop(self.act(self.up(x))))

    def forward(self, x, memory=None):
        if self.pre:
            x = x + self.drop(self.att(self.n1(x)))
            return x + self.drop(self.feed(self.n2(x)))
        x = self.n1(x + self.drop(self.att(x)))
        if memory is not None:
            x = self.n3(x + self.drop(self.cross(x, memory)))
        return self.n2(x + self.drop(self.feed(x)))


def relu_conv(cin, cout, k, **kw):
    return [nn.Conv2d(cin, cout, k, **kw), nn.ReLU(inplace=True)]


def conv_norm(cin, cout, k, stride=1):
    return [nn.Conv2d(cin, cout, k, stride=stride, padding=k // 2, bias=False), nn.BatchNorm2d(cout)]


def sinusoid(steps, dim):
    angle = torch.arange(steps)[:, None] * torch.exp(torch.arange(0, dim, 2) * (-math.log(10000.0) / dim))
    return torch.stack([angle.sin(), angle.cos()], 2).flatten(1)


# --- models ------------------------------------------------------------------------------------------------

def alexnet(tiny):
    return nn.Sequential(
        *relu_conv(3, 64, 11, stride=4, padding=2), nn.MaxPool2d(3, 2),
        *relu_conv(64, 192, 5, padding=2), nn.MaxPool2d(3, 2),
        *relu_conv(192, 384, 3, padding=1), *relu_conv(384, 256, 3, padding=1), *relu_conv(256, 256, 3, padding=1),
        nn.MaxPool2d(3, 2), nn.Flatten(),
        nn.Dropout(), nn.Linear(256 * 36, 4096), nn.ReLU(inplace=True),
        nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Linear(4096, common.CLASSES))


def vgg16(tiny):
    layers, c = [], 3
    for width, depth in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(depth):
            layers += relu_conv(c, width, 3, padding=1)
            c = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(
        *layers, nn.Flatten(), nn.Linear(512 * 49, 4096), nn.ReLU(inplace=True), nn.Dropout(),
        nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(4096, common.CLASSES))


class Residual(nn.Module):
    def __init__(self, cin, cout, stride, *body):
        super().__init__()
        self.body = nn.Sequential(*body)
        self.skip = nn.Sequential(*conv_norm(cin, cout, 1, stride)) if stride > 1 or cin != cout else nn.Identity()

    def forward(self, x):
        return F.relu(self.body(x) + self.skip(x), inplace=True)


def bottleneck(cin, mid, stride):
    return Residual(cin, 4 * mid, stride, *conv_norm(cin, mid, 1), nn.ReLU(inplace=True),
                    *conv_norm(mid, mid, 3, stride), nn.ReLU(inplace=True), *conv_norm(mid, 4 * mid, 1))


def basic(cin, mid, stride):
    return Residual(cin, mid, stride, *conv_norm(cin, mid, 3, stride), nn.ReLU(inplace=True), *conv_norm(mid, mid, 3))


def resnet_body(block, widen):
    layers, c = [*conv_norm(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)], 64
    for mid, depth, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for i in range(depth):
            layers.append(block(c, mid, stride if i == 0 else 1))
            c = widen * mid
    return nn.Sequential(*layers)


def resnet(block, widen):
    return nn.Sequential(resnet_body(block, widen), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                         nn.Linear(512 * widen, common.CLASSES))


def resnet50(tiny):
    return resnet(bottleneck, 4)


def resnet34(tiny):
    return resnet(basic, 1)


class Vit(nn.Module):
    def __init__(self, tiny, dim=768, heads=12, patch=16, side=224):
        super().__init__()
        self.patch = nn.Conv2d(3, dim, patch, stride=patch)
        self.cls = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos = nn.Parameter(torch.randn(1, 1 + (side // patch) ** 2, dim) * 0.02)
        depth = 2 if tiny else 12
        self.blocks = nn.Sequential(*[Block(dim, heads, 4 * dim, act=F.gelu, eps=1e-6) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(dim, eps=1e-6), nn.Linear(dim, common.CLASSES)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], 1) + self.pos
        return self.head(self.norm(self.blocks(x))[:, 0])


class Bert(nn.Module):
    def __init__(self, tiny, dim=1024):
        super().__init__()
        self.word, self.pos = nn.Embedding(common.WORDS, dim), nn.Parameter(torch.randn(1, 512, dim) * 0.02)
        self.drop = nn.Dropout(0.1)
        self.blocks = nn.Sequential(*[Block(dim, 16, 4 * dim, 0.1, act=F.gelu) for _ in range(2 if tiny else 24)])
        self.norm, self.mix = nn.LayerNorm(dim), nn.Linear(dim, dim)
        self.head = nn.Linear(dim, common.WORDS, bias=False)

    def forward(self, words):
        x = self.drop(self.word(words) + self.pos[:, :words.shape[1]])
        return self.head(F.gelu(self.mix(self.norm(self.blocks(x)))))


class Asr(nn.Module):
    def __init__(self, tiny, dim=768):
        super().__init__()
        self.conv, self.drop = nn.Conv1d(common.MELS, 2 * dim, 7, stride=3, padding=2), nn.Dropout(0.3)
        self.blocks = nn.ModuleList([Block(dim, 4, 3072, 0.4, pre=False) for _ in range(2 if tiny else 36)])
        self.left_out = common.left_out(len(self.blocks))
        self.head = nn.Linear(dim, common.PIECES)

    def forward(self, x):
        x = self.drop(F.glu(self.conv(F.layer_norm(x, x.shape[1:])), 1)).transpose(1, 2)
        x = x.float() + sinusoid(x.shape[1], x.shape[2])
        for i, block in enumerate(self.blocks):
            if not (self.training and i in self.left_out):
                x = block(x)
        return self.head(x)


class Lm(nn.Module):
    CUTOFFS = (10000, 50000, 150000)

    def __init__(self, tiny, dim=1024):
        super().__init__()
        sizes = [b - a for a, b in zip((0,) + self.CUTOFFS, self.CUTOFFS)]
        self.tables = nn.ModuleList([
            nn.Sequential(nn.Embedding(n, dim // 4 ** i), nn.Linear(dim // 4 ** i, dim, bias=False))
            for i, n in enumerate(sizes)])
        self.drop, depth = nn.Dropout(0.1), 1 if tiny else 16
        self.blocks = nn.Sequential(*[Block(dim, 8, 4 * dim, 0.1, pre=False, causal=True) for _ in range(depth)])
        self.criterion = nn.AdaptiveLogSoftmaxWithLoss(dim, self.CUTOFFS[-1], list(self.CUTOFFS[:-1]), div_value=4)

    def embed(self, words):
        flat, low = words.flatten(), 0
        out = torch.zeros(flat.numel(), self.criterion.in_features)
        for table, high in zip(self.tables, self.CUTOFFS):
            here = ((flat >= low) & (flat < high)).nonzero()[:, 0]
            out = out.index_copy(0, here, table(flat[here] - low).to(out.dtype))
            low = high
        return out.view(*words.shape, -1)

    def forward(self, words):
        dim = self.criterion.in_features
        return self.blocks(self.drop(self.embed(words) * math.sqrt(dim) + sinusoid(words.shape[1], dim)))


class Detr(nn.Module):
    QUERIES, KINDS = 100, 91

    def __init__(self, tiny, dim=256):
        super().__init__()
        self.body, self.project, self.dim = resnet_body(bottleneck, 4), nn.Conv2d(2048, dim, 1), dim
        for m in self.body.modules():
            if isinstance(m, nn.BatchNorm2d):  # frozen: a scale and a shift
                m.momentum = 0.0
                m.weight.requires_grad_(False), m.bias.requires_grad_(False)
        depth = 1 if tiny else 6
        self.encoder = nn.Sequential(*[Block(dim, 8, 2048, 0.1, pre=False) for _ in range(depth)])
        self.decoder = nn.ModuleList([Block(dim, 8, 2048, 0.1, pre=False, memory=True) for _ in range(depth)])
        self.queries = nn.Parameter(torch.randn(1, self.QUERIES, dim))
        self.kind = nn.Linear(dim, self.KINDS + 1)
        self.box = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, 4))

    def train(self, mode=True):
        super().train(mode)
        for m in self.body.modules():
            if isinstance(m, nn.BatchNorm2d):
                m.eval()
        return self

    def forward(self, x):
        x = self.project(self.body(x)).flatten(2).transpose(1, 2)
        memory = self.encoder(x + sinusoid(x.shape[1], self.dim))
        y, each = self.queries.expand(x.shape[0], -1, -1), []
        for block in self.decoder:
            y = block(y, memory)
            each.append((self.kind(y), self.box(y).sigmoid()))  # the losses of all layers, as in DETR
        return each


class Capsule(nn.Module):
    """Digit capsules by dynamic routing (arXiv 1710.09829), without the decoder."""

    def __init__(self, tiny):
        super().__init__()
        self.conv, self.primary = nn.Conv2d(1, 256, 9), nn.Conv2d(256, 256, 9, stride=2)
        self.weight = nn.Parameter(torch.randn(1152, 10, 16, 8) * 0.05)
        self.flops = 0

    @staticmethod
    def squash(x):
        square = (x * x).sum(-1, keepdim=True)
        return x * square.sqrt() / (1 + square)

    def forward(self, x):
        x = self.primary(F.relu(self.conv(x)))
        u = self.squash(x.view(x.shape[0], 32, 8, 36).transpose(2, 3).reshape(-1, 1152, 8))
        votes = torch.einsum("ijdk,nik->nijd", self.weight, u)
        self.flops = 2 * x.shape[0] * self.weight.numel()
        b = torch.zeros(votes.shape[:-1])
        for i in range(3):
            v = self.squash((b.softmax(2)[..., None] * votes).sum(1))
            if i < 2:
                b = b + (votes * v[:, None]).sum(-1)
        return (v * v).sum(-1).sqrt()


class GptSmall(nn.Module):
    WORDS = 65

    def __init__(self, tiny, dim=192):
        super().__init__()
        self.word, self.pos = nn.Embedding(self.WORDS, dim), nn.Parameter(torch.randn(1, 256, dim) * 0.02)
        self.blocks = nn.Sequential(*[Block(dim, 6, 4 * dim, act=F.gelu, causal=True) for _ in range(2 if tiny else 6)])
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, self.WORDS, bias=False)

    def forward(self, words):
        return self.head(self.norm(self.blocks(self.word(words) + self.pos[:, :words.shape[1]])))


class LstmLm(nn.Module):
    WORDS = 10000

    def __init__(self, tiny, dim=256):
        super().__init__()
        self.word, self.head = nn.Embedding(self.WORDS, dim), nn.Linear(dim, self.WORDS)
        self.lstm, self.flops = nn.LSTM(dim, dim, 3, batch_first=True), 0

    def forward(self, words):
        self.flops = 2 * words.numel() * sum(p.numel() for p in self.lstm.parameters() if p.dim() == 2)
        return self.head(self.lstm(self.word(words))[0])


class UNet(nn.Module):
    def __init__(self, tiny, width=32):
        super().__init__()
        conv = lambda i, o: [nn.Conv2d(i, o, 3, padding=1), nn.GroupNorm(8, o), nn.SiLU(inplace=True)]
        twice = lambda i, o: nn.Sequential(*conv(i, o), *conv(o, o))
        self.down = nn.ModuleList([twice(3, width), twice(width, 2 * width), twice(2 * width, 4 * width)])
        self.up = nn.ModuleList([twice(3 * width, width), twice(6 * width, 2 * width)])
        self.head = nn.Conv2d(width, 3, 1)

    def forward(self, x):
        a = self.down[0](x)
        b = self.down[1](F.avg_pool2d(a, 2))
        y = self.down[2](F.avg_pool2d(b, 2))
        for seen, up in ((b, self.up[1]), (a, self.up[0])):
            y = up(torch.cat([seen, F.interpolate(y, scale_factor=2, mode="bilinear", align_corners=False)], 1))
        return self.head(y)


class Gan(nn.Module):
    """Generator and critic learn in one step, as in bench/models/gan.c: forward gives the sum of their losses."""

    def __init__(self, norm, width=64, noise=100):
        super().__init__()
        layers, c, last = [], noise, 0
        for i in range(4):
            layers += [nn.ConvTranspose2d(c, 8 * width >> i, 4, 2 if i else 1, 1 if i else 0, bias=False),
                       nn.BatchNorm2d(8 * width >> i), nn.ReLU(inplace=True)]
            c = 8 * width >> i
        self.generator = nn.Sequential(*layers, nn.ConvTranspose2d(c, 3, 4, 2, 1), nn.Tanh())
        layers, c, self.norm = [], 3, norm
        for i in range(4):
            normed = norm and i > 0
            layers += [nn.Conv2d(c, width << i, 4, 2, 1, bias=not normed)]
            layers += [nn.BatchNorm2d(width << i)] if normed else []
            layers, c = layers + [nn.LeakyReLU(0.2, inplace=normed)], width << i
        self.critic = nn.Sequential(*layers, nn.Conv2d(c, 1, 4), nn.Flatten(0))

    def compile_parts(self, mode):
        self.generator.compile(mode=mode), self.critic.compile(mode=mode)

    def penalty(self, x, made, mix):
        between = (made + mix * (x - made)).requires_grad_()
        slope, = torch.autograd.grad(self.critic(between).sum(), between, create_graph=True)
        return 10 * (slope.square().sum((1, 2, 3)).sqrt() - 1).square().mean()

    def forward(self, batch):
        x, z, mix = batch
        made = self.generator(z)
        real, fake = self.critic(x).float(), self.critic(made.detach()).float()
        judged = lambda score, right: F.binary_cross_entropy_with_logits(score, torch.full_like(score, right))
        loss = judged(real, 1.0) + judged(fake, 0.0) if self.norm else \
            fake.mean() - real.mean() + self.penalty(x, made.detach(), mix)
        self.critic.requires_grad_(False)
        score = self.critic(made).float()
        self.critic.requires_grad_(True)
        return loss + (judged(score, 1.0) if self.norm else -score.mean())


MAKERS = dict(gpt_small=GptSmall, lstm_lm=LstmLm, unet=UNet, dcgan=lambda tiny: Gan(True),
              wgan=lambda tiny: Gan(False), vit_tiny=lambda tiny: Vit(tiny, 192, 3, 4, 32),
              alexnet=alexnet, vgg16=vgg16, resnet50=resnet50, resnet34=resnet34, vit=Vit, bert=Bert, asr=Asr,
              lm=Lm, detr=Detr, capsule=Capsule)


# --- data and losses ---------------------------------------------------------------------------------------

def assign(cost):
    """Of each row a column of its own, the sum of costs least (shortest augmenting paths); rows <= columns."""
    n, m = len(cost), len(cost[0])
    u, v, owner, way = [0.0] * (n + 1), [0.0] * (m + 1), [0] * (m + 1), [0] * (m + 1)
    for i in range(1, n + 1):
        owner[0], j0, least, used = i, 0, [math.inf] * (m + 1), [False] * (m + 1)
        while owner[j0]:
            used[j0] = True
            for j in range(1, m + 1):
                d = cost[owner[j0] - 1][j - 1] - u[owner[j0]] - v[j]
                if not used[j] and d < least[j]:
                    least[j], way[j] = d, j0
            j1 = min((j for j in range(1, m + 1) if not used[j]), key=lambda j: least[j])
            step = least[j1]
            for j in range(m + 1):
                if used[j]:
                    u[owner[j]] += step
                    v[j] -= step
                else:
                    least[j] -= step
            j0 = j1
        while j0:
            owner[j0], j0 = owner[way[j0]], way[j0]
    return [owner.index(i) - 1 for i in range(1, n + 1)]


def box_giou(a, b):
    """Generalised IoU of boxes (centre, size), pair by pair."""
    corners = lambda x: (x[..., :2] - x[..., 2:] / 2, x[..., :2] + x[..., 2:] / 2)
    (a0, a1), (b0, b1) = corners(a), corners(b)
    inner = (torch.minimum(a1, b1) - torch.maximum(a0, b0)).clamp(min=0).prod(-1)
    hull = (torch.maximum(a1, b1) - torch.minimum(a0, b0)).prod(-1)
    union = a[..., 2:].prod(-1) + b[..., 2:].prod(-1) - inner
    return inner / union - (hull - union) / hull


def detection_loss(layers, target):
    """DETR's set criterion of all decoder layers."""
    return sum(layer_loss(out, target) for out in layers)


def layer_loss(out, target):
    """Costs 1, 5, 2 of kind, box and giou; the empty kind counts a tenth."""
    (kinds, boxes), (kind, box) = [o.float() for o in out], target
    wanted, weight = torch.full(kinds.shape[:2], Detr.KINDS), torch.ones(Detr.KINDS + 1)
    weight[-1] = 0.1
    total = 0.0
    for n in range(kinds.shape[0]):
        with torch.no_grad():
            cost = -kinds[n].softmax(-1)[:, kind[n]].T + 5 * (box[n][:, None] - boxes[n][None]).abs().sum(-1) \
                - 2 * box_giou(box[n][:, None], boxes[n][None])
            rows = assign(cost.tolist())
        wanted[n, rows] = kind[n]
        mine = boxes[n][rows]
        total = total + 5 * (mine - box[n]).abs().sum() + 2 * (1 - box_giou(mine, box[n])).sum()
    return F.cross_entropy(kinds.flatten(0, 1), wanted.flatten(), weight) + total / box.shape[0] / box.shape[1]


def margin_loss(length, y):
    hit = F.one_hot(y, 10)
    return (hit * F.relu(0.9 - length) ** 2 + 0.5 * (1 - hit) * F.relu(length - 0.1) ** 2).sum(1).mean()


def ctc_loss(out, y):
    logs = F.log_softmax(out.float(), -1).transpose(0, 1)
    full = lambda n: torch.full((out.shape[0],), n, dtype=torch.long)
    return F.ctc_loss(logs, y, full(logs.shape[0]), full(y.shape[1]), zero_infinity=True)


def make_data(a, model):
    """A batch, its targets and the loss."""
    g = torch.Generator().manual_seed(1)
    ints = lambda high, *shape, low=0: torch.randint(low, high, shape, generator=g)
    n = a.batch
    if a.model in ("bert", "lm", "gpt_small", "lstm_lm"):
        words = {"bert": common.WORDS, "lm": Lm.CUTOFFS[-1]}.get(a.model) or model.WORDS
        loss = (lambda o, t: model.criterion(o.float().flatten(0, 1), t.flatten()).loss) if a.model == "lm" else \
            (lambda o, t: F.cross_entropy(o.float().flatten(0, 1), t.flatten()))
        return ints(words, n, a.size), ints(words, n, a.size), loss
    if a.model == "asr":
        pieces = ints(common.PIECES, n, max(1, min(100, a.size // 12)), low=1)
        return torch.randn(n, common.MELS, a.size, generator=g), pieces, ctc_loss
    if a.model == "capsule":
        return torch.randn(n, 1, a.size, a.size, generator=g), ints(10, n), margin_loss
    x = torch.randn(n, 3, a.size, a.size, generator=g)
    if a.model == "unet":
        return x, torch.randn(x.shape, generator=g), lambda o, t: F.mse_loss(o.float(), t)
    if a.model in ("dcgan", "wgan"):
        return (x, torch.randn(n, 100, 1, 1, generator=g), torch.rand(n, 1, 1, 1, generator=g)), None, lambda o, t: o
    if a.model == "detr":
        return x, (ints(Detr.KINDS, n, 4), torch.rand(n, 4, 4, generator=g) * 0.4 + 0.1), detection_loss
    return x, ints(common.CLASSES, n), lambda o, t: F.cross_entropy(o.float(), t)


# --- measuring ---------------------------------------------------------------------------------------------

def forward_flops(model, run):
    """Of one forward pass: 2 for a multiply-add of linear layers, convolutions and attention."""
    total = [0]

    def hook(m, inputs, out):
        if isinstance(m, nn.Linear):
            total[0] += 2 * out.numel() * m.in_features
        elif isinstance(m, (nn.Conv1d, nn.Conv2d)):
            total[0] += 2 * out.numel() * m.weight[0].numel()
        elif isinstance(m, nn.ConvTranspose2d):
            total[0] += 2 * inputs[0].numel() * m.weight[0].numel()
        else:
            total[0] += getattr(m, "flops", 0)

    hooks = [m.register_forward_hook(hook) for m in model.modules()]
    with torch.set_grad_enabled(isinstance(model, Gan)):  # whose loss holds a gradient
        run()
    for h in hooks:
        h.remove()
    return total[0]


def most_allocated(iteration):
    """Most bytes that one iteration has allocated at a time, by the profiler of the allocator."""
    from torch.profiler import ProfilerActivity, profile
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as p:
        iteration()
    handle, path = tempfile.mkstemp(suffix=".json")
    os.close(handle)
    p.export_chrome_trace(path)
    with open(path) as f:
        trace = json.load(f)
    os.unlink(path)
    if isinstance(trace, dict):
        return max(e["args"]["Total Allocated"] for e in trace["traceEvents"] if e.get("name") == "[memory]")
    ends = sorted(p.events(), key=lambda e: e.time_range.end)  # a build without the tracer: what each op kept
    return max(itertools.accumulate(e.self_cpu_memory_usage for e in ends))


def make_optimizer(model, fused):
    """Its state is there from the start: a layer that is left out at first has none, and fused SGD stumbles."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=1e-4, momentum=0.9, **({"fused": True} if fused else {}))
    for p in parameters:
        p.grad = torch.zeros_like(p)
    optimizer.step()
    return optimizer


def cuda_variants(a):
    layout = "channels-last" if a.model in VISION else ""
    runs = ["eager", "compile+reduce-overhead", "compile+max-autotune", "compile"]
    pure = ["pure", ""] if a.dtype == "bf16" else [""]
    return ["+".join(p for p in (r, layout, "fused", precise) if p) for precise in pure for r in runs] + ["eager"]


def inference_variants(a):
    layout = ["channels-last", ""] if a.model in VISION else [""]
    runs = ["compile+freeze", "compile+freeze+max-autotune", "eager"] if NEW else ["eager"]
    pure = ["pure", ""] if a.dtype == "bf16" else [""]
    join = lambda *parts: "+".join(p for p in parts if p)
    mkl = ["huge", "mkl512"] if NEW and common.has_mkl512() else []
    memory = ([mkl] if mkl else []) + [["huge"], ["huge", "passive"], []]
    return [join(r, c, p, *m) for m in memory for c in layout for p in pure for r in runs]


def variants(a):
    """Best bets first; a benchmark may try the first few only."""
    if a.device == "cuda":
        return cuda_variants(a)
    if a.mode == "inference":
        return inference_variants(a)
    layout = ["channels-last", ""] if a.model in VISION else [""]
    pools = (["passive+mkl512"] if NEW and common.has_mkl512() else []) + ["passive"]
    pools += (["onepool"] if not NEW and os.path.isdir(common.ONE_POOL) else [])
    # What is compiled has no second derivative, which the WGAN takes.
    runs = ["compile", "eager"] if NEW and a.model not in ("detr", "lm", "wgan") else ["eager"]
    fused = ["fused"] if NEW else []
    pure = ["pure", ""] if a.dtype == "bf16" else [""]
    join = lambda *parts: "+".join(p for p in parts if p)
    tuned = [join(r, c, t, *fused, "huge", p) for p in pools for c in layout for r in runs for t in pure]
    return tuned + [join(r, c, *fused, *m) for r in runs for c in layout for m in (["huge"], ["passive"])] + ["eager"]


def check_variant(a):
    known = {"eager", "channels-last", "huge", "passive", "onepool", "mkl512", "max-autotune",
             "reduce-overhead", "pure"} | ({"compile", "fused", "freeze"} if NEW else set())
    for part in a.parts:
        if part not in known:
            sys.exit(f"torch {torch.__version__}: no variant {part}")


def set_up_cuda(a):
    """The same precision as ours on all paths, and the library's own search for algorithms."""
    if not torch.cuda.is_available():
        sys.exit("skipped: torch: there is no CUDA device")
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = a.dtype != "f32"


def move(x, a):
    narrow = "pure" in a.parts
    if isinstance(x, (tuple, list)):
        return type(x)(move(v, a) for v in x)
    return x.to(a.device, torch.bfloat16 if narrow and x.is_floating_point() else x.dtype)


def channels_last(x):
    """The images; noise beside them is no image."""
    if isinstance(x, tuple):
        return (channels_last(x[0]), *x[1:])
    return x.contiguous(memory_format=torch.channels_last)


def compiled(model, mode):
    if not hasattr(model, "compile_parts"):
        return torch.compile(model, mode=mode)
    model.compile_parts(mode)
    return model


def clock(a):
    if a.device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def memory_of(a, iteration):
    """Most bytes of an iteration above what stays: parameters, state and batch."""
    if a.device == "cpu":
        return most_allocated(iteration)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    iteration()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def loaded(a):
    """Endless batches of a folder's images, cropped, mirrored and normalised by a DataLoader's workers."""
    from torchvision import datasets, transforms as t
    change = t.Compose([t.RandomResizedCrop(a.size), t.RandomHorizontalFlip(), t.ToTensor(),
                        t.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))])
    images = torch.utils.data.ConcatDataset([datasets.ImageFolder(a.loading, change)] * 10)
    loader = torch.utils.data.DataLoader(images, a.batch, shuffle=True, num_workers=2, drop_last=True,
                                         persistent_workers=True)
    while True:
        yield from loader


def infer(a, model):
    """Answers in evaluation mode, by our weights and of our input where there is a file of them."""
    model.eval().requires_grad_(False)
    if a.weights:
        weights.load(model, a.weights)
        saved = weights.ends(a.weights)
        x = torch.from_numpy(saved["input"])
    else:
        x = make_data(a, model)[0]
    if a.export:
        torch.onnx.export(model, (x,), a.export, dynamo=True, external_data=True, verbose=False)
        return
    if "pure" in a.parts:
        model.to(torch.bfloat16)
        x = move(x, a)
    if "channels-last" in a.parts:
        model, x = model.to(memory_format=torch.channels_last), channels_last(x)
    if "freeze" in a.parts:
        from torch._inductor import config
        config.freezing = True
    run = torch.compile(model, mode="max-autotune" if "max-autotune" in a.parts else None) \
        if "compile" in a.parts else model
    narrows = a.dtype == "bf16" and "pure" not in a.parts
    amp = (lambda: torch.autocast(a.device, dtype=torch.bfloat16)) if narrows else contextlib.nullcontext
    y = None

    def iteration():
        nonlocal y
        start = clock(a)
        with torch.no_grad(), amp():
            y = run(x)
        return clock(a) - start, 0, 0

    seconds, rss = common.measure(a, iteration), common.max_rss()
    difference = weights.difference(y.float().numpy(), saved["output"]) if a.weights else None
    common.line(a, "torch-" + torch.__version__.split("+")[0], seconds, forward_flops(model, lambda: model(x)),
                memory_of(a, iteration), rss, difference)


def main(a):
    if a.list:
        print("\n".join(variants(a)))
        return
    check_variant(a)
    torch.set_num_threads(a.threads)
    torch.manual_seed(0)
    if a.device == "cuda":
        set_up_cuda(a)
    model = MAKERS[a.model](a.tiny)
    common.check_parameters(a, sum(p.numel() for p in model.parameters()))
    if a.mode == "inference":
        return infer(a, model)
    model.train()
    x, y, loss_of = make_data(a, model)
    if a.device == "cuda" or "pure" in a.parts:
        model, x, y = model.to(a.device, torch.bfloat16 if "pure" in a.parts else None), move(x, a), move(y, a)
    if "channels-last" in a.parts:
        model, x = model.to(memory_format=torch.channels_last), channels_last(x)
    optimizer = make_optimizer(model, "fused" in a.parts)
    mode = next((m for m in ("max-autotune", "reduce-overhead") if m in a.parts), None)
    run = compiled(model, mode) if "compile" in a.parts else model
    narrows = a.dtype == "bf16" and "pure" not in a.parts
    amp = (lambda: torch.autocast(a.device, dtype=torch.bfloat16)) if narrows else contextlib.nullcontext

    batches = loaded(a) if a.loading else None

    def iteration():
        nonlocal x, y
        optimizer.zero_grad(set_to_none=True)
        start = clock(a)
        if batches:
            x, y = next(batches)
            x = channels_last(x) if "channels-last" in a.parts else x
        with amp():
            loss = loss_of(run(x), y)
        forward = clock(a)
        loss.backward()
        backward = clock(a)
        optimizer.step()
        return forward - start, backward - forward, clock(a) - backward

    seconds, rss = common.measure(a, iteration), common.max_rss()
    memory = memory_of(a, iteration)
    flops = 3 * forward_flops(model, lambda: loss_of(model(x), y))
    common.line(a, "torch-" + torch.__version__.split("+")[0], seconds, flops, memory, rss)


if __name__ == "__main__":
    main(ARGS)
# MIT licence: see LICENSE.
