"""How a job is run on GPUs, and how on CPUs: binding, variables, and the amount of work.

Python 3.8 and the standard library only: this module also runs on the nodes (jobs/launcher).
"""

from __future__ import annotations

from dataclasses import dataclass

from clusterctl.domain.errors import UsageError
from clusterctl.jobs.mpirun import Binding

TRAINER = "train_imagenet_resnet_hvd.py"
DATA_FOLDER = "data/tf-imagenet"
# Batch 256 of ResNet-50 in half precision needs the 16 GB V100's memory, as the tutorial has it.
LARGE_GPU_MIB = 15_000
CHOICES = ("auto", "gpu", "cpu")


@dataclass(frozen=True)
class Preset:
    """The part of a job's line that depends on what the nodes compute with."""

    name: str
    binding: Binding
    exports: tuple[tuple[str, str], ...]
    settings: tuple[tuple[str, str], ...] = ()


GPU = Preset(
    name="gpu",
    binding=Binding.SOCKET,
    exports=(
        ("HOROVOD_HIERARCHICAL_ALLREDUCE", "1"),
        ("HOROVOD_FUSION_THRESHOLD", "16777216"),
        # NCCL before 2.5 knows the first name only, later ones the second.
        ("NCCL_MIN_NRINGS", "4"),
        ("NCCL_MIN_NCHANNELS", "4"),
        ("NCCL_SOCKET_IFNAME", "^docker0,lo"),
        ("TF_CPP_MIN_LOG_LEVEL", "0"),
        ("PYTHONUNBUFFERED", "1"),
    ),
)
CPU = Preset(
    name="cpu",
    binding=Binding.NONE,
    exports=(("TF_CPP_MIN_LOG_LEVEL", "2"), ("PYTHONUNBUFFERED", "1")),
    # More ranks than cores spin against each other otherwise: 1.4 times the speed at two ranks.
    settings=(("mpi_yield_when_idle", "1"),),
)


def choose_preset(name: str, nvidia_driver: bool) -> Preset:
    """The preset of that name; `auto` is `gpu` where there is an NVIDIA driver."""
    if name not in CHOICES:
        raise UsageError(f"there is no preset {name!r}", f"it is one of {', '.join(CHOICES)}")
    if name == "auto":
        return GPU if nvidia_driver else CPU
    return GPU if name == "gpu" else CPU


def trainer_arguments(
    preset: Preset, *, synthetic: bool, home: str, gpu_memory_mib: int | None = None
) -> list[str]:
    """The trainer's flags: the tutorial's on GPUs, work that ends in a minute on CPUs.

    From 128 GPUs on the tutorial's script adds `--use_larc --loss_scale 256.`: not here, since
    the trainer has no LARC.
    """
    data = ["--synthetic"] if synthetic else ["--data_dir", f"{home}/{DATA_FOLDER}/"]
    schedule = [] if synthetic else ["--lr_decay_mode", "poly"]
    if preset.name == "cpu":
        work = ["--image_size", "64", "-b", "8", "--num_batches", "40", "--display_every", "10"]
        return [*data, *work, "--nofp16", *schedule, "--clear_log"]
    batch = "256" if (gpu_memory_mib or 0) > LARGE_GPU_MIB else "128"
    if synthetic:
        return [*data, "-b", batch, "--num_epochs", "5", "--clear_log"]
    warmup = ["--warmup_epochs", "10"]
    return [*data, "--num_epochs", "90", "-b", batch, *schedule, *warmup, "--clear_log"]
