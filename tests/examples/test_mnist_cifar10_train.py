"""Real runs of the Keras examples: two ranks learn from generated data, then evaluate."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from .conftest import EXAMPLES

MNIST, CIFAR10 = EXAMPLES / "mnist", EXAMPLES / "cifar10"
PROGRAMS = {"mnist": MNIST / "mnist_hvd.py", "cifar10": CIFAR10 / "keras_cifar10.py"}
EVALUATIONS = {"mnist": MNIST / "evaluate_mnist.py", "cifar10": CIFAR10 / "evaluate_cifar10.py"}

# The metric definitions of SageMaker's CIFAR-10 tutorial.
METRICS = {
    "train:loss": r".*loss: ([0-9\.]+) - accuracy: [0-9\.]+.*",
    "train:accuracy": r".*loss: [0-9\.]+ - accuracy: ([0-9\.]+).*",
    "validation:accuracy": r".*step - loss: [0-9\.]+ - accuracy: [0-9\.]+"
    r" - val_loss: [0-9\.]+ - val_accuracy: ([0-9\.]+).*",
    "validation:loss": r".*step - loss: [0-9\.]+ - accuracy: [0-9\.]+"
    r" - val_loss: ([0-9\.]+) - val_accuracy: [0-9\.]+.*",
    "sec/steps": r".* - \d+s (\d+)[mu]s/step - loss: [0-9\.]+ - accuracy: [0-9\.]+"
    r" - val_loss: [0-9\.]+ - val_accuracy: [0-9\.]+",
}


@pytest.fixture
def program(run_ranks):
    """Run a program that has to succeed. Return its output."""

    def run(*argv, ranks=1):
        result = run_ranks(ranks, *argv)
        assert result.returncode == 0, result.stderr
        return result.stdout

    return run


STREAMED = {"train": 600, "validation": 150, "eval": 150}
FED = f"""\
import json, os, sys
sys.path.insert(0, {str(EXAMPLES.parents[1])!r})
from pathlib import Path
from clusterctl.node.scripts.contract import input_data_config
from clusterctl.node.scripts.pipe import feed, list_channel
rank, ranks = (int(os.environ["OMPI_COMM_WORLD_" + name]) for name in ("RANK", "SIZE"))
place, channels = Path("input", "pipes", str(rank)).resolve(), {{}}
for name in ("train", "validation", "eval"):
    channels[name] = {{"source": str(Path("data ü/cifar10", name).resolve()), "mode": "Pipe"}}
    channels[name].update(list_channel(channels[name]))
    os.environ["SM_CHANNEL_" + name.upper()] = str(place / name)
os.environ["SM_INPUT_DATA_CONFIG"] = json.dumps(input_data_config({{"channels": channels}}))
feed({{"channels": channels}}, place, rank, ranks)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


@pytest.mark.train
@pytest.mark.timeout(1200)
def test_two_ranks_learn_and_the_model_is_evaluated(program, tmp_path):
    (tmp_path / "data ü").mkdir()  # a space and a non-ASCII letter
    sample = ["--images", 600, "--test_images", 300, "--idx"]
    program(MNIST / "make_sample_mnist.py", "--data_dir", "data ü/mnist", *sample)
    program(CIFAR10 / "make_sample_cifar10.py", "--data-dir", "data ü/cifar10", "--images", 150)
    made = program(CIFAR10 / "generate_cifar10_tfrecords.py", "--data-dir", "data ü/cifar10")
    assert "600 images in data ü/cifar10/train/train.tfrecords" in made

    flags = ["--epochs", 3, "--batch_size", 12, "--warmup_epochs", 1]
    mnist, cifar10 = (
        [PROGRAMS[name], EVALUATIONS[name], f"data ü/{name}", f"out/{name}", *flags]
        for name in ("mnist", "cifar10")
    )
    cifar10 += [f"--{name}-images={count}" for name, count in STREAMED.items()]
    (tmp_path / "fed.py").write_text(FED)
    facts = Path(__file__).parent / "keras_facts.py"
    out = program("fed.py", facts, *mnist, "--", *cifar10, ranks=2)
    first, second, facts, streamed = re.split("(?=Horovod size: 2\n)|(?=FACTS )", out)[1:]
    check_facts(*json.loads(facts.partition(" ")[2]))
    assert accuracy_of(streamed) > 0.2
    assert (tmp_path / "out" / "cifar10 streamed" / "1" / "saved_model.pb").exists()
    for text, name in ((first, "mnist"), (second, "cifar10")):
        log, _, evaluation = text.partition("Model: ")
        check_log(log, name)
        check_evaluation(evaluation, log, tmp_path / "out" / name)


