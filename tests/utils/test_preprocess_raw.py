"""Finding raw images: every layout, and the errors if something is missing."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from raw_images import (
    LABELS,
    RawError,
    labels_of,
    read_image,
    train_images,
    unlike_imagenet,
    validation_images,
)


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
        ({"ILSVRC2012_img_train.tar": tar_of({"n1.tar": tar_of(CATS)})[:2000]}, "cut short or"),
        ({"ILSVRC2012_img_train.tar": tar_of({"n1/a": b"1", "x/n1/a": b"2"})}, "both hold a"),
        # A class without images would move the labels of the classes after it.
        ({"train__n1__a": b"1", "train__n2__.keep": b""}, "a class has no images: .*train/n2"),
        ({"train__n1__a": b"1", "train__n2.tar": tar_of({})}, "no images: .*train/n2.tar"),
        (
            {"ILSVRC2012_img_train.tar": tar_of({"n1.tar": tar_of(CATS), "n2.tar": tar_of({})})},
            "no images: n2.tar in .*ILSVRC2012_img_train.tar",
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
        (
            {"val__a": b"", "synset_labels.txt": b"ImageId,Prediction\nval_1,n0 85 1 499 272\n"},
            "has 6 labels for 1 validation images; line 2 is no single synset: 'val_1,n0 ",
        ),
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


def test_a_class_that_is_a_link_to_nowhere_is_refused(tmp_path):
    put(tmp_path, train__n1__a=b"1", val__n1__a=b"1")
    for folder in ("train", "val"):
        (tmp_path / folder / "n2").symlink_to("gone")
    with pytest.raises(RawError, match="no images: .*train/n2"):
        train_images(tmp_path)
    with pytest.raises(RawError, match="no images: .*val/n2"):
        validation_images(tmp_path)


def test_what_is_no_image_file_in_a_class_is_kept_with_the_reason(tmp_path):
    put(tmp_path, train__n1__a=b"1", train__n1__folder__b=b"2")
    (tmp_path / "train/__MACOSX").mkdir()
    (tmp_path / "train/n1/link").symlink_to("gone")
    os.mkfifo(tmp_path / "train/n1/pipe")
    assert {image.name: image.problem for image in train_images(tmp_path)} == {
        "a": "",
        "folder": "a folder where an image is wanted",
        "link": "a link that leads nowhere",
        "pipe": "no file",
    }


def test_files_beside_the_classes_are_named(tmp_path, capsys):
    train_images(put(tmp_path, train__n1__a=b"1", **{"train__n2.tar.gz": b"1"}))
    assert "left out, since neither a folder nor a tar file: n2.tar.gz" in capsys.readouterr().out


def test_links_and_sparse_files_in_a_tar_are_kept_with_the_reason(tmp_path):
    with tarfile.open(tmp_path / "ILSVRC2012_img_train.tar", "w") as tar:
        for name, kind in (("a", tarfile.LNKTYPE), ("b", tarfile.SYMTYPE), ("c", tarfile.FIFOTYPE)):
            about = tarfile.TarInfo(f"n1/{name}.JPEG")
            about.type, about.linkname = kind, "n1/x"
            tar.addfile(about)
    link = "a link in a tar file, which is read without unpacking"
    assert [image.problem for image in train_images(tmp_path)] == [link, link, "no file"]


INNER = {f"n{i}.tar": tar_of({f"{i}{j}.JPEG": b"x" * 600 * j for j in range(3)}) for i in (1, 2)}
OUTER = tar_of(INNER, tarfile.GNU_FORMAT)
NAMES = [(f"n{i}", f"{i}{j}.JPEG", 600 * j) for i in (1, 2) for j in range(3)]
ENDS = [*(OUTER.index(data) + len(data) for data in INNER.values()), len(OUTER)]


@given(
    at=st.integers(0, len(OUTER) - 1),
    length=st.integers(1, 12_000),
    kind=st.sampled_from(["byte", "zeros", "cut", "cut out", "twice"]),
    value=st.integers(1, 255),
)
def test_a_damaged_tar_has_all_its_images_or_is_refused(tmp_path_factory, at, length, kind, value):
    end = min(at + length, len(OUTER))
    # Zeros from a header on to the tar's own end mark make a tar that is whole, and shorter.
    # So do whole blocks that are cut out.
    assume(kind != "cut out" or (end - at) % 512)
    assume(kind != "zeros" or OUTER[end : min(one for one in ENDS if one >= end)].strip(b"\0"))
    damaged = {
        "byte": OUTER[:at] + bytes([OUTER[at] ^ value]) + OUTER[at + 1 :],
        "zeros": OUTER[:at] + bytes(end - at) + OUTER[end:],
        "cut": OUTER[:at],
        "cut out": OUTER[:at] + OUTER[end:],
        "twice": OUTER[:end] + OUTER[at:],
    }[kind]
    folder = tmp_path_factory.getbasetemp() / "damaged"
    folder.mkdir(exist_ok=True)
    (folder / "ILSVRC2012_img_train.tar").write_bytes(damaged)
    try:
        found = [(image.synset, image.name, image.size) for image in train_images(folder)]
    except RawError as error:
        assert "ILSVRC2012_img_train.tar" in str(error)
    else:
        assert found == NAMES


def test_a_tar_that_ends_with_a_hole_is_refused(tmp_path):
    tar = tar_of({f"{j}.JPEG": b"x" * 600 for j in range(90)})
    hole = tar[: 20 * 1024] + bytes(len(tar) - 20 * 1024)
    put(tmp_path, **{"train__n1.tar": hole})
    with pytest.raises(RawError, match="damaged .there are only zeros from byte 21,504"):
        train_images(tmp_path)


def test_a_thousand_classes_are_compared_with_imagenet():
    images = {"train": [None] * 1_281_167, "validation": [None] * 49_999}
    assert "49,999 of 50,000 validation images" in unlike_imagenet(images, 1000)
    images["validation"].append(None)
    assert unlike_imagenet(images, 1000) == ""
    assert unlike_imagenet({"train": [], "validation": []}, 999) == ""
