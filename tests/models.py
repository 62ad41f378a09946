#!/usr/bin/python3
"""models.py - writes tests/golden/models.tsv: the losses of ten steps of the tiny models in PyTorch

usage: models.py [--verify]
  --verify  compares with the file instead (1e-6): exit status 1 if a loss differs

A line is the model's name, a rate, and the losses of SGD of that rate with momentum 0.9, on the
batch of bench/models by its formula, from weights by the same formula (see weight). Modules have
the names of bench/models, so parameters match by name. Needs PyTorch 1.13 and NumPy."""
import itertools
import math
import os
import sys

os.environ.update(OPENBLAS_CORETYPE="Haswell", ATEN_CPU_CAPABILITY="default", OMP_NUM_THREADS="1")

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

RATE, RATES, STEPS, BATCH = 0.01, {"alexnet": 0.002, "detr": 0.001, "translator": 0.05, "lstm_lm": 1}, 10, 2
PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "golden", "models.tsv")


# --- numbers by a formula: model_number of bench/models/models.c ----------------------------------

def numbers(name, n):
    seed = 2166136261
    for c in name.encode():
        seed = (seed ^ c) * 16777619 & 0xFFFFFFFF
    h = np.arange(n, dtype=np.uint32) * np.uint32(2654435761) + np.uint32(seed)
    h = (h ^ h >> 16) * np.uint32(2246822507)
    h = (h ^ h >> 13) * np.uint32(3266489909)
    return (h ^ h >> 16).astype(np.float64) / 2147483648.0 - 1


def reals(name, *shape):
    return torch.from_numpy((math.sqrt(3) * numbers(name, math.prod(shape))).astype(np.float32)).reshape(shape)


def integers(name, low, high, *shape):
    return torch.from_numpy(low + ((numbers(name, math.prod(shape)) + 1) / 2 * (high - low)).astype(np.int64)).reshape(shape)


