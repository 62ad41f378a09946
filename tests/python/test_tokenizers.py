# test_tokenizers.py - the package tokenizers reads what fl saves of SentencePiece's models, with the same ids and text
import json
import os
import subprocess
import sys
import tempfile
import zlib

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import check

program = os.path.join(check.BUILD, "tests", "test_tokenizers")
golden = os.path.join("tests", "golden", "text")
# Texts that differ, by model: a Precompiled map looks at clusters of characters, SentencePiece at the longest match.
known = {"sp_unigram": 3, "sp_bpe": 0, "sp_raw": 0}


def crc(text):
    return f"{zlib.crc32(text.encode('utf-8', 'replace')):08x}"


def main():
    package = check.module("tokenizers")
    if package is None:
        return
    if not os.path.exists(program):
        return check.skip(program + " is not built")
    with open(os.path.join(golden, "strings.json"), encoding="utf-8") as f:
        strings = json.load(f)
    with open(os.path.join(golden, "tokenizers.tsv"), encoding="utf-8") as f:
        rows = [line.split("\t") for line in f]
    for name, most in known.items():
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "tokenizer.json")
            run = subprocess.run([program, "save", os.path.join(golden, name + ".model"), path], stdout=subprocess.PIPE,
                                 universal_newlines=True)
            if not check.check(run.returncode == 0, f"{name}: {run.stdout.strip()}"):
                continue
            t = package.Tokenizer.from_file(path)
        texts = differ = shown = 0
        for who, i, sums in rows:
            s = strings[int(i)] if who == name and not i.startswith("p") else "<s>"
            if "<s>" in s or "</s>" in s or "<unk>" in s:  # which these are control and unknown pieces for
                continue
            ids = t.encode(s, add_special_tokens=False).ids
            texts += 1
            if crc(" ".join(map(str, ids))) != sums.split()[0]:
                differ += 1
            else:
                shown += crc(t.decode(ids, skip_special_tokens=False)) == sums.split()[2]
        check.check(texts >= 600 and differ <= most, f"{name}: {differ} of {texts} texts have other ids")
        check.check(shown == texts - differ, f"{name}: {texts - differ - shown} are decoded otherwise")


main()
check.done()
# MIT licence: see LICENSE.
