"""The PyTorch ResNet example: its TFRecord reader, its ranks, its checkpoints and its end."""

from __future__ import annotations

import io
import json
import os
import struct
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import PIL
import pytest
from PIL import Image

from tests.examples.conftest import EXAMPLES
from tests.programs import completed

pytestmark = pytest.mark.train

PYTHON = "/usr/bin/python3"  # with Debian's PyTorch
PROGRAM = EXAMPLES / "pytorch" / "resnet50_ddp.py"
SMALL = ("-m", "resnet18", "-b", "2", "--image_size", "32")


@pytest.fixture(scope="session", autouse=True)
def torch():
    if python(
        "-c", "import sys, importlib.util as u; sys.exit(not u.find_spec('torch'))"
    ).returncode:
        pytest.skip(f"{PYTHON} has no PyTorch: ./scripts/test installs it")


@pytest.fixture(scope="session")
def pillow(tmp_path_factory):
    """Return a folder with this interpreter's Pillow alone: Debian's Python has none."""
    if f"{sys.version_info[0]}.{sys.version_info[1]}" != python("-V").stdout.split()[1][:4]:
        pytest.skip(f"{PYTHON} is of another version than {sys.executable}")
    folder = tmp_path_factory.mktemp("pillow")
    installed = Path(PIL.__file__).parent
    for found in (installed, *installed.parent.glob("[Pp]illow.libs")):
        (folder / found.name).symlink_to(found)
    return folder


def python(*argv, **environ):
    environ = {"OMP_NUM_THREADS": "1", **os.environ, **environ}
    return completed([PYTHON, "-B", *map(str, argv)], cwd=EXAMPLES / "pytorch", env=environ)


def jpeg(level, mode="RGB", size=(40, 30)):
    file = io.BytesIO()
    Image.new(mode, size, level).save(file, "JPEG")
    return file.getvalue()


@pytest.fixture(scope="session")
def records():
    """Return utils/records.py, with checksums of zero: the reader does not compare them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES.parents[1] / "utils"))
        patch.setitem(sys.modules, "google_crc32c", SimpleNamespace(value=lambda data: 0))
        for name in ("records", "shards"):
            patch.delitem(sys.modules, name, raising=False)
        found = import_module("records")
        for name in ("records", "shards"):
            patch.delitem(sys.modules, name)
    return found


def write(records, folder, *files):
    """Write TFRecord files, each with these pairs of a JPEG and a label."""
    folder.mkdir(exist_ok=True)
    for number, pairs in enumerate(files):
        with (folder / f"train-{number:05}-of-{len(files):05}").open("wb") as file:
            for image, label in pairs:
                features = {
                    "image/encoded": image,
                    "image/class/label": label,
                    "image/filename": b"a.JPEG",
                    "image/object/bbox/xmin": [0.5],
                }
                records.write_record(file, records.encode_example(features))


READ = """\
import json, sys, torch
from imagenet_records import *
torch.manual_seed(1)
files = files_of(sys.argv[1])
images = TrainingImages(files, [bounds_in(file) for file in files], 8)
items = [images[n] for n in range(len(images))]
boxes = [crop(*torch.rand(4).tolist(), 500, 375) for _ in range(500)]
inside = all(0 <= a < c <= 500 and 0 <= b < d <= 375 for a, b, c, d in boxes)
areas = [(c - a) * (d - b) / 500 / 375 for a, b, c, d in boxes]
import resnet50_ddp, socket
host, cpus = socket.gethostname(), sorted(os.sched_getaffinity(0))
def share(*others):
    resnet50_ddp.gather = lambda own: [own, *others]
    return resnet50_ddp.cpus_of_this_rank()
