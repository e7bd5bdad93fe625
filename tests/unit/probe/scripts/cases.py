"""Trains in many ways, each in a forked child of one import of torch, and prints what it did."""

import atexit
import json
import os
import sys
import time

import frameworks
import torch
import torch.utils.checkpoint
from training import loss_of, setup

WAIT_S = 0.004


def say(case, losses=(), steps=0, **more):
    print(json.dumps({"case": case, "pid": os.getpid(), "losses": losses, "steps": steps, **more}))
    sys.stdout.flush()


def plain(steps=20):
    model, optimizer = setup()
    losses = []
    for _ in range(steps):
        loss = loss_of(model)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, steps


def subclass():
    class Loss(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            return super().__torch_function__(function, types, args, kwargs)

    model, optimizer = setup()
    losses = []
    for _ in range(3):
        loss = loss_of(model).as_subclass(Loss)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, 3


def as_tuple():
    model, optimizer = setup()
    loss = loss_of(model)
    torch.autograd.backward(tensors=(loss,), grad_tensors=(None,))
    optimizer.step()
    return [loss.item()], 1


def accumulate(is_sum):
    model, optimizer = setup()
    losses = []
    for _ in range(4):
        parts = []
        for _ in range(3):
            loss = loss_of(model) / (3 if is_sum else 1)
            loss.backward()
            parts.append(loss.item())
        optimizer.step()
        losses.append(sum(parts) if is_sum else sum(parts) / 3)
    return losses, 4


def accumulate_scaled():
    """A script that divides by itself, before a gradient scaler."""
    model, optimizer = setup()
    scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)
    losses = []
    for _ in range(3):
        parts = [loss_of(model) * (1 / 4) for _ in range(4)]
        for part in parts:
            scaler.scale(part).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(sum(part.item() for part in parts))
    return losses, 3


def scaler(skip=()):
    model, optimizer = setup()
    scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)
    losses = []
    for step in range(6):
        loss = loss_of(model)
        if step in skip:
            loss = loss * float("inf")
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if step not in skip:
            losses.append(loss.item())
    return losses, len(losses)


def arithmetic_after_scaling():
    model, optimizer = setup()
    scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)
    (scaler.scale(loss_of(model)) / 2).backward()
    scaler.step(optimizer)
    scaler.update()
    return [], 1


def gan():
    critic, critic_optimizer = setup()
    generator, generator_optimizer = setup()
    losses = []
    for _ in range(5):
        real, fake = loss_of(critic), loss_of(critic) * 3
        real.backward()
        fake.backward()
        critic_optimizer.step()
        loss = loss_of(generator) * 1000
        loss.backward()
        generator_optimizer.step()
        losses.append((real.item() + fake.item()) / 2)
    return losses, 5, {"others": loss.item()}


def lbfgs():
    model, _ = setup()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    data, losses = torch.randn(8, 4), []
    for _ in range(3):
        seen = []

        def closure(seen=seen):
            optimizer.zero_grad()
            loss = model(data).pow(2).mean() + 1
            loss.backward()
            seen.append(loss.item())
            return loss

        optimizer.step(closure)
        assert len(seen) > 1
        losses.append(seen[0])
    return losses, 3


def in_backward():
    model, _ = setup()
    for parameter in model.parameters():
        own = torch.optim.SGD([parameter], lr=0.01)

        def update(parameter, own=own):
            own.step()
            own.zero_grad()

        parameter.register_post_accumulate_grad_hook(update)
    losses = []
    for _ in range(5):
        loss = loss_of(model)
        loss.backward()
        losses.append(loss.item())
    return losses, 5


def two_hooks():
    """As Horovod's optimizer: a step before training, then an outer and an inner one each time."""
    model, optimizer = setup()
    optimizer.step()
    losses = []
    for _ in range(3):
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
        optimizer.step()
        losses.append(loss.item())
    return losses, 3


def checkpointing():
    model, optimizer = setup()
    losses = []
    for _ in range(3):
        data = torch.randn(8, 4, requires_grad=True)
        hidden = torch.utils.checkpoint.checkpoint(model, data, use_reentrant=True)
        loss = hidden.pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, 3


def compiled():
    """Steps without any hook, as torch.compile leaves them: only the parameters change."""
    global kept
    model, optimizer = kept = setup()
    step = type(optimizer).step.__wrapped__
    losses = []
    for _ in range(6):
        loss = loss_of(model)
        optimizer.zero_grad()
        loss.backward()
        step(optimizer)
        losses.append(loss.item())
    return losses[2:], 6  # the first two are not told apart


def sharpness_aware():
    """The parameters move between two backward passes of each step."""
    model, optimizer = setup()
    losses = []
    for _ in range(6):
        data = torch.randn(8, 4)
        first = model(data).pow(2).mean()
        first.backward()
        with torch.no_grad():
            model.weight.add_(0.1)
        second = model(data).pow(2).mean()
        second.backward()
        with torch.no_grad():
            model.weight.sub_(0.1)
        optimizer.step()
        losses.append((first.item() + second.item()) / 2)
    return losses, 6


