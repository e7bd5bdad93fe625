"""Losses read from what a training printed: every sample, and what must not be read as a loss."""

from __future__ import annotations

import math
import random
import tracemalloc
from pathlib import Path

import pytest

from ddptop_runner.loss_text import MAX_LINE_BYTES, LossParser, Reading

SAMPLES = Path(__file__).parents[1] / "samples" / "logs"


def read(data: bytes, piece: int | None = None) -> list[Reading]:
    parser = LossParser()
    size = piece or max(1, len(data))
    readings = [
        reading for at in range(0, len(data), size) for reading in parser.feed(data[at : at + size])
    ]
    return readings + parser.settle()


def one(line: str) -> Reading:
    (reading,) = read(line.encode() + b"\n")
    return reading


def losses(readings: list[Reading], kind: str = "train") -> list[tuple]:
    return [(r.rank, r.step, r.loss) for r in readings if r.loss is not None and r.kind == kind]


def unranked(*points: tuple[int | None, float]) -> list[tuple]:
    return [(None, step, loss) for step, loss in points]


HOROVOD = (2.377499, 2.212658, 1.9615, 1.78262, 1.65072, 1.465569, 1.353059, 1.312065)
NANOGPT = (10.8460, 10.8142, 10.8239, 10.8238, 10.8454, 10.8177)
NANOGPT += (10.8330, 10.8400, 10.8144, 10.8276, 10.8201)
HF = (4.468, 4.47, 4.467, 4.467, 4.466, 4.466, 4.47, 4.472, 4.468, 4.47)
TORCHRUN = (2.2953, 2.2527, 2.2455, 2.1953, 2.1778, 2.1335)

EXPECTED: dict[str, list[tuple]] = {
    "accelerate-tqdm-pipe": unranked(
        *zip(
            (1, 2, 3, 4, 5, 54, 55, 56, 57, 58, 59, 60),
            (2.25, 2.46, 2.63, 2.55, 2.14, 2.43, 2.39, 2.44, 2.34, 2.46, 2.26, 2.5),
            strict=True,
        )
    ),
    "accelerate-tqdm-tty": unranked(
        *zip(
            (1, 2, 3, 4, 115, 116, 117, 118, 119, 120),
            (2.57, 2.56, 2.34, 2.31, 2.26, 2.43, 2.37, 2.4, 2.46, 2.2),
            strict=True,
        )
    ),
    "apex-imagenet": unranked((10, 6.9312047958)),
    "deepspeed": [],
    "fairseq": unranked((1, 15.878), (33700, 8.206), (2000, 1.27)),
    "hf-trainer-tty": unranked(*((None, loss) for loss in HF)),
    "horovodrun": [
        (rank, 640 * i, loss)
        for rank in (0, 1)
        for i, loss in enumerate((*HOROVOD, 1.24917, 1.198792))
    ],
    "imagenet": unranked((1, 6.964), (11, 6.9884), (21, 7.1239)),
    "keras-progbar-pipe": unranked((1, 2.7084), (62, 1.844), (63, 1.8419), (64, 1.8383)),
    "keras-progbar-tty": unranked(
        *zip(
            (1, 2, 3, 60, 61, 62, 63, 64),
            (2.4663, 2.4761, 2.4957, 1.8013, 1.7981, 1.797, 1.7941, 1.7907),
            strict=True,
        )
    ),
    "keras-verbose2-pipe": unranked((64, 2.256), (64, 1.796)),
    "lightning-rich-pipe": unranked((50, 2.413)),
    "lightning-rich-tty": unranked(
        *zip(
            (1, 2, 43, 44, 45, 46, 47, 48, 49, 50),
            (2.521, 2.739, 2.279, 2.453, 2.384, 2.408, 2.361, 2.325, 2.165, 2.278),
            strict=True,
        )
    ),
    "lightning-tqdm-pipe": unranked(
        *zip(
            (1, 2, 3, 4, 47, 47, 48, 49, 50),
            (2.41, 2.35, 2.52, 2.56, 2.49, 2.37, 2.29, 2.32, 2.28),
            strict=True,
        )
    ),
    "lightning-tqdm-tty": unranked(
        *zip(
            (1, 2, 3, 4, 5, 6, 45, 45, 46, 47, 48, 49, 50),
            (2.33, 2.58, 2.51, 2.51, 2.42, 2.56, 2.29, 2.1, 2.16, 2.23, 2.19, 2.41, 2.23),
            strict=True,
        )
    ),
    "megatron": unranked((122, 2.50422), (123, 2.493043)),
    "mmengine": unranked((340, 2.2934), (350, 2.4369), (32, 2.6124)),
    "mpirun-tag-output": [(0, 0, 2.2953), (0, 10, 2.2527), (0, 20, 2.2455), (0, 30, 2.1953)],
    "mpspawn-interleaved": [
        (0, 0, 2.494),
        (0, 20, 2.381),
        (0, 40, 2.414),
        (0, 60, 2.407),
        (1, 0, 2.523),
        (1, 20, 2.238),
        (1, 40, 2.335),
        (1, 60, 2.314),
    ],
    "nanogpt": unranked(*enumerate(NANOGPT, 49), (60, 10.8235), (60, 10.8236)),
    "timm": unranked((0, 6.94), (50, 6.92), (624, 6.61)),
    "torchrun-banner": unranked(*((10 * i, loss) for i, loss in enumerate(TORCHRUN))),
    "ultralytics": [],
}


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*.txt")), ids=lambda path: path.stem)
@pytest.mark.parametrize("piece", [None, 1, 7, 4096])
def test_every_sample_in_pieces_of_any_size(path: Path, piece: int | None) -> None:
    found = losses(read(path.read_bytes(), piece))
    by_rank = sorted(found, key=lambda point: -1 if point[0] is None else point[0])
    assert by_rank == EXPECTED[path.stem]


