"""The ImageNet trainer, really run: one process, and two ranks under mpirun."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from .conftest import IMAGENET, after

pytestmark = pytest.mark.train

HERE = Path(__file__).parent
TINY = ["--synthetic", "-m", "resnet18", "--image_size", "32", "-b", "2", "--nofp16"]
ROW = re.compile(r"^ {0,5}\d+ +\d+\.\d +\d+\.\d +\d+\.\d{3} +\d+\.\d{3} \d\.\d{5}$")


def test_two_ranks_print_the_tutorials_table(imagenet, run_ranks, tmp_path):
    flags = [*TINY, "--num_batches", "11", "--display_every", "5"]
    result = run_ranks(2, IMAGENET, *flags)
    assert result.returncode == 0, result.stderr
    # sys.version may hold a line break, as it does on the tutorial's Python.
    banner, _, rest = result.stdout.partition("\nHorovod size: 2\n")
    assert re.match(r"PY3\.\d+\.(.|\n)*TF2\.", banner)
    lines = rest.splitlines()
    assert lines[0] == "Using a learning rate of 0.0015625"
    assert lines[1] == "  Step Epoch Speed   Loss  FinLoss   LR"
    assert re.fullmatch(r"Finished in \d+\.\d+", lines[-1])

    rows = lines[2:-1]
    assert all(ROW.match(row) for row in rows), rows
    assert [int(row.split()[0]) for row in rows] == [0, 1, 5, 10]
    schedule = imagenet.make_schedule(imagenet.parse_args(flags), 2)
    for row in rows:
        step, epoch, speed, loss, final_loss, rate = row.split()
        assert rate == f"{schedule.learning_rate(int(step)):.5f}"
        assert epoch == "0.0"
        assert float(speed) > 0
        assert float(final_loss) > float(loss)
    assert (tmp_path / "imagenet_resnet" / "hvd_train.log").read_text() == result.stdout


def test_ranks_average_their_gradients(run_ranks):
    result = run_ranks(2, HERE / "ranks_agree.py", IMAGENET)
    assert result.returncode == 0, result.stderr
    facts = after("FACTS", result.stdout)
    assert len(set(facts["images"])) == 2
    assert len(set(facts["initial"])) == 2
    assert len(set(facts["broadcast"])) == 1
    assert len(set(facts["trained"])) == 1
    assert facts["own_gradient_is_not_the_mean"] > 1e-4
    assert facts["kernel_error"] < 1e-6
    assert facts["difference_from_one_process"] < facts["trained_that_far"] / 200


def test_one_process_trains_the_tutorials_resnet50(run_ranks):
    """The weight decay of the untrained model is 7.708 - 6.794 in the tutorial's table."""
    result = run_ranks(
        1,
        IMAGENET,
        *("--synthetic", "--image_size", "32", "-b", "2", "--nofp16", "--num_batches", "1"),
        "--noadv_conv_init",  # as the tutorial's version of the program
    )
    assert result.returncode == 0, result.stderr
    assert "Horovod size: 1\n" in result.stdout
    loss, final_loss = map(float, result.stdout.splitlines()[-2].split()[3:5])
    assert final_loss - loss == pytest.approx(7.708 - 6.794, abs=0.003)
    assert loss == pytest.approx(math.log(1000), abs=1.0)


def test_a_loss_that_is_no_number_ends_a_run_in_mixed_precision(run_ranks, tmp_path):
    log = tmp_path / "hvd_train.log"
    log.write_text("an old run\n")
    flags = [flag for flag in TINY if flag != "--nofp16"]
    result = run_ranks(
        2, IMAGENET, *flags, "--num_batches", "100", "--lr", "1e30", "--log_dir", "."
    )
    assert result.returncode == 1
    told = [line for line in result.stderr.splitlines() if "error:" in line]
    assert told == ["error: the loss is nan: lower --lr or raise --warmup_epochs"]
    assert "Finished" not in result.stdout
    first = log.read_text().partition("  LR\n")[2].splitlines()[0]
    assert all(math.isfinite(float(word)) for word in first.split()), "until the first step"
    assert log.read_text().startswith("an old run\nPY"), "without --clear_log"
    assert [path.name for path in tmp_path.iterdir()] == ["hvd_train.log"]
