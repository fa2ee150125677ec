"""--verify finds errors in a set of shards, and their places."""

from __future__ import annotations

import shutil

import pytest

pytestmark = pytest.mark.train


@pytest.fixture(scope="module")
def facts(facts_of, made, tmp_path_factory):
    return facts_of("verify_facts.py", made[0], tmp_path_factory.mktemp("verify"))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("bit", ["train-00001-of-00004, byte", "this record's data is damaged"]),
        ("length", ["train-00001-of-00004, byte 0: no record begins here"]),
        ("truncated", ["train-00001-of-00004, byte", "the file ends within this record"]),
        ("within_a_length", ["the file ends within a record's length"]),
        ("empty", ["train-00001-of-00004 has 0 records, train-00000-of-00004 15"]),
        ("missing", ["lacks 1 of 4 train shards: train-00003-of-00004"]),
        (
            "missing_and_one_less",
            ["lacks 1 of 4 train shards: train-00003-of-00004", "train-00002-of-00004 has 14 rec"],
        ),
        ("one_less", ["train-00001-of-00004 has 14 records, train-00000-of-00004 15"]),
        ("label_of_0", ["train-00000-of-00004, record 0: its label is [0], not 1 to 1000"]),
        ("label_of_1001", ["record 0: its label is [1001]"]),
        ("no_label", ["record 0: its label is []"]),
        ("no_image", ["record 0: image/encoded is no image"]),
        ("old_width", ["record 0: the image is ", "its features say [7]x["]),
        ("no_example", ["record 0: a record is no Example", "record 1: its label is []"]),
    ],
)
def test_damage_is_found_and_located(facts, damage, said):
    problems = "\n".join(facts[damage])
    assert all(text in problems for text in said), problems


def test_damage_of_one_record_does_not_hide_the_others(facts):
    assert len(facts["two_records"]) == 2, facts["two_records"]
    assert all(one.endswith("this record's data is damaged") for one in facts["two_records"])
    assert len(facts["truncated"]) == 1, "how many records it has is not known"


def test_images_that_are_there_twice_are_named(facts):
    assert len(facts["twice"]) == 15
    assert all(problem.endswith("is there 2 times") for problem in facts["twice"])


def test_a_whole_set_is_counted(facts):
    assert facts["whole"] == [59, 5, "59 images of 5 classes: all is well"]


def test_the_program_exits_with_1_where_something_is_wrong(tool, made, tmp_path):
    folder = shutil.copytree(made[0], tmp_path / "copy")
    (folder / "validation-00001-of-00002").unlink()
    done = tool("preprocess_imagenet.py", "--verify", "--output_dir", folder, "--num_processes", 1)
    assert done.returncode == 1
    assert done.stdout.splitlines()[0] == "train: 59 images of 5 classes: all is well"
    assert "lacks 1 of 2 validation shards: validation-00001-of-00002\n" in done.stdout
    read = done.stdout.splitlines()[1]
    assert read.startswith("validation: ") and not read.startswith("validation: 0 images"), read
