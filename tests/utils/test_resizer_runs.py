"""The resizer as a command: complete, resumed, refused, verified and interrupted runs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.programs import completed

from .conftest import UTILS

TOOL = UTILS / "tensorflow_image_resizer.py"
NAMES = [f"train-{index:05d}-of-00004" for index in range(4)]
SMALL = ["-d", "imagenet", "-r", "48", "--num_preprocess_threads", "1"]

Resize = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def resize(training_python: str, tmp_path: Path) -> Resize:
    def run(*argv: object) -> subprocess.CompletedProcess[str]:
        command = [training_python, str(TOOL), *map(str, argv)]
        done = completed(command, cwd=tmp_path, timeout=120)
        assert "Traceback" not in done.stderr, done.stderr
        return done

    return run


@pytest.fixture(scope="module")
def shards(facts_of: Callable[..., None], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return `good` and `bad` input, below a path with a space and a quote in it."""
    folder = tmp_path_factory.mktemp("shards") / "it's imagenet"
    facts_of("resizer_data.py", "make", folder)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("train-*")}


@pytest.mark.train
def test_the_tutorials_line_keeps_records_order_and_tells_true_sizes(
    resize, shards, tmp_path, facts_of
):
    source, out = shards / "good", tmp_path / "tf imagenet"
    threads = ["--num_preprocess_threads", 60, "--num_intra_threads", 2, "--num_inter_threads", 2]
    flags = ["-i", source, "-o", out, "-r", 48, *threads]  # the path names the data set
    for subset in ("train", "validation"):
        done = resize(*flags, "--subset_name", subset)
        assert done.returncode == 0, done.stderr
    alone = tmp_path / "alone"
    assert resize(*SMALL, "--num_inter_threads", 1, "-i", source, "-o", alone).returncode == 0
    assert contents(alone) == contents(out)  # equal bytes with any number of threads
    squares = tmp_path / "squares"
    assert resize(*SMALL, "-R", "-i", source, "-o", squares).returncode == 0

    found = facts_of("resizer_data.py", "read", source, out, squares)
    before, after = found["good"], found["tf imagenet"]
    assert sorted(after) == [*NAMES, "validation-00000-of-00001"]
    assert sorted(before)[:4] == [f"train-{index:05d}-of-00004" for index in (1, 2, 3, 4)]
    for old, new in zip(sorted(before), sorted(after)):
        assert [row[:2] for row in after[new]] == [row[:2] for row in before[old]]
        for _, _, told, true in after[new]:
            assert told == true
            assert true in ([64, 48], [48, 72], [40, 30])
    told = {str(row[2:]) for name in NAMES for row in found["squares"][name]}
    assert told == {"[[48, 48], [48, 48]]"}


@pytest.mark.train
def test_a_run_goes_on_where_one_ended(resize, shards, tmp_path):
    source, out = tmp_path / "in", tmp_path / "out"
    shutil.copytree(shards / "good", source)
    flags = [*SMALL, "-i", source, "-o", out]
    assert "(4 made, 0 there before" in resize(*flags).stdout
    whole = contents(out)
    assert "(0 made, 4 there before)" in resize(*flags).stdout

    (out / NAMES[1]).unlink()
    (out / NAMES[2]).write_bytes(whole[NAMES[2]][:-7])
    os.utime(source / "train-00001-of-00004", ns=(1, 1))  # looks like a different input
    assert "(3 made, 1 there before" in resize(*flags).stdout
    assert contents(out) == whole

    other = [*flags, "-Q", 50]
    refused = resize(*other)
    assert refused.returncode == 1
    assert "--force" in refused.stderr
    assert contents(out) == whole
    assert resize(*other, "-f").returncode == 0
    assert len(contents(out)[NAMES[0]]) < len(whole[NAMES[0]])
    assert [path.name for path in out.iterdir() if "partial" in path.name] == []


@pytest.mark.train
def test_start_offset_leaves_out_shards_and_a_second_run_adds_them(resize, shards, tmp_path):
    flags = [*SMALL, "-i", shards / "good", "-o", tmp_path / "out"]
    assert resize(*flags, "--start_offset", 3).returncode == 0
    assert list(contents(tmp_path / "out")) == NAMES[3:]
    assert "(3 made, 1 there before" in resize(*flags).stdout
    late = resize(*flags, "--start_offset", 4)
    assert (late.returncode, late.stderr) == (
        1,
        "error: --start_offset leaves out all of the 4 shards\n",
    )


@pytest.mark.train
def test_corrupt_images_and_damaged_files_are_named_and_counted(resize, shards, tmp_path):
    source, out = tmp_path / "in", tmp_path / "out"
    shutil.copytree(shards / "bad", source)
    flags = [*SMALL, "-i", source, "-o", out]
    done = resize(*flags)
    assert done.returncode == 1
    assert "error: 1 input file is damaged" in done.stderr
    assert "2 images are corrupt and left out" in done.stdout
    assert sorted(contents(out)) == [NAMES[0], NAMES[2], NAMES[3]]
    listing = out / "corrupt-images-train.txt"
    assert [line.split("\t")[0] for line in listing.read_text(encoding="utf-8").splitlines()] == [
        NAMES[1],
        f"{NAMES[2]}, record 4 (Bär's?4.JPEG)",
        f"{NAMES[2]}, record 5 (n00000007_1.JPEG)",
    ]
    shutil.copy(shards / "good" / "train-00002-of-00004", source / NAMES[1])
    mended = resize(*flags)
    assert mended.returncode == 3
    assert "(1 made, 3 there before" in mended.stdout
    assert "--allow_corrupt 2" in mended.stderr
    assert resize(*flags, "--allow_corrupt", 2).returncode == 0
    checked = resize(*flags, "--verify")
    assert checked.returncode == 1
    assert "all but the last must be equal" in checked.stderr

    shutil.copy(shards / "good" / "train-00003-of-00004", source / NAMES[2])
    assert resize(*flags).returncode == 0
    assert not listing.exists()


