"""The six models for frameworks in which a network is a function of its parameters.

A layer adds its parameters to a Net and later applies itself with `f`, the framework: f.p are the parameters
in the order of Net, as the framework's arrays, and the methods of jax_models.py and tensorflow_models.py do
the rest. Images are [n, h, w, c]; f.flops counts 2 for a multiply-add while a function is traced."""
import numpy as np

import common


class Net:
    def __init__(self):
        self.params, self.random = [], np.random.default_rng(0)
        self.idle = 0  # numbers of layers that are left out: neither in the function nor stepped

    def add(self, *shape, spread=0.0, fill=0.0):
        """Index of a new parameter: uniform within `spread`, or `fill` everywhere."""
        value = np.full(shape, fill, np.float32)
        if spread:
            value = (self.random.random(shape, np.float32) * 2 - 1) * np.float32(spread)
        self.params.append(value)
        return len(self.params) - 1


class Dense:
    def __init__(self, net, cin, cout, bias=True):
        self.w = net.add(cin, cout, spread=cin ** -0.5)
        self.b = net.add(cout) if bias else None

    def __call__(self, f, x):
        f.flops += 2 * int(np.prod(x.shape)) * f.p[self.w].shape[1]
        y = f.matmul(x, f.p[self.w])
        return y if self.b is None else y + f.p[self.b]


class Conv:
    def __init__(self, net, cin, cout, k, stride=1, pad=0, bias=True):
        self.w = net.add(k, k, cin, cout, spread=(cin * k * k) ** -0.5)
        self.b, self.stride, self.pad = net.add(cout) if bias else None, stride, pad

    def __call__(self, f, x):
        w = f.p[self.w]
        y = f.conv(x, w, self.stride, self.pad)
        f.flops += 2 * int(np.prod(y.shape)) * int(np.prod(w.shape[:3]))
        return y if self.b is None else y + f.p[self.b]


