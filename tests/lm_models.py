#!/usr/bin/env python3
"""lm_models.py - writes tests/golden/lm: tiny random models of transformers, what they compute, and a GGUF
file

    python3 tests/lm_models.py          needs torch, transformers, safetensors, gguf; no network
    python3 tests/lm_models.py FOLDER   what transformers makes of the models that test_lm saved there (make
                                        parity-text): the same logits

Each folder has config.json and model.safetensors as save_pretrained writes them, and expect.safetensors: ids
[2, 12], logits [2, 12, V] of them (of bert with a mask and types), greedy [20] and beam [3, 20] of ids[0, :5]
(padded with -1), losses [10] of AdamW on ids. llama.gguf has llama's weights in all types;
llama_gguf.safetensors
what gguf's own dequantisation makes of them. adaptive, gcnn and lstm are written here in PyTorch, with our
names of parameters."""
import os, shutil, sys
import numpy as np, torch, gguf
from torch import nn
torch.version.cuda = "13.0"  # torchaudio refuses a torch of another CUDA release, which does not matter here
from safetensors.numpy import save_file
from transformers import (BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel, LlamaConfig,
                          LlamaForCausalLM,
                          MistralConfig, MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM)

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "golden", "lm")
V = 40
COMMON = dict(vocab_size=V, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
              intermediate_size=64, max_position_embeddings=32, bos_token_id=1, eos_token_id=2,
pad_token_id=0)
MODELS = {
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=V, n_positions=32, n_embd=32, n_layer=2, n_head=4,
                                               bos_token_id=1, eos_token_id=2, pad_token_id=0, resid_pdrop=0,
                                               embd_pdrop=0, attn_pdrop=0)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**COMMON, rope_theta=500.0)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**COMMON, sliding_window=5)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**COMMON, tie_word_embeddings=True)),
    "bert": lambda: BertForMaskedLM(BertConfig(vocab_size=V, hidden_size=32, num_hidden_layers=2,
                                               num_attention_heads=4, intermediate_size=64,
                                               max_position_embeddings=32, pad_token_id=0,
                                               hidden_dropout_prob=0,
                                               attention_probs_dropout_prob=0)),
}


def padded(rows, n):
    out = np.full((len(rows), n), -1, np.int64)
    for i, row in enumerate(rows):
        row = list(row)
        end = row.index(2) + 1 if 2 in row else len(row)  # padding comes behind the end of the text only
        out[i, :end] = row[:end]
    return out


def losses(m, scores, inputs, target, masked):
    """Of ten steps of AdamW."""
    optim = torch.optim.AdamW(m.parameters(), lr=1e-3, weight_decay=0.01)
    out = []
    for _ in range(10):
        y, t = scores(*inputs), target
        if not masked:
            y, t = y[:, :-1], t[:, 1:]
        loss = nn.functional.cross_entropy(y.reshape(-1, y.shape[-1]), t.reshape(-1))
        optim.zero_grad()
        loss.backward()
        optim.step()
        out.append(loss.item())
    return out


