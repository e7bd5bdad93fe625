"""How fast losses are read out of a training's output: MB/s of one core.

    python benchmarks/parser.py [--megabytes 20] [--only WORD]

Each recorded output is repeated to that size and fed in pieces as a log is read. CPU time counts,
and of two runs the faster: both keep out what else the machine does. Beside the recorded ones
stand outputs in which every line holds a loss, and ordinary chatter in which none does. It is
enough if what is read of a job's logs in a second takes no more than a tenth of a core.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from ddptop_runner.reading.progress.text_watch import BUDGET_BYTES
from ddptop_runner.reading.text.parser import LossParser

SAMPLES = Path(__file__).parents[1] / "tests" / "samples" / "logs"
PIECE_BYTES = 256 * 1024
RUNS = 2
ENOUGH_MB_S = 10 * BUDGET_BYTES / 1e6

CHATTER = """\
2026-11-21 02:13:04,658 INFO saving checkpoint to /data/out/checkpoint-500/model.safetensors
/usr/lib/python3/site-packages/torch/utils/data/dataloader.py:1102: UserWarning: pinned memory
  warnings.warn(warn_msg)
[2026-11-21 02:13:08,434] [INFO] [launch.py:285:main] Process 4558 exits successfully.
=> Dummy data is used!
tokenized 51200 documents of 128 shards into /scratch/cache/train-00017-of-00128.arrow
"""
COUNT = 2000


def dense() -> dict[str, bytes]:
    """Outputs in which each line or redraw holds a new step and a new loss."""
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
    made = {
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
    return {f"made: {name}": text.encode() for name, text in made.items()}


def recorded() -> dict[str, bytes]:
    """The recorded outputs, without the line that says where they come from, and all in turn."""
    found = {
        path.stem: path.read_bytes().partition(b"\n")[2] for path in sorted(SAMPLES.glob("*.txt"))
    }
    return {**found, "all of them": b"\n".join(found.values())}


def measure(unit: bytes, size: int) -> tuple[float, int]:
    """(MB/s, readings) of `unit` repeated to `size` bytes."""
    data = unit * (size // len(unit) + 1)
    best_s, count = float("inf"), 0
    for _ in range(RUNS):
        parser, count = LossParser(), 0
        start_s = time.process_time()
        for at in range(0, len(data), PIECE_BYTES):
            count += len(parser.feed(data[at : at + PIECE_BYTES]))
        best_s = min(best_s, time.process_time() - start_s)
    return len(data) / 1e6 / best_s, count


def main() -> int:
    """Print the table; exit 1 where an output is read more slowly than it should be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=float, default=20.0)
    parser.add_argument("--only", default="", help="outputs whose name holds this")
    options = parser.parse_args()
    size = int(options.megabytes * 1e6)
    print(f"{'output':28} {'MB/s':>7} {'lines/s':>10} {'readings':>10}")
    slow = []
    for name, unit in {**recorded(), **dense()}.items():
        if options.only not in name:
            continue
        rate, count = measure(unit, size)
        lines = rate * 1e6 * (unit.count(b"\n") + unit.count(b"\r")) / len(unit)
        print(f"{name:28} {rate:7.1f} {lines:10.0f} {count:10d}", flush=True)
        if rate < ENOUGH_MB_S:
            slow.append(name)
    print(f"slower than {ENOUGH_MB_S:.2f} MB/s: {', '.join(slow) or 'none'}")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