os.sched_getaffinity = lambda pid: set(range(12))
shares = [
    share(),
    share(("other", list(range(12)))),
    share((host, list(range(12))), (host, list(range(12)))),
    share((host, [0, 1, 2]), (host, [20])),
    share(*20 * [(host, list(range(12)))]),
]
print(json.dumps({
    "shares": shares,
    "labels": [label for _, label in items],
    "levels": [round(float(pixels.float().mean())) for pixels, _ in items],
    "shapes": sorted({(*pixels.shape, str(pixels.dtype)) for pixels, _ in items}),
    "inside": inside,
    "areas": [min(areas), max(areas)],
}))
"""


def test_records_of_our_own_tools_are_read_and_cpus_are_shared(tmp_path, pillow, records):
    """Each record of each file, in colour, grey and CMYK, whatever else the Example has."""
    first = [(jpeg((200, 200, 200)), 1), (jpeg(100, "L"), 1000)]
    write(records, tmp_path, first, [(jpeg((0, 0, 0, 0), "CMYK"), 300)])
    (tmp_path / "validation-00000-of-00001").write_bytes(b"not read")
    done = python("-c", READ, tmp_path, PYTHONPATH=str(pillow))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["labels"] == [0, 999, 299]
    # Alone on a node of 12 CPUs; with two others; with one that uses three of them; with 20.
    assert found["shares"] == [12, 12, 4, 10, 1]
    assert found["levels"] == pytest.approx([200, 100, 255], abs=2)
    assert found["shapes"] == [[8, 8, 3, "torch.uint8"]]
    assert found["inside"]
    assert 0.099 < found["areas"][0] < 0.2 < 0.8 < found["areas"][1] <= 1


@pytest.fixture(scope="module")
def data(tmp_path_factory, records):
    folder = tmp_path_factory.mktemp("data")
    pairs = [(jpeg((n, 99, 40)), n + 1) for n in range(10)]
    write(records, folder, pairs[:4], pairs[4:7], pairs[7:])
    return folder


@pytest.mark.all
def test_a_training_goes_on_from_its_checkpoint(tmp_path, data, pillow):
    run = (PROGRAM, *SMALL, "--data_dir", data, "--log_dir", tmp_path, "--precision", "bf16")
    first = python(*run, "--num_batches", "2", PYTHONPATH=str(pillow))
    assert first.returncode == 0, first.stderr
    assert "Found 10 training samples" in first.stdout
    assert "DistributedDataParallel size: 1" in first.stdout
    second = python(*run, "--num_epochs", "1", PYTHONPATH=str(pillow))
    assert f"Going on from {tmp_path}/checkpoint.pt: 2 of 5 steps are done" in second.stdout
    rows = [json.loads(text) for text in (tmp_path / "metrics.jsonl").open()]
    trained = [row["step"] for row in rows if row["kind"] == "train"]
    assert trained == [0, 1, 4], second.stdout + second.stderr
    assert [row["resumed_from"] for row in rows if row["kind"] == "begin"] == [None, 2]
    assert all(row["loss"] > 0 for row in rows if row["kind"] == "train")
    other = python(*run, "-b", "5", PYTHONPATH=str(pillow))
    assert (other.returncode, len(other.stderr.splitlines())) == (1, 1), other.stderr
    assert "of a training with 2 images a step, this one has 5: pass another" in other.stderr


CHECKPOINTS = """\
import json, torch, torch.distributed as dist
import resnet50_ddp as ddp
from pathlib import Path
from types import SimpleNamespace
torch.cuda.amp.grad_scaler.amp_definitely_not_available = lambda: False  # as on a GPU
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
cpu, file = torch.device("cpu"), Path("checkpoint.pt")
end = torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()
ddp.resnet = lambda name: torch.nn.Sequential(ddp.convolution(3, 2, 1, 1), ddp.batch_norm(2), *end)
torch.manual_seed(1)
pixels, labels, found = torch.randn(4, 3, 2, 2), torch.tensor([0, 1, 1, 0]), {}
def trainer(**changes):
    usual = dict(model="tiny", precision="fp32", lr=0.1, mom=0.9, wdecay=1e-4, compile=False)
    return ddp.Trainer(SimpleNamespace(log_dir=".", **{**usual, **changes}), cpu)
def first_of(one):
    return list(one.optimizer.state.values())[0]["momentum_buffer"]
def refused(call, *arguments):
    try:
        call(*arguments)
    except ddp.Problem as error:
        return str(error)
def damaged(tensor_of, loss=1.0):
    one = trainer()
    one.resume(4)
    if tensor_of:
        tensor_of(one).fill_(float("inf"))
    before = file.read_bytes()
    text = refused(one.save, 9, 4, torch.tensor(loss))
    return bool(text) and file.read_bytes() == before and "after 9 steps" in text
found["first"] = refused(trainer().save, 1, 4, torch.tensor(float("nan")))
found["left"] = file.exists()
one = trainer()
one.wrap()
one.save(1, 4, one.step(pixels, labels, 0.1))
momentum = first_of(one)
with torch.no_grad():
    found["damaged"] = [
        damaged(lambda one: one.model[0].weight),
        damaged(lambda one: one.model[1].running_var),
        damaged(first_of),
        damaged(None, float("nan")),
    ]
