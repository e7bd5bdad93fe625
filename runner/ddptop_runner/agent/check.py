"""One rank of `launch --check`: a matrix product, an all-reduce, and then each link separately.

Prints a JSON line when each stage ends, so that the output shows where a rank fails or hangs. Exits
when its standard input ends, because the requester is gone.
"""

import datetime
import json
import os
import sys
import threading
import time

GPU_SIZE, CPU_SIZE = 4096, 384
GPU_BYTES, CPU_BYTES = 64 << 20, 4 << 20
TIMEOUT = datetime.timedelta(seconds=60)


def _end_with_stdin():
    while os.read(0, 1024):
        pass
    os._exit(3)


def report(stage, **figures):
    """Report the end of a stage."""
    sys.stdout.write(json.dumps({"stage": stage, **figures}) + "\n")
    sys.stdout.flush()


def main():
    """Measure this rank's device and, with the other ranks, the network."""
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    import torch
    import torch.distributed as dist

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    uses_gpu = os.environ["DDPTOP_CHECK_GPU"] == "1"
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if uses_gpu else "cpu"
    if uses_gpu:
        torch.cuda.set_device(device)

    def wait():
        if uses_gpu:
            torch.cuda.synchronize()

    def best(action, times):
        found = []
        for _ in range(times):
            wait()
            started = time.perf_counter()
            action()
            wait()
            found.append(time.perf_counter() - started)
        return min(found)

    size = GPU_SIZE if uses_gpu else CPU_SIZE
    kind = torch.float16 if uses_gpu else torch.float32
    left = torch.ones(size, size, dtype=kind, device=device)
    product = torch.empty_like(left)
    took_s = best(lambda: torch.mm(left, left, out=product), 10)
    if float(product[0, 0]) != size:
        raise RuntimeError("the matrix product is wrong: %s" % float(product[0, 0]))
    report("matmul", flops_per_s=2 * size**3 / took_s)

    dist.init_process_group("nccl" if uses_gpu else "gloo", timeout=TIMEOUT)
    data = torch.ones((GPU_BYTES if uses_gpu else CPU_BYTES) // 4, device=device)
    dist.all_reduce(data)
    wait()
    report("joined")
    if float(data[0]) != world:
        raise RuntimeError("the all-reduce is wrong: %s" % float(data[0]))
    report("all_reduce", seconds=best(lambda: dist.all_reduce(data), 3))

    # the first ranks of neighboring nodes, in pairs that do not interfere with each other
    firsts = [int(first) for first in os.environ["DDPTOP_CHECK_FIRSTS"].split(",")]
    pairs = list(zip(firsts, firsts[1:]))
    closing = [(firsts[-1], firsts[0])] if len(firsts) > 2 else []
    for some in (pairs[0::2], pairs[1::2], closing):
        dist.barrier()
        for one, other in some:
            if rank in (one, other):
                peer = other if rank == one else one

                def exchange(is_first=rank == one, peer=peer):
                    for sends in (is_first, not is_first):
                        (dist.send if sends else dist.recv)(data, peer)

                exchange()
                seconds = best(exchange, 3)
                if rank == one:
                    nbytes = 2 * data.numel() * data.element_size()
                    report("link", peer=peer, bytes_per_s=nbytes / seconds)
    dist.barrier()
    report("done")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