def of(sample: str) -> list[Reading]:
    return read((SAMPLES / f"{sample}.txt").read_bytes())


def test_a_validation_is_no_training() -> None:
    assert losses(of("imagenet"), "val") == unranked((None, 6.8991), (None, 7.06), (None, 6.8884))
    assert losses(of("nanogpt"), "val") == unranked((60, 10.8196))


@pytest.mark.parametrize(
    ("sample", "last"),
    [
        ("accelerate-tqdm-tty", (120, 120, "run", None)),
        ("hf-trainer-tty", (100, 100, "run", None)),
        ("keras-progbar-tty", (64, 64, "epoch", 1.0)),
        ("keras-verbose2-pipe", (64, 64, "epoch", 2.0)),
        ("lightning-rich-tty", (50, 50, "epoch", 1.0)),
        ("lightning-tqdm-tty", (50, 50, "epoch", 1.0)),
        ("imagenet", (21, 25, "epoch", 0.0)),
        ("horovodrun", (5760, 6400, "samples", 1.0)),
        ("deepspeed", (30, None, "run", None)),
        ("megatron", (123, 250000, "run", None)),
        ("mmengine", (32, 678, "epoch", 1.0)),
        ("torchrun-banner", (50, 60, "run", None)),
        ("ultralytics", (8, 8, "epoch", 12.0)),
        ("timm", (624, 625, "epoch", 0.0)),
    ],
)
def test_how_far_a_sample_is(sample: str, last: tuple) -> None:
    reading = [r for r in of(sample) if r.step is not None and r.kind == "train"][-1]
    assert (reading.step, reading.total, reading.counts, reading.epoch) == last


def test_a_bar_that_still_shows_the_loss_of_the_step_before_gives_no_loss() -> None:
    bars = [
        "  1%|1| 1/9 [00:00<00:00,  9.2it/s, loss=2.25]",
        "  2%|1| 2/9 [00:00<00:00,  9.2it/s, loss=2.25]",
        "  2%|1| 2/9 [00:00<00:00,  9.2it/s, loss=2.46]",
        "  3%|1| 3/9 [00:00<00:00,  9.2it/s, loss=2.46]",
        "  3%|1| 3/9 [00:00<00:00,  9.2it/s, loss=2.46]",
        "  3%|1| 3/9 [00:00<00:00,  9.2it/s, loss=2.46]",
    ]
    readings = read("\r".join(bars).encode())
    assert [(r.step, r.loss) for r in readings] == [
        (1, 2.25), (2, None), (2, 2.46), (3, None), (3, 2.46),
    ]  # fmt: skip


def test_an_unfinished_bar_is_read_while_the_output_rests_and_nothing_else_is() -> None:
    parser = LossParser()
    assert parser.feed(b"\r  1%|1| 1/9 [00:00<00:00,  9.2it/s, loss=2.25") == []
    assert parser.settle() == []  # may end inside the number
    assert parser.feed(b"7]") == []
    assert [(r.step, r.loss) for r in parser.settle()] == [(1, 2.257)]
    assert parser.settle() == []
    assert parser.feed(b"\n") == []
    assert parser.feed(b"step 3 loss 2.5") == []
    assert parser.settle() == []
    assert [r.loss for r in parser.feed(b"6\n")] == [2.56]


