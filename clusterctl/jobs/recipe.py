"""The trainer's recipes: which settings make a run the tutorial's, and which make it fast.

Python 3.8 and the standard library only: this module also runs on the nodes (jobs/train_sh).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
