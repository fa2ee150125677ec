"""TFLOP/s and MFU of a training."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.jobs.metrics.flops import FORWARD_MULTIPLY_ADDS, utilization
from clusterctl.jobs.metrics.logs import RunFacts

V100 = RunFacts(model="resnet50", image_size=224, precision="float16", gpu="Tesla V100-SXM2-16GB")


def multiply_adds(blocks, bottleneck):
    """Count those of a ResNet v1.5 by its definition (He et al., table 1): with a bottleneck the
    3 x 3 convolution has the stride."""
    total, size, channels = 112 * 112 * 64 * 3 * 49, 56, 64
    for stage, number in enumerate(blocks):
        width = 64 << stage
        out = width * 4 if bottleneck else width
        for block in range(number):
            before, size = size, size // (2 if stage and not block else 1)
            if bottleneck:
                total += before**2 * channels * width + size**2 * width * (9 * width + out)
            else:
                total += size**2 * 9 * width * (channels + width)
            if channels != out:
                total += size**2 * channels * out
            channels = out
    return total + 1000 * channels


def test_the_operations_are_those_of_the_networks():
    counted = {
        "resnet18": multiply_adds((2, 2, 2, 2), False),
        "resnet34": multiply_adds((3, 4, 6, 3), False),
        "resnet50": multiply_adds((3, 4, 6, 3), True),
        "resnet101": multiply_adds((3, 4, 23, 3), True),
        "resnet152": multiply_adds((3, 8, 36, 3), True),
    }
    assert counted == FORWARD_MULTIPLY_ADDS


@pytest.mark.parametrize(
    ("images_per_s", "changes", "tflops", "mfu"),
    [
        # An image of ResNet-50 takes 6 x 4.089 GFLOP.
        (740, {}, 18.156, 0.1452),
        (375, {"precision": "float32"}, 9.201, 0.586),
        (2375, {"gpu": "NVIDIA A100-SXM4-40GB"}, 58.271, 0.1868),
        (938, {"gpu": "A100-SXM4-80GB", "precision": "float32"}, 23.014, 0.1475),
        (3000, {"gpu": "NVIDIA H100 80GB HBM3"}, 73.605, 0.0744),
        (740, {"model": "resnet18"}, 8.054, 0.0644),
        # Another board of the same chip has another peak, and two kinds have none in common.
        (3000, {"gpu": "NVIDIA H100 PCIe"}, 73.605, None),
        (740, {"gpu": "NVIDIA A10"}, 18.156, None),
        (740, {"gpu": "NVIDIA A100-SXM4-40GB MIG 1g.5gb"}, 18.156, None),
        (740, {"gpu": "NVIDIA A10G, Tesla T4"}, 18.156, None),
        (740, {"precision": "float8"}, 18.156, None),
        # Processors, other sizes, other models, no rows.
        (740, {"gpu": None}, None, None),
        (740, {"image_size": 192}, None, None),
        (740, {"model": "vgg16"}, None, None),
        (None, {}, None, None),
    ],
)
def test_utilization(images_per_s, changes, tflops, mfu):
    found = utilization(images_per_s, replace(V100, **changes))
    near = [None if value is None else pytest.approx(value, rel=1e-3) for value in (tflops, mfu)]
    assert [found.tflops, found.mfu] == near


def test_a_log_of_an_earlier_trainer_tells_neither():
    assert utilization(740, RunFacts(gpus=8)) == utilization(None, RunFacts())