def weight(name, p):
    """Of variance 1 / fan in; vectors: small, or around 1 for a norm's weight."""
    u = numbers(name, p.numel())
    if p.dim() > 1:
        u *= math.sqrt(3 / (p.numel() // p.shape[0]))
    else:
        u = 0.1 * u + (1 if name.endswith("weight") else 0)
    return torch.from_numpy(u.astype(np.float32)).reshape(p.shape)


# --- modules --------------------------------------------------------------------------------------

class Fn(nn.Module):
    def __init__(self, fn):
        super().__init__()
        self.fn = fn

    def forward(self, x):
        return self.fn(x)


def named(**children):
    m = nn.Sequential()
    for name, child in children.items():
        m.add_module(name, child)
    return m


def block(dim, heads, **o):
    return nn.TransformerEncoderLayer(dim, heads, 4 * dim, 0.0, batch_first=True, **o)


class Position(nn.Module):
    def __init__(self, steps, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(steps, dim))

    def forward(self, x):
        return x + self.weight[:x.shape[1]]


def sinusoid(x, scale=1.0):
    t, d = x.shape[1:]
    angle = torch.arange(t, dtype=torch.float64)[:, None] * torch.exp(
        torch.arange(0, d, 2, dtype=torch.float64) * (-math.log(10000.0) / d))
    return scale * x + torch.stack([angle.sin(), angle.cos()], -1).reshape(t, d).float()


def relus(*convs):
    return [m for c in convs for m in ((c, nn.ReLU()) if isinstance(c, nn.Conv2d) else (c,))]


def alexnet():
    c = lambda i, o, k, **kw: nn.Conv2d(i, o, k, **kw)
    features = nn.Sequential(*relus(c(3, 8, 11, stride=4, padding=2), nn.MaxPool2d(3, 2),
        c(8, 24, 5, padding=2), nn.MaxPool2d(3, 2), c(24, 48, 3, padding=1), c(48, 32, 3, padding=1),
        c(32, 32, 3, padding=1), nn.MaxPool2d(3, 2)))
    return named(features=features, avgpool=nn.AdaptiveAvgPool2d(6), flatten=nn.Flatten(),
        classifier=nn.Sequential(nn.Identity(), nn.Linear(32 * 36, 64), nn.ReLU(), nn.Identity(),
            nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)))


def vgg16():
    layers, c = [], 3
    for width, depth in ((8, 2), (16, 2), (32, 3), (64, 3), (64, 3)):
        for _ in range(depth):
            layers.append(nn.Conv2d(c, width, 3, padding=1))
            c = width
        layers.append(nn.MaxPool2d(2))
    return named(features=nn.Sequential(*relus(*layers)), avgpool=nn.AdaptiveAvgPool2d(7),
        flatten=nn.Flatten(), classifier=nn.Sequential(nn.Linear(64 * 49, 64), nn.ReLU(), nn.Identity(),
            nn.Linear(64, 64), nn.ReLU(), nn.Identity(), nn.Linear(64, 10)))


class Frozen(nn.BatchNorm2d):
    """Of running statistics, which stay what they are."""

    def __init__(self, n):
        super().__init__(n, affine=False)

    def forward(self, x):
        return F.batch_norm(x, self.running_mean, self.running_var, eps=self.eps)


class Residual(nn.Module):
    def __init__(self, cin, width, stride, bottleneck, norm):
        super().__init__()
        out = 4 * width if bottleneck else width
        sizes = [(cin, width, 1, 1), (width, width, 3, stride), (width, out, 1, 1)] if bottleneck else \
            [(cin, width, 3, stride), (width, out, 3, 1)]
        self.n = len(sizes)
        for i, (a, b, k, s) in enumerate(sizes, 1):
            self.add_module(f"conv{i}", nn.Conv2d(a, b, k, s, k // 2, bias=False))
            self.add_module(f"bn{i}", norm(b))
        self.downsample = None if stride == 1 and cin == out else nn.Sequential(
            nn.Conv2d(cin, out, 1, stride, bias=False), norm(out))

    def forward(self, x):
        y = x
        for i in range(1, self.n + 1):
            y = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(y))
            y = y if i == self.n else F.relu(y)
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


def resnet_body(bottleneck, norm):
    net, c = named(conv1=nn.Conv2d(3, 8, 7, 2, 3, bias=False), bn1=norm(8), relu=nn.ReLU(),
        maxpool=nn.MaxPool2d(3, 2, 1)), 8
    for s in range(4):
        net.add_module(f"layer{s + 1}", nn.Sequential(Residual(c, 8 << s, 2 if s else 1, bottleneck, norm)))
        c = (8 << s) * (4 if bottleneck else 1)
    return net


def resnet(bottleneck):
    net = resnet_body(bottleneck, nn.BatchNorm2d)
    for name, m in dict(avgpool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(),
            fc=nn.Linear(256 if bottleneck else 64, 10)).items():
        net.add_module(name, m)
    return net


class EncoderBlock(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(dim, 1e-6), nn.LayerNorm(dim, 1e-6)
        self.self_attention = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Identity(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        y = self.ln_1(x)
        x = x + self.self_attention(y, y, y)[0]
        return x + self.mlp(self.ln_2(x))


class Vit(nn.Module):
    """As torchvision's."""

    def __init__(self, patch=16, side=48, heads=8):
        super().__init__()
        self.class_token, self.conv_proj = nn.Parameter(torch.empty(1, 1, 32)), nn.Conv2d(3, 32, patch, patch)
        self.encoder = named(layers=named(**{f"encoder_layer_{i}": EncoderBlock(32, heads) for i in range(2)}),
            ln=nn.LayerNorm(32, 1e-6))
        self.encoder.register_parameter("pos_embedding", nn.Parameter(torch.empty(1, 1 + (side // patch) ** 2, 32)))
        self.heads = named(head=nn.Linear(32, 10))

    def forward(self, x):
        x = self.conv_proj(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(x.shape[0], -1, -1), x], 1) + self.encoder.pos_embedding
        return self.heads(self.encoder(x)[:, 0])


def bert():
    return named(word_embeddings=nn.Embedding(50, 32), position_embeddings=Position(32, 32),
        layers=nn.Sequential(*[block(32, 2, norm_first=True, activation=F.gelu) for _ in range(2)]),
        norm=nn.LayerNorm(32), dense=nn.Linear(32, 32), gelu=nn.GELU(),
        decoder=nn.Linear(32, 50, bias=False))


def asr():
    return named(norm=nn.LayerNorm((80, 48), elementwise_affine=False),
        conv=nn.Conv1d(80, 64, 7, 3, 2), glu=nn.GLU(1), transpose=Fn(lambda x: x.transpose(1, 2)),
        position=Fn(sinusoid), layers=nn.Sequential(block(32, 2), block(32, 2)), head=nn.Linear(32, 20))


class Embedding(nn.Module):
    CUTOFFS = (10, 30, 60)

    def __init__(self):
        super().__init__()
        self.embeddings = nn.ModuleList([nn.Sequential(nn.Embedding(n, d), nn.Linear(d, 32, bias=False))
            for n, d in ((10, 32), (20, 8), (30, 2))])

    def forward(self, words):
        y, low = 0, 0
        for part, high in zip(self.embeddings, self.CUTOFFS):
            here = (words >= low) & (words < high)
            y = y + part((words - low) * here) * here[..., None]
            low = high
        return y


class Causal(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([block(32, 2) for _ in range(2)])

    def forward(self, x):
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        for layer in self.layers:
            x = layer(x, mask)
        return x


def lm():
    net = named(embedding=Embedding(), position=Fn(lambda x: sinusoid(x, math.sqrt(32))))
    net.add_module("layers", Causal().layers)
    net.layers.forward = lambda x, m=net.layers: Causal.forward(type("", (), dict(layers=m)), x)
    net.add_module("head", nn.AdaptiveLogSoftmaxWithLoss(32, 60, [10, 30]))
    return net


def squash(x):
    n = x.square().sum(-1, keepdim=True)
    return x * n / (1 + n) / n.sqrt()


class Capsules(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n, 10, 16, 8))

    def forward(self, x):
        u = torch.einsum("nik,ijdk->nijd", x, self.weight)
        b = torch.zeros_like(u[..., :1])
        for _ in range(3):
            v = squash((b.softmax(2) * u).sum(1))
            b = b + (u * v[:, None]).sum(-1, keepdim=True)
        return v


def capsule():
    return named(conv=nn.Conv2d(1, 32, 9), relu=nn.ReLU(), primary=nn.Conv2d(32, 32, 9, 2),
        parts=Fn(lambda x: squash(x.reshape(-1, 4, 8, 36).transpose(2, 3).reshape(-1, 144, 8))),
        digits=Capsules(144))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.position = nn.Embedding(20, 32), Position(16, 32)
        self.layers = nn.ModuleList([block(32, 2, norm_first=True, activation=F.gelu) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 20, bias=False)

    def forward(self, x):
        return self.head(self.norm(Causal.forward(self, self.position(self.embedding(x)))))


class LstmLm(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.decoder = nn.Embedding(40, 32), nn.Linear(32, 40)
        self.lstm = nn.LSTM(32, 32, 3, batch_first=True)

    def forward(self, x):
        return self.decoder(self.lstm(self.embedding(x))[0])


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        conv = lambda i, o: [nn.Conv2d(i, o, 3, padding=1), nn.GroupNorm(8, o), nn.SiLU()]
        twice = lambda i, o: nn.Sequential(*conv(i, o), *conv(o, o))
        self.down1, self.down2, self.down3 = twice(3, 8), twice(8, 16), twice(16, 32)
        self.up1, self.up2, self.head = twice(24, 8), twice(48, 16), nn.Conv2d(8, 3, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(F.avg_pool2d(a, 2))
        y = self.down3(F.avg_pool2d(b, 2))
        for seen, up in ((b, self.up2), (a, self.up1)):
            y = up(torch.cat([seen, F.interpolate(y, scale_factor=2, mode="bilinear", align_corners=False)], 1))
        return self.head(y)


def gan(norm):
    g = nn.Sequential(nn.ConvTranspose2d(100, 16, 4, bias=False), nn.BatchNorm2d(16),
        nn.ConvTranspose2d(16, 8, 4, 2, 1, bias=False), nn.BatchNorm2d(8),
        nn.ConvTranspose2d(8, 3, 4, 2, 1), nn.Tanh())
    g[1].register_forward_hook(lambda m, x, y: F.relu(y))
    g[3].register_forward_hook(lambda m, x, y: F.relu(y))
    c = [nn.Conv2d(3, 8, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(8, 16, 4, 2, 1, bias=not norm)]
    c += ([nn.BatchNorm2d(16)] if norm else []) + [nn.LeakyReLU(0.2), nn.Conv2d(16, 1, 4), nn.Flatten(0)]
    return named(generator=g, critic=nn.Sequential(*c))


class DetrLayer(nn.Module):
    """Positions are added to queries and keys."""

    def __init__(self, decoder):
        super().__init__()
        attention = lambda: nn.MultiheadAttention(32, 8, batch_first=True)
        self.self_attn, self.multihead_attn = attention(), attention() if decoder else None
        self.linear1, self.linear2 = nn.Linear(32, 64), nn.Linear(64, 32)
        self.norm1, self.norm2 = nn.LayerNorm(32), nn.LayerNorm(32)
        self.norm3 = nn.LayerNorm(32) if decoder else None

    def forward(self, x, place, padded, image=None, image_place=None):
        q = x + place
        x = self.norm1(x + self.self_attn(q, q, x, None if self.norm3 else padded)[0])
        if self.norm3 is not None:
            x = self.norm2(x + self.multihead_attn(x + place, image + image_place, image, padded)[0])
        return (self.norm3 or self.norm2)(x + self.linear2(F.relu(self.linear1(x))))


def places(padded, dim):
    """Sines of the place in y, then in x, each from 0 to 2 pi over what is not padded."""
    y, x = (~padded).float().cumsum(1), (~padded).float().cumsum(2)
    y, x = y / (y[:, -1:] + 1e-6), x / (x[:, :, -1:] + 1e-6)
    scale = 10000.0 ** (torch.arange(0, dim // 2, 2, dtype=torch.float64) * 2 / dim)
    angles = [2 * math.pi * p[..., None].double() / scale for p in (y, x)]
    return torch.cat([torch.stack([a.sin(), a.cos()], -1).flatten(-2) for a in angles], -1).flatten(1, 2).float()


class Detr(nn.Module):
    """As facebookresearch/detr's: logits and boxes of all decoder layers."""

    def __init__(self):
        super().__init__()
        body = resnet_body(True, Frozen)
        for p in [*body.conv1.parameters(), *body.layer1.parameters()]:
            p.requires_grad_(False)
        self.backbone, self.input_proj = nn.Sequential(named(body=body)), nn.Conv2d(256, 32, 1)
        layers = lambda decoder: nn.ModuleList([DetrLayer(decoder) for _ in range(2)])
        self.transformer = named(encoder=named(layers=layers(False)), decoder=named(layers=layers(True), norm=nn.LayerNorm(32)))
        self.query_embed, self.class_embed = nn.Embedding(6, 32), nn.Linear(32, 9)
        self.bbox_embed = named(layers=nn.ModuleList([nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 4)]))

    def forward(self, x, mask):
        x = self.input_proj(self.backbone(x))
        padded = F.interpolate(mask[None].float(), x.shape[2:])[0].bool()
        place, x, padded = places(padded, 32), x.flatten(2).transpose(1, 2), padded.flatten(1)
        for layer in self.transformer.encoder.layers:
            x = layer(x, place, padded)
        query = self.query_embed.weight.expand(x.shape[0], -1, -1)
        y, kinds, boxes = torch.zeros_like(query), [], []
        for layer in self.transformer.decoder.layers:
            y = layer(y, query, padded, x, place)
            z = self.transformer.decoder.norm(y)
            kinds.append(self.class_embed(z))
            a, b, c = self.bbox_embed.layers
            boxes.append(c(F.relu(b(F.relu(a(z))))).sigmoid())
        return zip(kinds, boxes)


class Translator(nn.Module):
    """One layer each, the decoder's causal and with its norms first."""

    def __init__(self):
        super().__init__()
        self.source, self.target = nn.Embedding(50, 32), nn.Embedding(50, 32)
        self.encoder = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True)
        self.decoder = nn.TransformerDecoderLayer(32, 4, 64, 0.0, F.gelu, batch_first=True, norm_first=True)
        self.output = nn.Linear(32, 50)

    def forward(self, x, y):
        hidden = torch.ones(y.shape[1], y.shape[1], dtype=torch.bool).triu(1)
        return self.output(self.decoder(self.target(y), self.encoder(self.source(x)), tgt_mask=hidden))


# --- batches and losses ---------------------------------------------------------------------------

def classes(side, channels=3):
    x, y = reals("images", BATCH, channels, side, side), integers("classes", 0, 10, BATCH)
    return lambda net: F.cross_entropy(net(x), y)


def words(n, loss):
    x, y = integers("words", 0, n, BATCH, 12), integers("next words", 0, n, BATCH, 12)
    return lambda net: loss(net, x, y)


def word_loss(net, x, y):
    return F.cross_entropy(net(x).flatten(0, 1), y.flatten())


def asr_loss():
    x, y = reals("sounds", BATCH, 80, 48), integers("pieces", 1, 20, BATCH, 4)
    n = lambda k: torch.full((BATCH,), k)
    return lambda net: F.ctc_loss(net(x).log_softmax(2).transpose(0, 1), y, n(16), n(4))


def capsule_loss():
    x, y = reals("images", BATCH, 1, 28, 28), F.one_hot(integers("classes", 0, 10, BATCH), 10)

    def loss(net):
        length = net(x).square().sum(-1).sqrt()
        return (y * F.relu(0.9 - length) ** 2 + 0.5 * (1 - y) * F.relu(length - 0.1) ** 2).sum() / BATCH
    return loss


def gan_loss(wasserstein):
    x, z = reals("images", BATCH, 3, 16, 16), reals("noise", BATCH, 100, 1, 1)
    mix = 0.5 + reals("mix", BATCH, 1, 1, 1) * (0.5 / math.sqrt(3))
    judged = lambda score, real: F.binary_cross_entropy_with_logits(score, torch.full_like(score, real))

    def loss(net):
        made, c = net.generator(z), net.critic
        real, fake = c(x), c(made.detach())
        if wasserstein:
            between = (made.detach() + mix * (x - made.detach())).requires_grad_()
            slope, = torch.autograd.grad(c(between).sum(), between, create_graph=True)
            total = fake.mean() - real.mean() + 10 * (slope.square().sum((1, 2, 3)).sqrt() - 1).square().mean()
        else:
            total = judged(real, 1.0) + judged(fake, 0.0)
        c.requires_grad_(False)
        score = c(made)
        c.requires_grad_(True)
        return total - score.mean() if wasserstein else total + judged(score, 1.0)
    return loss


def unet_loss():
    x, y = reals("images", BATCH, 3, 16, 16), reals("next images", BATCH, 3, 16, 16)
    return lambda net: F.mse_loss(net(x), y)


def giou(a, b):
    """Of boxes (centre, size), pair by pair."""
    (a0, a1), (b0, b1) = ((t[..., :2] - t[..., 2:] / 2, t[..., :2] + t[..., 2:] / 2) for t in (a, b))
    inner = F.relu(torch.minimum(a1, b1) - torch.maximum(a0, b0)).prod(-1)
    hull = (torch.maximum(a1, b1) - torch.minimum(a0, b0)).prod(-1)
    both = a[..., 2:].prod(-1) + b[..., 2:].prod(-1) - inner
    return inner / both - (hull - both) / hull


def detr_loss():
    x, kind = reals("images", BATCH, 3, 96, 96), integers("kinds", 0, 8, BATCH, 4)
    box, mask = 0.4 + 0.1 * reals("boxes", BATCH, 4, 4), torch.zeros(BATCH, 96, 96, dtype=torch.bool)
    mask[1, 60:], mask[1, :, 64:] = True, True

    def layer_loss(kinds, boxes):
        want, total = torch.full((BATCH, 6), 8), 0.0
        for n in range(BATCH):
            a, b = box[n][:, None], boxes[n][None].detach()
            cost = 5 * (a - b).abs().sum(-1) - 2 * giou(a, b) - kinds[n].softmax(-1).T[kind[n]]
            query = list(min(itertools.permutations(range(6), 4),
                key=lambda q: sum(cost[i, j].item() for i, j in enumerate(q))))
            want[n, query] = kind[n]
            total = total + 5 * (boxes[n][query] - box[n]).abs().sum() + 2 * (1 - giou(boxes[n][query], box[n])).sum()
        weight = torch.tensor([1.0] * 8 + [0.1])
        return F.cross_entropy(kinds.flatten(0, 1), want.flatten(), weight) + total / (4 * BATCH)
    return lambda net: sum(layer_loss(*y) for y in net(x, mask))


MODELS = {
    "alexnet": (alexnet, classes(95)), "vgg16": (vgg16, classes(32)),
    "resnet50": (lambda: resnet(True), classes(64)), "resnet34": (lambda: resnet(False), classes(64)),
    "bert": (bert, words(50, word_loss)),
    "asr": (asr, asr_loss()), "vit": (Vit, classes(48)),
    "lm": (lm, words(60, lambda net, x, y: net.head(net[:-1](x).flatten(0, 1), y.flatten()).loss)),
    "detr": (Detr, detr_loss()), "capsule": (capsule, capsule_loss()),
    "gpt_small": (Gpt, words(20, word_loss)), "lstm_lm": (LstmLm, words(40, word_loss)),
    "unet": (UNet, unet_loss()), "dcgan": (lambda: gan(True), gan_loss(False)),
    "wgan": (lambda: gan(False), gan_loss(True)), "vit_tiny": (lambda: Vit(4, 16, 2), classes(16)),
    "translator": (Translator, words(50, lambda net, x, y: F.cross_entropy(net(x, y[:, :-1]).flatten(0, 1),
        y[:, 1:].flatten()))),
}


def losses(rate, build, loss_of):
    net = build().train()
    with torch.no_grad():
        for name, p in net.named_parameters():
            p.copy_(weight(name, p))
    optimizer = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9)
    out = []
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(net)
        loss.backward()
        optimizer.step()
        out.append(loss.item())
    return out


def main(args):
    torch.set_num_threads(1)
    rates = {name: RATES.get(name, RATE) for name in MODELS}
    have = {name: [rates[name]] + losses(rates[name], *m) for name, m in MODELS.items()}
    if "--verify" in args:
        with open(PATH) as f:
            want = {line.split("\t")[0]: [float(x) for x in line.split("\t")[1:]] for line in f}
        near = lambda a, b: len(a) == len(b) and all(abs(x - y) <= 1e-6 * max(1, abs(y)) for x, y in zip(a, b))
        return 0 if have.keys() == want.keys() and all(near(have[k], want[k]) for k in have) else 1
    with open(PATH, "w") as f:
        for name, values in have.items():
            f.write("\t".join([name] + [f"{v:.9g}" for v in values]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
# MIT licence: see LICENSE.
