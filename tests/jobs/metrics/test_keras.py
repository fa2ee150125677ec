"""Metric definitions applied to lines of Keras (TensorFlow 2.15) and of other programs."""

from __future__ import annotations

import itertools
import json
import math
import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.domain.errors import UsageError
from clusterctl.jobs.metrics.logs import (
    KERAS,
    LONGEST,
    GrowingLog,
    TrainingRow,
    clean_lines,
    limited_searches,
    parse_definition,
    parse_definitions,
    read_metrics,
    read_sections,
)
from tests.jobs.training_logs import HEADER, banner, evaluation, rows

SAMPLES = Path(__file__).parent / "samples"
# The definitions of SageMaker's CIFAR-10 example.
SAGEMAKER = (
    "train:loss=.*loss: ([0-9\\.]+) - accuracy: [0-9\\.]+.*",
    "train:accuracy=.*loss: [0-9\\.]+ - accuracy: ([0-9\\.]+).*",
    "validation:accuracy=.*step - loss: [0-9\\.]+ - accuracy: [0-9\\.]+"
    " - val_loss: [0-9\\.]+ - val_accuracy: ([0-9\\.]+).*",
    "validation:loss=.*step - loss: [0-9\\.]+ - accuracy: [0-9\\.]+"
    " - val_loss: ([0-9\\.]+) - val_accuracy: [0-9\\.]+.*",
    "sec/steps=.* - \\d+s (\\d+)[mu]s/step - loss: [0-9\\.]+ - accuracy: [0-9\\.]+"
    " - val_loss: [0-9\\.]+ - val_accuracy: [0-9\\.]+",
)


def read(text, definitions=KERAS):
    return {series.name: series for series in read_metrics([text], definitions)}


def values(series):
    return [point.value for point in series.points]


@pytest.mark.parametrize(
    ("sample", "losses", "last"),
    [
        ("keras-pipe.txt", {1: 1.3199, 2: 1.3080}, 1.2358e-05),
        ("keras-terminal.txt", {1: 1.2090, 2: 1.2045}, 1.2358e-05),
    ],
)
def test_captured(sample, losses, last):
    found = read((SAMPLES / sample).read_bytes().decode())
    assert {name: len(series.points) for name, series in found.items()} == {
        "train:loss": 10,
        "train:accuracy": 10,
        "validation:loss": 5,
        "validation:accuracy": 5,
        "sec/steps": 6,
        "test:loss": 0,
        "test:accuracy": 0,
    }
    assert values(found["validation:loss"])[-1] == last
    assert found["train:loss"].per_epoch == losses, "an evaluation's loss is no epoch's"
    assert all(0 < seconds < 1 for seconds in values(found["sec/steps"]))


