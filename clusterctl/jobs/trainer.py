"""The trainer's recipes, which make a run the tutorial's or a fast one; its flags on GPUs and on
CPUs, and what its own parser makes of them.

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
from typing import Any, Optional

from clusterctl.domain.errors import UsageError
from clusterctl.node.paths import LOG_FOLDER
from clusterctl.node.record import from_json

FUSION = "HOROVOD_FUSION_THRESHOLD"
# The tutorial's limit: a batch of 256 images with ResNet-50 in half precision needs a V100's 16 GB.
LARGE_GPU_MIB = 15_000
# Boards of 80 GB: nvidia-smi shows 81,559 MiB on an H100.
HUGE_GPU_MIB = 80_000


@dataclass(frozen=True)
class Recipe:
    """What a recipe sets, whatever the cluster. It changes the speed, not the optimiser.

    `flags` are the trainer's on all processors, `gpu_flags` those only on GPUs, and `fp16_flags`
    those on GPUs that compute in float16. `efa_fusion_bytes` is the size of Horovod's fusion buffer
    on nodes with EFA; 0 for the preset's. `batches` are pairs of GPU memory (MiB, as nvidia-smi's
    memory.total) and the images of a rank's batch above it, largest first. `largest_step` is the
    most images that a step of all ranks takes; 0 for any number.
    """

    name: str
    batches: tuple[tuple[int, int], ...]
    flags: tuple[str, ...] = ()
    gpu_flags: tuple[str, ...] = ()
    fp16_flags: tuple[str, ...] = ()
    efa_fusion_bytes: int = 0
    largest_step: int = 0

    def batch(self, gpu_memory_mib: int | None, ranks: int) -> int:
        """Return the images per rank on GPUs with so much memory; None: unknown, taken as small.

        The size is nvidia-smi's `memory.total`, which is less than the board's memory: drivers
        before 510 leave out what they reserve (V100: 16,160 of 16,384 MiB), and ECC takes its part
        (T4: 15,360). In public logs of nvidia-smi, a 16 GB board has at least 15,079 MiB, and one
        of 12 GB has 11,441 MiB. `largest_step` counts for `ranks` ranks; a batch that it makes
        smaller is a multiple of 8, as tensor cores need it for float16.
        """
        most = next(images for above, images in self.batches if (gpu_memory_mib or 0) > above)
        if not self.largest_step or most * ranks <= self.largest_step:
            return most
        return max(8, self.largest_step // ranks // 8 * 8)


TUTORIAL = Recipe("tutorial", batches=((LARGE_GPU_MIB, 256), (-1, 128)))
# XLA merges the operations of a step; the 161 weights' update, as one program, took 0.6 ms on an
# H200 where the same 483 kernels took 2.1 ms, and 4.2 ms with their launches (JAX's XLA and PyTorch
# there; TensorFlow's own is not measured). On CPUs that update takes three times as long, so CPUs
# do without. 64 MiB hold all of ResNet-50's gradients in float16 (51 MB): with XLA they are ready
# at once, at the end of the backward pass, and one message uses EFA best. 408 images: NVIDIA's
# batch in MLPerf 1.0 on an A100 of 80 GB.
FAST = Recipe(
    "fast",
    batches=((HUGE_GPU_MIB, 408), *TUTORIAL.batches),
    flags=("--all_cpus",),
    gpu_flags=("--xla", "--fused_update"),
    fp16_flags=("--fp16_allreduce",),
    efa_fusion_bytes=64 << 20,
    largest_step=32_768,
)
RECIPES = {recipe.name: recipe for recipe in (TUTORIAL, FAST)}


@dataclass(frozen=True)
class JobRecipe:
    """What a recipe sets in one job, without what the user or the preset sets instead.

    `batch` is per rank, None if something else sets it. `exports` are variables of the ranks.
    `largest_step` is the recipe's.
    """

    name: str
    flags: tuple[str, ...] = ()
    exports: tuple[tuple[str, str], ...] = ()
    batch: int | None = None
    largest_step: int = 0

    def __str__(self) -> str:
        """Return `recipe fast: -b 408 --xla --fused_update, HOROVOD_FUSION_THRESHOLD=67108864`."""
        batch = () if self.batch is None else ("-b", str(self.batch))
        words = [" ".join((*batch, *self.flags)), *(f"{k}={v}" for k, v in self.exports)]
        return f"recipe {self.name}: {', '.join(filter(None, words)) or 'no settings of its own'}"

    def as_data(self) -> dict[str, Any]:
        """Return the recipe for JSON and for the job's record."""
        about = {"name": self.name, "flags": list(self.flags), "variables": dict(self.exports)}
        return {**about, "batch": self.batch, "largest_step": self.largest_step or None}


