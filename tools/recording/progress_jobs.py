"""Small trainings whose progress is recorded: one kind a run, two ranks, CPU.

`progress_jobs.py KIND`; started by record_progress.py with the variables of a rank.
"""

import io
import re
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

KIND = sys.argv[1]
SECONDS = float(sys.argv[2]) if len(sys.argv) > 2 else 30.0


class Numbers(Dataset):
    """Samples that take as long as one likes."""

    def __init__(self, count, pause_s=0.0, every=1):
        self.count, self.pause_s, self.every = count, pause_s, every

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index >= self.count:
            raise IndexError(index)
        if self.pause_s and index % self.every == self.every - 1:
            time.sleep(self.pause_s)
        return torch.randn(16)


class Training:
    def __init__(self, model=None):
        self.model = DDP(model or nn.Linear(16, 16))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def step(self, batch=None, pause_s=0.05):
        batch = torch.randn(4, 16) if batch is None else batch
        self.optimizer.zero_grad()
        self.model(batch).square().mean().backward()
        self.optimizer.step()
        time.sleep(pause_s)


def until(seconds):
    begin = time.monotonic()
    number = 0
    while True:
        # all ranks end after the same step
        left = torch.tensor(float(time.monotonic() - begin < seconds))
        dist.broadcast(left, 0)
        if not left:
            return
        yield number
        number += 1


def plain():
    training = Training()
    for _ in until(SECONDS):
        training.step()


def evaluation():
    training = Training()
    for _ in range(3):
        for batch in DataLoader(Numbers(320), batch_size=4):
            training.step(batch, 0.03)
        training.model.eval()
        with torch.no_grad():
            for batch in DataLoader(Numbers(200), batch_size=4):
                training.model.module(batch)
                time.sleep(0.2)
        training.model.train()
        dist.all_reduce(torch.zeros(1))


def evaluation_on_rank_0():
    training = Training()
    for _ in range(2):
        for batch in DataLoader(Numbers(320), batch_size=4):
            training.step(batch, 0.03)
        if dist.get_rank() == 0:
            with torch.no_grad():
                for batch in DataLoader(Numbers(160), batch_size=4):
                    training.model.module(batch)
                    time.sleep(0.3)
        dist.barrier()


class SlowFile(io.BytesIO):
    def write(self, data):
        time.sleep(0.05)
        return super().write(data)


def checkpoint():
    training = Training(nn.Sequential(*[nn.Linear(16, 16) for _ in range(30)]))
    for _ in range(3):
        for _ in range(120):
            training.step(pause_s=0.03)
        if dist.get_rank() == 0:
            torch.save(training.model.state_dict(), SlowFile())
        dist.barrier()


def compile_first():
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 16))
    training = Training()
    training.model = DDP(model)
    training.optimizer = torch.optim.AdamW(model.parameters())
    compiled = torch.compile(training.model)
    training.model = compiled
    for number in range(400):
        size = 4 if number < 200 else 6  # another shape: compiled again
        training.step(torch.randn(size, 16), 0.05)


def starving():
    training = Training()
    data = Numbers(240, pause_s=2.5, every=20)
    loader = DataLoader(data, batch_size=4, num_workers=1, multiprocessing_context="fork")
    for batch in loader:
        training.step(batch, 0.1)


def gan():
    generator, critic = DDP(nn.Linear(16, 16)), DDP(nn.Linear(16, 1))
    first = torch.optim.Adam(generator.parameters())
    second = torch.optim.Adam(critic.parameters())
    for number in until(SECONDS):
        second.zero_grad()
        critic(torch.randn(4, 16)).mean().backward()
        second.step()
        if number % 5 == 4:
            first.zero_grad()
            generator(torch.randn(4, 16)).square().mean().backward()
            first.step()
        time.sleep(0.08)


def accumulation():
    training = Training()
    loader = iter(DataLoader(Numbers(100000), batch_size=4))
    for _ in until(SECONDS * 1.5):
        with training.model.no_sync():
            for _ in range(30):
                training.model(next(loader)).square().mean().backward()
                time.sleep(0.2)
        training.step(next(loader), 0.0)


def collectives():
    for number in until(SECONDS):
        dist.all_reduce(torch.randn(8))
        time.sleep(0.3 if number % 20 else 3.0)


def slow_start():
    if dist.get_rank() == 0:
        end = time.monotonic() + 20
        while time.monotonic() < end:  # as a tokenizer would
            sorted(range(20000), key=lambda n: -n)
    dist.barrier()
    plain()


def uneven():
    from torch.distributed.algorithms.join import Join

    training = Training()
    with Join([training.model]):
        for _ in range(250 if dist.get_rank() else 450):
            training.step(pause_s=0.05)


def hang_sleep():
    training = Training()
    for number in until(SECONDS * 2):
        if number == 150 and dist.get_rank() == 1:
            time.sleep(3600)
        training.step()


def hang_spin():
    training = Training()
    for number in until(SECONDS * 2):
        while number == 150 and dist.get_rank() == 1:
            pass
        training.step()


def hang_skip():
    training = Training()
    for number in until(SECONDS * 2):
        if number == 150 and dist.get_rank() == 0:
            dist.barrier()  # the other goes on, to a collective of another kind
        training.step()


def hang_left():
    training = Training()
    for number in until(SECONDS * 2):
        training.step()
        if number == 150 and dist.get_rank() == 1:
            dist.new_group([1])
            input_queue = __import__("queue").Queue()
            input_queue.get()  # for ever


def hang_in_c():
    training = Training()
    for number in until(SECONDS * 2):
        if number == 150 and dist.get_rank() == 1:
            re.match("(a+)+$", "a" * 64 + "b")  # for ever, with the interpreter's lock held
        training.step()


def with_accelerate():
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    model = nn.Linear(16, 16)
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DataLoader(Numbers(1200), batch_size=4)
    held_back = DataLoader(Numbers(200), batch_size=4)
    model, optimizer, loader, held_back = accelerator.prepare(model, optimizer, loader, held_back)
    for _ in range(2):
        model.train()
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(batch).square().mean())
                optimizer.step()
                optimizer.zero_grad()
            time.sleep(0.05)
        model.eval()
        for batch in held_back:
            with torch.no_grad():
                accelerator.gather_for_metrics(model(batch))
            time.sleep(0.3)
        accelerator.save_state(f"/tmp/record-progress-accelerate-{accelerator.process_index}")


def with_lightning():
    import warnings

    import lightning

    warnings.simplefilter("ignore")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(16, 16)

        def training_step(self, batch, _):
            time.sleep(0.05)
            return self.layer(batch).square().mean()

        def validation_step(self, batch, _):
            time.sleep(0.3)
            self.log("loss", self.layer(batch).square().mean(), sync_dist=True)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=3,
        default_root_dir="/tmp/record-progress-lightning",
        enable_progress_bar=False,
    )
    trainer.fit(
        Module(), DataLoader(Numbers(1200), batch_size=4), DataLoader(Numbers(240), batch_size=4)
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    if not KIND.startswith("with_"):
        dist.init_process_group("gloo")
    globals()[KIND]()
