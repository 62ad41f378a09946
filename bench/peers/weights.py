"""Our weights in PyTorch's modules: reads what `model NAME --mode inference --save FILE` wrote (safetensors)."""
import json
import re
import sys

import numpy as np

RENAMES = [  # from the names of bench/models, which are torchvision's or nn.TransformerEncoderLayer's
    (r"^encoder\.layers\.encoder_layer_|^layers\.", "blocks."), (r"self_att(n|ention)", "att"), (r"out_proj", "out"),
    (r"(ln_|norm)(\d)", r"n\2"), (r"linear1|mlp\.0", "up"), (r"linear2|mlp\.3", "down"), (r"^conv_proj", "patch"),
    (r"^class_token", "cls"), (r"^encoder\.pos_embedding|^position_embeddings\.\w+", "pos"), (r"^encoder\.ln", "norm"),
    (r"^heads\.head|^decoder", "head"), (r"^word_embeddings", "word"), (r"^dense", "mix"),
]


def read(path):
    """(name, tensor), one after the other, so that no more than one is in memory twice."""
    dtypes = {"F32": np.float32, "I64": np.int64}
    with open(path, "rb") as f:
        header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
        header.pop("__metadata__", None)
        for name, h in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            count = int(np.prod(h["shape"], dtype=np.int64))
            yield name, np.fromfile(f, dtypes[h["dtype"]], count).reshape(h["shape"])


def ends(path):
    """The input and the result."""
    return {name: value for name, value in read(path) if name in ("input", "output")}


def drawn(name):
    return name not in ("input", "output") and not name.endswith("num_batches_tracked")


def renamed(name, value):
    """Names and values there; q, k and v lie in one tensor here, there in two."""
    for pattern, by in RENAMES:
        name = re.sub(pattern, by, name)
    head, projection, kind = name.partition("in_proj_")
    if not projection:
        return [(name, value)]
    dim = value.shape[0] // 3
    return [(f"{head}q.{kind}", value[:dim]), (f"{head}kv.{kind}", value[dim:])]


def load(model, path):
    """Networks of convolutions have the same order in both, transformers names that can be told."""
    import torch
    theirs = {name: value for name, value in model.state_dict().items() if drawn(name)}
    order = None if any(".att." in name for name in theirs) else iter(list(theirs))
    for name, value in read(path):
        for there, part in [] if not drawn(name) else [(next(order), value)] if order else renamed(name, value):
            to = theirs.pop(there)
            to.copy_(torch.from_numpy(part).reshape(to.shape))
    if theirs:
        sys.exit("weights: %s lacks %s" % (path, " ".join(theirs)[:300]))


def difference(output, ours):
    """The largest difference beside the largest number of ours."""
    return float(np.abs(output - ours).max() / np.abs(ours).max())
# MIT licence: see LICENSE.