TRAINER = "train_imagenet_resnet_hvd.py"
DATA_FOLDER = "data/tf-imagenet"
# A fresh run empties its log folder. Runs on synthetic data have a folder of their own, so that a
# smoke test never deletes the checkpoints in the trainer's default folder.
SYNTHETIC_LOG_FOLDER = "imagenet_resnet_synthetic"
# From this many GPUs on the tutorial trains with LARC: so large a batch does not converge without.
LARC_FROM = 128
EPOCHS = 90  # of a whole training of ResNet-50
SYNTHETIC_EPOCHS = 5
CHOICES = ("auto", "gpu", "cpu")
# The NVIDIA driver's cache of compiled kernels, below the home folder. `env install` fills it if
# TensorFlow has no kernels for the GPUs. The driver's default limit, 1 GiB at most, is too small
# for all of them.
KERNELS = ".cache/clusterctl/cuda"
KERNELS_BYTES = 4 << 30
HIERARCHICAL = "HOROVOD_HIERARCHICAL_ALLREDUCE"


@dataclass(frozen=True)
class Preset:
    """The settings of a job that depend on the nodes' hardware.

    `exports` are environment variables, `settings` MCA parameters, `flags` those of the trainer
    besides the batch. `steps` is the length of a run; 0 for runs that are counted in epochs.
    `batch` is per rank; empty if it depends on the GPUs.
    """

    name: str
    exports: tuple[tuple[str, str], ...]
    settings: tuple[tuple[str, str], ...] = ()
    flags: tuple[str, ...] = ()
    steps: int = 0
    batch: str = ""

    @property
    def on_gpus(self) -> bool:
        return self.name != "cpu"

    def exports_for(self, ranks_per_node: int) -> tuple[tuple[str, str], ...]:
        """Return the exports for nodes with at most that many ranks.

        With one rank on each there is nothing to add up within a node: the hierarchical allreduce
        would only send the gradients through host memory and MPI in place of NCCL.
        """
        several = ranks_per_node > 1
        return tuple(one for one in self.exports if several or one[0] != HIERARCHICAL)


_GPU_EXPORTS = (
    (FUSION, "16777216"),
    # Bridges have the same address on every host, so NCCL must not use them. These are prefixes.
    ("NCCL_SOCKET_IFNAME", "^docker,br-,virbr,veth,lo"),
    ("TF_CPP_MIN_LOG_LEVEL", "0"),
    ("PYTHONUNBUFFERED", "1"),
)
# For one network card and TCP, as on the tutorial's p3: NCCL within a node, MPI between nodes.
GPU = Preset(
    name="gpu",
    exports=(
        (HIERARCHICAL, "1"),
        # NCCL before 2.5 reads the first variable, later versions read the second.
        ("NCCL_MIN_NRINGS", "4"),
        ("NCCL_MIN_NCHANNELS", "4"),
        *_GPU_EXPORTS,
    ),
)
# NCCL between nodes, too: a hierarchical allreduce would send gradients with MPI, over TCP. NCCL
# chooses the number of channels: more of them make messages too small for EFA. From libfabric 1.18
# and aws-ofi-nccl 1.7 on, AWS recommends only to turn huge pages off, because a fork with them runs
# out of memory (awsome-distributed-training, efa-cheatsheet.md).
EFA = Preset(name="efa", exports=(("FI_EFA_USE_HUGE_PAGE", "0"), *_GPU_EXPORTS))
CPU = Preset(
    name="cpu",
    exports=(("TF_CPP_MIN_LOG_LEVEL", "2"), ("PYTHONUNBUFFERED", "1")),
    # Ranks that wait yield their core. If there are more ranks than cores, those that spin would
    # slow the others down: 1.4 times the speed at two ranks.
    settings=(("mpi_yield_when_idle", "1"),),
    flags=("--image_size", "64", "--nofp16", "--display_every", "10"),
    steps=40,
    batch="8",
)


