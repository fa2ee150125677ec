"""How many operations a second a training does, and what share that is of a GPU's peak (MFU).

MFU, model FLOP/s utilization, counts the operations that the model needs, not those that the GPU
did (Chowdhery et al., PaLM, arXiv:2204.02311, appendix B).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

# Multiply-adds of one image's forward pass at 224 x 224 pixels: those of all convolutions and of
# the classifier, counted over the layers of the trainer's models. They are the 1.81, 3.66, 4.09,
# 7.80 and 11.51 "GFLOPS" in torchvision's table of models, which counts a multiply-add as one.
FORWARD_MULTIPLY_ADDS = {
    "resnet18": 1_814_073_344,
    "resnet34": 3_663_761_408,
    "resnet50": 4_089_184_256,
    "resnet101": 7_801_405_440,
    "resnet152": 11_513_626_624,
}
IMAGE_SIZE = 224
# A multiply-add is two operations, and a training step does three times those of the forward pass:
# the backward pass has the gradients by inputs and by weights (openai.com/research/ai-and-compute,
# appendix). One image of ResNet-50 takes 24.5 GFLOP.
FLOPS_PER_FORWARD_MULTIPLY_ADD = 2 * 3

# Peak TFLOP/s of one GPU, by a pattern that the driver's whole name of it has to match: without
# sparsity, with accumulation in float32. float16 is that of the tensor cores. float32 is TF32's
# where the GPU has it, since TensorFlow uses it by default. NVIDIA's tables print figures with
# sparsity for Ada and later, which are twice these. The figures were read in public tables that
# name these datasheets. A GPU that is not here is not known: for the B300 such tables contradict
# each other.
_PEAKS: tuple[tuple[str, float, float, str], ...] = (
    ("Tesla V100-SXM2-(16|32)GB", 125.0, 15.7, "NVIDIA, V100 datasheet (us-1165301-r5)"),
    ("Tesla T4", 65.0, 8.1, "NVIDIA, T4 datasheet (951643)"),
    ("(NVIDIA )?A100-SXM4-(40|80)GB", 312.0, 156.0, "NVIDIA, A100 datasheet (1758950-r4)"),
    ("NVIDIA A10G", 70.0, 35.0, "NVIDIA and AWS, A10G datasheet (2022-02-17)"),
    ("NVIDIA L4", 121.0, 60.0, "NVIDIA, L4 datasheet"),
    ("NVIDIA L40S", 362.05, 183.0, "NVIDIA, L40S datasheet"),
    ("NVIDIA H100 80GB HBM3", 989.5, 494.5, "NVIDIA, H100 datasheet, SXM"),
    ("NVIDIA H200", 989.5, 494.5, "NVIDIA, H200 datasheet, SXM"),
    ("NVIDIA B200", 2250.0, 1125.0, "NVIDIA, HGX B200 datasheet, an eighth"),
)  # fmt: skip


class Work(Protocol):
    """What was trained, and on what. What is not known is None.

    `image_size` is in pixels, `precision` float16 or float32. `gpu` is the driver's name of the
    GPUs, such as `NVIDIA A100-SXM4-40GB`: of different ones all names, on processors None.
    """

    @property
    def model(self) -> str | None: ...
    @property
    def image_size(self) -> int | None: ...
    @property
    def precision(self) -> str | None: ...
    @property
    def gpu(self) -> str | None: ...


@dataclass(frozen=True)
class Utilization:
    """The use of one GPU: TFLOP/s of the training, and their share of the peak, from 0 to 1.

    What is not known is None.
    """

    tflops: float | None = None
    mfu: float | None = None


def utilization(images_per_s: float | None, work: Work) -> Utilization:
    """Return the use of a GPU that trains so many images/s; of different GPUs, the mean of them."""
    multiply_adds = FORWARD_MULTIPLY_ADDS.get(work.model or "")
    known = work.gpu and work.image_size == IMAGE_SIZE
    if images_per_s is None or multiply_adds is None or not known:
        return Utilization()
    tflops = images_per_s * multiply_adds * FLOPS_PER_FORWARD_MULTIPLY_ADD / 1e12
    peak = peak_tflops(work.gpu, work.precision)
    return Utilization(tflops, tflops / peak if peak else None)


def peak_tflops(gpu: str | None, precision: str | None) -> float | None:
    """Return the peak TFLOP/s of a GPU; None if it is not known. The arguments are those of Work.

    Different GPUs have no peak in common.
    """
    for pattern, float16, float32, _ in _PEAKS:
        if re.fullmatch(pattern, gpu or ""):
            return {"float16": float16, "float32": float32}.get(precision or "")
    return None
