"""torch_generate.py - PyTorch eager with cache, the shapes of bench/generate.c: tokens per second, batch 1"""
import statistics, sys, time
sys.modules.setdefault("torchaudio", None)
import torch
from transformers import LlamaConfig, LlamaForCausalLM


def run(name, tokens, prompt, **config):
    m = LlamaForCausalLM(LlamaConfig(**config, tie_word_embeddings=True)).eval()
    samples = []
    with torch.no_grad():
        for _ in range(3):
            ids, cache, start = torch.ones(1, 1, dtype=torch.long), None, time.perf_counter()
            for _ in range(tokens):
                out = m(ids, past_key_values=cache, use_cache=True)
                cache, ids = out.past_key_values, out.logits[:, -1:].argmax(-1)
            samples.append((time.perf_counter() - start) / tokens)
        print(f"{name}_torch\t{1 / statistics.median(samples):.4g}\ttokens/s\teager, f32, with cache")
        if prompt:
            samples = []
            for _ in range(3):
                start = time.perf_counter()
                m(torch.ones(1, prompt, dtype=torch.long), logits_to_keep=1)
                samples.append(time.perf_counter() - start)
            print(f"{name}_torch_prompt\t{prompt / statistics.median(samples):.4g}\ttokens/s\t{prompt} at once")


run("stories260K", 64, 0, vocab_size=512, hidden_size=64, num_hidden_layers=5, num_attention_heads=8,
    num_key_value_heads=4, intermediate_size=172, max_position_embeddings=512)
if len(sys.argv) < 3:
    run("llama110m", 8, 512, vocab_size=32000, hidden_size=768, num_hidden_layers=12, num_attention_heads=12,
        intermediate_size=2048, max_position_embeddings=1024)
# MIT licence: see LICENSE.