@dataclass(frozen=True)
class TrainerOptions:
    """The options of a run that do not depend on the hardware.

    `data_dir` is None for synthetic images, `epochs` None for the preset's number. `counts_steps`:
    the user's flags set the number of steps. `clears`: empty the log folder first. `fp16`: GPUs
    compute in float16.
    """

    ranks: int
    data_dir: str | None = None
    epochs: int | None = None
    counts_steps: bool = False
    more_augmentation: bool = False
    clears: bool = True
    recipe: Recipe = TUTORIAL
    fp16: bool = True


def choose_preset(name: str, nvidia_driver: bool, efa: bool) -> Preset:
    """Return the preset of a name: `auto` is `gpu` if there is an NVIDIA driver, else `cpu`.

    GPUs of a node with an Elastic Fabric Adapter get the preset EFA. Raises UsageError.
    """
    if name not in CHOICES:
        raise UsageError(f"there is no preset {name!r}", f"it is one of {', '.join(CHOICES)}")
    if name == "cpu" or (name == "auto" and not nvidia_driver):
        return CPU
    return EFA if efa else GPU


def training_flags(
    preset: Preset, options: TrainerOptions, gpu_memory_mib: int | None
) -> list[str]:
    """Return the trainer's flags: on GPUs the recipe's, on CPUs those of a run of a minute."""
    clear = ["--clear_log"] if options.clears else []
    common = _common(preset, options, gpu_memory_mib)
    return [*common, *_optimiser(preset, options), *recipe_flags(preset, options), *clear]


def recipe_flags(preset: Preset, options: TrainerOptions) -> tuple[str, ...]:
    """Return the recipe's flags for a training on the preset's processors, besides the batch."""
    recipe = options.recipe
    on_gpus = (*recipe.gpu_flags, *(recipe.fp16_flags if options.fp16 else ()))
    return (*recipe.flags, *(on_gpus if preset.on_gpus else ()))


def recipe_variables(preset: Preset, options: TrainerOptions) -> dict[str, str]:
    """Return the recipe's environment variables, which replace the preset's of these names."""
    fusion_bytes = options.recipe.efa_fusion_bytes
    return {FUSION: str(fusion_bytes)} if fusion_bytes and preset is EFA else {}


def evaluation_flags(
    preset: Preset, options: TrainerOptions, gpu_memory_mib: int | None
) -> list[str]:
    """Return the flags of the evaluation that follows a training.

    From `--num_gpus`, the training's number of GPUs, the trainer computes a checkpoint's epoch.
    """
    common = _common(preset, options, gpu_memory_mib)
    return [*common, "--eval", "--num_gpus", str(options.ranks)]


def _common(preset: Preset, options: TrainerOptions, gpu_memory_mib: int | None) -> list[str]:
    images = batch(preset, options, gpu_memory_mib)
    return [*_data(options), *_length(preset, options), "-b", images, *preset.flags]


def _data(options: TrainerOptions) -> list[str]:
    if options.data_dir is None:
        return ["--synthetic", "--log_dir", SYNTHETIC_LOG_FOLDER]
    return ["--data_dir", options.data_dir]


def _length(preset: Preset, options: TrainerOptions) -> list[str]:
    if options.counts_steps:
        return []  # --num_epochs would override the user's --num_batches
    epochs = _epochs(preset, options)
    return ["--num_epochs", str(epochs)] if epochs else ["--num_batches", str(preset.steps)]