@pytest.mark.parametrize(
    ("line", "rank", "local_rank", "step", "loss"),
    [
        ("[3]<stdout>:step 10/60 loss 2.2527", 3, None, 10, 2.2527),
        ("[1,5]<stderr>:step 10/60 loss 2.2527", 5, None, 10, 2.2527),
        ("[default1]:step 10/60 loss 2.2527", None, 1, 10, 2.2527),
        ("[rank2]: step 10/60 loss 2.2527", 2, None, 10, 2.2527),
        ("[Rank 2] step 10/60 loss 2.2527", 2, None, 10, 2.2527),
        ("Rank 7 | step 10 | loss: 2.2527", 7, None, 10, 2.2527),
        ("[1] step 10 loss 2.2527", 1, None, 10, 2.2527),
        ("[1,  2000] loss: 2.173", None, None, 2000, 2.173),
    ],
)
def test_who_a_line_is_of(
    line: str, rank: int | None, local_rank: int | None, step: int, loss: float
) -> None:
    reading = one(line)
    assert (reading.rank, reading.local_rank) == (rank, local_rank)
    assert (reading.step, reading.loss) == (step, loss)


def test_two_ranks_on_one_line() -> None:
    for glued in (
        b"[0] step 40 loss 2.414[1] step 40 loss 2.335\n",
        b"[0]<stdout>:step 40 loss 2.414[1]<stdout>:step 40 loss 2.335\n",
    ):
        assert losses(read(glued)) == [(0, 40, 2.414), (1, 40, 2.335)]


@pytest.mark.parametrize(
    ("line", "step", "total", "epoch", "loss"),
    [
        ("Epoch [1/10], Step [100/600], Loss: 2.3051", 100, 600, 1.0, 2.3051),
        ("{'loss': 4.468, 'grad_norm': 0.7795, 'epoch': 0.2}", None, None, 0.2, 4.468),
        ('{"step": 12, "train_loss": 0.25, "lr": 1e-3}', 12, None, None, 0.25),
        ("step: 7 | loss: tensor(0.5123, device='cuda:0')", 7, None, None, 0.5123),
        ("Epoch 3: train loss 0.51, val loss 0.62", None, None, 3.0, 0.51),
        ("epoch 4 test acc 0.9 training loss=1e-05", None, None, 4.0, 1e-05),
        ("it 5 loss=-3.5e+02 loss_cls=9.0", 5, None, None, -350.0),
        ("it 5 train_loss_epoch=2.5 train_loss_step=2.25", 5, None, None, 2.25),
        ("global_step=12, average_loss .75", 12, None, None, 0.75),
        ("\x1b[32mstep 3\x1b[0m \x1b[1mloss\x1b[0m: \x1b[31m2.5\x1b[0m", 3, None, None, 2.5),
    ],
)
def test_other_words_for_a_loss(
    line: str, step: int | None, total: int | None, epoch: float | None, loss: float
) -> None:
    reading = next(r for r in read(line.encode() + b"\n") if r.kind == "train")
    assert (reading.step, reading.total, reading.epoch) == (step, total, epoch)
    assert reading.loss == loss


@pytest.mark.parametrize(
    ("line", "loss"),
    [
        ("step 3 loss: 1,234.56", 1234.56),
        ("step 3 loss=12,345,678.5, lr=0.1", 12345678.5),
        ("step 3 loss: 0,5432", None),  # a decimal comma, or two values: not to be told apart
        ("step 3 loss=2,lr=0.1", 2.0),
        ("step 3 loss: 0.5,0.6", 0.5),
    ],
)
def test_a_comma_within_a_number(line: str, loss: float | None) -> None:
    assert [reading.loss for reading in read(f"{line}\n".encode())] == (
        [] if loss is None else [loss]
    )


@pytest.mark.parametrize("word", ["best", "Lowest", "min", "previous", "old"])
def test_a_loss_of_another_step_is_not_this_steps(word: str) -> None:
    for name in ("loss", "Train_loss", "val_loss", "validation loss"):
        assert read(f"step 3 {word} {name}: 0.25\n".encode()) == []
    both = read(f"step 3 loss 0.5 ({word} loss 0.25)\n".encode())
    assert [reading.loss for reading in both] == [0.5]


@pytest.mark.parametrize("text", ["nan", "NaN", "inf", "-inf"])
def test_a_loss_that_is_no_number_is_read_as_printed(text: str) -> None:
    for line in (f"step 3 loss: {text}", f"step 3 loss {text}", f"{{'loss': '{text}'}}"):
        loss = one(line).loss
        assert loss is not None
        assert math.isnan(loss) if "n" in text.lower()[:1] else math.isinf(loss)