def test_sagemakers_definitions_as_they_are_and_in_a_file(tmp_path):
    line = (
        "195/195 [==============================] - 12s 60ms/step - loss: 1.5421"
        " - accuracy: 0.4416 - val_loss: 1.2112 - val_accuracy: 0.5712"
    )
    found = read(line, [parse_definition(text) for text in SAGEMAKER])
    assert [*map(values, found.values())] == [[1.5421], [0.4416], [0.5712], [1.2112], [60.0]]
    file = tmp_path / "definitions.json"
    listed = [dict(zip(("Name", "Regex"), text.split("=", 1))) for text in SAGEMAKER]
    file.write_text(json.dumps(listed))
    assert parse_definitions([f"@{file}"]) == parse_definitions(SAGEMAKER)
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert parse_definitions([f"@{file}"]) == parse_definitions(SAGEMAKER)
    # A name may have a "=".
    file.write_text('[{"Name": "a=b", "Regex": "c=(.)"}]')
    assert [(one.name, one.regex.pattern) for one in parse_definitions([f"@{file}"])] == [
        ("a=b", "c=(.)")
    ]
    with pytest.raises(UsageError, match="No such file"):
        parse_definitions(["@/none"])
    with pytest.raises(UsageError, match="metric a=b is given twice"):
        parse_definitions([f"@{file}", f"@{file}"])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1", " is no list of metrics"),
        ('{"Name": "loss", "Regex": "(.)"}', " is no list of metrics, with . and . around all"),
        ("[]", " lists no metric"),
        ("[1]", ", metric 1: Name and Regex are wanted, each a text, not 1"),
        ('[{"Name": "loss"}]', ", metric 1: Name and Regex are .* not the keys Name"),
        (
            '[{"Name": "a", "Regex": "(.)"}, {"name": "a", "regex": "(.)"}]',
            ", metric 2: Name and Regex are .* not the keys name, regex",
        ),
        ('[{"Name": 1, "Regex": "(.)"}]', ", metric 1: Name and Regex are wanted, each a text"),
        ("loss", ", line 1, column 1: this is no JSON"),
        ('[\n{"Name": "a", "Regex": "a=(\\d+)"}]', ", line 2, column 28: .* Invalid .*escape"),
        ("[{'Name': 'a'}]", ", line 1, column 3: .* double quotes"),
        ('[{"Name": "", "Regex": "(.)"}]', "a metric lacks its name"),
        ("[" * 100_000, " is no list of metrics"),
    ],
)
def test_a_file_of_definitions_is_refused_with_the_place(tmp_path, text, says):
    file = tmp_path / "definitions.json"
    file.write_text(text)
    with pytest.raises(UsageError, match=says) as refused:
        parse_definitions([f"@{file}"])
    if "escape" in says:
        assert refused.value.hint == "JSON wants a backslash twice, as in \\\\d"


def test_an_expression_that_python_warns_of_is_refused():
    with pytest.raises(UsageError, match="metric c: the expression may mean two things") as refused:
        parse_definition("c=([[:digit:]]+)")
    assert "write [0-9]" in refused.value.hint


RANKS = """\
[1,1]<stdout>:Epoch 1/2
[1,0]<stdout>:Epoch 1/2
[1,1]<stdout>:1/2 [==>...] - loss: 9.5\r2/2 [=====] - loss: 9.4
[1,0]<stdout>:1/2 [==>...] - loss: 0.9\r2/2 [=====] - loss: 0.8
[1,0]<stdout>:Epoch 2/2
[1,0]<stdout>:2/2 [=====] - loss: 0.5
[1,1]<stdout>:Epoch 2/2
[1,1]<stdout>:2/2 [=====] - loss: 9.1
"""


@pytest.mark.parametrize("tag", ["[1,", "[prterun-head-77@1,"])
def test_of_several_ranks_the_lowest_counts(tag):
    text = RANKS.replace("[1,", tag)
    series = read(text)["train:loss"]
    assert (values(series), series.per_epoch) == ([0.9, 0.8, 0.5], {1: 0.8, 2: 0.5})
    assert series.notes == ("3 values of other ranks than 0 left out",)
    only = read(text.replace(",1]", ",3]").replace(",0]", ",2]"))["train:loss"]
    assert values(only) == [0.9, 0.8, 0.5]
    # As it grows, a rank's values come until a lower rank prints.
    log = GrowingLog()
    grown = [said for at in range(0, len(text), 5) for said in log.feed(text[at : at + 5].encode())]
    assert [point.value for _, point in grown] == [9.5, 9.4, 0.9, 0.8, 0.5]
    assert [point.epoch for _, point in grown] == [1, 1, 1, 1, 2]


def test_lines_without_a_rank_are_not_counted_as_other_ranks():
    text = "[1,0]<stdout>:loss: 1.5\n[1,1]<stdout>:loss: 9.5\nloss: 8.5\nloss: 7.5\n"
    series = read(text)["train:loss"]
    assert values(series) == [1.5]
    assert series.notes == (
        "2 values of lines without a rank left out",
        "1 value of other ranks than 0 left out",
    )