def _epochs(preset: Preset, options: TrainerOptions) -> int | None:
    if options.epochs is not None or preset.steps or options.counts_steps:
        return options.epochs
    return SYNTHETIC_EPOCHS if options.data_dir is None else EPOCHS


def batch(preset: Preset, options: TrainerOptions, gpu_memory_mib: int | None) -> str:
    """Return the images per rank: the preset's, or the recipe's for GPUs with so much memory.

    Runs that are counted in steps measure speed, so the recipe's limit of a step's images, which is
    for accuracy, does not apply: all sizes of a benchmark then have one batch.
    """
    ranks = 1 if options.counts_steps else options.ranks
    return preset.batch or str(options.recipe.batch(gpu_memory_mib, ranks))


def _optimiser(preset: Preset, options: TrainerOptions) -> list[str]:
    """Return the flags of the tutorial's train_more_aug.sh, train_synthetic.sh or train.sh."""
    if options.more_augmentation:
        larc = ["--mom", "0.977", "--wdecay", "0.0005", "--loss_scale", "256.", "--use_larc"]
        decay = ["--lr_decay_mode", "linear_cosine"]
        # The script warms up for 5 epochs. The tutorial's run on 256 GPUs, which reached 75.086 %,
        # had the learning rates of 10.
        epochs = 10 if options.ranks >= LARC_FROM else 5
        return ["--increased_aug", *larc, *decay, *_warm_up(preset, options, epochs)]
    if options.data_dir is None:
        large = preset.on_gpus and options.ranks >= LARC_FROM
        return ["--use_larc", "--loss_scale", "256."] if large else []
    return ["--lr_decay_mode", "poly", *_warm_up(preset, options, 10)]


