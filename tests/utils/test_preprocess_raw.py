"""Finding raw images: every layout, and the errors if something is missing."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest
from raw_images import LABELS, RawError, labels_of, read_image, train_images, validation_images


def put(folder, **files):
    """Write files by their paths. __ stands for /."""
    for name, content in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def tar_of(files, form=tarfile.USTAR_FORMAT):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        for name, content in files.items():
            about = tarfile.TarInfo(name)
            about.size = len(content)
            tar.addfile(about, io.BytesIO(content))
    return buffer.getvalue()


def seen(images):
    return [(image.synset, image.name, read_image(image)) for image in images]


CATS = {"b.JPEG": b"second", "a.JPEG": b"first"}
DOGS = {"c d'ü.JPEG": b"third", "e.JPEG": b""}
ALL = [
    ("n01", "a.JPEG", b"first"),
    ("n01", "b.JPEG", b"second"),
    ("n02", "c d'ü.JPEG", b"third"),
    ("n02", "e.JPEG", b""),
]


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_training_images_are_found_in_a_tar_of_tars(tmp_path, form):
    inner = {"n02.tar": tar_of(DOGS, form), "n01.tar": tar_of(CATS, form)}
    (tmp_path / "ILSVRC2012_img_train.tar").write_bytes(tar_of(inner, form))
    assert seen(train_images(tmp_path)) == ALL


def test_training_images_are_found_in_a_tar_of_folders(tmp_path):
    files = {f"n01/{name}": data for name, data in CATS.items()}
    files |= {f"train/n02/{name}": data for name, data in DOGS.items()}
    (tmp_path / "ILSVRC2012_img_train.tar").write_bytes(tar_of(files))
    assert seen(train_images(tmp_path)) == ALL


def test_training_images_are_found_in_folders_and_tars_of_synsets(tmp_path):
    folder = tmp_path / "train"
    for name, data in CATS.items():
        put(folder / "n01", **{name: data})
    (folder / "n02.tar").write_bytes(tar_of(DOGS))
    put(folder, **{".DS_Store": b"", "n01__.hidden": b""})
    assert seen(train_images(tmp_path)) == ALL
    # A tar file that stayed open would count towards the limit of open files (ulimit -n).
    opened = [str(link.resolve()) for link in Path("/proc/self/fd").iterdir()]
    assert str(folder / "n02.tar") not in opened


def test_images_are_known_again_after_the_folder_moved(tmp_path):
    put(tmp_path / "a", train__n01__x=b"1234")
    os.utime(tmp_path / "a" / "train" / "n01" / "x", (1000, 1000))
    before = train_images(tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / "b")
    after = train_images(tmp_path / "b")
    assert [image.stamp for image in after] == [image.stamp for image in before]
    assert after[0].stamp == ("x", 4, 1000)


@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("packed", [False, True])
def test_validation_images_go_with_the_lines_of_the_labels(tmp_path, labels, packed):
    files = {f"v{i}.JPEG": b"%d" % i for i in (2, 0, 1)}
    if packed:
        (tmp_path / "ILSVRC2012_img_val.tar").write_bytes(tar_of(files))
    else:
        put(tmp_path / "val", **files)
    (tmp_path / labels).write_bytes(b"n03\r\nn01\nn03")
    assert seen(validation_images(tmp_path)) == [
        ("n03", "v0.JPEG", b"0"),
        ("n01", "v1.JPEG", b"1"),
        ("n03", "v2.JPEG", b"2"),
    ]
    (tmp_path / "other").write_text("n09 n09 n09\n")
    assert validation_images(tmp_path, tmp_path / "other")[0].synset == "n09"


def test_validation_images_in_folders_of_synsets_need_no_labels(tmp_path):
    put(tmp_path, val__n02__b=b"2", val__n01__c=b"1")
    assert seen(validation_images(tmp_path)) == [("n01", "c", b"1"), ("n02", "b", b"2")]


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "has neither ILSVRC2012_img_train.tar nor a folder train/"),
        ({"train__readme": b""}, "no training images in"),
        ({"ILSVRC2012_img_train.tar": b"<html>"}, "no plain tar file .*download it again"),
        ({"ILSVRC2012_img_train.tar": b""}, "no plain tar file"),
        ({"ILSVRC2012_img_train.tar": tar_of({"n1.tar": b"x"})}, "no plain tar file"),
        (
            {"ILSVRC2012_img_train.tar": tar_of({"n1.tar": tar_of(CATS)})[:2000]},
            "cut short or",
        ),
        (
            {"ILSVRC2012_img_train.tar": tar_of({"n1/a": b"1", "x/n1/a": b"2"})},
            "both hold a",
        ),
    ],
)
def test_what_is_no_training_data_is_refused(tmp_path, files, said):
    with pytest.raises(RawError, match=said):
        train_images(put(tmp_path, **files))


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "has neither ILSVRC2012_img_val.tar nor a folder validation/ or val/"),
        ({"val__.keep": b""}, "no validation images in"),
        ({"val__a": b""}, "lacks synset_labels.txt: a synset per line"),
        ({"val__a": b"", "synset_labels.txt": b"n1\nn2\n"}, "has 2 labels for 1 validation images"),
        ({"val__a": b"", "synset_labels.txt": b"\xff\xfe"}, "cannot read .*synset_labels.txt"),
    ],
)
def test_what_is_no_validation_data_is_refused(tmp_path, files, said):
    with pytest.raises(RawError, match=said):
        validation_images(put(tmp_path, **files))


def test_labels_are_the_alphabetical_rank_from_1():
    assert labels_of(["n02", "n10", "n01", "n02"]) == {"n01": 1, "n02": 2, "n10": 3}
    assert max(labels_of(f"n{i:08d}" for i in range(1000)).values()) == 1000
    with pytest.raises(RawError, match="1001 folders of classes"):
        labels_of(f"n{i:08d}" for i in range(1001))