def test_epochs_that_begin_twice_without_a_rank_are_said():
    untagged = "\n".join(line.partition(":")[2] for line in RANKS.splitlines())
    [note] = read(untagged)["train:loss"].notes
    assert note.startswith("'Epoch 1/2' comes 2 times, without mpirun's tags: values of several ")
    assert read(untagged.replace("Epoch", "epoch"))["train:loss"].notes == ()


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=8))
def test_a_log_that_grows_says_the_same_in_whatever_pieces_it_comes(sizes):
    keras = (SAMPLES / "keras-terminal.txt").read_bytes()
    table = (banner() + HEADER + rows([0, 1, 50, 100]) + evaluation()).encode()
    text, log = keras + b"x" * 3 * LONGEST + b" loss: 1.0\n" + table, GrowingLog()
    found = []
    for size in itertools.cycle(sizes):
        if not text:
            break
        found += log.feed(text[:size])
        text = text[size:]
    assert log.overlong == 1
    metrics = [one for one in found if isinstance(one, tuple)]
    whole = read(keras.decode())
    for name, series in whole.items():
        assert [point for said, point in metrics if said == name] == list(series.points)
    [run, evaluated] = read_sections(clean_lines(table.decode()))
    seen = [one for one in found if isinstance(one, TrainingRow)]
    assert [row.step for row in seen] == [row.step for row in run.rows]
    assert [one for one in found if one not in metrics + seen] == evaluated.evaluations


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("4/4 - 0s - loss: 1.3 - acc: 0.25 - val_loss: 1.2 - val_acc: 0.5 - 6ms/step",
         [1.3, 0.25, 1.2, 0.5, 0.006]),
        ("4/4 [====] - 2s 2s/step - loss: nan - accuracy: 0.25", [None, 0.25, None, None, 2.0]),
        ("4/4 [====] - 2s 250us/step - loss: 1e-05 - accuracy: 1", [1e-5, 1.0, None, None, 25e-5]),
        ("4/4 [====] - 2s 250µs/sample - loss: 12 - accuracy: 1.0", [12, 1.0, None, None, 25e-5]),
        ("- class_loss: 5.0 - loss: 2.5", [2.5, None, None, None, None]),
        ("- loss: 1.2 - accuracy: 0.4", [1.2, 0.4, None, None, None]),
        ("- loss: 1.2x - accuracy: high", [None, None, None, None, None]),
        ("[1,0]<stdout>: - loss: 1.25", [1.25, None, None, None, None]),
    ],
)  # fmt: skip
def test_the_built_in_definitions_read_keras_lines(line, expected):
    found = [values(series) for series in read(line + "\n").values()][:5]
    shown = [None if not each or math.isnan(each[0]) else pytest.approx(each[0]) for each in found]
    assert shown == expected


def test_a_test_is_of_no_epoch():
    text = "Epoch 2/2\n4/4 - 1s - loss: 1.3 - accuracy: 0.25\n"
    found = read(text + "[1,0]<stdout>:Test loss: 1.1457\n[1,0]<stdout>:Test accuracy: 0.7310\n")
    assert values(found["test:loss"]) == [1.1457]
    assert values(found["test:accuracy"]) == [0.731]
    assert found["test:loss"].per_epoch == found["test:accuracy"].per_epoch == {}
    assert found["train:loss"].per_epoch == {2: 1.3}
    assert found["train:accuracy"].per_epoch == {2: 0.25}
    both = read("2026-11-20 10:00:00 Test loss: 0.5 - Test acc: 0.75, saved\n")
    assert {name: values(each) for name, each in both.items() if each.points} == {
        "test:loss": [0.5],
        "test:accuracy": [0.75],
    }


@pytest.mark.parametrize(
    "line",
    [
        "Validation loss: 0.5 - accuracy: 0.5",
        "Epoch 1/2 - Validation loss: 0.5 - acc: 1.0",
        "Validation - loss: 0.5",
        "Évaluation loss: 0.5",
        "Best Test loss: 0.5",
        "MyTest loss: 0.5",
        "Test Loss: 0.5",
        "4/4 - 1s - Loss: 0.5 - Accuracy: 0.5",
        "Test loss: 0.5x",
    ],
)
def test_lines_of_other_programs_have_no_metrics(line):
    assert [name for name, series in read(line).items() if series.points] == []


