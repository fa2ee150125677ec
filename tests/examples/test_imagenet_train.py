"""Real runs of the ImageNet trainer: one process, and two ranks under mpirun."""

from __future__ import annotations

import math
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from clusterctl.jobs.trainer import FAST

from .conftest import IMAGENET, after

# The timeout is for hangs: on a busy machine these tests take minutes.
pytestmark = [pytest.mark.train, pytest.mark.timeout(1200)]

HERE = Path(__file__).parent
TINY = "--synthetic -m resnet18 --image_size 32 -b 2 --nofp16"
ROW = re.compile(r"^ {0,5}\d+ +\d+\.\d +\d+\.\d +\d+\.\d{3} +\d+\.\d{3} \d\.\d{5}$")


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

    assert facts["sent_as_float16"] == [True, True, False, True]
    # Hosts of one name: the message still names each rank.
    assert facts["told"] == [
        "rank 1 on ubuntu: no disk",
        "the processes differ: rank 0 on ubuntu: 4 files; rank 1 on ubuntu: 3 files",
    ]
    # As float16 has 50,000, of which the sum is more than its largest number, 65,504. Its smallest
    # is 2^-24: each rank divides that by two before the sum, and sends nothing.
    assert facts["means_of_float16"] == [49_984, 2**-22, 0]
    check_overflow(facts["overflow"])
    # TensorFlow leaves memory for NCCL's buffers. It accepts no growth of a single GPU of several.
    grows = ["growth first True", "growth second True"]
    assert facts["gpus"] == [[*grows, "visible first GPU"], [*grows, "visible second GPU"]]
    assert facts["threads"] == {
        "unbound": 10,
        "by socket": 10,
        "apart": 10,
        "all": 12,
        "alone at its socket": 46,
        "few": 1,
    }


def check_overflow(steps):
    """Check that neither rank made the second step: rank 1's image made gradients infinite."""
    ranks = [step[:2] for step in steps]
    assert all(first == second for first, second in ranks), "weights, momenta, scale, finite"
    weights, scales, finite = zip(*(first for first, _ in ranks))
    averages = [step[2] for step in steps]
    assert finite == (True,) * 5
    assert weights[1] == weights[0]
    assert averages[1] == averages[0], "nor do the batch norms remember it"
    assert len(set(weights)) == 4
    assert scales == (
        "Loss scale: 1024, skipped steps: 0",
        "Loss scale: 512, skipped steps: 1",
        "Loss scale: 512, skipped steps: 1",
        "Loss scale: 512, skipped steps: 1",
        "Loss scale: 1024, skipped steps: 1",
    )


@pytest.mark.all
def test_both_recipes_train_alike(run_ranks):
    """At one batch, learning rate and float32, on two ranks, with a step that overflows."""
    fast = (*FAST.flags, *FAST.gpu_flags)
    result = run_ranks(2, HERE / "recipes_agree.py", IMAGENET, *fast)
    assert result.returncode == 0, result.stderr
    facts = after("FACTS", result.stdout)
    assert facts["fused_update"] == [False, True]
    assert "Compiled cluster using XLA" in result.stderr
    assert facts["losses"] < 1e-4, "largest relative difference of a step's loss"
    assert facts["weights"] < 1e-3, "norm of the variables' difference, as a share of the way"
    assert facts["scales"] == ["Loss scale: 512, skipped steps: 1"] * 2
    assert facts["ranks_alike"] == [True, True]


# Runs the trainer three times in one process, which imports TensorFlow once.
RUNS = """\
import sys
from pathlib import Path
sys.path.insert(0, str(Path(sys.argv[1]).parent))
import train_imagenet_resnet_hvd as imagenet
from flags import parse_args
for flags in sys.argv[2:]:
    imagenet.main(parse_args(flags.split()))
    print("END", flush=True)
"""
FLAGS = {
    # Without the features that the tutorial's program did not have.
    "resnet50": "--synthetic --image_size 32 -b 2 --nofp16 --num_batches 1 --noadv_conv_init",
    "table": f"{TINY} --num_batches 11 --lr 6.4 --display_every 5 --log_dir table",
    # The last run, since it turns XLA on for all later ones.
    "diverges": f"{TINY} --num_batches 51 --lr 1e30 --xla",
}


@pytest.fixture(scope="module")
def runs(ranks_in, tmp_path_factory):
    """Return the folder, the output of each run, and `stderr` of all."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "table").mkdir()
    (folder / "table" / "hvd_train.log").write_text("an old run\n")
    (folder / "runs.py").write_text(RUNS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TF_XLA_FLAGS", "--tf_xla_cpu_global_jit")  # the default on GPUs
        patch.setenv("TF_CPP_MIN_LOG_LEVEL", "0")
        result = ranks_in(folder, 1, "runs.py", IMAGENET, *FLAGS.values())
    assert result.returncode == 0, result.stderr
    printed = dict(zip(FLAGS, result.stdout.split("END\n")))
    return SimpleNamespace(folder=folder, stderr=result.stderr, **printed)


def test_one_process_trains_the_tutorials_resnet50(runs):
    """In the tutorial's table, the weight decay of the untrained model is 7.708 - 6.794."""
    assert "Horovod size: 1\n" in runs.resnet50
    loss, final_loss = map(float, runs.resnet50.splitlines()[-2].split()[3:5])
    assert final_loss - loss == pytest.approx(7.708 - 6.794, abs=0.003)
    assert loss == pytest.approx(math.log(1000), abs=1.0)


def test_a_synthetic_run_prints_the_tutorials_table_and_is_never_ended_by_its_loss(imagenet, runs):
    """The losses are the tutorial's: the image is learned in a step, and then the weights decay."""
    # sys.version may have a line break, as in the tutorial's Python.
    banner, _, rest = runs.table.partition("\nHorovod size: 1\n")
    assert re.match(r"PY3\.\d+\.(.|\n)*TF2\.", banner)
    rate, header, *lines, end = rest.splitlines()
    assert rate == "Using a learning rate of 6.4"
    assert header == "  Step Epoch Speed   Loss  FinLoss   LR"
    assert re.fullmatch(r"Finished in \d+\.\d+", end)
    assert all(ROW.match(line) for line in lines), lines
    schedule = imagenet.make_schedule(imagenet.parse_args(FLAGS["table"].split()), 1)
    losses = {}
    for line in lines:
        step, epoch, speed, loss, final_loss, rate = line.split()
        losses[int(step)] = float(loss)
        assert (epoch, rate) == ("0.0", f"{schedule.learning_rate(int(step)):.5f}")
        assert float(speed) > 0
        assert float(final_loss) > float(loss)
    assert losses.pop(0) == pytest.approx(math.log(1000), abs=1.0)
    assert losses == {1: pytest.approx(0, abs=0.05), 5: 0.0, 10: 0.0}
    log = (runs.folder / "table" / "hvd_train.log").read_text()
    assert log == "an old run\n" + runs.table, "without --clear_log"
    assert {path.name for path in (runs.folder / "table").iterdir()} == {
        "hvd_train.log",
        "metrics.jsonl",
    }


def test_synthetic_weights_that_are_no_numbers_are_never_made_nor_by_xla(runs):
    """At a rate that is too high for any training, steps are skipped and counted, and the speed is
    printed."""
    assert "Compiled cluster using XLA" in runs.stderr
    assert "\nLoss scale: 1, skipped steps: 50\nFinished in" in runs.diverges
    [first] = [line.split() for line in runs.diverges.splitlines() if line.startswith("     0 ")]
    assert float(first[3]) == pytest.approx(math.log(1000), abs=1.0)
