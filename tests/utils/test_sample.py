"""The stand-in for ImageNet: its real layout, its unusual images, and reproducible files."""

from __future__ import annotations

import hashlib
import tarfile

import pytest

from .conftest import SMALL

pytestmark = pytest.mark.train


def content(folder):
    return {
        str(path.relative_to(folder)): (path.read_bytes(), int(path.stat().st_mtime))
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def files(raw):
    return content(raw)


def kind(data):
    """Return the kind of a picture from its markers: JPEG with N colours, PNG, or truncated."""
    if data.startswith(b"\x89PNG"):
        return "PNG"
    start = data.index(b"\xff\xc0")  # start of frame; its tenth byte is the number of components
    return (
        "cut"
        if not data.endswith(b"\xff\xd9")
        else {1: "grey", 3: "RGB", 4: "CMYK"}[data[start + 9]]
    )


def test_it_is_laid_out_as_imagenet(files):
    train = [name.split("/") for name in files if name.startswith("train/")]
    synsets = sorted({synset for _, synset, _ in train})
    assert len(train) == 60
    assert len(synsets) == 5
    assert all(len(synset) == 9 and synset[0] == "n" and synset[1:].isdigit() for synset in synsets)
    assert all(
        name.startswith(f"{synset}_") and name.endswith(".JPEG") for _, synset, name in train
    )
    validation = [name for name in files if name.startswith("validation/")]
    assert validation == [f"validation/ILSVRC2012_val_{i:08d}.JPEG" for i in range(1, 11)]
    labels = files["synset_labels.txt"][0].decode().split("\n")
    assert labels.pop() == ""
    assert sorted(labels) == sorted(synsets * 2)  # all classes are equally frequent
    assert labels != sorted(labels)
    assert len(files) == 60 + 10 + 1


def test_classes_are_uneven_and_four_images_are_odd(files):
    train = {name: data for name, (data, _) in files.items() if name.startswith("train/")}
    sizes = [
        sum(name.split("/")[1] == s for name in train) for s in {n.split("/")[1] for n in train}
    ]
    assert max(sizes) > min(sizes) > 0
    kinds = sorted(kind(data) for data in train.values())
    assert kinds == ["CMYK", "PNG", *["RGB"] * 56, "cut", "grey"]
    assert {kind(files[name][0]) for name in files if name.startswith("validation")} == {"RGB"}


def test_the_same_flags_make_the_same_files_and_another_seed_others(tool, raw, files, tmp_path):
    assert tool("make_sample_imagenet.py", "--output_dir", tmp_path / "a", *SMALL).returncode == 0
    assert content(tmp_path / "a") == files
    tool("make_sample_imagenet.py", "--output_dir", tmp_path / "b", *SMALL, "--seed", 1)
    other = content(tmp_path / "b")
    same = [name for name in files if other.get(name, (b"",))[0] == files[name][0]]
    assert same == []


def test_no_image_is_there_twice(files):
    digests = {hashlib.sha256(data).digest() for data, _ in files.values()}
    assert len(digests) == len(files)


def test_tars_hold_the_same_files(tars, files):
    found = {"synset_labels.txt": (tars / "synset_labels.txt").read_bytes()}
    with tarfile.open(tars / "ILSVRC2012_img_val.tar") as tar:
        for member in tar:
            found[f"validation/{member.name}"] = tar.extractfile(member).read()
    with tarfile.open(tars / "ILSVRC2012_img_train.tar") as tar:
        for outer in tar:
            with tarfile.open(fileobj=tar.extractfile(outer)) as inner:
                for member in inner:
                    synset = outer.name.removesuffix(".tar")
                    found[f"train/{synset}/{member.name}"] = inner.extractfile(member).read()
    assert found == {name: data for name, (data, _) in files.items()}


def test_a_folder_with_other_files_is_not_mixed_with(tool, tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    done = tool("make_sample_imagenet.py", "--output_dir", tmp_path, *SMALL)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"error: {tmp_path} is not empty: give a new folder\n"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "--output_dir"),
        (["--output_dir", "x", "--classes", "1001"], "'1001' is not between 2 and 1000"),
        (["--output_dir", "x", "--size", "٣٢"], "is not between 16 and 4096"),
        (["--output_dir", "x", "--images", "39"], "10 classes need 40 or more"),
    ],
)
def test_usage_errors_are_one_line(tool, argv, said):
    done = tool("make_sample_imagenet.py", *argv)
    assert done.returncode == 2
    assert said in done.stderr.splitlines()[-1]
