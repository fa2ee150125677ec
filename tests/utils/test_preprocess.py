"""Raw ImageNet to TFRecord files: their content, and all ways to resume or refuse a run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import SHARDS, UTILS

pytestmark = pytest.mark.train

TRAIN = [f"train-{index:05d}-of-00004" for index in range(4)]
VALIDATION = [f"validation-{index:05d}-of-00002" for index in range(2)]
LISTED = "corrupt-images-train.txt"


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name[0] != "."}


@pytest.fixture
def copy(made, tmp_path):
    """Return a copy of the shards, which a test may damage."""
    return Path(shutil.copytree(made[0], tmp_path / "copy"))


@pytest.fixture
def again(tool, raw):
    """Run the program again on a folder of shards."""

    def run(folder, *argv):
        return tool(
            "preprocess_imagenet.py",
            *("--raw_data_dir", raw),
            *("--output_dir", folder),
            *SHARDS,
            *("--num_processes", 1),
            *argv,
        )

    return run


@pytest.fixture(scope="module")
def facts(facts_of, made, raw, tmp_path_factory):
    return facts_of("records_facts.py", made[0], raw, tmp_path_factory.mktemp("facts"))


def test_records_are_tensorflows_byte_for_byte(facts):
    assert facts["ours_read_by_them"]
    assert facts["theirs_read_by_us"]
    assert facts["crc"] == [0xE3069283, 0, 0x8A9136AA, 0x62A8AB43]  # RFC 3720, B.4


def test_every_image_has_the_original_features(facts, raw):
    images = facts["images"]
    train = [image for image in images if image["file"].startswith("train")]
    labels = {folder.name: i for i, folder in enumerate(sorted((raw / "train").iterdir()), 1)}
    assert len(train) == 59
    for image in images:
        assert image["image/class/label"] == labels[image["image/class/synset"]]
        assert (image["image/channels"], image["image/colorspace"]) == (3, "RGB")
        assert image["image/format"] == "JPEG"
        assert image["shape"] == [image["image/height"], image["image/width"], 3]
    for image in train:
        assert (raw / "train" / image["image/class/synset"] / image["image/filename"]).is_file()


def test_validation_images_are_in_order_with_their_synsets(facts, raw):
    found = [image for image in facts["images"] if image["file"].startswith("validation")]
    names = sorted(path.name for path in (raw / "validation").iterdir())
    assert [image["image/filename"] for image in found] == names
    synsets = (raw / "synset_labels.txt").read_text().split()
    assert [image["image/class/synset"] for image in found] == synsets


def test_training_images_are_shuffled(facts):
    found = [image for image in facts["images"] if image["file"] == TRAIN[0]]
    assert len({image["image/class/label"] for image in found}) > 3
    names = [image["image/filename"] for image in found]
    assert names != sorted(names)


def test_jpegs_are_kept_as_they_are_and_two_odd_ones_converted(facts):
    converted = [image for image in facts["images"] if not image["same bytes"]]
    assert len(converted) == 2  # CMYK and PNG; trainers can read the grey JPEG
    assert max(image["distance"] for image in facts["images"]) < 0.6  # of 255 levels: JPEG rounds


def test_the_corrupt_image_is_left_out_loudly(made, raw):
    folder, done = made
    assert sorted(content(folder)) == [LISTED, *TRAIN, *VALIDATION]
    assert done.returncode == 3
    assert done.stderr.splitlines()[-1] == (
        "error: 1 image is left out; if that is all right, --allow_corrupt 1 makes it so"
    )
    assert f"train: 1 image is corrupt and left out: {folder / LISTED}\n" in done.stdout
    assert f"train: 60 images of 5 classes in {raw}\n" in done.stdout
    assert f"train: 59 images in 4 files in {folder}" in done.stdout
    name, size, _, why = (folder / LISTED).read_text().splitlines()[1].split("\t")
    assert (raw / "train" / name).stat().st_size == int(size)
    assert "truncated" in why


def test_all_shards_but_the_last_are_equal_in_spite_of_it(facts):
    files = [image["file"] for image in facts["images"]]
    assert [files.count(name) for name in TRAIN + VALIDATION] == [15, 15, 15, 14, 5, 5]


def test_a_second_run_has_nothing_to_do(made, again):
    before = {path.name: path.stat().st_mtime_ns for path in made[0].iterdir()}
    done = again(made[0], "--allow_corrupt", 1)
    assert done.returncode == 0
    assert "in 4 files" in done.stdout
    assert "(4 of them were there)" in done.stdout
    after = {path.name: path.stat().st_mtime_ns for path in made[0].iterdir()}
    del before[LISTED], after[LISTED]  # it is written again, with the same lines
    assert after == before


def test_what_is_missing_is_made_again_to_the_last_bit(made, copy, again):
    (copy / TRAIN[2]).unlink()
    (copy / VALIDATION[1]).write_bytes(b"short")
    (copy / f".{TRAIN[1]}.partial").write_bytes(b"left over")
    assert again(copy).returncode == 3
    assert content(copy) == content(made[0])


def test_tars_give_the_same_shards_without_being_extracted(tool, tars, made, tmp_path):
    done = tool("preprocess_imagenet.py", "--raw_data_dir", tars, "--output_dir", tmp_path, *SHARDS)
    assert done.returncode == 3
    assert content(tmp_path) == content(made[0])
    assert sorted(path.name for path in tars.iterdir()) == [
        "ILSVRC2012_img_train.tar",
        "ILSVRC2012_img_val.tar",
        "synset_labels.txt",
    ]


def test_tars_of_synsets_and_folders_of_validation_images_do_too(tool, tars, raw, made, tmp_path):
    other = tmp_path / "raw"
    shutil.unpack_archive(tars / "ILSVRC2012_img_train.tar", other / "train", "tar")
    for path, synset in zip(
        sorted((raw / "validation").iterdir()), (raw / "synset_labels.txt").read_text().split()
    ):
        (other / "val" / synset).mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, other / "val" / synset)
    (other / "train" / ".DS_Store").write_bytes(b"")
    argv = ["--raw_data_dir", other, "--output_dir", tmp_path / "out", *SHARDS]
    assert tool("preprocess_imagenet.py", *argv, "--num_processes", 1).returncode == 3
    made_here = content(tmp_path / "out")
    assert {name: made_here[name] for name in TRAIN} == {n: content(made[0])[n] for n in TRAIN}
    assert (
        "all is well"
        in tool("preprocess_imagenet.py", "--output_dir", tmp_path / "out", "--verify").stdout
    )


def test_a_repaired_image_comes_in(tool, raw, copy, tmp_path):
    name = (copy / LISTED).read_text().splitlines()[1].split("\t")[0]
    fixed = Path(shutil.copytree(raw, tmp_path / "raw"))
    good = next(path for path in (fixed / "train" / name).parent.iterdir() if path.name != name)
    size = (fixed / "train" / name).stat().st_size
    (fixed / "train" / name).write_bytes(good.read_bytes())
    os.truncate(fixed / "train" / name, max(size, good.stat().st_size))
    argv = ["--raw_data_dir", fixed, "--output_dir", copy, *SHARDS, "--num_processes", 1]
    done = tool("preprocess_imagenet.py", *argv)
    assert (done.returncode, done.stderr) == (0, "")
    assert "train: 60 images in 4 files" in done.stdout
    assert not (copy / LISTED).exists()


def test_names_that_are_not_utf8_are_kept_as_bytes(tool, raw, tmp_path):
    cafe = os.fsdecode(b"caf\xe9")
    raw = Path(shutil.copytree(raw, tmp_path / cafe))
    strict = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    first, second, third, *_ = sorted((raw / "train").iterdir())
    (third / "nowhere.JPEG").symlink_to("gone")
    for folder in (first, raw / "validation"):
        image = min(folder.iterdir())
        image.rename(image.with_name(f"{image.stem} {cafe}.JPEG"))
    (first / f"{cafe}.JPEG").write_bytes(b"no image")
    shutil.make_archive(str(raw / "train" / first.name), "tar", first)
    shutil.rmtree(first)
    labels = raw / "synset_labels.txt"
    labels.write_text(labels.read_text().replace(second.name, first.name))
    second.rename(second.with_name(cafe))
    argv = ["--raw_data_dir", raw, "--output_dir", tmp_path / "out", *SHARDS]
    for made_before in ("", "(4 of them were there)"):
        done = tool("preprocess_imagenet.py", *argv, env=strict)
        assert (done.returncode, "Traceback" in done.stderr) == (3, False), done.stderr
        assert "train: 3 images are corrupt and left out" in done.stdout
        assert made_before in done.stdout
    listed = (tmp_path / "out" / LISTED).read_bytes()
    assert f"{first.name}/".encode() + b"caf\xe9.JPEG\t" in listed
    assert re.search(
        rb"%b/nowhere.JPEG\t.*\ta link that leads nowhere\n" % third.name.encode(), listed
    )
    data = b"".join(content(tmp_path / "out")[name] for name in (*TRAIN, *VALIDATION))
    assert data.count(b" caf\xe9.JPEG") == 2
    assert data.count(b"caf\xe9") > 3  # the synset of each of its images
    checked = tool("preprocess_imagenet.py", "--output_dir", tmp_path / "out", "--verify")
    assert checked.stdout.count("all is well") == 2


def test_subfolders_are_written_and_read_where_asked_for(again, tool, tmp_path):
    assert again(tmp_path, "--subfolders").returncode == 3
    assert sorted(content(tmp_path / "train")) == [LISTED, *TRAIN]
    assert sorted(content(tmp_path / "validation")) == VALIDATION
    for flags in ([], ["--subfolders"]):
        done = tool("preprocess_imagenet.py", "--verify", "--output_dir", tmp_path, *flags)
        assert (done.returncode, done.stdout.count("all is well")) == (0, 2)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "pass --output_dir, or --local_scratch_dir"),
        (["--output_dir", "x"], "pass --raw_data_dir, or --local_scratch_dir to download to"),
        (["--output_dir", "x", "--raw_data_dir", "y", "--train_shards", "0"], "'0' is not 1 or"),
        (["--output_dir", "x", "--raw_data_dir", "y", "surprise"], "unrecognized arguments"),
    ],
)
def test_usage_errors_end_with_2(tool, argv, said):
    done = tool("preprocess_imagenet.py", *argv)
    assert done.returncode == 2
    assert said in done.stderr.splitlines()[-1]


def test_more_shards_than_images_are_refused_before_anything_is_made(tool, raw, tmp_path):
    argv = ("--raw_data_dir", raw, "--output_dir", tmp_path / "out", "--train_shards", "4")
    done = tool("preprocess_imagenet.py", *argv, "--validation_shards", "11")
    assert (done.returncode, done.stdout.count("train:")) == (1, 0)
    assert "10 records do not fill 11 shards: ask for fewer shards" in done.stderr
    assert not (tmp_path / "out").exists()


def test_help_needs_no_library(tmp_path):
    """Without NumPy and Pillow, it still prints its help, and what is missing."""
    program = [sys.executable, "-S", str(UTILS / "preprocess_imagenet.py")]
    shown = subprocess.run([*program, "--help"], capture_output=True, text=True, check=True)
    assert "--imagenet_access_key" in shown.stdout
    argv = ["--verify", "--output_dir", str(tmp_path)]
    done = subprocess.run([*program, *argv], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: this needs ")
    assert done.stderr.count("\n") == 1


def test_grey_of_16_bits_is_scaled_and_grey_of_unknown_range_left_out(facts_of):
    found = facts_of("grey_facts.py")
    for kind in ("PNG I;16", "TIFF I;16", "TIFF I;16B", "PPM I"):
        for columns in found[kind]:
            assert columns == pytest.approx([32, 96, 160], abs=4), kind
    for kind, mode in (("TIFF I", "I"), ("TIFF F", "F")):
        text = f"the range of its grey values is not known (mode {mode})"
        assert [said.partition(":")[0] for said in found[kind]] == [text, text]