@pytest.mark.parametrize(
    "before",
    ["", "  ", "4/4 [==>..] - ETA: 1:02 - ", "4/4 [====] - ", "7/7 - 2s - ",
     "4/4 - 1s 3ms/step - ", "- 1s/epoch - ", "mse: nan - "],
)  # fmt: skip
def test_where_keras_has_its_loss(before):
    assert values(read(f"{before}loss: 0.5")["train:loss"]) == [0.5]


def test_definitions_of_users():
    found = read(
        "dice=0.5 at 3\nnothing\ndice=0.75 at 4\ndice=high\ntook 20ms\n",
        [parse_definition("dice=dice=(\\S+)"), parse_definition("t=took (\\d+)(?P<unit>ms|s)"),
         parse_definition(" other = never(x)?")],
    )  # fmt: skip
    assert {name: values(series) for name, series in found.items()} == {
        "dice": [0.5, 0.75],
        "t": [pytest.approx(0.02)],
        "other": [],
    }
    assert [point.line for point in found["dice"].points] == [1, 3]
    assert found["dice"].notes == ("matched 1 line, whose value 'high' is no number",)
    assert found["t"].notes == ()
    optional = read("loss: \nloss: \n", [parse_definition("x=loss: (\\d+)?")])["x"]
    assert optional.points == ()
    assert optional.notes == ("matched 2 lines, whose first value '' is no number",)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("loss: 9.5367e-07 - acc: 1.0", 9.5367e-7),
        ("loss: 3e-05", 3e-5),
        ("loss: 2.5E+3,", 2500),
        ("loss: 2e3", 2000),
        ("loss: 5e-3s", 0.005),
        ("loss: 3e2ms", 300),
        ("loss: 0e-9999", 0),
        ("loss: 1.5 each", 1.5),
        ("loss: 1.5e", 1.5),
    ],
)
def test_a_group_that_ends_before_the_exponent_reads_the_whole_number(text, number):
    found = read(f"{text}\n", [parse_definition("loss=loss: ([0-9.]+)")])
    assert values(found["loss"]) == [pytest.approx(number)]


def test_an_expression_that_backtracks_without_end_is_refused():
    slow = [parse_definition("x=((?:a+)+)$")]
    says = "metric x: its expression takes longer than 0.1 s for one line of 41 characters"
    with pytest.raises(UsageError, match=says), limited_searches(0.1):
        read("a" * 40 + "!", slow)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("loss: 3e4f", "matched 1 line, whose value '3e4f' is no number"),
        ("loss: 12e4567", "matched 1 line, whose value '12e4567' is too large or small"),
        ("loss: 0.5e-5000", "matched 1 line, whose value '0.5e-5000' is too large or small"),
        (f"{'x' * LONGEST} loss: 0.5", f"1 line of more than {LONGEST:,} characters left out"),
    ],
)
def test_a_value_that_is_left_out_is_named(text, says):
    [found] = read(f"{text}\nloss: inf\n", [parse_definition("loss=loss: ([0-9.]+|inf)")]).values()
    assert (values(found), found.notes) == ([math.inf], (says,))
    [found] = read(f"{'x' * 5000} loss: 0.5", [parse_definition("loss=loss: ([0-9.]+)")]).values()
    assert (values(found), found.notes) == ([0.5], ())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("loss", "not a metric"),
        ("=loss: (.*)", "not a metric"),
        ("loss=", "not a metric"),
        ("", "not a metric"),
        ("loss=loss: (", "not a regular expression"),
        ("loss=(?P<a>x)(?P<a>y)", "not a regular expression"),
        ("loss=loss: [0-9.]+", "no group"),
    ],
)
def test_refused(text, says):
    with pytest.raises(UsageError, match=says):
        parse_definition(text)
