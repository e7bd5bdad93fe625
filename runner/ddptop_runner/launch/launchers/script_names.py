"""The qualified names that reveal how a script trains, and what each means."""

from __future__ import annotations

from typing import Literal

What = Literal[
    "spawn",
    "process",
    "subprocess",
    "data_parallel",
    "lightning",
    "fabric",
    "lightning_cli",
    "deepspeed",
    "horovod",
    "mirrored",
    "multi_worker",
    "accelerator",
    "hf_trainer",
    "hf_arguments",
    "init",
    "mpi",
    "torch_ddp",
    "torch_step",
]
"""What a call means. `spawn`: starts its ranks itself; `process`: starts processes, which are ranks
where they join a process group; `subprocess`: runs another launcher; `init`: joins a process group;
`torch_ddp`: wraps a model for one; `torch_step`: an optimizer, so the script itself trains."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_CALLS: dict[What, str] = {
    "spawn": """
        torch.multiprocessing.spawn torch.multiprocessing.spawn.spawn
        torch.multiprocessing.start_processes torch.multiprocessing.spawn.start_processes
        torch.distributed.launcher.elastic_launch torch.distributed.launcher.api.elastic_launch
        torch.distributed.run.main torch.distributed.run.run torch.distributed.launch.main
        accelerate.notebook_launcher accelerate.launchers.notebook_launcher
        accelerate.debug_launcher accelerate.launchers.debug_launcher
        detectron2.engine.launch detectron2.engine.launch.launch
        ray.train.torch.TorchTrainer pyspark.ml.torch.distributor.TorchDistributor
        torch_xla.launch torch_xla.distributed.xla_multiprocessing.spawn
    """,
    "process": "torch.multiprocessing.Process multiprocessing.Process",
    "subprocess": """
        os.system os.popen os.execv os.execvp os.execve os.execvpe os.spawnvp
        subprocess.run subprocess.call subprocess.check_call subprocess.check_output
        subprocess.Popen
    """,
    "data_parallel": """
        torch.nn.DataParallel torch.nn.parallel.DataParallel torch.nn.parallel.data_parallel
        torch.nn.parallel.data_parallel.DataParallel
    """,
    "lightning": """
        lightning.Trainer lightning.pytorch.Trainer lightning.pytorch.trainer.Trainer
        lightning.pytorch.trainer.trainer.Trainer pytorch_lightning.Trainer
        pytorch_lightning.trainer.Trainer pytorch_lightning.trainer.trainer.Trainer
    """,
    "fabric": """
        lightning.Fabric lightning.fabric.Fabric lightning.fabric.fabric.Fabric
        lightning_fabric.Fabric lightning_fabric.fabric.Fabric
    """,
    "lightning_cli": """
        lightning.pytorch.cli.LightningCLI pytorch_lightning.cli.LightningCLI
        pytorch_lightning.utilities.cli.LightningCLI
    """,
    "deepspeed": "deepspeed.initialize",
    "horovod": """
        horovod.init horovod.torch.init horovod.tensorflow.init horovod.keras.init
        horovod.tensorflow.keras.init horovod.mxnet.init
    """,
    "mirrored": """
        tensorflow.distribute.MirroredStrategy tensorflow.distribute.mirrored_strategy
        tensorflow.distribute.experimental.CentralStorageStrategy
        tensorflow.compat.v1.distribute.MirroredStrategy
        tensorflow.compat.v2.distribute.MirroredStrategy
    """,
    "multi_worker": """
        tensorflow.distribute.MultiWorkerMirroredStrategy
        tensorflow.distribute.experimental.MultiWorkerMirroredStrategy
        tensorflow.distribute.ParameterServerStrategy
        tensorflow.distribute.experimental.ParameterServerStrategy
    """,
    "accelerator": "accelerate.Accelerator accelerate.accelerator.Accelerator",
    "hf_trainer": """
        transformers.Trainer transformers.trainer.Trainer transformers.Seq2SeqTrainer
        transformers.trainer_seq2seq.Seq2SeqTrainer trl.SFTTrainer trl.DPOTrainer trl.PPOTrainer
        trl.GRPOTrainer trl.RewardTrainer trl.ORPOTrainer trl.KTOTrainer
        sentence_transformers.SentenceTransformerTrainer setfit.Trainer
    """,
    "hf_arguments": """
        transformers.TrainingArguments transformers.training_args.TrainingArguments
        transformers.Seq2SeqTrainingArguments
    """,
    "init": """
        torch.distributed.init_process_group torch.distributed.init_device_mesh
        torch.distributed.distributed_c10d.init_process_group
        torch.distributed.device_mesh.init_device_mesh deepspeed.init_distributed
        deepspeed.comm.init_distributed
    """,
    "mpi": "mpi4py.MPI.COMM_WORLD",
    "torch_ddp": """
        torch.nn.parallel.DistributedDataParallel
        torch.nn.parallel.distributed.DistributedDataParallel
        torch.distributed.fsdp.FullyShardedDataParallel torch.distributed.fsdp.fully_shard
        torch.distributed._composable.fsdp.fully_shard apex.parallel.DistributedDataParallel
    """,
    "torch_step": """
        torch.optim.SGD torch.optim.Adam torch.optim.AdamW torch.optim.RMSprop torch.optim.Adagrad
        torch.optim.LBFGS torch.optim.NAdam torch.optim.RAdam torch.optim.Adadelta
    """,
}
MEANS: dict[str, What] = {name: what for what, names in _CALLS.items() for name in names.split()}
"""What a full name means, such as `torch.nn.DataParallel`."""

HOT_WORDS = (
    r"spawn|start_processes|elastic_launch|_launcher|launch|Process\b|process_group|torchrun"
    r"|torch\.distributed|DataParallel|data_parallel|Trainer|Distributor|Fabric|LightningCLI|Strategy"
    r"|deepspeed|initialize|hvd|horovod|\.init\(|[Aa]ccelerat|MPI|mpi|srun|RANK|WORLD_SIZE|device_count"
    r"|is_available|os\.(?:system|popen|exec)|subprocess|local[-_]rank|fully_shard|device_mesh"
    r"|optim\.|SGD|Adam|RMSprop|LBFGS|multiprocessing|store_(?:true|false)"
)
"""A line without any of these, and without a name that stands for one, tells nothing of them."""

RANK_VARIABLES = _words(
    "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR MASTER_PORT"
    " TORCHELASTIC_RUN_ID TORCHELASTIC_RESTART_COUNT"
)
"""Variables that every rank of torch's own launcher has."""

OTHER_RANK_VARIABLES = frozenset({"OMPI_COMM_WORLD_RANK", "PMI_RANK", "HOROVOD_RANK"})
"""Variables by which other launchers tell a rank its number."""

LAUNCHED_WORDS = ("torchrun", "torch.distributed.run", "torch.distributed.launch", "horovodrun")
"""What another launcher is called in a command line that a script builds."""
LAUNCHED_PROGRAMS = ("accelerate", "deepspeed", "mpirun", "mpiexec", "srun")

PLAIN = _words(
    """
    torch torchvision torchaudio torchtext numpy np scipy pandas sklearn matplotlib seaborn PIL cv2
    skimage imageio tqdm yaml tensorboard tensorboardX wandb h5py einops click typer fire omegaconf
    rich termcolor requests psutil ddptop
    """
)
"""Packages, beside the standard library, that start no ranks and join none for a script."""