def non_scalar():
    model, optimizer = setup()
    model(torch.randn(8, 4)).backward(torch.ones(8, 1))
    optimizer.step()
    return [], 1


def dispatch_mode():
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Log(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    model, optimizer = setup()
    with Log():
        loss_of(model).backward()
        optimizer.step()
    assert not any("_local_scalar_dense" in name for name in seen), seen
    return [], 1


def own_dispatch():
    """A tensor type with its own idea of operations, as DTensor: reading it may be a collective."""

    class Wrapped(torch.Tensor):
        seen = []

        @classmethod
        def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
            cls.seen.append(str(function))
            return super().__torch_dispatch__(function, types, args, kwargs)

    model, optimizer = setup()
    torch.autograd.backward(loss_of(model).as_subclass(Wrapped))
    optimizer.step()
    assert not any("_local_scalar_dense" in name for name in Wrapped.seen), Wrapped.seen
    return [], 1


def not_finite(value):
    model, optimizer = setup()
    for factor in (1.0, 1.0, value):
        (loss_of(model) * factor).backward()
        optimizer.step()
    return [], 3


def report():
    import ddptop

    model, optimizer = setup()
    losses = []
    for step in range(5):
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
        shown = loss * 100
        ddptop.report(
            loss=shown,
            step=100 + step,
            total=1000,
            accuracy=torch.tensor([0.5]),
            lr=torch.tensor(0.01, dtype=torch.float64),
            norm=torch.tensor(float("nan")),
            pair=torch.zeros(2),
            flag=torch.tensor(True),
        )
        losses.append(shown.item())
    return losses, 5


def joined():
    """A member of a process group that has an optimizer and waits with its first step."""
    sys.modules["_ddptop_probe.identity"].has_joined = lambda: True
    setup()
    return [], 0


class Slow(torch.utils.data.Dataset):
    def __init__(self, wait_s):
        self.wait_s = wait_s

    def __len__(self):
        return 8

    def __getitem__(self, index):
        time.sleep(self.wait_s)
        return torch.full((4,), float(index))


class Quick(Slow):
    """A worker's own reports and steps are nobody's."""

    def __getitem__(self, index):
        import ddptop

        ddptop.report(loss=1e9, step=10**6)
        return torch.full((4,), float(index))


def data_loader():
    model, optimizer = setup()
    losses, longest_s = [], 0.0
    loader = torch.utils.data.DataLoader
    for method in ("fork", "spawn"):
        workers = loader(Quick(0), batch_size=4, num_workers=1, multiprocessing_context=method)
        assert len(list(workers)) == 2
    for _ in range(3):
        began_s = time.monotonic()
        for batch in loader(Slow(WAIT_S), batch_size=2):
            longest_s = max(longest_s, time.monotonic() - began_s)
            loss = model(batch).pow(2).mean() / 100
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            began_s = time.monotonic()
        with torch.no_grad():
            for batch in loader(Slow(WAIT_S * 5), batch_size=4):
                model(batch)
    return losses, len(losses), {"longest_wait_s": longest_s}


CASES = {
    "plain": plain,
    "subclass": subclass,
    "tuple": as_tuple,
    "accumulate_mean": lambda: accumulate(False),
    "accumulate_sum": lambda: accumulate(True),
    "accumulate_scaled": accumulate_scaled,
    "scaler": scaler,
    "scaler_skips": lambda: scaler(skip=(0, 1, 3)),
    "arithmetic_after_scaling": arithmetic_after_scaling,
    "gan": gan,
    "lbfgs": lbfgs,
    "in_backward": in_backward,
    "two_hooks": two_hooks,
    "checkpointing": checkpointing,
    "compiled": compiled,
    "sharpness_aware": sharpness_aware,
    "non_scalar": non_scalar,
    "dispatch_mode": dispatch_mode,
    "own_dispatch": own_dispatch,
    "nan": lambda: not_finite(float("nan")),
    "inf": lambda: not_finite(float("inf")),
    "report": report,
    "data_loader": data_loader,
    "joined": joined,
    "fork_without_training": lambda: ([], 0),
    **frameworks.CASES,
}


def main():
    torch.set_num_threads(1)
    setup()  # the first optimizer of a process imports another second's worth of torch
    say("parent")
    for name in sys.argv[1:] or CASES:
        if (pid := os.fork()) == 0:
            losses, steps, *more = CASES[name]()
            say(name, losses, steps, wait_s=WAIT_S, **(more[0] if more else {}))
            atexit._run_exitfuncs()
            os._exit(0)  # an end in order takes 0.6 s, to free what torch holds
        if os.waitpid(pid, 0)[1] != 0:
            sys.exit(f"{name} failed")


if __name__ == "__main__":
    main()