class ConvNorm:
    """Convolution and batch norm; the running averages, next to nothing, are left out."""

    def __init__(self, net, cin, cout, k, stride=1):
        self.conv = Conv(net, cin, cout, k, stride, k // 2, bias=False)
        self.scale, self.shift = net.add(cout, fill=1.0), net.add(cout)

    def __call__(self, f, x):
        return f.batch_norm(self.conv(f, x), f.p[self.scale], f.p[self.shift])


class LayerNorm:
    def __init__(self, net, dim, eps=1e-5):
        self.scale, self.shift, self.eps = net.add(dim, fill=1.0), net.add(dim), eps

    def __call__(self, f, x):
        return f.normalize(x, (-1,), self.eps) * f.p[self.scale] + f.p[self.shift]


class Attention:
    def __init__(self, net, dim, heads, dropout):
        self.qkv, self.out = Dense(net, dim, 3 * dim), Dense(net, dim, dim)
        self.heads, self.dropout = heads, dropout

    def __call__(self, f, x):
        n, t, dim = x.shape
        qkv = f.transpose(f.reshape(self.qkv(f, x), (n, t, 3, self.heads, dim // self.heads)), (2, 0, 3, 1, 4))
        scores = f.matmul(qkv[0] * (dim // self.heads) ** -0.5, f.transpose(qkv[1], (0, 1, 3, 2)))
        y = f.matmul(f.dropout(f.softmax(scores), self.dropout), qkv[2])
        f.flops += 4 * n * t * t * dim
        return self.out(f, f.reshape(f.transpose(y, (0, 2, 1, 3)), (n, t, dim)))


class Block:
    def __init__(self, net, dim, heads, dropout=0.0, pre=True, act="gelu", eps=1e-5):
        self.att, self.n1 = Attention(net, dim, heads, dropout), LayerNorm(net, dim, eps)
        self.up, self.down, self.n2 = Dense(net, dim, 4 * dim), Dense(net, 4 * dim, dim), LayerNorm(net, dim, eps)
        self.dropout, self.pre, self.act = dropout, pre, act

    def feed(self, f, x):
        return self.down(f, f.dropout(getattr(f, self.act)(self.up(f, x)), self.dropout))

    def __call__(self, f, x):
        if self.pre:
            x = x + f.dropout(self.att(f, self.n1(f, x)), self.dropout)
            return x + f.dropout(self.feed(f, self.n2(f, x)), self.dropout)
        x = self.n1(f, x + f.dropout(self.att(f, x), self.dropout))
        return self.n2(f, x + f.dropout(self.feed(f, x), self.dropout))


def flat(f, x):
    return f.reshape(x, (x.shape[0], int(np.prod(x.shape[1:]))))


class AlexNet:
    CONVS = ((3, 64, 11, 4, 2), (64, 192, 5, 1, 2), (192, 384, 3, 1, 1), (384, 256, 3, 1, 1), (256, 256, 3, 1, 1))

    def __init__(self, net, a):
        self.convs = [Conv(net, *c) for c in self.CONVS]
        self.dense = [Dense(net, 256 * 36, 4096), Dense(net, 4096, 4096), Dense(net, 4096, common.CLASSES)]

    def __call__(self, f, x):
        for i, conv in enumerate(self.convs):
            x = f.relu(conv(f, x))
            if i in (0, 1, 4):
                x = f.max_pool(x, 3, 2, 0)
        x = flat(f, x)
        for dense in self.dense[:2]:
            x = f.relu(dense(f, f.dropout(x, 0.5)))
        return self.dense[2](f, x)


class Vgg16:
    def __init__(self, net, a):
        self.groups, c = [], 3
        for width, depth in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
            self.groups.append([Conv(net, c if i == 0 else width, width, 3, pad=1) for i in range(depth)])
            c = width
        self.dense = [Dense(net, 512 * 49, 4096), Dense(net, 4096, 4096), Dense(net, 4096, common.CLASSES)]

    def __call__(self, f, x):
        for group in self.groups:
            for conv in group:
                x = f.relu(conv(f, x))
            x = f.max_pool(x, 2, 2, 0)
        x = flat(f, x)
        for dense in self.dense[:2]:
            x = f.dropout(f.relu(dense(f, x)), 0.5)
        return self.dense[2](f, x)


class Bottleneck:
    def __init__(self, net, cin, mid, stride):
        self.body = [ConvNorm(net, cin, mid, 1), ConvNorm(net, mid, mid, 3, stride), ConvNorm(net, mid, 4 * mid, 1)]
        self.skip = ConvNorm(net, cin, 4 * mid, 1, stride) if stride > 1 or cin != 4 * mid else lambda f, x: x

    def __call__(self, f, x):
        y = f.relu(self.body[1](f, f.relu(self.body[0](f, x))))
        return f.relu(self.body[2](f, y) + self.skip(f, x))


class ResNet50:
    def __init__(self, net, a):
        self.first, self.blocks, c = ConvNorm(net, 3, 64, 7, 2), [], 64
        for mid, depth, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for i in range(depth):
                self.blocks.append(Bottleneck(net, c, mid, stride if i == 0 else 1))
                c = 4 * mid
        self.head = Dense(net, 2048, common.CLASSES)

    def __call__(self, f, x):
        x = f.max_pool(f.relu(self.first(f, x)), 3, 2, 1)
        for block in self.blocks:
            x = block(f, x)
        return self.head(f, f.mean(x, (1, 2)))


class Vit:
    def __init__(self, net, a, dim=768):
        self.patch, self.dim = Conv(net, 3, dim, 16, 16), dim
        self.cls, self.pos = net.add(1, 1, dim), net.add(1, 197, dim, spread=0.02)
        self.blocks = [Block(net, dim, 12, eps=1e-6) for _ in range(2 if a.tiny else 12)]
        self.norm, self.head = LayerNorm(net, dim, 1e-6), Dense(net, dim, common.CLASSES)

    def __call__(self, f, x):
        x = self.patch(f, x)
        x = f.reshape(x, (x.shape[0], x.shape[1] * x.shape[2], self.dim))
        x = f.concat([f.broadcast(f.p[self.cls], (x.shape[0], 1, self.dim)), x], 1) + f.p[self.pos]
        for block in self.blocks:
            x = block(f, x)
        return self.head(f, self.norm(f, x)[:, 0])


class Bert:
    def __init__(self, net, a, dim=1024):
        self.word, self.pos = net.add(common.WORDS, dim, spread=0.02), net.add(512, dim, spread=0.02)
        self.blocks = [Block(net, dim, 16, 0.1) for _ in range(2 if a.tiny else 24)]
        self.norm, self.mix = LayerNorm(net, dim), Dense(net, dim, dim)
        self.head = Dense(net, dim, common.WORDS, bias=False)

    def __call__(self, f, words):
        x = f.dropout(f.gather(f.p[self.word], words) + f.p[self.pos][:words.shape[1]], 0.1)
        for block in self.blocks:
            x = block(f, x)
        x = self.head(f, f.gelu(self.mix(f, self.norm(f, x))))
        return f.reshape(x, (x.shape[0] * x.shape[1], x.shape[2]))


class Asr:
    """The sounds are an image of one row, [n, 1, frames, mels], for the sake of one kind of convolution."""

    def __init__(self, net, a, dim=768):
        self.w, self.b = net.add(1, 7, common.MELS, 2 * dim, spread=(7 * common.MELS) ** -0.5), net.add(2 * dim)
        self.dim = dim
        depth, idle = 2 if a.tiny else 36, Net()
        left_out = common.left_out(depth)
        blocks = [Block(idle if i in left_out else net, dim, 4, 0.4, pre=False, act="relu") for i in range(depth)]
        self.kept = [b for i, b in enumerate(blocks) if i not in left_out]
        net.idle = sum(p.size for p in idle.params)
        self.head = Dense(net, dim, common.PIECES)

    def __call__(self, f, x):
        y = f.conv(f.normalize(x, (1, 2, 3), 1e-5), f.p[self.w], 3, (0, 2)) + f.p[self.b]
        f.flops += 2 * int(np.prod(y.shape)) * 7 * common.MELS
        n, steps = y.shape[0], y.shape[2]
        y = f.reshape(f.dropout(y[..., :self.dim] * f.sigmoid(y[..., self.dim:]), 0.3), (n, steps, self.dim))
        y = y + sinusoid(steps, self.dim)
        for block in self.kept:
            y = block(f, y)
        return self.head(f, y)


def sinusoid(steps, dim):
    angle = np.arange(steps)[:, None] * np.exp(np.arange(0, dim, 2) * (-np.log(10000.0) / dim))
    return np.concatenate([np.sin(angle), np.cos(angle)], 1).astype(np.float32)


MAKERS = dict(alexnet=AlexNet, vgg16=Vgg16, resnet50=ResNet50, vit=Vit, bert=Bert, asr=Asr)


def make(a):
    """The network, its parameters, a batch and what it should give, which for asr goes to f.ctc."""
    net = Net()
    model = MAKERS[a.model](net, a)
    common.check_parameters(a, net.idle + sum(p.size for p in net.params))
    draw, n = np.random.default_rng(1), a.batch
    ints = lambda low, high, *shape: draw.integers(low, high, shape, np.int32)
    if a.model == "bert":
        return model, net.params, ints(0, common.WORDS, n, a.size), ints(0, common.WORDS, n * a.size)
    if a.model == "asr":
        sounds = draw.standard_normal((n, 1, a.size, common.MELS), np.float32)
        return model, net.params, sounds, ints(1, common.PIECES, n, max(1, min(100, a.size // 12)))
    return model, net.params, draw.standard_normal((n, a.size, a.size, 3), np.float32), ints(0, common.CLASSES, n)
# MIT licence: see LICENSE.