def _warm_up(preset: Preset, options: TrainerOptions, most: int) -> list[str]:
    """Return a warm-up of `most` epochs, but at most a third of the run.

    There is none in runs that are counted in steps, which are too short for it.
    """
    epochs = _epochs(preset, options) or 0
    return ["--warmup_epochs", str(min(most, epochs // 3))] if epochs >= 3 else []


IMAGENET_IMAGES = 1_281_167  # also the length of an epoch of synthetic data
# Trainable parameters of the models (torchvision's table of models).
PARAMETERS = {
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
}


# Checkpoints that a run has at most at once if it saves them by time: the trainer keeps the newest
# five, and the one that is being written or the last one comes on top.
MOST_BY_TIME = 6


@dataclass(frozen=True)
class TrainerRun:
    """What a run of the trainer will do, according to the trainer's own parser of flags.

    `data_dir` is None for synthetic images. `log_dir` and `log_name` are as given, with a `~`
    expanded. `batch_size` is per rank. The length is in `epochs`, or in `batches` (steps).
    `save_every` is in steps, 0 for once an epoch, None for by time. `local_ckpt`: each node keeps
    checkpoints. `clears`: the log folder is emptied first. `trace_steps`: the first step to trace,
    and the first one after those. `fp16`: in mixed precision. `eval_interval`: the evaluation takes
    the first checkpoint and every one after so many; None for only the last one. `image_size` is in
    pixels.
    """

    ranks: int
    data_dir: str | None = None
    log_dir: str = LOG_FOLDER
    log_name: str = "hvd_train.log"
    model: str = "resnet50"
    batch_size: int = 256
    epochs: int | None = None
    batches: int | None = None
    save_every: int | None = None
    local_ckpt: bool = False
    clears: bool = False
    evaluates_only: bool = False
    uses_larc: bool = False
    trace_steps: tuple[int, ...] | None = None
    fp16: bool = True
    eval_interval: int | None = None
    image_size: int = 224

    @property
    def global_batch(self) -> int:
        return max(1, self.ranks * self.batch_size)

    def steps(self, records: int | None) -> int | None:
        """Return the number of steps: records x epochs // global batch, unless given in steps.

        `records` is the number of training images; None if unknown. Then the result may be None.
        """
        if self.epochs is None:
            return self.batches
        records = IMAGENET_IMAGES if self.data_dir is None else records
        return None if records is None else records * self.epochs // self.global_batch

    def checkpoints(self, records: int | None) -> int:
        """Return the number of checkpoints, the last one included; 0 for synthetic data.

        If they are saved by time, that is how many are there at most at once. If they are saved by
        steps whose number is unknown, the result is 1.
        """
        if self.data_dir is None or self.evaluates_only:
            return 0
        steps = self.steps(records)
        if self.save_every is None:
            return MOST_BY_TIME if steps is None else min(steps, MOST_BY_TIME)
        every = self.save_every or max(1, (records or 0) // self.global_batch)
        return 1 if steps is None else -(-steps // every)


# A program that reads lists of flags as JSON, and prints for each what the trainer's parser returns
# as a JSON line {"flags": ...}, null if it refuses them.
_ASK = """
import json, sys
answers, sys.stdout = sys.stdout, sys.stderr
import flags
for words in json.load(sys.stdin):
    try:
        print(json.dumps({"flags": vars(flags.parse_args(words))}), file=answers, flush=True)
    except SystemExit:
        print('{"flags": null}', file=answers, flush=True)
"""


@dataclass(frozen=True)
class _Parsed:
    flags: Optional[dict[str, Any]]


# Fields of TrainerRun whose flags have other names.
_NAMES = {
    "epochs": "num_epochs",
    "batches": "num_batches",
    "save_every": "save_checkpoints_steps",
    "clears": "clear_log",
    "evaluates_only": "eval",
    "uses_larc": "use_larc",
}


def parse_with_trainer(
    folder: Path, home: str, ranks: int, lines: Sequence[Sequence[str]]
) -> tuple[TrainerRun | None, str]:
    """Return what the trainer in `folder` makes of its flags, and its errors in one line.

    `lines` are the flags of the training and of the evaluation; the TrainerRun is that of the
    first. It is None if the trainer refuses them or does not answer. `home` is the nodes' home
    folder, for a `~` in the flags. The parser imports no TensorFlow, so this takes a tenth of a
    second. Without it, wrong flags would be reported by every rank of the job.
    """
    process = subprocess.run(
        [sys.executable, "-B", "-c", _ASK],
        cwd=str(folder),
        env={**os.environ, "HOME": home},
        input=json.dumps([list(words) for words in lines]).encode(),
        capture_output=True,
        check=False,
    )
    errors = process.stderr.decode(errors="replace").splitlines()
    try:
        lines_out = [] if process.returncode else process.stdout.splitlines()
        parsed, *_ = [from_json(_Parsed, line).flags for line in lines_out]
    except ValueError:  # a trainer that the user has changed may end early, or print
        return None, f"does not say what it will do: {(errors or ['no message'])[-1]}"
    matches = (re.search("error: (.*)", line, re.IGNORECASE) for line in errors)
    refused = "; ".join(dict.fromkeys(match[1] for match in matches if match))
    if parsed is None:
        return None, refused
    flags = {name: _NAMES.get(name, name) for name in TrainerRun.__dataclass_fields__}
    # A trainer that the user has changed, or of another version, may lack a flag.
    known = {name: parsed[flag] for name, flag in flags.items() if flag in parsed}
    known["trace_steps"] = tuple(known.get("trace_steps") or ()) or None
    return TrainerRun(**{**known, "ranks": ranks}), refused


def switch(arguments: Sequence[str], name: str) -> bool | None:
    """Return True if the last of `--name` and `--noname` is the first, else False; None without.

    The trainer accepts no abbreviations of flags, so the words are compared as a whole.
    """
    found = [word == f"--{name}" for word in arguments if word in (f"--{name}", f"--no{name}")]
    return found[-1] if found else None


def opposite(word: str) -> str:
    """Return the opposite of a switch: `--fp16` for `--nofp16`, and vice versa."""
    return f"--{word[4:]}" if word.startswith("--no") else f"--no{word[2:]}"
