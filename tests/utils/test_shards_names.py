"""Names of shards, finding them, distributing records, and writing complete files."""

from __future__ import annotations

import pytest
import shards
from shards import ShardError


def put(folder, *names):
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_bytes(b"")
    return folder


def numbered(subset, first, count):
    return [f"{subset}-{index:05d}-of-{count:05d}" for index in range(first, first + count)]


@pytest.mark.parametrize(
    ("subset", "index", "count", "name"),
    [
        ("train", 0, 1024, "train-00000-of-01024"),
        ("validation", 127, 128, "validation-00127-of-00128"),
    ],
)
def test_names_are_the_original_scripts(subset, index, count, name):
    assert shards.shard_name(subset, index, count) == name


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("place", ["a b", "a b/train"])
def test_both_numberings_are_found_flat_or_in_a_subfolder(tmp_path, first, place):
    names = numbered("train", first, 12)
    put(tmp_path / place, *names, ".train-00000-of-00012.partial", "train-notes.txt")
    put(tmp_path / "a b", "validation-00000-of-00001", ".shards.jsonl", "corrupt-images-train.txt")
    found = shards.find_shards(tmp_path / "a b", "train")
    assert [path.name for path in found] == names


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ([], "no train shards in"),
        (["train-0-of-2", "train-00000-of-00002.tmp"], "no train shards in"),
        (numbered("train", 0, 4)[:-1], "lacks 1 of 4 train shards: train-00003-of-00004"),
        (numbered("train", 1, 4)[1:], "lacks 1 of 4 train shards: train-00001-of-00004"),
        (numbered("train", 0, 4)[2:3], "lacks 3 of 4 train shards: train-00000-of-00004"),
        (numbered("train", 0, 4) + numbered("train", 0, 8), "two sets of train shards: of 4 and"),
        (numbered("train", 0, 4) + numbered("train", 1, 4), "numbered from 0 and from 1"),
        (["train-00007-of-00004"], "lacks 4 of 4 train shards"),
    ],
)
def test_incomplete_and_mixed_sets_are_refused(tmp_path, names, said):
    with pytest.raises(ShardError, match=said):
        shards.find_shards(put(tmp_path, *names), "train")


def test_a_folder_that_is_not_there_has_no_shards(tmp_path):
    with pytest.raises(ShardError, match="no validation shards"):
        shards.find_shards(tmp_path / "nowhere", "validation")


@pytest.mark.parametrize(
    ("records", "count", "first", "last"),
    [
        (1_281_167, 1024, 1252, 371),  # ImageNet
        (50_000, 128, 391, 343),
        (8, 8, 1, 1),
        (9, 8, 1, 2),  # rounding up would leave the last shards empty
        (10, 1, 10, 10),
        (17, 8, 2, 3),
        (100, 8, 13, 9),
        (16, 4, 4, 4),
    ],
)
def test_all_shards_but_the_last_hold_equally_many(records, count, first, last):
    shares = shards.share_out(records, count)
    assert (shares[0], shares[-1], len(shares), sum(shares)) == (first, last, count, records)
    assert set(shares[:-1]) <= {first}
    assert shares[0] * (count - 1) + shares[-1] == records  # trainers count records like this


@pytest.mark.parametrize(("records", "count"), [(7, 8), (0, 1), (5, 0)])
def test_more_shards_than_records_are_refused(records, count):
    with pytest.raises(ShardError, match="ask for fewer shards"):
        shards.share_out(records, count)


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "train-00000-of-00001"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), shards.writing(path) as temporary:
        temporary.write_text("half")
        assert path.read_text() == "old"
        raise KeyboardInterrupt
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    with shards.writing(path) as temporary:
        temporary.write_text("new")
        assert not temporary.match("train-*")
    assert path.read_text() == "new"
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_a_fingerprint_tells_values_apart():
    one = shards.fingerprint("a", [1, 2.5, ["ü"]])
    assert one == shards.fingerprint("a", (1, 2.5, ("ü",)))
    assert len({one, shards.fingerprint("a", [1, 2.5, "ü"]), shards.fingerprint("a")}) == 3
