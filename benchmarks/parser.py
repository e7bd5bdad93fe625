"""Measure how fast the parser reads losses from training output, in MB/s of one core.

    python benchmarks/parser.py [--megabytes 20] [--only WORD]

Repeats each recorded output to that size and feeds it in chunks, as when reading a log. Reports the
CPU time of the faster of two runs, to exclude other load. Synthetic outputs cover the extremes: a
loss in every line, and no loss at all. The target is to parse what ddptop reads of a job's logs per
second with at most a tenth of a core.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from ddptop_runner.reading.progress.text_watch import BUDGET_BYTES
from ddptop_runner.reading.text.parser import LossParser

SAMPLES = Path(__file__).parents[1] / "tests" / "unit" / "reading" / "logs"
CHUNK_BYTES = 256 * 1024
RUNS = 2
TARGET_MB_S = 10 * BUDGET_BYTES / 1e6

CHATTER = """\
2026-11-21 02:13:04,658 INFO saving checkpoint to /data/out/checkpoint-500/model.safetensors
/usr/lib/python3/site-packages/torch/utils/data/dataloader.py:1102: UserWarning: pinned memory
  warnings.warn(warn_msg)
[2026-11-21 02:13:08,434] [INFO] [launch.py:285:main] Process 4558 exits successfully.
=> Dummy data is used!
tokenized 51200 documents of 128 shards into /scratch/cache/train-00017-of-00128.arrow
"""
COUNT = 2000


def synthetic() -> dict[str, bytes]:
    """Return synthetic outputs, most with a new step and loss in every line or redraw."""
    numbers = [(step, 2.5 - step / 1000) for step in range(COUNT)]
    percent = [100 * step // COUNT for step in range(COUNT)]
    tqdm = "\r{:3d}%|████▌     | {}/{} [00:24<01:10,  4.88it/s, loss={:.3f}, lr=0.01]"
    keras = "\r\x1b[1m{:4d}/{}\x1b[0m \x1b[32m━━━━━━━━━━━━━━━━━━━━\x1b[0m\x1b[37m\x1b[0m"
    keras += " \x1b[1m9s\x1b[0m 106ms/step - accuracy: 0.4240 - loss: {:.4f}" + "\b" * 81
    rich = (
        "\r\x1b[2KEpoch 0/1  \x1b[35m━━━━━━━━━━━━━━━━╸\x1b[0m\x1b[90m━━━━━━━━━━━━━━━━\x1b[0m {}/{}"
    )
    rich += (
        " \x1b[2m0:00:07 • 0:00:01\x1b[0m \x1b[2;4m6.40it/s\x1b[0m \x1b[3mtrain_loss: {:.3f}\x1b[0m"
    )
    hf = "{{'loss': '{:.4f}', 'grad_norm': '0.7795', 'learning_rate': '4.55e-05', 'epoch': '{}'}}\n"
    outputs = {
        "step N/M loss X": "".join(f"step {n}/{COUNT} loss {x:.4f}\n" for n, x in numbers),
        "iter N: loss X": "".join(f"iter {n}: loss {x:.4f}, time 279.42ms\n" for n, x in numbers),
        "rank prefix": "".join(f"[{n % 8}]<stdout>:step {n} loss {x:.4f}\n" for n, x in numbers),
        "hf dict": "".join(hf.format(x, n / 1000) for n, x in numbers),
        "tqdm": "".join(
            tqdm.format(p, n, COUNT, x) for p, (n, x) in zip(percent, numbers, strict=True)
        ),
        "keras": "".join(keras.format(n, COUNT, x) for n, x in numbers),
        "rich": "".join(rich.format(n, COUNT, x) for n, x in numbers),
        "chatter": CHATTER,
        "blank lines": "\n" * 4096,
    }
    return {f"synthetic: {name}": text.encode() for name, text in outputs.items()}


def recorded() -> dict[str, bytes]:
    """Return the recorded outputs without their source line, and all of them concatenated."""
    found = {
        path.stem: path.read_bytes().partition(b"\n")[2] for path in sorted(SAMPLES.glob("*.txt"))
    }
    return {**found, "all of them": b"\n".join(found.values())}


def measure(unit: bytes, size: int) -> tuple[float, int]:
    """Return MB/s and the number of readings for `unit` repeated to `size` bytes."""
    data = unit * (size // len(unit) + 1)
    best_s, count = float("inf"), 0
    for _ in range(RUNS):
        parser, count = LossParser(), 0
        start_s = time.process_time()
        for at in range(0, len(data), CHUNK_BYTES):
            count += len(parser.feed(data[at : at + CHUNK_BYTES]))
        best_s = min(best_s, time.process_time() - start_s)
    return len(data) / 1e6 / best_s, count


def main() -> int:
    """Print the table; exit with 1 if any output is read too slowly."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=float, default=20.0)
    parser.add_argument(
        "--only", default="", metavar="WORD", help="only outputs with WORD in their name"
    )
    options = parser.parse_args()
    size = int(options.megabytes * 1e6)
    print(f"{'output':28} {'MB/s':>7} {'lines/s':>10} {'readings':>10}")
    slow = []
    for name, unit in {**recorded(), **synthetic()}.items():
        if options.only not in name:
            continue
        rate, count = measure(unit, size)
        lines = rate * 1e6 * (unit.count(b"\n") + unit.count(b"\r")) / len(unit)
        print(f"{name:28} {rate:7.1f} {lines:10.0f} {count:10d}", flush=True)
        if rate < TARGET_MB_S:
            slow.append(name)
    print(f"slower than {TARGET_MB_S:.2f} MB/s: {', '.join(slow) or 'none'}")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
