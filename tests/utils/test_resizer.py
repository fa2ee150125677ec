"""Resizing one image and one record: sizes, pixels, JPEG, features, broken bytes."""

from __future__ import annotations

import json

import pytest

from .conftest import UTILS

pytestmark = pytest.mark.train

# Width, height, size and stretch, and the resulting width and height.
SIZES = [
    ((500, 375, 480, False), [500, 375]),
    ((640, 480, 480, False), [640, 480]),
    ((481, 480, 480, False), [481, 480]),
    ((481, 481, 480, False), [480, 480]),
    ((1024, 768, 480, False), [640, 480]),
    ((768, 1024, 480, False), [480, 640]),
    ((4288, 2848, 480, False), [723, 480]),
    ((10000, 500, 480, False), [9600, 480]),
    ((1, 1, 480, False), [1, 1]),
    ((3, 5000, 2, False), [2, 3333]),
    ((100, 50, 480, True), [480, 480]),
    ((2000, 50, 480, True), [480, 480]),
]
# Processes, inter, intra, shards and CPUs, and the resulting processes, inter and intra.
THREADS = [
    ((0, 0, 0, 1024, 64), [64, 1, 1]),
    ((60, 2, 2, 1024, 64), [60, 2, 2]),
    ((60, 0, 0, 4, 64), [4, 4, 1]),
    ((0, 0, 3, 2, 4), [2, 2, 3]),
    ((8, 0, 0, 1, 1), [1, 1, 1]),
]


@pytest.fixture(scope="module")
def facts(facts_of):
    asked = {"sizes": [row for row, _ in SIZES], "threads": [row for row, _ in THREADS]}
    return facts_of("resizer_facts.py", UTILS, json.dumps(asked))


def test_the_shorter_side_is_the_size_and_nothing_grows(facts):
    assert facts["sizes"] == [size for _, size in SIZES]


def test_zero_threads_leave_no_cpu_idle(facts):
    assert facts["threads"] == [chosen for _, chosen in THREADS]


def test_pixels_are_those_of_a_triangle_in_float64(facts):
    assert facts["scaling"] <= 1.5  # levels are rounded twice


def test_several_threads_give_the_same_bits(facts):
    assert facts["bands"]


def test_scaling_in_the_decoder_is_near_to_full_decoding(facts):
    assert min(facts["decoder_scale"]) > 36, facts["decoder_scale"]


def test_the_jpeg_is_baseline_with_halved_chroma_and_tables_of_its_own(facts):
    assert facts["jpeg"] == {
        "size": [64, 48, 64, 48],
        "mode": ["JPEG", "RGB"],
        "sampling": [2, 2],
        "progressive": False,
        "left": [],
        "own_tables": True,
        "quality": True,
        "again": True,
    }


@pytest.mark.parametrize(
    "source", ["cmyk", "png", "alpha", "palette", "gif", "grey", "progressive"]
)
def test_any_source_becomes_rgb_of_the_same_colour(facts, source):
    small, whole = facts["modes"][source]
    assert small[:4] == ["JPEG", "RGB", 64, 48]
    assert whole[:4] == ["JPEG", "RGB", 120, 90]
    assert max(small[4], whole[4]) <= 6


def test_an_image_that_would_only_grow_keeps_its_bytes(facts):
    assert facts["kept"] == {"coarse": True, "fine": False, "grey": False, "png": False}


def test_a_record_keeps_all_but_the_image_and_its_size(facts):
    assert facts["records"] == {
        "changed": ["image/encoded", "image/height", "image/width"],
        "added": ["image/class/text", "image/object/bbox/xmax", "image/object/bbox/ymax"],
        "size": [[64], [48]],
        "boxes": [2, 2, 0, 0],
        "no_boxes": [0, 0, 0, 0],
        "text": True,
        "small": [[30], [20]],
        "again": True,
    }


def test_broken_bytes_are_corrupt_images_and_nothing_else(facts):
    found = facts["corrupt"]
    assert found["refused"] == found["of"]
    assert set(found["ends"]) == {"corrupt", "resized"}
    assert found["records"] == ["corrupt"] * 4