def check_log(log, name):
    lines = log.splitlines()
    assert [line for line in lines if line.startswith("Epoch")] == [
        f"Epoch {number}/3" for number in (1, 2, 3)
    ]
    epochs = [line for line in lines if "ms/step" in line]
    assert len(epochs) == 3
    for pattern in METRICS.values():
        assert all(re.match(pattern, line) for line in epochs), (pattern, epochs)
    rates = [float(line.rpartition("lr: ")[2]) for line in epochs]
    assert rates[0] == 0.002, "two ranks' rate when the warm-up is over"
    losses = [float(re.match(METRICS["train:loss"], line)[1]) for line in epochs]
    assert losses == sorted(losses, reverse=True)
    assert accuracy_of(log) > 0.3, "ten classes: chance is 0.1"
    assert f"Model saved in out/{name}/1" in lines


def accuracy_of(log):
    return float(re.search(r"^Test accuracy: (.*)$", log, re.MULTILINE)[1])


def check_facts(mnist, cifar10):
    assert [one["folder"] for one in (mnist, cifar10)] == ["~/models/mnist", "~/models/cifar10"]
    for facts in (mnist, cifar10):
        assert facts["rates"] == [0.001, 0.002, 0.004, 0.004, 0.004], "Adam's has a limit"
        assert len(set(facts["weights"])) == 1, "ranks that average gradients stay the same"
        one, other = facts["images"]
        assert len(set(one)) == len(set(other)) == 300
        assert not set(one) & set(other)
        for rank, said in enumerate(facts["uneven"]):
            assert f"images here: {7 + rank} training; other nodes have more or fewer: " in said


def check_evaluation(out, log, model_dir):
    accuracy = float(re.search(r"^Average accuracy: (.*)%$", out, re.MULTILINE)[1])
    assert accuracy == pytest.approx(100 * accuracy_of(log), abs=0.01)
    table = [line.split() for line in out.splitlines() if "%" in line][1:]
    right = sum(int(row[3 + number]) for number, row in enumerate(table))
    images = sum(int(row[1]) for row in table)
    assert all(sum(map(int, row[3:])) == int(row[1]) for row in table)
    assert 100 * right / images == pytest.approx(accuracy, abs=0.01)
    picture = model_dir / "confusion_matrix.png"
    assert picture.read_bytes().startswith(b"\x89PNG\r\n")
    assert sorted(path.name for path in model_dir.iterdir()) == ["1", picture.name]
    assert (model_dir / "1" / "saved_model.pb").exists()


@pytest.mark.train
@pytest.mark.parametrize(
    ("argv", "status", "error"),
    [
        ([PROGRAMS["mnist"], "--data_dir", "no such"], 1, "no train.npz in no such, and not both"),
        ([PROGRAMS["cifar10"], "--data_dir", "no such"], 1, "no train.tfrecords in no such: gen"),
        ([PROGRAMS["mnist"], "--model_dir", "s3://bucket/x"], 2, "s3://bucket/x is no path "),
        ([PROGRAMS["cifar10"], "--model_dir", "s3://bucket/x"], 2, "s3://bucket/x is no path "),
        ([MNIST / "make_sample_mnist.py", "--data-dir", "s3://b"], 2, "s3://b is no path of this"),
        ([PROGRAMS["mnist"], "--batch_size", "0"], 2, "0 is not more than 0"),
        ([PROGRAMS["cifar10"], "--learning-rate", "nan"], 2, "nan is not more than 0"),
        ([PROGRAMS["cifar10"], "--nonsense"], 2, "unrecognized arguments: --nonsense"),
        ([EVALUATIONS["mnist"], "--model_dir", "empty"], 1, "there is no model in empty: train"),
        ([EVALUATIONS["cifar10"], "--model_dir", "empty"], 1, "there is no model in empty: train"),
        ([MNIST / "make_sample_mnist.py", "--images", "3"], 2, "10 or more"),
        ([CIFAR10 / "make_sample_cifar10.py", "--images", "3"], 2, "10 or more"),
    ],
    ids=lambda value: " ".join(map(str, value[1:])) if isinstance(value, list) else "",
)
def test_what_cannot_be_is_said_in_one_line(run_ranks, argv, status, error):
    result = run_ranks(1, *argv)
    assert (result.returncode, result.stdout) == (status, "")
    *usage, last = result.stderr.splitlines()
    assert error in last
    assert "error: " in last
    assert status == 2 or not usage, result.stderr