def write(name, make):
    torch.manual_seed(5)
    folder = os.path.join(HERE, name)
    shutil.rmtree(folder, ignore_errors=True)
    m = make().eval()
    with torch.no_grad():
        for p in m.parameters():  # far from the beginning, so that all of them matter
            p.add_(torch.randn_like(p) * (0.3 if p.ndim == 1 else 0.2))
    m.config._attn_implementation = "eager"
    m.save_pretrained(folder)
    ids = torch.randint(3, V, (2, 12))
    out = {"ids": ids.numpy()}
    if name == "bert":
        mask = torch.ones(2, 12, dtype=torch.long)
        mask[1, 9:] = 0
        types = (torch.arange(12) >= 6).long().expand(2, 12)
        out |= {"mask": mask.numpy(), "types": types.numpy().copy()}
        call = dict(input_ids=ids, attention_mask=mask, token_type_ids=types)
        target = torch.where(torch.rand(2, 12) < 0.4, ids, -100)
    else:
        call = dict(input_ids=ids)
        target = ids
        start = ids[:1, :5]
        one = torch.ones_like(start)
        greedy = m.generate(start, attention_mask=one, do_sample=False, max_new_tokens=15, num_beams=1)
        beam = m.generate(start, attention_mask=one, do_sample=False, max_new_tokens=15, num_beams=4,
                          num_return_sequences=3, length_penalty=0.8)
        out |= {"greedy": padded(greedy.tolist(), 20), "beam": padded(beam.tolist(), 20)}
    out["target"] = target.numpy()
    with torch.no_grad():
        out["logits"] = m(**call).logits.numpy()
    out["losses"] = np.array(losses(m, lambda: m(**call).logits, (), target, name == "bert"))
    save_file(out, os.path.join(folder, "expect.safetensors"))
    for f in os.listdir(folder):
        if f not in ("config.json", "model.safetensors", "expect.safetensors"):
            os.remove(os.path.join(folder, f))


# --- models that transformers lacks: with the names that ours have --------------------------------------

