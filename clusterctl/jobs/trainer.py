"""The trainer: its flags on GPUs and on CPUs, and what it says that it will do with them.

Python 3.8 and the standard library only: this module also runs on the nodes (jobs/train_sh).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from clusterctl.domain.errors import UsageError
from clusterctl.jobs.mpirun import Binding

TRAINER = "train_imagenet_resnet_hvd.py"
DATA_FOLDER = "data/tf-imagenet"
# The trainer's own default, the tutorial's, is for runs whose checkpoints are worth something. A
# fresh run empties its log folder, so a smoke test has one of its own.
SYNTHETIC_LOG_FOLDER = "imagenet_resnet_synthetic"
# The tutorial's limit: batch 256 of ResNet-50 in half precision needs the 16 GB V100's memory.
LARGE_GPU_MIB = 15_000
# From here the tutorial trains with LARC: so large a batch does not converge without it.
LARC_FROM = 128
# The tutorial has no run of so many GPUs without it: a step takes 65,536 images.
NEEDS_LARC_FROM = 256
EPOCHS = 90
SYNTHETIC_EPOCHS = 5
CHOICES = ("auto", "gpu", "cpu")
# The driver's cache of compiled kernels, below the home folder; `env install` fills it where
# TensorFlow has none for the GPUs. The driver's own limit, 1 GiB at most, is too small for all.
KERNELS = ".cache/clusterctl/cuda"
KERNELS_BYTES = 4 << 30


@dataclass(frozen=True)
class Preset:
    """The part of a job's line that depends on what the nodes compute with.

    `flags`: the trainer's, beside the batch. `steps`: how many make a run; 0: it has epochs.
    """

    name: str
    binding: Binding
    exports: tuple[tuple[str, str], ...]
    settings: tuple[tuple[str, str], ...] = ()
    flags: tuple[str, ...] = ()
    steps: int = 0
    batch: str = ""

    @property
    def on_gpus(self) -> bool:
        return self.name != "cpu"


_GPU_EXPORTS = (
    ("HOROVOD_FUSION_THRESHOLD", "16777216"),
    # Bridges have the same address on every host. NCCL compares the beginnings of the names.
    ("NCCL_SOCKET_IFNAME", "^docker,br-,virbr,veth,lo"),
    ("TF_CPP_MIN_LOG_LEVEL", "0"),
    ("PYTHONUNBUFFERED", "1"),
)
# One network card and TCP, as the tutorial's p3: NCCL within a node, MPI between nodes.
GPU = Preset(
    name="gpu",
    binding=Binding.SOCKET,
    exports=(
        ("HOROVOD_HIERARCHICAL_ALLREDUCE", "1"),
        # NCCL before 2.5 knows the first name only, later ones the second.
        ("NCCL_MIN_NRINGS", "4"),
        ("NCCL_MIN_NCHANNELS", "4"),
        *_GPU_EXPORTS,
    ),
)
# NCCL all the way: a hierarchical allreduce would send gradients with MPI, over TCP. More channels
# than NCCL takes by itself make messages too small for EFA. Of libfabric 1.18 and aws-ofi-nccl 1.7
# on, AWS advises nothing but to leave huge pages alone: with them a fork runs out of memory
# (awsome-distributed-training, efa-cheatsheet.md).
EFA = Preset(
    name="efa",
    binding=Binding.SOCKET,
    exports=(("FI_EFA_USE_HUGE_PAGE", "0"), *_GPU_EXPORTS),
)
CPU = Preset(
    name="cpu",
    binding=Binding.NONE,
    exports=(("TF_CPP_MIN_LOG_LEVEL", "2"), ("PYTHONUNBUFFERED", "1")),
    # More ranks than cores spin against each other otherwise: 1.4 times the speed at two ranks.
    settings=(("mpi_yield_when_idle", "1"),),
    flags=("--image_size", "64", "--nofp16", "--display_every", "10"),
    steps=40,
    batch="8",
)


@dataclass(frozen=True)
class TrainerOptions:
    """What is asked of the trainer, whatever it runs on. `data_dir` is None for synthetic images.

    `epochs`: None for the preset's own. `counts_steps`: the user says how many steps. `clears`:
    empty the log folder first.
    """

    ranks: int
    data_dir: str | None = None
    epochs: int | None = None
    counts_steps: bool = False
    more_augmentation: bool = False
    clears: bool = True


def choose_preset(name: str, nvidia_driver: bool, efa: bool = False) -> Preset:
    """The preset of that name; `auto` is `gpu` where there is an NVIDIA driver.

    GPUs whose node has an Elastic Fabric Adapter get the settings for it.
    """
    if name not in CHOICES:
        raise UsageError(f"there is no preset {name!r}", f"it is one of {', '.join(CHOICES)}")
    if name == "cpu" or (name == "auto" and not nvidia_driver):
        return CPU
    return EFA if efa else GPU


def training_flags(
    preset: Preset, options: TrainerOptions, gpu_memory_mib: int | None = None
) -> list[str]:
    """The trainer's flags: the tutorial's on GPUs, work that ends in a minute on CPUs."""
    clear = ["--clear_log"] if options.clears else []
    return [
        *_data(options),
        *_length(preset, options),
        *("-b", _batch(preset, gpu_memory_mib)),
        *preset.flags,
        *_optimiser(preset, options),
        *clear,
    ]


def evaluation_flags(
    preset: Preset, options: TrainerOptions, gpu_memory_mib: int | None = None
) -> list[str]:
    """The flags of the evaluation that follows: `--num_gpus`, of the training, tells its epochs."""
    return [
        *_data(options),
        *_length(preset, options),
        *("-b", _batch(preset, gpu_memory_mib)),
        *preset.flags,
        *("--eval", "--num_gpus", str(options.ranks)),
    ]


def _data(options: TrainerOptions) -> list[str]:
    if options.data_dir is None:
        return ["--synthetic", "--log_dir", SYNTHETIC_LOG_FOLDER]
    return ["--data_dir", options.data_dir]


def _length(preset: Preset, options: TrainerOptions) -> list[str]:
    if options.counts_steps:
        return []  # given --num_epochs too, the trainer would believe that
    epochs = _epochs(preset, options)
    return ["--num_epochs", str(epochs)] if epochs else ["--num_batches", str(preset.steps)]


def _epochs(preset: Preset, options: TrainerOptions) -> int | None:
    if options.epochs is not None or preset.steps or options.counts_steps:
        return options.epochs
    return SYNTHETIC_EPOCHS if options.data_dir is None else EPOCHS


def _batch(preset: Preset, gpu_memory_mib: int | None) -> str:
    """256 images on GPUs of 16 GB and more, 128 on smaller ones and where the size is not known.

    The size is nvidia-smi's `memory.total`, which is not the board's: drivers before 510 leave out
    what they keep for themselves (V100: 16,160 of 16,384 MiB), and so does ECC (T4: 15,360). By
    nvidia-smi's tables in public logs, a 16 GB board has 15,079 at least, one of 12 GB 11,441.
    """
    if preset.batch:
        return preset.batch
    return "256" if (gpu_memory_mib or 0) > LARGE_GPU_MIB else "128"


def _optimiser(preset: Preset, options: TrainerOptions) -> list[str]:
    """Of train_more_aug.sh, train_synthetic.sh and train.sh, in this order."""
    if options.more_augmentation:
        larc = ["--mom", "0.977", "--wdecay", "0.0005", "--loss_scale", "256.", "--use_larc"]
        decay = ["--lr_decay_mode", "linear_cosine"]
        return ["--increased_aug", *larc, *decay, *_warm_up(preset, options, 5)]
    if options.data_dir is None:
        large = preset.on_gpus and options.ranks >= LARC_FROM
        return ["--use_larc", "--loss_scale", "256."] if large else []
    return ["--lr_decay_mode", "poly", *_warm_up(preset, options, 10)]


def _warm_up(preset: Preset, options: TrainerOptions, most: int) -> list[str]:
    """At most a third of the run; none where the run is counted in steps: too short for it."""
    epochs = _epochs(preset, options) or 0
    return ["--warmup_epochs", str(min(most, epochs // 3))] if epochs >= 3 else []


IMAGENET_IMAGES = 1_281_167  # the length of an epoch of synthetic data


@dataclass(frozen=True)
class TrainerRun:
    """What one run of the trainer will do, as its own parser says.

    `data_dir` is None for synthetic images; `log_dir` and `log_name` are as they were given, but
    for a `~`. `batch_size` is per rank. `save_every` is in steps, 0 for once an epoch. `clears`:
    the log folder is emptied first. `trace_steps`: the first to be traced, and the first that is
    not any more.
    """

    ranks: int
    data_dir: str | None = None
    log_dir: str = "imagenet_resnet"
    log_name: str = "hvd_train.log"
    model: str = "resnet50"
    batch_size: int = 256
    epochs: int | None = None
    batches: int | None = None
    save_every: int = 1000
    local_ckpt: bool = False
    clears: bool = False
    evaluates_only: bool = False
    uses_larc: bool = False
    trace_steps: tuple[int, ...] | None = None

    @property
    def global_batch(self) -> int:
        return max(1, self.ranks * self.batch_size)

    def steps(self, records: int | None) -> int | None:
        """Return how many steps it trains for, records x epochs // global batch; None: unknown."""
        if self.epochs is None:
            return self.batches
        records = IMAGENET_IMAGES if self.data_dir is None else records
        return None if records is None else records * self.epochs // self.global_batch

    def checkpoints(self, records: int | None) -> int:
        """Return how many checkpoints it keeps, the last one included; 0 for synthetic data."""
        if self.data_dir is None or self.evaluates_only:
            return 0
        steps = self.steps(records)
        every = self.save_every or max(1, (records or 0) // self.global_batch)
        return 1 if steps is None else -(-steps // every)


# Lines in, one JSON line for each out: the settled flags, or null where they are refused.
_ASK = """
import json, sys
answers, sys.stdout = sys.stdout, sys.stderr
import flags
for words in json.load(sys.stdin):
    try:
        print(json.dumps(vars(flags.parse_args(words))), file=answers, flush=True)
    except SystemExit:
        print("null", file=answers, flush=True)
"""
_NAMES = {
    "epochs": "num_epochs",
    "batches": "num_batches",
    "save_every": "save_checkpoints_steps",
    "clears": "clear_log",
    "evaluates_only": "eval",
    "uses_larc": "use_larc",
}


def ask_trainer(
    folder: Path, home: str, ranks: int, lines: Sequence[Sequence[str]]
) -> tuple[TrainerRun | None, str]:
    """Return what the trainer in `folder` makes of its flags, and its errors in one line.

    `lines` are the flags of the training and of the evaluation: the run is that of the first. It
    is None where the trainer refuses them, or does not answer. `home` is the nodes' home folder,
    for a `~` in the flags. The parser imports no TensorFlow, so this takes a tenth of a second;
    mpirun would ask it in every rank.
    """
    asked = subprocess.run(
        [sys.executable, "-B", "-c", _ASK],
        cwd=str(folder),
        env={**os.environ, "HOME": home},
        input=json.dumps([list(words) for words in lines]).encode(),
        capture_output=True,
        check=False,
    )
    told = asked.stderr.decode(errors="replace").splitlines()
    try:
        said, *_ = map(json.loads, [] if asked.returncode else asked.stdout.splitlines())
    except ValueError:  # one that a user has changed may end early, or print
        return None, f"does not say what it will do: {(told or ['no message'])[-1]}"
    matches = (re.search("error: (.*)", line, re.IGNORECASE) for line in told)
    refused = "; ".join(dict.fromkeys(match[1] for match in matches if match))
    if said is None:
        return None, refused
    flags = {name: _NAMES.get(name, name) for name in TrainerRun.__dataclass_fields__}
    # One that a user has changed, or of another version, may lack a flag.
    known = {name: said[flag] for name, flag in flags.items() if flag in said}
    known["trace_steps"] = tuple(known.get("trace_steps") or ()) or None
    return TrainerRun(**{**known, "ranks": ranks}), refused


def switch(arguments: Sequence[str], name: str) -> bool | None:
    """Return what the last of `--name` and `--noname` says; None when neither is there.

    The trainer takes no beginning of a flag for the whole of it, so the words are exact.
    """
    said = [word == f"--{name}" for word in arguments if word in (f"--{name}", f"--no{name}")]
    return said[-1] if said else None


def opposite(word: str) -> str:
    """Return the other form of a switch: `--fp16` of `--nofp16`, and the other way round."""
    return f"--{word[4:]}" if word.startswith("--no") else f"--no{word[2:]}"