@pytest.mark.train
@pytest.mark.parametrize("name", PROGRAMS)
def test_sagemakers_variables_name_the_folders(run_ranks, monkeypatch, tmp_path, name):
    monkeypatch.setenv("SM_CHANNEL_TRAIN", str(tmp_path / "its train"))
    result = run_ranks(1, PROGRAMS[name])
    assert result.returncode == 1
    assert f" in {tmp_path}/its train" in result.stderr
    given = run_ranks(1, PROGRAMS[name], "--train", "given")
    assert " in given" in given.stderr, "what is typed comes first"


@pytest.mark.train
@pytest.mark.parametrize("name", PROGRAMS)
def test_keras_3_is_refused(program, run_ranks, monkeypatch, tmp_path, name):
    for module in ("keras", "tensorflow"):
        (tmp_path / f"{module}.py").write_text("__version__ = '3.3.3'\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "0")
    program(MNIST / "make_sample_mnist.py", "--data_dir", "data", "--images", 10)
    for subset in ("train", "validation", "eval"):
        record = bytes([1, *11 * [0], 9, *4 * [0]])
        (tmp_path / "data" / f"{subset}.tfrecords").write_bytes(record)
    result = run_ranks(1, PROGRAMS[name], "--data_dir", "data")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("error: Keras 3.3.3 (TensorFlow 3.3.3): every rank would")
    assert result.stderr.count("\n") == 1


@pytest.fixture
def epoch_log(monkeypatch):
    """Import the module of both examples. It needs only the standard library."""
    monkeypatch.syspath_prepend(str(CIFAR10))
    yield __import__("epoch_log")
    sys.modules.pop("epoch_log")


@pytest.mark.parametrize(
    ("seconds", "loss"), [(0.0004, 1e-7), (3.2, 0.25), (7200.0, 12345.6)], ids=str
)
def test_every_epochs_line_has_the_metrics(epoch_log, seconds, loss):
    metrics = {"loss": loss, "accuracy": 1.0, "val_loss": loss, "val_accuracy": 0.0, "lr": 1e-3}
    line = epoch_log.epoch_line(16, seconds, metrics)
    found = {name: float(re.match(regex, line)[1]) for name, regex in METRICS.items()}
    assert found == {
        "train:loss": round(loss, 4),
        "train:accuracy": 1.0,
        "validation:loss": round(loss, 4),
        "validation:accuracy": 0.0,
        "sec/steps": round(1000 * seconds / 16),
    }


@pytest.mark.parametrize("loss", [float("nan"), float("inf")], ids=str)
@pytest.mark.parametrize("speaks", [True, False], ids=str)
def test_a_loss_that_is_no_number_ends_every_rank(epoch_log, capsys, loss, speaks):
    log = epoch_log.EpochLog(2, 1, speaks)
    log.begin(0, {})
    with pytest.raises(epoch_log.Diverged, match="lower the learning rate"):
        log.end(0, {"loss": loss})
    assert bool(capsys.readouterr().out) is speaks


@pytest.mark.parametrize(
    ("folders", "newest"),
    [
        (["1", "2", "10"], "10"),
        (["1", "2 half", ".saving-7", "03", "²", "x"], "1"),
        (["2", "9 half"], "2"),
        ([], None),
        (["."], "."),
    ],
    ids=str,
)
def test_the_newest_whole_model_is_taken(monkeypatch, tmp_path, folders, newest):
    monkeypatch.syspath_prepend(str(MNIST))
    import saved_model

    sys.modules.pop("saved_model")
    for folder in folders:
        name, _, half = folder.partition(" ")
        (tmp_path / name).mkdir(exist_ok=True)
        if not half:
            (tmp_path / name / "saved_model.pb").touch()
    found = saved_model.latest(tmp_path)
    assert found == (tmp_path / newest if newest else None)


@pytest.mark.parametrize("name", PROGRAMS)
def test_both_folders_share_what_is_no_matter_of_the_data(name):
    for module in ("confusion_matrix", "epoch_log", "flag_types", "saved_model"):
        file = EXAMPLES / name / f"{module}.py"
        assert file.read_text() == (MNIST / f"{module}.py").read_text()
