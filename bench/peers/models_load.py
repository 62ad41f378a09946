"""models_load.py - language models from files: seconds of CPU time that other libraries take; bench/generate.c asks

usage: models_load.py FOLDER    config.json and model.safetensors of a Llama with a tied head; model.gguf is made of it
A line in names a job, FILE:LIBRARY; the answer is a number. `transformers` answers where it and torch are installed."""
import json
import os
import re
import sys
import time

import gguf
import numpy
import safetensors
from safetensors.numpy import load_file

folder = sys.argv[1]
weights, blocks = folder + "/model.safetensors", folder + "/model.gguf"
PARTS = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
         "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
WHOLE = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}


def gguf_name(name):
    layer = re.match(r"model\.layers\.(\d+)\.(.*)\.weight$", name)
    return f"blk.{layer[1]}.{PARTS[layer[2]]}.weight" if layer else WHOLE[name]


def make_gguf():
    config = json.load(open(folder + "/config.json"))
    w = gguf.GGUFWriter(blocks, "llama")
    w.add_block_count(config["num_hidden_layers"])
    w.add_embedding_length(config["hidden_size"])
    w.add_head_count(config["num_attention_heads"])
    w.add_feed_forward_length(config["intermediate_size"])
    w.add_context_length(config["max_position_embeddings"])
    w.add_layer_norm_rms_eps(config["rms_norm_eps"])
    for name, array in load_file(weights).items():
        if name != "lm_head.weight":
            w.add_tensor(gguf_name(name), array.astype(numpy.float16) if array.ndim == 2 else array)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def load_gguf():
    return [numpy.array(t.data, dtype=numpy.float32) for t in gguf.GGUFReader(blocks).tensors]


jobs = {"safetensors:safetensors": lambda: load_file(weights), "gguf:gguf": load_gguf}
try:
    import transformers
    jobs["safetensors:transformers"] = lambda: transformers.LlamaForCausalLM.from_pretrained(folder)
except ImportError:
    pass
if not os.path.exists(blocks):
    make_gguf()
print(f"safetensors {safetensors.__version__}, gguf, numpy {numpy.__version__}", flush=True)
for line in sys.stdin:
    start = time.process_time()
    job = jobs.get(line.strip())
    if job:
        job()
    print(time.process_time() - start if job else "nan", flush=True)
# MIT licence: see LICENSE.
