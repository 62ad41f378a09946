# test_tensorboard.py - logs of fl_data_log, read by TensorBoard's own reader, csv and json
import csv
import json
import math
import os
import subprocess
import tempfile

from check import BUILD, check, done, module, skip

program = os.path.join(BUILD, "tests", "test_logs")
TEXT = 'a, "quoted" text\nof \u20ac two lines'


def expected():
    return [(i**3, "train/loss" if i % 2 else "acc\u00e9", 1 / (1 + i)) for i in range(100)]


def test_csv(path):
    with open(path, encoding="utf-8", newline="") as f:
        rows = list(csv.DictReader(f))
    check([(int(r["step"]), r["name"], float(r["value"])) for r in rows[:100]] == expected(), "csv: scalars")
    check(math.isnan(float(rows[100]["value"])), "csv: NaN")
    check(rows[101] == {"step": "5", "name": "note", "value": TEXT.replace("\n", " ")}, "csv: text")
    check(len(rows) == 102, "csv: rows")


def test_jsonl(path):
    with open(path, encoding="utf-8") as f:
        rows = [json.loads(line) for line in f]
    check([(r["step"], r["name"], r["value"]) for r in rows[:100]] == expected(), "jsonl: scalars")
    check(rows[100] == {"step": 7, "name": "nan", "value": None}, "jsonl: NaN")
    check(rows[101:] == [{"step": 5, "name": "note", "text": TEXT}], "jsonl: text")


def test_events(folder):
    from tensorboard.backend.event_processing import event_accumulator
    import tensorboard.util.tensor_util as tensor_util
    import struct
    import time

    everything = {"histograms": 0, "scalars": 0, "tensors": 0}
    a = event_accumulator.EventAccumulator(folder, size_guidance=everything)
    a.Reload()
    check(a.file_version == 2.0, f"events: version {a.file_version}")
    rounded = [(s, n, struct.unpack("f", struct.pack("f", v))[0]) for s, n, v in expected()]
    for name in ("train/loss", "acc\u00e9"):
        got = [(e.step, name, e.value) for e in a.Scalars(name)]
        check(got == [r for r in rounded if r[1] == name], f"events: {name}")
        check(all(abs(e.wall_time - time.time()) < 3600 for e in a.Scalars(name)), "events: wall times")
    check(math.isnan(a.Scalars("nan")[0].value), "events: NaN")
    check(a.summary_metadata["note"].plugin_data.plugin_name == "text", "events: text plugin")
    note = tensor_util.make_ndarray(a.Tensors("note")[0].tensor_proto)
    check(note.shape == (1,) and note[0].decode() == TEXT, "events: text")
    h = [e.histogram_value for e in a.Histograms("w")]
    check([e.step for e in a.Histograms("w")] == [1, 2, 3, 4], "events: steps of histograms")
    check((h[0].min, h[0].max, h[0].num, h[0].sum) == (0, 299, 300, 44850), "events: numbers of a histogram")
    check(h[0].sum_squares == sum(i * i for i in range(300)), "events: sum of squares")
    check(len(h[0].bucket_limit) == 30 and h[0].bucket_limit[-1] == 299, "events: limits")
    check(list(h[0].bucket) == [10] * 30, f"events: counts {list(h[0].bucket)}")
    check((h[1].min, h[1].max, sum(h[1].bucket)) == (2, 2, 4), "events: a histogram of one value")
    check((h[2].num, h[3].num) == (0, 0), "events: histograms of nothing")


if not os.path.exists(program):
    skip(f"test_tensorboard.py without {program}: make test builds it")
    done()
with tempfile.TemporaryDirectory() as folder:
    run = subprocess.run([program], env=dict(os.environ, LOG_SAMPLES=folder))
    if check(run.returncode == 0, "test_logs writes samples"):
        test_csv(os.path.join(folder, "log.csv"))
        test_jsonl(os.path.join(folder, "log.jsonl"))
        if module("tensorboard"):
            test_events(folder)
done()
# MIT licence: see LICENSE.
