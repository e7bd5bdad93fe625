"""Small trainings for real launchers: each rank reports its identity and waits.

A rank writes {"rank": .., "workers": [pids]} to OUT/<pid>.json, where OUT is DDPTOP_TEST_OUT.
"""

COMMON = """
import json, multiprocessing, os, signal, sys
from pathlib import Path
if "Manager" not in multiprocessing.current_process().name:  # which needs none of it
    import torch, torch.distributed as dist

class Data:
    def __len__(self): return 1000
    def __getitem__(self, index): return float(index)

def tell(rank, context=None):
    loader = None
    if context:
        loader = iter(torch.utils.data.DataLoader(
            Data(), num_workers=1, multiprocessing_context=context, batch_size=2))
        next(loader)
    pids = [worker.pid for worker in loader._workers] if loader else []
    out = Path(os.environ["DDPTOP_TEST_OUT"])
    part = out / f"{os.getpid()}.part"
    part.write_text(json.dumps({"rank": rank, "workers": pids}))
    part.rename(out / f"{os.getpid()}.json")
    signal.pause()
"""

TORCHRUN = (
    COMMON
    + """
if __name__ == "__main__":
    dist.init_process_group("gloo")
    tell(dist.get_rank(), sys.argv[1])
"""
)
"""Argument: how data loader workers are started."""

SPAWN = (
    COMMON
    + """
def train(index, port, context):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=index, world_size=2)
    tell(index, context if index == 1 else None)

if __name__ == "__main__":
    import torch.multiprocessing as mp
    manager = mp.get_context("spawn").Manager()  # spawned before the ranks, and none of them
    mp.start_processes(train, (sys.argv[2], sys.argv[3]), nprocs=2, start_method=sys.argv[1])
"""
)
"""Arguments: start method of the ranks, port, start method of data loader workers."""

MPI = (
    COMMON
    + """
if __name__ == "__main__":
    rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
    size = int(os.environ["OMPI_COMM_WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{sys.argv[1]}", rank=rank,
                            world_size=size)
    tell(rank)
"""
)

SINGLE = (
    COMMON
    + """
if __name__ == "__main__":
    tell(0, sys.argv[1])
"""
)