two = trainer(precision="fp16", mom=0.5, wdecay=0.25)
found["steps"] = two.resume(4)
found["groups"] = [[g["momentum"], g["weight_decay"]] for g in two.optimizer.param_groups]
momenta = [each["momentum_buffer"] for each in two.optimizer.state.values()]
found["momenta"] = len(momenta) == 3 and torch.equal(momenta[0], momentum)
two.scaler.load_state_dict({**two.scaler.state_dict(), "scale": 512.0})
two.save(2, 4, torch.tensor(1.0))
three = trainer(precision="fp16")
three.resume(4)
found["scales"] = [two.scaler.get_scale(), three.scaler.get_scale()]
found["back"] = trainer().resume(4)
torch.save({"weights": 1}, file)
found["other"] = refused(trainer().resume, 4)
print(json.dumps(found))
"""


def test_a_checkpoint_is_finite_and_is_resumed_with_the_settings_of_the_command_line(tmp_path):
    """With another precision, which has no loss scale, momentum and weight decay."""
    environ = {"PYTHONPATH": str(PROGRAM.parent), "OMP_NUM_THREADS": "1"}
    done = completed([PYTHON, "-B", "-c", CHECKPOINTS], cwd=tmp_path, env={**os.environ, **environ})
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    text = "the loss or the weights are not finite after 1 steps, no checkpoint is saved"
    assert found.pop("first").startswith(text)
    text = "checkpoint.pt is not of this program: pass another --log_dir"
    assert found.pop("other").endswith(text)
    assert found == {
        "left": False,
        "damaged": [True] * 4,
        "steps": 1,
        "groups": [[0.5, 0.25], [0.5, 0.0]],
        "momenta": True,
        "scales": [512, 512],
        "back": 2,
    }


def damage(records, folder, what):
    """Damage the second record of a data set, or the set."""
    path = folder / "train-00000-of-00001"
    write(
        records,
        folder,
        [(jpeg((9, 9, 9)), 1), (b"\xff\xd8\xff no JPEG" if what == "jpeg" else b"", 2)],
    )
    if what == "cut":
        path.write_bytes(path.read_bytes()[:-3])
    elif what == "label":
        write(records, folder, [(jpeg((9, 9, 9)), 0)] * 2)
    elif what == "example":
        path.write_bytes(2 * (struct.pack("<Q", 9) + b"crc1" + b"\xff" * 9 + b"crc2"))
    elif what == "missing":
        path.rename(folder / "train-00000-of-00002")
    elif what == "none":
        path.unlink()


@pytest.mark.parametrize(
    ("what", "says"),
    [
        pytest.param("cut", "train-00000-of-00001 is cut short", marks=pytest.mark.all),
        ("jpeg", "train-00000-of-00001, record 1: cannot identify image file"),
        pytest.param("label", "the label 0 is not 1..1000", marks=pytest.mark.all),
        pytest.param("example", "record ", marks=pytest.mark.all),
        pytest.param("missing", "has 1 train files of 2: copy them again", marks=pytest.mark.all),
        pytest.param("none", "no files train-00000-of-... in ", marks=pytest.mark.all),
    ],
)
def test_damaged_data_ends_it_with_one_line(tmp_path, pillow, records, what, says):
    damage(records, tmp_path / "data", what)
    run = (PROGRAM, *SMALL, "--data_dir", tmp_path / "data", "--log_dir", tmp_path / "log")
    done = python(*run, "--num_batches", "1", PYTHONPATH=str(pillow))
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr
    assert done.stderr.startswith("resnet50_ddp.py: ") and says in done.stderr


@pytest.mark.parametrize(
    ("arguments", "environ", "says"),
    [
        (("--precision", "fp16"), {}, "fp16 needs a GPU: give --precision bf16 or fp32"),
        pytest.param(("--data_dir", "/none"), {}, "images from files need Pillow",
            marks=pytest.mark.all),
        pytest.param((), {"OMPI_COMM_WORLD_SIZE": "2"},
            "several ranks without RANK and MASTER_ADDR: use clusterctl or torchrun",
            marks=pytest.mark.all),
        pytest.param(("--compile",), {}, "--compile needs PyTorch 2.0", marks=pytest.mark.all),
    ],
)  # fmt: skip
def test_what_cannot_run_is_said_in_one_line(tmp_path, arguments, environ, says):
    done = python(PROGRAM, *SMALL, *arguments, "--log_dir", tmp_path, **environ)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr
    assert says in done.stderr
