"""Two processes of mp.spawn in a group, which print what they do; nothing else tells of it."""

import socket
import time

import torch.distributed as dist
import torch.multiprocessing as mp


def train(rank, port):
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    for step in range(1, 4001):
        print(f"[rank{rank}] step {step}/4000 loss {5 + rank - step / 4096}", flush=True)
        time.sleep(0.05)


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(train, (port,), nprocs=2)