@pytest.mark.parametrize(
    "line",
    [
        "loss scale: 65536.0",
        "loss_scale=1024.0",
        "box_loss: 1.2 cls_loss: 0.5",
        "loss_rpn_cls: 0.6913",
        "the loss is nan or inf when the learning rate is too high",
        "a lossless codec 3.5",
        "the loss 3 times",
        "loss improved by 12.5%",
        "packet loss: 12.5%",
        "loss: 3x",
        "using loss function: 2d",
        "step 3: installing packages",
        "Loading checkpoint shards: 100%|####| 2/2 [00:01<00:00,  1.5it/s]",
        "model.bin: 100%|####| 440M/440M [00:10<00:00, 44MB/s]",
        "Map: 12%|# | 1200/10000 [00:01<00:07, 1200.5 examples/s]",
        "[0] 40 2.414",
        "time (ms) | step: 6.84",
        "{'train_runtime': '10.5', 'train_loss': '4.469', 'epoch': '2'}",
        "",
    ],
)
def test_what_is_no_loss_and_no_step(line: str) -> None:
    assert read(line.encode() + b"\n") == []


@pytest.mark.parametrize(
    "line",
    [
        "Validation DataLoader 0: 50%|##| 5/10 [00:01<00:01, 5.0it/s, val_loss=0.4]",
        "{'eval_loss': '0.4', 'eval_runtime': '1.5', 'epoch': '1'}",
        "Epoch(val) [1][ 340/1563]  loss: 0.4",
        "| valid | epoch 001 | valid on 'valid' subset | loss 0.4 | ppl 1.5",
        "Test: [ 1/25] Loss 0.4 (0.5)",
    ],
)
def test_a_loss_of_a_validation(line: str) -> None:
    reading = one(line)
    assert (reading.kind, reading.loss) == ("val", 0.4)


def test_backspaces_take_back_what_was_written() -> None:
    assert losses(read(b"step 1 loss 2.57\x08\x0836\n")) == unranked((1, 2.36))


def _soup(random_: random.Random, size: int) -> bytes:
    """Pieces of real outputs, digits, control bytes and noise in any order."""
    samples = [path.read_bytes() for path in SAMPLES.glob("*.txt")]
    parts = []
    while size > 0:
        kind = random_.randrange(4)
        if kind == 0:
            part = random_.randbytes(random_.randrange(60))
        elif kind == 1:
            part = random_.choice(
                [
                    b"\r",
                    b"\n",
                    b"\x08" * 9,
                    b"\x1b[2K",
                    b"\x1b]0;",
                    b"loss",
                    b"%|",
                    b"[1,0]<stdout>:",
                ]
            )
        elif kind == 2:
            part = b"%d" % random_.randrange(10 ** random_.randrange(1, 40))
        else:
            sample = random_.choice(samples)
            at = random_.randrange(len(sample))
            part = sample[at : at + random_.randrange(200)]
        parts.append(part)
        size -= len(part) + 1
    return b"".join(parts)


def test_any_bytes_are_taken_and_in_any_pieces_alike() -> None:
    random_ = random.Random(20)
    for _ in range(60):
        data = _soup(random_, 6000)
        whole = read(data)
        assert repr(read(data, random_.randrange(1, 900))) == repr(whole)  # NaN equals nothing
        for reading in whole:
            assert reading.step is None or 0 <= reading.step < 10**18


def test_a_line_without_end_takes_no_memory() -> None:
    parser = LossParser()
    tracemalloc.start()
    try:
        for _ in range(400):
            parser.feed(b"x" * 65536)
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
        for rank in range(20_000):
            parser.feed(
                b"[%d] 3 2.5\n[rank%d]:  1%%|1| 1/9 [0<0, 9it/s, loss=%d.5]\n" % ((rank,) * 3)
            )
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
    finally:
        tracemalloc.stop()
    parser.feed(b"\n")
    assert losses(parser.feed(b"step 3 loss 2.5\n")) == unranked((3, 2.5))


def test_of_a_long_line_the_beginning_counts_and_no_number_is_cut() -> None:
    head = b"step 3 loss 2.5 "
    long = head + b"x" * (MAX_LINE_BYTES - len(head) - 8) + b" step 4 loss 3.5678\n"
    assert losses(read(long)) == unranked((3, 2.5))
    cut = b" " * (MAX_LINE_BYTES - 6) + b"loss: 3.5678" + b"\nstep 5 loss 4.5\n"
    assert losses(read(cut)) == unranked((5, 4.5))
    assert losses(read(cut, 100)) == unranked((5, 4.5))
