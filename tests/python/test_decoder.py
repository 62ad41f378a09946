# test_decoder.py - fl_decoder.py: whole, in pieces, with hot words, shared parts, and what is wrong
import math
import os
import sys
import tempfile

from check import check, done, load_fl

fl = load_fl()
if fl:
    sys.dont_write_bytecode = True
    import fl_decoder

    with tempfile.TemporaryDirectory() as folder:
        def file(name, text):
            with open(os.path.join(folder, name), "w") as f:
                f.write(text)
            return os.path.join(folder, name)

        tokens = file("tokens", "|\na\nb\n#\n")
        lexicon = file("lexicon", "ab a b |\nba b a |\na a |\n")
        lm = file("lm", "\\data\\\nngram 1=6\n\n\\1-grams:\n-2\t<unk>\n-99\t<s>\n-1\t</s>\n-0.5\tab\n-0.6\tba\n-0.7\ta\n\n\\end\\\n")
        path = "#aab|#ba|##a|#"
        scores = [[0.0 if c == p else -8.0 for c in "|ab#"] for p in path]
        d = fl_decoder.Decoder(tokens, lexicon, lm, separator="|", lm_weight=1, smearing="max")
        h = d(scores, 2)
        check([w.text for w in h[0].words] == ["ab", "ba", "a"], "the words")
        check([(w.begin, w.end) for w in h[0].words] == [(1, 5), (6, 9), (11, 13)], f"their times: {h[0].words}")
        check(len(h) == 2 and h[0].score > h[1].score and 0.9 < h[0].words[0].confidence <= 1, f"the n best: {h}")
        lm_score = math.log(10) * (-0.5 - 0.6 - 0.7 - 1)
        check(abs(h[0].acoustic) < 1e-6 and abs(h[0].lm - lm_score) < 1e-3, "scores of both parts")
        final, d2 = [], fl_decoder.Decoder(d.parts, separator="|", lm_weight=1)
        d2.begin()
        for at in range(0, len(scores), 3):
            d2.step(scores[at : at + 3])
            final += d2.prune()
        d2.end()
        check([w.text for w in final + d2.best()[0].words] == ["ab", "ba", "a"], "in pieces, with shared parts")
        check(d2.endpoint(frame=1, trailing=1) == 2, "an endpoint")
        even = [[-9.0, -1.0, -1.0, -2.0], [-9.0, -5.0, -5.0, 0.0], [-9.0, -1.0, -1.0, -2.0], [0.0, -9.0, -9.0, -9.0]]
        for word in "ab", "ba":
            hot = fl_decoder.Decoder(tokens, lexicon, separator="|", lm_weight=1, hot={word: 3.0})
            check(hot(even)[0].words[0].text == word, f"the hot word {word}")
        for call, part in (
            (lambda: fl_decoder.Decoder(tokens, "/nowhere"), "/nowhere"),
            (lambda: fl_decoder.Decoder(tokens, lexicon, blank="!"), "'!' is not known"),
            (lambda: d([[0.0, 0.0]]), "not of 4 classes"),
            (lambda: d([[0.0, 0.0, float("nan"), 0.0]]), "frame 0, class 2: the score is NaN"),
            (lambda: fl_decoder.Decoder(tokens, beam=-1), "beam -1"),
        ):
            try:
                call()
                check(False, part)
            except fl.Error as e:
                check(part in str(e), f"{part}: {e}")
done()
# MIT licence: see LICENSE.