@pytest.mark.train
def test_a_shard_without_a_usable_image_has_no_result(resize, shards, tmp_path):
    source, out = tmp_path / "in", tmp_path / "out"
    shutil.copytree(shards / "bad", source)
    (source / NAMES[1]).write_bytes(b"")
    data = (source / NAMES[2]).read_bytes()
    for _ in range(4):
        data = data[int.from_bytes(data[:8], "little") + 16 :]  # the last two have no images
    (source / NAMES[2]).write_bytes(data)
    done = resize(*SMALL, "-i", source, "-o", out)
    assert done.returncode == 1
    assert "error: 2 input files are damaged" in done.stderr
    assert "corrupt" not in done.stdout
    assert sorted(contents(out)) == [NAMES[0], NAMES[3]]
    listing = (out / "corrupt-images-train.txt").read_text(encoding="utf-8")
    assert [line.split("\t")[0] for line in listing.splitlines()] == NAMES[1:3]


@pytest.mark.train
def test_verify_finds_damage_and_shards_of_other_settings(resize, shards, tmp_path):
    out = tmp_path / "out"
    flags = [*SMALL, "-i", shards / "good", "-o", out]
    resize(*flags)
    good = resize(*flags, "--verify")
    assert (good.returncode, good.stdout) == (0, "train: 21 images of 21 classes: all is well\n")
    assert "not of this input and these settings" in resize(*flags, "-Q", 9, "--verify").stderr
    flowers = resize(*flags, "-d", "flowers", "--verify")
    assert "labels go up to 1000, those of flowers to 5" in flowers.stderr
    damaged = bytearray((out / NAMES[3]).read_bytes())
    damaged[200] ^= 4
    (out / NAMES[3]).write_bytes(damaged)
    bad = resize(*flags, "--verify")
    assert bad.returncode == 1
    assert NAMES[3] in bad.stderr
    assert "damaged" in bad.stderr
    assert NAMES[0] not in bad.stderr


@pytest.mark.train
@pytest.mark.parametrize(("sent", "status"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_a_run_that_is_ended_leaves_whole_shards_only(
    resize, shards, tmp_path, training_python, sent, status
):
    source, out = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    for index in range(60):
        name = f"train-{index:05d}-of-00060"
        shutil.copy(shards / "good" / "train-00001-of-00004", source / name)
    flags = ["-d", "imagenet", "-r", "48", "-i", str(source), "-o", str(out)]
    command = [training_python, str(TOOL), *flags, "--num_preprocess_threads", "2"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 240
    while not list(out.glob("train-*")) and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(sent)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == status, errors
    assert "Traceback" not in errors
    sizes = {path.stat().st_size for path in out.glob("train-*")}
    assert len(sizes) == 1
    left = len(list(out.glob("train-*")))
    assert left < 60

    again = resize(*flags)
    assert again.returncode == 0, again.stderr
    assert len(set(contents(out).values())) == 1
    assert len(contents(out)) == 60
    assert [path.name for path in out.iterdir() if "partial" in path.name] == []


@pytest.mark.train
@pytest.mark.parametrize(
    ("argv", "status", "words"),
    [
        ([], 2, "-o/--output_dir"),
        (["-o", "out"], 2, "-i/--input_dir"),
        (["-i", "in", "-o", "out"], 2, "say -d imagenet or -d flowers"),
        (["-i", "flowers", "-o", "flowers/."], 2, "another folder"),
        (["-d", "cats", "-i", "in", "-o", "out"], 2, "invalid choice: 'cats'"),
        (["-d", "imagenet", "-i", "in", "-o", "out", "-r", "0"], 2, "'0' is not 1 or more"),
        (["-d", "imagenet", "-i", "in", "-o", "out", "-Q", "101"], 2, "between 1 and 100"),
        (["-d", "imagenet", "-i", "in", "-o", "out", "-s", "test"], 2, "invalid choice"),
        (["-i", "my-flowers", "-o", "out"], 1, "no train shards in my-flowers"),
        (["-d", "imagenet", "-i", "empty", "-o", "out"], 1, "train-00000-of-00002"),
        (["-d", "imagenet", "-i", "partial", "-o", "out"], 1, "lacks 1 of 2 train shards"),
        (["-d", "imagenet", "-i", "whole", "-o", "whole/train-00000-of-00001/x"], 1, "irectory"),
    ],
)
def test_a_wrong_line_gets_one_line(resize, tmp_path, argv, status, words):
    for folder, names in {
        "empty": ["train-00000-of-00002", "train-00001-of-00002"],
        "partial": ["train-00001-of-00002"],
        "whole": ["train-00000-of-00001"],
    }.items():
        (tmp_path / folder).mkdir()
        for name in names:
            (tmp_path / folder / name).write_bytes(b"" if folder == "whole" else b"abc")
    done = resize(*argv)
    assert done.returncode == status, done.stderr
    assert words in done.stderr
    assert "error: " in done.stderr.splitlines()[-1]
    assert not (tmp_path / "out").exists()


def test_help_needs_nothing_but_python():
    done = completed([sys.executable, "-S", str(TOOL), "--help"], check=True)
    for flag in ("-d", "-i", "-o", "--subset_name", "--num_preprocess_threads", "-r", "-Q", "-R"):
        assert flag in done.stdout
