#!/usr/bin/python3
"""parity_pretrained.py - tiny random wav2vec 2.0 and Whisper of transformers beside ours, both ways

usage: parity_pretrained.py BUILD_FOLDER    (make parity-pretrained; needs transformers)

Writes folders as save_pretrained does, with inputs and what transformers makes of them; BUILD/tests/test_pretrained
compares scores (1e-4) and tokens, and saves each model again, which transformers loads."""
import os
import subprocess
import sys
import tempfile

import torch

torch.version.cuda = "13.0"  # torchaudio refuses a torch of another CUDA release, which does not matter here
from safetensors.torch import save_file
from transformers import (Wav2Vec2Config, Wav2Vec2ForCTC, WhisperConfig, WhisperForConditionalGeneration)

torch.manual_seed(3)
test = os.path.join(sys.argv[1], "tests", "test_pretrained")
bad = 0


def wav2vec2(norm, dtype):
    config = Wav2Vec2Config(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
                            conv_dim=(8, 8, 8), conv_kernel=(10, 3, 2), conv_stride=(5, 2, 2),
                            num_feat_extract_layers=3, vocab_size=12, num_conv_pos_embeddings=16,
                            num_conv_pos_embedding_groups=4, feat_extract_norm=norm, conv_bias=norm == "layer",
                            do_stable_layer_norm=norm == "layer")
    m = Wav2Vec2ForCTC(config).eval().to(dtype).float()
    x = torch.randn(2, 3000)
    y = (x - x.mean(1, keepdim=True)) / torch.sqrt(x.var(1, unbiased=False, keepdim=True) + 1e-7)
    return m.to(dtype), {"x": x, "scores": m.float()(y).logits.detach()}


def times_rules(scores, said, begin, eos):
    """The rules of Whisper's time stamps, written once more."""
    p, n = scores.clone(), len(said)
    last, before = n > 0 and said[-1] >= begin, n < 2 or said[-2] >= begin
    p[begin - 1] = -torch.inf
    if last and before:
        p[begin:] = -torch.inf
    elif last:
        p[:eos] = -torch.inf
    stamps = [t for t in said if t >= begin]
    if stamps:
        p[begin:stamps[-1] + (0 if last and not before else 1)] = -torch.inf
    if n == 0:
        p[:begin] = -torch.inf
        p[begin + 51:] = -torch.inf
    if p[begin:].logsumexp(0) > p[:begin].max():
        p[:begin] = -torch.inf
    return p


def whisper(dtype):
    config = WhisperConfig(d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
                           decoder_attention_heads=2, encoder_ffn_dim=24, decoder_ffn_dim=24, num_mel_bins=8,
                           max_source_positions=50, max_target_positions=40, vocab_size=180, bos_token_id=90,
                           eos_token_id=90, pad_token_id=90, decoder_start_token_id=91, init_std=0.6)
    m = WhisperForConditionalGeneration(config).eval()
    stored = m.to(dtype)
    m = m.float()
    x, tokens = torch.randn(2, 8, 100), torch.randint(0, 180, (2, 7))
    with torch.no_grad():
        scores = m(x, decoder_input_ids=tokens).logits
        out = {"x": x, "tokens": tokens, "scores": scores}
        for name, timed in (("said", False), ("timed", True)):
            prompt, said = [91, 92] if timed else [91, 93, 99], []
            for _ in range(20):
                p = m(x[:1], decoder_input_ids=torch.tensor([prompt + said])).logits[0, -1]
                p = times_rules(p, said, 100, 90) if timed else p
                token = int(p.argmax())
                if token == 90:
                    break
                said.append(token)
            out[name], out["timed_prompt" if timed else "prompt"] = torch.tensor(said), torch.tensor(prompt)
    del stored
    return m, out


cases = {"wav2vec2 group": lambda d: wav2vec2("group", d), "wav2vec2 layer": lambda d: wav2vec2("layer", d),
         "whisper": whisper}
for name, make in cases.items():
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        with tempfile.TemporaryDirectory() as there, tempfile.TemporaryDirectory() as back:
            m, tensors = make(dtype)
            m.to(dtype).save_pretrained(there)
            save_file({k: v.contiguous() for k, v in tensors.items()}, os.path.join(there, "input.safetensors"))
            run = subprocess.run([test, "transformers_agree"], env=dict(os.environ, PRETRAINED=there, PRETRAINED_OUT=back),
                                 capture_output=True, text=True)
            again = type(m).from_pretrained(back) if run.returncode == 0 else None
            m = m.float()
            same = again is not None and all(torch.equal(a, b) for a, b in zip(m.state_dict().values(),
                                                                               again.state_dict().values()))
            bad += not same
            print("%s %s: %s%s" % (name, str(dtype)[6:], "ok" if same else "FAILED\n" + run.stdout + run.stderr,
                                   " (" + " ".join(run.stdout.split("\n")[0].split()[1:]) + ")" if same else ""))
print("%d passed, %d failed" % (3 * len(cases) - bad, bad))
sys.exit(bad > 0)
# MIT licence: see LICENSE.
