"""The trainer's log, read line by line: tables of both generations, among any other lines."""

from __future__ import annotations

import math

import pytest

from clusterctl.jobs.metrics.logs import EvaluationRow, TrainingRow, clean_lines, read_sections
from tests.jobs.training_logs import HEADER, banner, evaluation, rows

FIFTY = TrainingRow(50, 0.3, 19347.5, 6.515, 7.425, 0.10353)
HUNDRED = TrainingRow(100, 0.6, 18631.7, 6.275, 7.173, 0.20606)
TEXT = "    50   0.3 19347.5  6.515  7.425 0.10353"
NEXT = "   100   0.6 18631.7  6.275  7.173 0.20606"


def read(text):
    return read_sections(clean_lines(text))


def rows_of(text):
    return [row for section in read(text) for row in section.rows]


@pytest.mark.parametrize(
    "text",
    [
        f"{TEXT}\n{NEXT}\n",
        "50 0.3 19347.5 6.515 7.425 0.10353\n100 0.6 18631.7 6.275 7.173 0.20606",
        f"\t{TEXT}  \r\n{NEXT}\r\n",
        f"[1,0]<stderr>:{TEXT}\n[1,0]<stderr>:{NEXT}\n",
        f"[1,0]<stderr>: {TEXT}\n[1,0]<stdout>: {NEXT}\n",
        f"[prterun-ip-10-0-0-4-77@1,0]<stderr>:{TEXT}\n[prterun-ip-10-0-0-4-77@1,0]<stderr>:{NEXT}",
        f"[Sat Nov 21 23:08:57 2026][1,0]<stdout>: {TEXT}\nNov 21 23:09:00[1,0]<stdout>:{NEXT}",
        f"2026-11-20T16:33:52Z {TEXT}\n2026-11-20T16:33:55Z {NEXT}\n",
        f"[1,0]<stderr>:{TEXT}[1,0]<stderr>:{NEXT}\n",
        f"{TEXT}{NEXT}\n",
        f"{TEXT}2018-11-14 08:38:28.1: W tensorflow/core/x.cc:454] 1 2 3\n{NEXT}[1,3]<stderr>:oh\n",
        f"W tensorflow/core/x.cc:454] Loaded {TEXT}\nand so on\n{NEXT}\n",
        f"\x1b[32m{TEXT}\x1b[0m\n\x1b]0;title\x07{NEXT}\n",
        f"{TEXT}\n{TEXT}\n{NEXT}\n{NEXT}\n",
        f"{TEXT}\rloading\r{NEXT}\n",
        f"{TEXT}\0\n\0\n{NEXT}\n\ufffd\n",
        f"{TEXT}\n   ...\n{NEXT}\n",
        f"{TEXT}\n{NEXT}\n   150   1.0 19742.0  6.043  6.922 0.3086",
        f"{TEXT}\n{NEXT}\n   150   1.0 19742.0  6.043  6.9",
        f"{TEXT}\n{NEXT}\n   15",
        f"{'x' * 100_000}\n{TEXT}\n{NEXT}\n{'1 ' * 100_000}\n",
    ],
)  # fmt: skip
def test_the_same_two_rows(text):
    assert rows_of(text) == [FIFTY, HUNDRED]


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ("1234567 12345.6 1234567.8 1234.567 12345.678 123.45678",
         TrainingRow(1234567, 12345.6, 1234567.8, 1234.567, 12345.678, 123.45678)),
        ("  1400  71.6 143451.0  1.189  1.720 0.14850",
         TrainingRow(1400, 71.6, 143451.0, 1.189, 1.720, 0.1485)),
        ("   100   0.1  3010.2  0.000 -4.446 5.18400",
         TrainingRow(100, 0.1, 3010.2, 0.0, -4.446, 5.184)),
        ("    50   0.3     inf  6.515  7.425 0.10353",
         TrainingRow(50, 0.3, math.inf, 6.515, 7.425, 0.10353)),
    ],
)  # fmt: skip
def test_wide_and_odd_numbers(text, row):
    assert rows_of(text + "\n") == [row]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\r\n \0",
        HEADER,
        "50 0.3 19347.5 6.515 7.425",
        "Evaluating\n14075   90.0  75.716   92.91    0.97  2018-11-14 08:3",
        "50 0.30 19347.5 6.515 7.425 0.10353",
        "1.5 0.3 19347.5 6.515 7.425 0.10353",
        "x50 0.3 19347.5 6.515 7.425 0.10353",
        "Epoch 1/2 - loss: 1.2 - accuracy: 0.5",
        "٥٠ 0.3 19347.5 6.515 x",
        "Horovod size: 4\nFinished in 1.5\nEvaluating\n",
    ],
)
def test_no_rows(text):
    assert read(text) == []


