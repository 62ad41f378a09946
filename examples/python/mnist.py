"""mnist.py - examples/mnist.c in Python: trains the CNN of the Flashlight paper on MNIST and tests it

    make shared && python3 examples/python/mnist.py DIR [EPOCHS]     DIR has MNIST's four idx files"""
import os
import sys
import time

import fl
from fl import data, nn


def load(folder, part):
    paths = [os.path.join(folder, f"{part}-{name}-ubyte") for name in ("images-idx3", "labels-idx1")]
    image, label = (data.load_idx(path if os.path.exists(path) else path + ".gz") for path in paths)
    return image, label.cast("i64")


def normalize(image, label):
    return image.cast("f32") * (1 / (255 * 0.3081)) - 0.1307 / 0.3081, label


def evaluate(net, batches):
    net.eval()
    loss = wrong = n = 0
    with fl.no_grad():
        for x, y in batches:
            scores = net(x)
            loss += fl.nll_loss(scores, y, reduction="sum").item()
            wrong += (scores.argmax(1) != y).sum().item()
            n += len(y)
    net.train()
    return loss / n, 100 * wrong / n


folder, epochs = sys.argv[1], int((sys.argv + ["3"])[2])
fl.seed(1)
image, label = load(folder, "train")
n = max(len(label) - 5000, len(label) // 2)  # the others are held out
train = data.tensors(image, label).slice(0, n).shuffle(2).batch(64).transform(normalize).prefetch(1, 4)
valid = data.tensors(image, label).slice(n, len(label) - n).batch(250).transform(normalize)
net = nn.sequential(nn.view(-1, 1, 28, 28), nn.conv2d(1, 32, 5, pad="same"), nn.relu(), nn.pool2d(2),
                    nn.conv2d(32, 64, 5, pad="same"), nn.relu(), nn.pool2d(2), nn.view(-1, 7 * 7 * 64),
                    nn.linear(7 * 7 * 64, 1024), nn.relu(), nn.dropout(0.5), nn.linear(1024, 10), nn.log_softmax(1))
net.pool_before_relu()
print(net)
optim = fl.optim.sgd(net.parameters(), lr=0.03, momentum=0.9)
for epoch in range(epochs):
    train.set_epoch(epoch)
    start, total = time.time(), 0
    for i, (x, y) in enumerate(train, epoch * len(train)):
        optim.lr = fl.optim.lr_cosine(0.03, 0, i, epochs * len(train))
        loss = fl.nll_loss(net(x), y)
        optim.zero_grad()
        loss.backward()
        optim.step()
        total += loss.item() * len(y)
    print(f"epoch {epoch}: {time.time() - start:.1f} s, train loss {total / n:.4f}, ", end="")
    print("held out: loss %.4f, errors %.2f %%" % evaluate(net, valid), flush=True)
loss, error = evaluate(net, data.tensors(*load(folder, "t10k")).batch(250).transform(normalize))
print(f"Test loss: {loss:.4f}\nTest accuracy: {100 - error:.2f} %")
# MIT licence: see LICENSE.
