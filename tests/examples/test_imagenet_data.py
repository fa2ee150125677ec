"""The trainer's input with real records, compared with NumPy and Pillow by one program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .conftest import IMAGENET, after

# The timeout is for hangs: on a busy machine these tests take minutes.
pytestmark = [pytest.mark.train, pytest.mark.timeout(1200)]

PROGRAM = Path(__file__).with_name("imagenet_data_facts.py")


@pytest.fixture(scope="module")
def facts(ranks_in, tmp_path_factory) -> Any:
    result = ranks_in(tmp_path_factory.mktemp("input"), 1, PROGRAM, IMAGENET)
    assert result.returncode == 0, result.stderr
    return after("FACTS", result.stdout)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ("from 0", "3"),
        ("from 1", "3"),
        ("with others", "3"),
        ("spaces and [*] \u00e9", "3"),
        ("one missing", "2 of 3 train files: train-00002-of-00003 missing in sets/one missing"),
        ("two missing", "train-00000-of-00003 and 1 more missing in"),
        ("both", "train files counted from 0 and files counted from 1 lie together in sets/both"),
        ("two sets", "train files of two sets (-of-00003 and -of-00004) lie together"),
        ("beyond", "train files beyond 3 in sets/beyond"),
        ("none", "no files train-00000-of-... in sets/none"),
        ("a folder of its own", "a folder train/: all training and validation files belong into"),
        ("no folder", "there is no folder sets/nowhere"),
        ("no scheme", "this TensorFlow cannot read nothing:// (install tensorflow-io, or copy"),
    ],
)
def test_which_files_are_there(facts, files, said):
    found = facts["sets"][files]
    assert said in found
    assert found == said or found.startswith("DataError: ")


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ("set", "37"),
        ("remote", "10"),
        ("empty", "0"),
        ("cut in the data", "DataError: cut in the data is cut short"),
        ("cut in a length", "DataError: cut in a length is cut short"),
        ("no records", "DataError: no records is cut short, or is no TFRecord file"),
        ("missing", "DataError: missing: No such file or directory"),
    ],
)
def test_counting_records(facts, files, said):
    assert facts["counts"][files].startswith(said)


def test_crops_are_those_of_the_whole_image(facts):
    """Differences are in levels of 255. Pillow has its own JPEG decoder."""
    errors = facts["crops"]
    assert errors.pop("Pillow") <= 4
    assert errors.pop("edges") <= 16
    assert sorted(errors) == ["4:2:0", "4:4:4", "grey", "progressive"]
    assert all(error < 1e-3 for error in errors.values()), errors


def test_colors_are_those_of_the_steps_one_by_one(facts):
    assert facts["color"] < 1e-3


def test_crops_are_drawn_as_tensorflow_draws_them(facts):
    drawn = facts["drawn"]
    assert drawn["least"] >= 0
    assert drawn["most"] <= 1.000001
    assert drawn["least_area"] >= 0.0999
    assert 0.7499 < drawn["least_aspect"] < 0.76
    assert 1.32 < drawn["most_aspect"] < 1.3334
    assert drawn["area"] == pytest.approx(drawn["their_area"], rel=0.03)
    assert drawn["top"] == pytest.approx(drawn["their_top"], rel=0.05)


def test_a_run_that_begins_later_sees_the_rest(facts):
    """It has the same images, bit by bit, at any step, with other threads and global seeds."""
    assert facts["order"]["begun"] == dict.fromkeys(["0", "1", "5", "9", "10", "19"], True)
    assert facts["order"]["another_seed"]


def test_passes_leave_no_record_out(facts):
    """Each pass over a rank's records has each record once, in another order.

    A resumed run reads the rest. Files, ranks, blocks and places of resumption are random.
    """
    assert facts["streams"]["wrong"] == []
    assert facts["streams"]["cases"] == 8


def test_every_image_of_imagenet_is_seen_within_two_epochs(facts):
    """With 8, 7 and 4 files per rank, an epoch reads fewer records than a rank has."""
    assert facts["streams"]["imagenet"] == {"128": 2, "160": 2, "256": 2}


def test_ranks_read_files_of_their_own(facts):
    first, second = facts["order"]["halves"]
    assert first == [*range(10), *range(20, 30)]
    assert second == [*range(10, 20), *range(30, 37)]
    assert "4 training files are too few for 5 processes" in facts["order"]["too_few"]


def test_colors_change_images_and_not_their_order(facts):
    assert facts["order"]["colors_change_images"]
    assert facts["order"]["colors_keep_order"]


@pytest.mark.parametrize("ranks", ["1", "2", "3", "5"])
def test_evaluation_sees_every_image_once(facts, ranks):
    """This includes more ranks than the four files."""
    assert facts["evaluation"][ranks] == list(range(37))


def test_batches_have_the_shape_and_the_numbers_asked_for(facts):
    evaluation = facts["evaluation"]
    assert evaluation["shapes"] == [4] * 9 + [1]
    assert evaluation["static"] == [None, 3, 32, 32]
    assert evaluation["float32"] < 1e-6
    assert evaluation["float16"] < 1e-3


def test_damage_is_said_in_one_line(facts):
    damage = facts["damage"]
    for name in ("label", "label_1001"):
        assert damage[name].startswith("OpError: assertion failed: [labels are not 1..1000: ")
    assert damage["cut"].startswith("OpError: Invalid JPEG data")
    assert damage["empty"].startswith("DataError: no records in empty")
    assert damage["flipped"] == "OpError: corrupted record at 12"


def test_what_is_skipped_is_not_decoded(facts):
    """One of two records is broken. A run that starts after it has no error."""
    both = facts["damage"]["both"]
    assert set(both) == {"[[4]]", "OpError: Invalid JPEG data, size 10"}
    assert any(one != "[[4]]" and "[[4]]" in both[step:] for step, one in enumerate(both))
