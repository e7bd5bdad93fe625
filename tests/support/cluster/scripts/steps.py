"""Takes steps in lockstep with all other ranks, without training or torch.

    steps.py FOLDER [--steps N] [--pause S] [--save-every N] [--alone]

Each step ends with `all_reduce`, over TCP through rank 0, which raises or blocks on what gloo's
would: a rank that exits breaks the others, and one that hangs, or is out of reach, holds them all.
`--alone` leaves it out. A rank does what `FOLDER/do-RANK` says, once: `fail`, `exit STATUS`, `hang`
(after this step), `skip` (before it), `nan`, `save`. Every rank writes its steps into
`FOLDER/losses-ATTEMPT-RANK.jsonl`; rank 0 saves `FOLDER/checkpoint.json`, from which all resume.
"""

import argparse
import json
import os
import socket
import sys
import time
from pathlib import Path

import ddptop

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
ATTEMPT = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
CONNECT_S = 60.0


class Group:
    """All ranks, connected to rank 0."""

    def __init__(self) -> None:
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]) + 1000
        self.links: list[socket.socket] = []
        if RANK == 0:
            with socket.create_server(("", port), backlog=WORLD) as server:
                server.settimeout(CONNECT_S)
                self.links = [server.accept()[0] for _ in range(WORLD - 1)]
        else:
            self.links = [self.connect(host, port)]
        for link in self.links:
            link.settimeout(None)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connect(self, host: str, port: int) -> socket.socket:
        """Rank 0 may be late."""
        deadline = time.monotonic() + CONNECT_S
        while True:
            try:
                return socket.create_connection((host, port), timeout=5)
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def all_reduce(self) -> None:
        """Wait for every rank."""
        if RANK == 0:
            self.receive()
            self.send()
        else:
            self.send()
            self.receive()

    def send(self) -> None:
        for link in self.links:
            link.sendall(b"x")

    def receive(self) -> None:
        for link in self.links:
            if not link.recv(1):
                raise RuntimeError(f"Connection closed by peer [{link.getpeername()[0]}]")


def obey(folder: Path, group: "Group | None") -> str:
    """Carry out the order in this rank's file, and return it."""
    file = folder / f"do-{RANK}"
    try:
        word, *arguments = file.read_text().split()
        file.unlink()
    except (FileNotFoundError, ValueError):
        return ""
    if word == "fail":
        raise RuntimeError("told to fail")
    if word == "exit":
        sys.exit(int(arguments[0]))
    if word == "hang" and group is not None:
        group.all_reduce()  # the others hang at the next one
    if word in ("hang", "skip"):
        time.sleep(100_000)
    return word


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--pause", type=float, default=0.05)
    parser.add_argument("--save-every", type=int, default=0)
    parser.add_argument("--alone", action="store_true")
    options = parser.parse_args()
    checkpoint = options.folder / "checkpoint.json"
    first = json.loads(checkpoint.read_text())["step"] + 1 if checkpoint.exists() else 1
    group = None if options.alone or WORLD == 1 else Group()
    record = options.folder / f"losses-{ATTEMPT}-{RANK}.jsonl"
    host = os.uname().nodename
    with record.open("a", buffering=1) as file:
        for step in range(first, options.steps + 1):
            word = obey(options.folder, group)
            if group is not None:
                group.all_reduce()
            loss = float("nan") if word == "nan" else (1 + RANK) / step
            ddptop.report(loss=loss, step=step, total=options.steps)
            line = {"step": step, "at": time.time(), "host": host, "is_first": step == first}
            file.write(json.dumps(line) + "\n")
            print(f"rank {RANK} attempt {ATTEMPT} step {step}", flush=True)
            asked = ddptop.checkpoint_requested() or word == "save"
            if asked or (options.save_every and step % options.save_every == 0):
                if RANK == 0:
                    new = checkpoint.with_suffix(".new")
                    new.write_text(json.dumps({"step": step}))
                    new.replace(checkpoint)
                print(f"rank {RANK} saved step {step}", flush=True)
            time.sleep(options.pause)


if __name__ == "__main__":
    main()
