"""`tuning` says what it could not read of the files that a job wrote."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from clusterctl.cli.tuning import show_tuning
from clusterctl.domain.findings import Finding
from clusterctl.jobs.horovod import read_autotune, read_timeline
from clusterctl.operations import tuning

OPERATION = [
    {"ph": "B", "pid": 1, "ts": 10, "name": "NEGOTIATE_ALLREDUCE"},
    {"ph": "E", "pid": 1, "ts": 20},
    {"ph": "B", "pid": 1, "ts": 30, "name": "ALLREDUCE"},
    {"ph": "E", "pid": 1, "ts": 40, "args": {"dtype": "float32", "shape": "[4]"}},
]
TIMELINE = "\n".join(json.dumps(record) + "," for record in OPERATION)
AUTOTUNE = "cycle_time_ms,tensor_fusion_threshold,score\n5,4,3\n"


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(
    ("timeline", "autotune", "warnings"),
    [
        (TIMELINE, AUTOTUNE, []),
        (
            TIMELINE + '\n{"ph": "B",',
            AUTOTUNE + "5,4,nan\n5,4",
            [
                f"1 place in the timeline cannot be read, or lacks records that go with others, "
                f"the first at character {len(TIMELINE) + 1:,}: the times above lack them",
                "2 lines of the autotuner's log are no samples, and left out",
            ],
        ),
    ],
)
def test_what_could_not_be_read_is_said(
    timeline, autotune, warnings, as_json, tmp_path, monkeypatch, capsys
):
    read = tuning.Tuning(
        tmp_path / "t", read_timeline([timeline]), tmp_path / "a", read_autotune(autotune)
    )
    monkeypatch.setattr(tuning, "fetch_tuning", lambda *_: read)
    assert show_tuning(None, SimpleNamespace(job_id="1"), tmp_path, as_json) == 0
    printed = capsys.readouterr()
    if as_json:
        found = json.loads(printed.out)["findings"]
        assert [one["message"] for one in found] == warnings
    else:
        lines = [one for one in printed.err.splitlines() if one.startswith("warning: ")]
        assert [one[9:].rpartition(" [")[0] for one in lines] == warnings


@pytest.mark.parametrize("as_json", [False, True])
def test_a_file_that_cannot_be_read_hides_no_other(tmp_path, monkeypatch, capsys, as_json):
    error = Finding.error("tuning.autotune", "the autotuner's log has no column score")
    trace = tmp_path / "t"
    read = tuning.Tuning(trace, read_timeline([TIMELINE]), tmp_path / "a", None, unread=(error,))
    monkeypatch.setattr(tuning, "fetch_tuning", lambda *_: read)
    assert show_tuning(None, SimpleNamespace(job_id="1"), tmp_path, as_json) == 1
    printed = capsys.readouterr()
    assert "allreduce" in printed.out
    assert "no column score" in printed.out + printed.err
    assert "no time for a sample" not in printed.out
    assert "kept all others waiting" not in printed.out, "it is the only rank"
    assert str(trace) in printed.out + printed.err