@pytest.mark.parametrize(
    ("text", "time"),
    [
        (" 14075   90.0  75.716   92.91    0.97  2018-11-14 08:38:28", "2018-11-14 08:38:28"),
        ("14075   90.0  75.716   92.91    0.97  UTC:2019-02-01 08:38:28", "2019-02-01 08:38:28"),
        ("[1,0]<stderr>:14075  90.0  75.716  92.91  0.97  UTC: 2019-02-01T08:38:28Z",
         "2019-02-01 08:38:28"),
    ],
)  # fmt: skip
def test_evaluations_of_both_generations(text, time):
    head = "Evaluating\n step  epoch  top1    top5     loss   checkpoint_time(UTC)\n"
    noise = "[ip-172-31-36-75:54959] 7 more processes have sent help message\n"
    [section] = read(head + noise + text + "\nFinished evaluation\n")
    assert section.evaluations == [EvaluationRow(14075, 90.0, 75.716, 92.91, 0.97, time)]
    assert section.rows == []


def test_what_the_banner_says():
    [section] = read(banner(32) + HEADER + rows([0, 1, 50]) + "Finished in 6004.354426383972\n")
    facts = section.facts
    assert (facts.gpus, facts.training_samples, facts.peak_learning_rate) == (32, 1_281_167, 3.2)
    assert facts.data == "/home/ubuntu/data/tf-imagenet/"
    assert facts.tensorflow == "2.15.1"
    assert facts.finished_in_s == 6004.354426383972
    assert not facts.synthetic
    assert [row.startup for row in section.rows] == [True, True, False]
    [synthetic] = read("Horovod size: 4\nUsing a learning rate of 0.4\n" + rows([0, 1]))
    assert synthetic.facts.synthetic
    # The original program's banner, without line ends, is incomplete.
    text = "PY3.6.5 |Anaconda custom (64-bit)| [GCC 7.2.0]TF1.11.0Horovod size: 4\n" + rows([0])
    facts = read(text)[0].facts
    assert (facts.gpus, facts.tensorflow, facts.synthetic) == (4, "1.11.0", False)


@pytest.mark.parametrize(
    "value", ["", "many", "-3", "9999999999999999999999", "3.2.1", "e", "١" * 30]
)
def test_facts_that_are_none(value):
    text = f"Horovod size: {value}\nUsing a learning rate of {value}\nFinished in {value}\n"
    [section] = read(text + rows([0, 1]))
    assert section.facts.gpus is None


def test_the_banner_of_the_pytorch_program():
    text = f"""\
PyTorch 2.11.0, resnet50, fp16, 8192 images a step
DistributedDataParallel size: 32
Using data from: /home/ubuntu/data/tf-imagenet
Found 1281167 training samples, 11 workers for each rank
Using a learning rate of 3.2
Going on from resnet50_ddp/checkpoint.pt: 156 of 14040 steps are done
{HEADER}
{rows([156, 200])}Finished in 861.5
"""
    [section] = read(text)
    facts = section.facts
    assert (facts.gpus, facts.training_samples, facts.resumed_from) == (32, 1281167, 156)
    assert (facts.data, facts.finished_in_s) == ("/home/ubuntu/data/tf-imagenet", 861.5)


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        (banner() + rows([0, 1, 50]) + banner() + rows([0, 1]), [3, 2]),
        (HEADER + rows([0, 1, 50]) + HEADER + rows([100]), [3, 1]),
        (rows([0, 1, 50]) + rows([0, 1, 50, 100]), [3, 4]),
        (rows([0, 1, 50]) + evaluation(), [3, 0]),
        (banner() + rows([0, 1]) + "Evaluating\n" + rows([50]), [2, 1]),
        (banner() + banner() + rows([0, 1]), [2]),
        (banner() + HEADER + HEADER + rows([0, 1]), [2]),
    ],
)
def test_where_one_program_ends(text, lengths):
    assert [len(section.rows) for section in read(text)] == lengths


def test_a_row_after_a_resume_counts_the_start_and_in_an_excerpt_it_does_not():
    [resumed] = read(banner() + rows([4000, 4050]))
    assert [row.startup for row in resumed.rows] == [True, False]
    [excerpt] = read(rows([4000, 4050]))
    assert [row.startup for row in excerpt.rows] == [False, False]
