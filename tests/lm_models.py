#!/usr/bin/env python3
"""lm_models.py - writes tests/golden/lm: tiny random models of transformers, what they compute, and a GGUF
file

    python3 tests/lm_models.py          needs torch, transformers, safetensors, gguf; no network

Each folder has config.json and model.safetensors as save_pretrained writes them, and expect.safetensors: ids
[2, 12], logits [2, 12, V] of them (of bert with a mask and types), greedy [20] and beam [3, 20] of ids[0, :5]
(padded with -1), losses [10] of AdamW on ids. llama.gguf has llama's weights in all types;
llama_gguf.safetensors
what gguf's own dequantisation makes of them."""
import os, shutil
import numpy as np, torch, gguf
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
    optim = torch.optim.AdamW(m.parameters(), lr=1e-3, weight_decay=0.01)
    losses = []
    for _ in range(10):
        logits = m(**call).logits
        if name != "bert":
            logits, y = logits[:, :-1], target[:, 1:]
        else:
            y = target
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, V), y.reshape(-1))
        optim.zero_grad()
        loss.backward()
        optim.step()
        losses.append(loss.item())
    out["losses"] = np.array(losses)
    save_file(out, os.path.join(folder, "expect.safetensors"))
    for f in os.listdir(folder):
        if f not in ("config.json", "model.safetensors", "expect.safetensors"):
            os.remove(os.path.join(folder, f))


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


if __name__ == "__main__":
    os.makedirs(HERE, exist_ok=True)
    for name, make in MODELS.items():
        write(name, make)
    write_gguf()