class Adaptive(nn.Module):  # Flashlight's: sinusoids, post-norm, ReLU, embedding and softmax in two parts
    def __init__(self, d=16, heads=2, cut=9, v=17):
        super().__init__()
        self.d, self.heads, self.cut = d, heads, cut
        table = lambda n, k: nn.ModuleList([nn.Embedding(n, k), nn.Linear(k, d, bias=False)])
        self.embedding = nn.Module()
        self.embedding.embeddings = nn.ModuleList([table(cut, d), table(v - cut, d // 4)])
        layer = nn.TransformerEncoderLayer(d, heads, 4 * d, 0, batch_first=True)
        self.layers = nn.ModuleList([layer])
        self.head = nn.AdaptiveLogSoftmaxWithLoss(d, v, [cut], 4)

    def features(self, ids):
        low, (a, b) = ids < self.cut, self.embedding.embeddings
        x = torch.where(low[..., None], a[1](a[0](ids * low)), b[1](b[0]((ids - self.cut) * ~low))) * 4
        t, i = torch.arange(ids.shape[1]).double()[:, None], torch.arange(0, self.d, 2).double()
        at = t * 10000 ** (-i / self.d)
        x = x + torch.stack([at.sin(), at.cos()], -1).flatten(1).float()
        n = ids.shape[1]
        for layer in self.layers:
            x = layer(x, torch.ones(n, n).triu(1).bool())
        return x

    def forward(self, ids):
        x = self.features(ids)
        return self.head.log_prob(x.flatten(0, 1)).unflatten(0, ids.shape)


class GatedConv(nn.Module):  # arXiv 1612.08083, a residual around each layer
    def __init__(self, d=16, layers=2, kernel=4, v=17):
        super().__init__()
        self.embedding = nn.Embedding(v, d)
        self.layers = nn.ModuleList()
        for _ in range(layers):
            self.layers.append(nn.Module())
            self.layers[-1].conv = nn.utils.weight_norm(nn.Conv1d(d, 2 * d, kernel))
        self.norm, self.head, self.kernel = nn.LayerNorm(d), nn.Linear(d, v, bias=False), kernel

    def forward(self, ids):
        x = self.embedding(ids).mT
        for layer in self.layers:
            x = x + nn.functional.glu(layer.conv(nn.functional.pad(x, (self.kernel - 1, 0))), 1)
        return self.head(self.norm(x.mT))


class Lstm(nn.Module):
    def __init__(self, d=16, v=17):
        super().__init__()
        self.embedding, self.layers = nn.Embedding(v, d), nn.LSTM(d, d, 2, batch_first=True)
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, v, bias=False)

    def forward(self, ids):
        return self.head(self.norm(self.layers(self.embedding(ids))[0]))


OWN = {"adaptive": Adaptive, "gcnn": GatedConv, "lstm": Lstm}


def write_own(name, make):
    torch.manual_seed(5)
    m, folder = make(), os.path.join(HERE, name)
    with torch.no_grad():
        for p in m.parameters():
            p.add_(torch.randn_like(p) * (0.3 if p.ndim == 1 else 0.2))
    os.makedirs(folder, exist_ok=True)
    save_file({k: v.numpy() for k, v in m.state_dict().items()}, os.path.join(folder, "model.safetensors"))
    ids = torch.randint(3, 17, (2, 12))
    with torch.no_grad():
        out = {"ids": ids.numpy(), "target": ids.numpy(), "logits": m(ids).numpy()}
    out["losses"] = np.array(losses(m, m, (ids,), ids, False))
    save_file(out, os.path.join(folder, "expect.safetensors"))


def rotated(w, heads):  # halves to pairs, as llama.cpp's converter does
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def write_gguf():
    m = LlamaForCausalLM.from_pretrained(os.path.join(HERE, "llama"))
    c, w = m.config, gguf.GGUFWriter(os.path.join(HERE, "llama.gguf"), "llama")
    w.add_block_count(c.num_hidden_layers)
    w.add_context_length(c.max_position_embeddings)
    w.add_embedding_length(c.hidden_size)
    w.add_feed_forward_length(c.intermediate_size)
    w.add_head_count(c.num_attention_heads)
    w.add_head_count_kv(c.num_key_value_heads)
    w.add_layer_norm_rms_eps(c.rms_norm_eps)
    w.add_rope_freq_base(500.0)
    w.add_token_list([f"token {i}" for i in range(V)])
    names = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
             "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
             "self_attn.q_proj": "attn_q",
             "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
             "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
    Q = gguf.GGMLQuantizationType
    types, want = [Q.Q8_0, Q.Q4_0, Q.F16, Q.BF16, Q.F32], {}
    for i, (name, t) in enumerate(m.state_dict().items()):
        stem, t = name.removesuffix(".weight"), t.numpy()
        layer = ""
        if stem.startswith("model.layers."):
            _, _, n, stem = stem.split(".", 3)
            layer = f"blk.{n}."
        if stem.endswith("q_proj"):
            t = rotated(t, c.num_attention_heads)
        if stem.endswith("k_proj"):
            t = rotated(t, c.num_key_value_heads)
        kind = Q.F32 if t.ndim == 1 else types[i % len(types)]
        data = gguf.quants.quantize(t, kind)
        w.add_tensor(layer + names[stem] + ".weight", data, raw_dtype=kind)
        want[layer + names[stem] + ".weight"] = gguf.quants.dequantize(data, kind).astype(np.float32)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    save_file(want, os.path.join(HERE, "llama_gguf.safetensors"))


def check_saved(folder):
    from safetensors.numpy import load_file
    import transformers
    bad = 0
    for name, make in MODELS.items():
        want, kind = load_file(os.path.join(HERE, name, "expect.safetensors")), type(make())
        m, said = kind.from_pretrained(os.path.join(folder, name), output_loading_info=True,
                                       attn_implementation="eager")
        t = {k: torch.from_numpy(v) for k, v in want.items()}
        call = dict(input_ids=t["ids"])
        if name == "bert":
            call |= dict(attention_mask=t["mask"], token_type_ids=t["types"])
        with torch.no_grad():
            off = (m.eval()(**call).logits - t["logits"]).abs().max().item()
        wrong = [k for k in said if said[k]]
        bad += off > 1e-4 or bool(wrong)
        print(f"{name}: transformers {transformers.__version__} reads ours, logits {off:.1e} apart",
              *(f"{k}: {said[k]}" for k in wrong))
    print(f"{len(MODELS) - bad} passed, {bad} failed")
    return bad > 0


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(check_saved(sys.argv[1]))
    os.makedirs(HERE, exist_ok=True)
    for name, make in MODELS.items():
        write(name, make)
    write_gguf()
    for name, make in OWN.items():
        write_own(name, make)
# MIT licence: see LICENSE.
