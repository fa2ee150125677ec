"""Lines that report a failure and are not in the catalogue, and logs in which nothing failed."""

from __future__ import annotations

import gzip
import json
import random
import re
from pathlib import Path

import pytest

from clusterctl.cli.main import cli, run_command
from clusterctl.domain.findings import Severity
from clusterctl.explain.catalogue import catalogue, libraries, wordings
from clusterctl.explain.engine import explain
from clusterctl.explain.explanation import by_words
from clusterctl.explain.lines import place_of
from clusterctl.explain.message import object_of
from clusterctl.explain.signature import Role

HEALTHY = sorted((Path(__file__).parent / "healthy").glob("*.log"))
DASHES = "-" * 74
OOM = "ResourceExhaustedError: OOM when allocating tensor with shape[256,64]\n"
AFTER = "UnknownError: Horovod has been shut down. This was caused by an exception on one of the\n"


@pytest.mark.parametrize(
    "line",
    [
        "[rank3]: quux.errors.WidgetException: no handle",
        "quux.f90:12:3: fatal error: no handle",
        'quux: write failed on "/x" (5)',
        "quux ended with code 11",
        "INFO quux: sent\nINFO Failed to make it.\n    at Quux.make (/quux/lib.js:50:35)",
        "INFO quux: sent\nno handle for Quux\n\tat org.quux.Widget.make(Widget.java:12)",
    ],
)
def test_an_unknown_line_of_a_failing_form_is_shown(tmp_path, capsys, line):
    log = tmp_path / "log"
    log.write_text(f"step 1\n{line}\n")
    assert run_command(cli, ["explain", str(log)]) == 2
    shown = capsys.readouterr().out
    assert "in the catalogue" in shown and "nothing that" not in shown
    assert "  line 2" in shown or "  line 3" in shown


def test_an_unknown_line_is_shown_with_the_kind_of_failure_that_its_words_name(tmp_path, capsys):
    log = tmp_path / "log"
    log.write_text("quux: error: widget 'w-7' not found\n")
    assert run_command(cli, ["explain", str(log)]) == 2
    shown = capsys.readouterr().out
    assert "cause:  something that the program needs is not there (w-7)" in shown
    assert "do:     its spelling, and where it is looked for" in shown
    run_command(cli, ["explain", str(log), "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told["lead"] is None and not told["is_certain"]
    assert told["unknown"][0]["by_words"] == "words.missing" and told["unknown"][0]["hint"]


def test_each_kind_of_failure_is_named_by_the_words_of_its_samples():
    for one in wordings():
        assert one.samples, one.id
        for text in one.samples:
            failing = explain([f"{text}\n"]).failing
            assert failing and failing[0].by_words, text
            assert failing[0].by_words.signature.id == one.id, text


@pytest.mark.parametrize(
    ("message", "named"),
    [
        ("can't open `widget` of 'x'", "widget"),
        ("open /dev/quux: no handle", "/dev/quux"),
        ("quux.cc:12: call to quux.example:8080 at 10:07:44", "quux.example:8080"),
        ("call of [::1]:29500", "[::1]:29500"),
        ('{"msg": 7} at 12:09:51 of 10.0.0.5', ""),
        ("Missing key in quux: widget.0.step.", "widget.0.step"),
        ("failed to connect to widgets. Please check `quux.out`", "widgets"),
        ("cannot go on, check '/data/widget'", "/data/widget"),
        ("unknown device type: quux:9, or none", "quux:9"),
        ("connect to address 10.0.0.1 port 22: refused", "10.0.0.1"),
        ("see https://quux.example/widget for /data/quux", "/data/quux"),
        ("cannot use `mode='auto'` with 'x'", "mode='auto'"),
        ("FAIL file=/opt/quux/handle.cu line=66", ""),
    ],
)
def test_what_a_message_names(message, named):
    assert object_of(message).get("object", "") == named


@pytest.mark.parametrize(
    ("log", "advice"),
    [
        ("quux: error: no handle. Please set WIDGET=1 first.\n", "Please set WIDGET=1 first"),
        ("Error: no handle\n  Did you mean 'hinge'?\n", "Did you mean 'hinge'?"),
        ("Error: no handle\n\nTry 'quux --init' before.\nbye\n", "Try 'quux --init' before"),
        ("Error: no handle\n[2026] use the other\n", ""),
        ("Error: no handle. Please report this to the authors.\n", ""),
        ("Error: no handle\nquux is done (code 23)\n", ""),
        ("Error: no handle\nINFO: set seed 3\nrank 0 runs\n", ""),
        ("Error: no handle\nwandb: You can sync this run by running wandb sync\n", ""),
        ("Error: no handle\ncleaning up, remove old checkpoints\n", ""),
        ("Error: no handle\nUse GPU 0, set lr 0.1\n", ""),
    ],
)
def test_what_a_program_advises_is_shown_as_the_first_step(tmp_path, capsys, log, advice):
    assert explain([log]).unknown[0].advice == advice
    (tmp_path / "log").write_text(log)
    run_command(cli, ["explain", str(tmp_path / "log")])
    assert (f"advice: of the program itself: {advice}" in capsys.readouterr().out) == bool(advice)


@pytest.mark.parametrize(
    ("log", "message"),
    [
        ("quux: error: only one of a and b should\n   be given\nbye\n", "should be given"),
        ("quux: error: no handle\nquux2: error: no door\n", "error: no handle"),
        ("quux: error: no handle\nretrying after connection refused of h-1\n", "error: no handle"),
        ("quux: error: no handle\nepoch 3, set lr 0.1\n", "error: no handle"),
    ],
)
def test_the_rest_of_a_sentence_is_on_the_next_line(log, message):
    assert explain([log]).unknown[0].message.endswith(message)


@pytest.mark.parametrize(
    "below",
    [
        "  reason: {}",
        "Caused by: {}",
        "\nCaused by:\n    0: no handle\n    1: {}",
        "  -> {}",
        "    └── {}",
        "  Local host: n1\n  Error: {}",
    ],
)
@pytest.mark.parametrize("tag", ["", "[n1:77] "])
def test_the_reason_below_a_message_counts_before_its_own_words(below, tag):
    """Each line has the tag of its program, or none has."""
    log = f"error: quux did not start\n{below.format('permission denied')}\nnext\n"
    found = explain(["".join(f"{tag}{line}\n" for line in log.splitlines())])
    first = found.unknown[0]
    assert first.by_words and first.by_words.signature.id == "words.denied"
    assert first.message == "error: quux did not start: reason: permission denied"


@pytest.mark.parametrize(
    "below",
    [
        "+ cleanup\n+ rm /data/w-7: not found",
        "  details: see /var/log/quux.log",
        "  message: step 3 of 7",
        "Reason: requested by the timer",
        "  -> step 1",
    ],
)
def test_a_label_below_a_message_before_words_of_no_failure_gives_no_reason(below):
    found = explain([f"error: quux has no handle\n{below}\nnext\n"])
    assert found.failing[0].message == "error: quux has no handle"


def test_what_a_message_names_is_what_stands_next_to_its_words():
    log = "Error in '/opt/lib/quux.cc:12' of 'quux': cannot open the file '/data/w-7'\n"
    kind = explain([log]).unknown[0].by_words
    assert kind and kind.values["object"] == "/data/w-7"


@pytest.mark.parametrize(
    ("line", "kind", "about"),
    [
        ("error: quux.so: undefined symbol: _ZN4quuxC1Ev", "words.symbol", "_ZN4quuxC1Ev"),
        ("fatal: quuxd: mount failed: Permission denied", "words.mount-refused", ""),
        ("RuntimeError: QUUX_STATUS_NOT_SUPPORTED for w-7", "words.unsupported", ""),
        ("quux.WidgetLimitExceededException: w-7", "words.limit", ""),
        ("error: invalid widget name: w-7.example", "words.invalid", "w-7.example"),
        ("error: no usable widgets found", "words.missing", "usable widgets"),
        # A word of a kind within a path or another name.
        ("error: /data/mount/x: Permission denied", "words.denied", "/data/mount/x"),
        ("error: mount.nfs: Permission denied", "words.mount-refused", ""),
        ("error: dhcp xid 0x3f timed out", "words.timeout", ""),
        (
            "error: cannot read /etc/pki/certificate.pem: open failed",
            "words.transfer",
            "/etc/pki/certificate.pem",
        ),
        ("error: Missing key in widget: a.b", "words.missing", "a.b"),
        ('error: err="handle \\"w-7\\" not found"', "words.missing", ""),
        ("error: quux: 2.1 of the widget: version mismatch: 3.0 there", "words.versions", ""),
        ("error: quux: Aborted (core dumped)", "", ""),
        ("quux.InvalidParameterValueException: w-7", "words.invalid", ""),
        ("quux.ThrottlingException: w-7", "words.limit", ""),
        ("quux.ServiceUnavailableException: w-7", "words.connection", ""),
        ("ValueError: w-7 is not a valid Widget, select one of a, b", "words.invalid", ""),
        ("ValueError: `WIDGET_ADDR` env was not set", "words.variable", "WIDGET_ADDR"),
        ("error: it does not have a widget group with handles", "words.missing", "widget group"),
        ("error: quux: cannot open dynamic library libwidget.so.1", "words.missing-library", ""),
    ],
)
def test_what_the_name_of_an_error_and_the_words_beside_it_say(line, kind, about):
    found = by_words(line)
    assert (found.signature.id if found else "") == kind
    assert not about or (found and found.values["object"] == about)


def test_a_message_of_a_known_form_is_explained_by_its_words_too():
    log = "docker: Error response from daemon: mount /data: the widget is already mounted.\n"
    lead = explain([log]).lead
    assert lead and lead.signature.id == "docker.error"
    assert lead.cause.endswith("By its words: /data is there already, or something else uses it")
    assert lead.remedies[0][1].startswith("what holds it")


def test_a_line_with_a_reason_goes_before_a_known_form_that_gives_none():
    """The last words of a daemon often name only the part of it that did not start."""
    reason = "error: open /var/log/jobs: Permission denied\n"
    ends = "fatal: failed to initialize quux plugin\n"
    daemon = "Apr  9 13:02:41 n1 slurmctld[7]: "
    lead = explain([f"{daemon}{reason}{daemon}{ends}"]).lead
    assert lead and "open /var/log/jobs" in lead.cause
    found = explain([f"quux: {reason}slurmctld: {ends}"])
    assert found.lead is None and "open /var/log/jobs" in found.unknown[0].text
    both = explain([f"{daemon}{reason}{daemon}fatal: chdir(/x): No such file or directory\n"])
    assert both.lead and "chdir(/x)" in both.lead.cause and not both.is_certain


def test_a_cause_of_a_general_kind_is_not_certain_beside_another_failure():
    general = "slurmctld: fatal: the widget is on fire\n"
    assert explain([general]).is_certain
    for after in ("mount: /data: permission denied\n", "quux: error: no space left on /data\n"):
        assert not explain([f"{general}{after}"]).is_certain, after


def test_a_reason_that_only_its_words_tell_is_not_certain():
    found = explain(["slurmctld: fatal: cannot find the widget plugin quux\n"])
    assert found.lead and "By its words" in found.lead.cause and not found.is_certain
    repeated = explain([f"{DASHES}\nAn MPI process has no handle.\n{DASHES}\n"])
    assert repeated.lead and "has no handle" in repeated.lead.cause and not repeated.is_certain


def test_advice_that_takes_something_away_is_not_the_first_step(tmp_path, capsys):
    told = "the widget is already mounted. Please {} the old one."
    for verb, is_first in (("name", True), ("remove", False)):
        log = f"docker: Error response from daemon: {told.format(verb)}\n"
        steps = [step for _, step in explain([log]).lead.remedies]
        advised = f"the message itself advises: Please {verb} the old one"
        assert (steps[0] == advised, steps[-1] == advised) == (is_first, not is_first)
        (tmp_path / "log").write_text(f"quux: error: {told.format(verb)}\n")
        run_command(cli, ["explain", str(tmp_path / "log")])
        shown = capsys.readouterr().out
        assert (shown.index("advice: of the program") < shown.index("do:  ")) == is_first


def test_the_last_part_of_a_chain_names_the_kind_of_failure():
    chain = "Error: cannot find the widget: fetch 10.0.0.1:22: connect: connection refused\n"
    kind = explain([chain]).failing[0].by_words
    assert kind and kind.signature.id == "words.errno"
    assert kind.cause.startswith("nothing listens on that port there")
    kind = explain(["sh: quux.sh: 9: exec: --widget: not found\n"]).failing[0].by_words
    assert kind and kind.signature.id == "words.command" and "--widget is not" in kind.cause


def test_a_line_that_reports_only_another_failure_comes_last():
    called = "CalledProcessError: Command 'quux' returned non-zero exit status 1."
    trace = f'Traceback (most recent call last):\n  File "a.py", line 7, in f\n{called}\n'
    found = explain([f"{trace}quux: fatal: no handle\n"])
    assert [one.line for one in found.unknown] == [4, 3]


def test_a_line_whose_words_name_no_kind_of_failure_comes_after_those_that_do():
    log = "quux: error: by the widget\nquux: cannot find the file /data/w-7\n"
    assert [one.line for one in explain([log]).unknown] == [2, 1]


def test_what_comes_after_a_status_says_why():
    log = "quux: error in widget (exit status 1): hinge /data/w-7: read-only file system.\n"
    kind = explain([log]).unknown[0].by_words
    assert kind and kind.signature.id == "words.errno" and kind.values["object"] == "/data/w-7"


def test_a_guess_of_the_message_names_no_kind_of_failure():
    log = "error: the worker has died. This can happen if the OOM killer was there.\n"
    kind = explain([log]).unknown[0].by_words
    assert kind and kind.signature.id == "words.died"


def test_the_exception_that_says_something_leads_its_chain():
    chained = "\nDuring handling of the above exception, another exception occurred:\n\n"
    frame = 'Traceback (most recent call last):\n  File "a.py", line 7, in f\n    g()\n'
    bare, said = f"{frame}KeyError: 'w-7'\n", f"{frame}RuntimeError: no widget w-7 in /data\n"
    assert [one.line for one in explain([f"{bare}{chained}{said}"]).unknown] == [11, 4]
    assert [one.line for one in explain([f"{said}{chained}{bare}"]).unknown] == [4]


def test_an_exception_that_reports_only_another_failure_hides_no_symptom():
    warns = "n1:7:9 [1] misc/socket.cc:49 NCCL WARN Connect to 10.0.1.7<51577> failed : Timed out\n"
    spawned = "Exception:\n\n-- Process 1 terminated with the following error:\n"
    lead = explain([f"{warns}Traceback (most recent call last):\n  File 'a'\n{spawned}"]).lead
    assert lead and lead.signature.id == "nccl.connect" and "10.0.1.7<51577>" in lead.cause


def test_a_key_that_is_not_there_gives_way_to_the_next_exception_of_its_rank():
    begin = "[rank{0}]: Traceback (most recent call last):\n[rank{0}]:   File 'a', line 1, in b\n"
    key = f"{begin.format(0)}[rank0]: KeyError: 'w-7'\n"
    next_one = "[rank{0}]: QuuxError: cannot find the handle of w-7 in this widget\n"
    assert explain([key]).lead
    chained = "[rank0]: The above exception was the direct cause of the following exception:\n"
    found = explain([f"{key}{chained}{begin.format(0)}{next_one.format(0)}"])
    assert found.lead is None and found.unknown[0].text.startswith("QuuxError")
    assert explain([f"{key}{begin.format(1)}{next_one.format(1)}"]).lead


def test_a_value_that_a_program_does_not_have_is_not_told():
    line = "fatal: This host not configured to run SlurmDBD (quux-1 != quux-2 | (backup) {})\n"
    for value, is_told in (("(null)", False), ("quux-3", True)):
        lead = explain([line.format(value)]).lead
        assert lead and (f"(backup: {value})" in lead.cause) == is_told


def test_the_host_before_the_shell_that_reports_is_named():
    lead = explain(["10.0.1.7: bash: quuxd: command not found\n"]).lead
    assert lead and lead.hosts == {"10.0.1.7"}


@pytest.mark.parametrize(
    ("line", "host"),
    [
        ("shard-1: bash: line 1: quuxd: no such command", "shard-1"),
        ("env: bash: No such file or directory", None),
        ("make: sh: Command not found", None),
        ("ERROR: sh: 1: quuxd: not found", None),
    ],
)
def test_a_program_before_a_shell_is_no_host(line, host):
    assert place_of(line).get("host") == host


def test_a_scheduler_that_found_a_node_later_has_no_error():
    late = "Warning  FailedScheduling  default-scheduler  0/4 nodes are available: 4 too small.\n"
    found = explain([late, "Normal  Scheduled  default-scheduler  Successfully assigned a/b\n"])
    assert found.severity is Severity.WARNING
    assert explain([late]).severity is Severity.ERROR


@pytest.mark.parametrize(
    ("end", "severity"),
    [
        ("connected\n", Severity.WARNING),
        ("connected to 10.0.0.5\n", Severity.WARNING),
        ("connected to 10.0.0.6\n", Severity.ERROR),
        ("not connected\n", Severity.ERROR),
        ("", Severity.ERROR),
    ],
)
def test_a_host_that_was_waited_for_and_then_reached_is_no_error(end, severity):
    refused = "ssh: connect to host 10.0.0.5 port 22: Connection refused\n"
    wait = f"waiting for SSH on 10.0.0.5\n{refused}"
    assert explain([f"{wait}{wait}{end}"]).severity is severity


@pytest.mark.parametrize(
    ("message", "signature"), [pair for one in libraries() for pair in one.samples.items()]
)
def test_the_number_of_an_error_is_read_as_its_text(message, signature):
    kind = by_words(message)
    assert kind and kind.signature.id == signature
    assert "number" in kind.cause and kind.remedy
    assert explain([f"error: {message}\n"]).unknown[0].by_words


def test_a_reason_that_is_not_in_the_table_of_its_signature_is_explained_by_its_words():
    log = "[m7-31:723275:0] x.c:161  UCX  ERROR quux_create(QP) failed: Cannot allocate memory\n"
    lead = explain([log]).lead
    assert lead and lead.signature.id == "mpi.ucx"
    assert "By its words: memory could not be had" in lead.cause and "`ulimit -l`" in lead.remedy


def test_what_is_tried_again_in_the_next_line_is_a_warning_if_it_then_works():
    log = "ssh: connect to host h-1 port 22: Connection refused\nretrying in 5 s\nh-1 is up\ndone\n"
    assert explain([log]).severity is Severity.WARNING
    assert explain([log.partition("h-1 is up")[0]]).severity is Severity.ERROR


@pytest.mark.parametrize(
    "log",
    [
        # What another rank tries again, and a time that is over, are no success of this one.
        "[1,0]<stderr>:No space left on device\n[1,1]<stdout>:retrying x\n[1,1]<stdout>:step 5\n",
        "ssh: connect to host h-1 port 22: Connection refused\nretrying in 5 s\ntime is up\n",
        "2m Warning FailedScheduling pod/a 0/4 nodes are available: 4 too small.\n"
        "1m Normal Scheduled pod/b Successfully assigned b\n",
        "1764276000 ERROR cannot open widget 7\n",
        "0000123 Cannot allocate memory for widget\n",
        "job17 SKIPPED: prior step failed with exit code 1\n",
        "Mounted Widget (error)\n",
        "worker exited with code 1: error: x\nTraining completed\n",
    ],
)
def test_what_looks_like_success_is_none(log):
    assert explain([log]).severity is Severity.ERROR


def test_the_words_of_an_error_are_not_what_it_is_about():
    kind = explain(["quux: error: input/output error\n"]).failing[0].by_words
    assert kind and "object" not in kind.values


def test_frames_of_java_without_a_line_belong_to_the_exception_above_them():
    frames = "\tat java.base/quux.make(Native Method)\n\tat Q.a(Q.java:7)\n"
    log = f"quux.WidgetException: no handle\n{frames}"
    assert [one.line for one in explain([log]).unknown] == [1]


def test_that_only_a_status_is_reported_is_told_as_that(tmp_path, capsys):
    log = tmp_path / "log"
    log.write_text("step 1\nquux ended with code 11\n")
    assert run_command(cli, ["explain", str(log)]) == 2
    assert "Something failed, and no line" in capsys.readouterr().out


@pytest.mark.parametrize("path", HEALTHY, ids=lambda path: path.stem)
def test_a_log_in_which_nothing_failed_has_no_error(path):
    """They are from runs on a healthy machine, or made of lines that healthy programs print."""
    found = explain([path.read_bytes()])
    assert found.severity is not Severity.ERROR, found.failing


@pytest.mark.parametrize(
    "log",
    [
        "Downloading error-prone-2.3.jar\nCompiling ErrorHandler.java\nBUILD SUCCESSFUL\n",
        "Epoch 3: Top-1 error 24.2\nTop-5 error 7.1\nepoch 4 loss 0.3\n",
        "CUDA out of memory handling enabled: will retry on OOM\nepoch 1 loss 0.3\ndone\n",
        "Finished with 0 failures\n",
        "STOP 0\n",
        "ERROR: 0\nFAILED: 0\nPASSED: 120\n",
        "residual error = 1.2e-01\nresidual error = 1e-7\nConverged.\n",
        "max error = 3e-4\nrelative error = 1e-6\nabs error = 1\ntruncation error = 3\n",
        "SystemExit: 0\n",
    ],
)
def test_words_of_failures_in_a_log_in_which_nothing_failed(log):
    found = explain([log])
    assert not found.findings and not found.failing, (found.findings, found.failing)


def test_an_error_whose_next_line_says_that_it_is_tried_again_is_doubtful():
    tried = "Error: no handle\nRetrying... ok\nstep 1 loss 0.3\nTraining finished\n"
    assert explain([tried]).severity is Severity.WARNING
    assert explain([tried.replace("Retrying... ok\n", "")]).severity is Severity.ERROR


def test_who_counts_its_attempts_and_goes_on_has_a_warning():
    slow = "503 Slow Down, attempt 1 of 5\n503 Slow Down, attempt 2 of 5\n"
    assert explain([slow + "downloaded 40 of 40 parts\n"]).severity is Severity.WARNING
    assert explain([slow]).severity is Severity.ERROR


def test_what_a_program_left_out_is_not_why_it_was_killed():
    log = "ERROR corrupt a.jpg, skipped\nstep 1 loss 0.3\nstep 2 loss 0.2\nKilled\n"
    found = explain([log])
    assert found.lead and found.lead.signature.id == "system.killed"
    assert not found.possible_causes, found


def test_a_doubtful_line_is_no_error_where_the_program_went_on():
    doubtful = "quux: unable to find the handle\n"
    assert explain([doubtful]).severity is Severity.ERROR
    assert explain([doubtful + "Epoch 3 of 7\n"]).severity is Severity.WARNING
    assert explain([doubtful + "0.5 0.7\n" * 30]).severity is Severity.WARNING
    warning = doubtful.replace("quux", "warning")
    assert explain([warning]).severity is Severity.WARNING
    assert explain([f"{warning}Epoch 3 of 7\n"]).severity is Severity.INFO
    assert explain([warning + "0.5 0.7\n" * 30]).severity is Severity.INFO


@pytest.mark.parametrize("error", ["QuuxError: no handle", "KeyError: 'quux'"])
def test_an_exception_that_the_program_handled_is_a_warning_where_its_log_ends_well(error):
    log = f'Traceback (most recent call last):\n  File "a.py", line 7, in f\n{error}\nstep 1\n'
    assert explain([f"{log}Training finished\n"]).severity is Severity.WARNING
    for end in ("", "step 2\n", "Training finished with errors\n", "Training failed\n"):
        assert explain([log + end]).severity is Severity.ERROR, end
    for more in ("quux: fatal: no handle\n", "Killed\n", "quux ended with code 11\n", OOM):
        assert explain([f"{log}{more}Training finished\n"]).severity is Severity.ERROR, more
    tagged = "".join(f"[1,3]<stderr>:{line}\n" for line in log.splitlines())
    assert explain([f"{tagged}Training finished\n"]).severity is Severity.ERROR


def test_a_harmless_text_does_not_hide_a_failure_of_its_line():
    harmless = "Warning: Permanently added '10.0.0.5' (ECDSA) to the list of known hosts."
    assert not explain([f"{harmless}\n"]).failing
    found = explain([f"fatal: quux: {harmless} no handle\n"])
    assert [one.text for one in found.unknown] == [f"fatal: quux: {harmless} no handle"]


@pytest.mark.parametrize("tag", ["", "[rank3]: "])
def test_the_source_text_of_a_traceback_is_no_message(tag):
    source = 'raise OSError(f"{path}: No space left on device")'
    trace = ["Traceback (most recent call last):", '  File "a.py", line 7, in f', f"    {source}"]
    for end in ("QuuxError: no handle", "OSError: [Errno 28] No space left on device"):
        log = "".join(f"{tag}{line}\n" for line in (*trace, end))
        found = explain([log])
        assert [one.text for one in found.findings] == [end][: "space" in end], found.findings
    assert explain([f"    {source}\n"]).findings  # below no frame


@pytest.mark.parametrize(
    "prefix",
    [
        "2026-05-01T12:00:00.12{}Z ",
        "(RayTrainWorker pid=55{}, ip=10.0.0.8) ",
        "ERROR 07-15 14:23:1{} [core.py:396] ",
        "quux-1  | ",
    ],
)
def test_a_traceback_is_read_behind_what_a_logger_puts_before_each_line(prefix):
    traceback = [
        "Traceback (most recent call last):",
        '  File "/opt/train.py", line 10, in main',
        '    raise ValueError("no handle")',
        "ValueError: no handle",
    ]
    log = "".join(f"{prefix.format(at)}{line}\nother\n" for at, line in enumerate(traceback))
    found = explain([log])
    assert [(one.line, one.text) for one in found.unknown] == [(7, "ValueError: no handle")]
    assert found.unknown[0].raised_at == "/opt/train.py:10, in main"


@pytest.mark.parametrize(
    "prefix",
    [
        "mpi-1  | ",
        "[pod/mpi-1/a] ",
        "10:00:0{},12 INFO mpi: ",
        "2026-05-01T10:00:00.12{}4567Z stderr F ",
        "2026-05-01 10:00:00,12{} - quux - ERROR - ",
    ],
)
def test_a_message_of_several_lines_is_read_behind_what_a_logger_puts_before_each(prefix):
    rule = "-" * 74
    message = [
        rule,
        "WARNING: An invalid value was given for btl_tcp_if_include.  This",
        "value will be ignored.",
        "",
        "  Local host: demo-1",
        "  Value:      eno1",
        "  Message:    Unknown interface name",
        rule,
    ]
    log = "".join(f"{prefix.format(at)}{line}".rstrip() + "\n" for at, line in enumerate(message))
    found = explain([log]).findings
    assert [(one.signature.id, one.line) for one in found] == [("mpi.interface-ignored", 2)]
    assert found[0].values["value"] == "eno1"


def test_the_message_on_the_line_of_a_traceback_is_read():
    tag = "(Worker pid=7) ERROR 01-12 08:36:38 [core.py:2]"
    log = f"{tag} Exception: CUDA out of memory, Traceback (most recent call last):\n"
    log += f'{tag}   File "/opt/vllm/worker.py", line 9, in load\n{tag}     output = load()\n'
    found = explain([log])
    assert [one.signature.id for one in found.findings] == ["gpu.oom"]
    assert found.is_certain


def test_the_exception_in_the_list_of_torchrun_is_read():
    log = """
  exitcode  : 1 (pid: 141)
  traceback : Traceback (most recent call last):
    File "/opt/train.py", line 99, in main
      raise QuuxError("no handle")
  QuuxError: no handle
"""
    found = explain([log])
    assert found.lead is None
    assert found.unknown[0].text.strip() == "QuuxError: no handle"


def test_the_numbered_source_text_of_a_traceback_is_no_message():
    log = "    353 except ProxyError as e:\n--> 354     raise ProxyConnectionError(proxy_url=url)\n"
    assert not explain([f"{log}QuuxError: no handle\n"]).findings


def test_frames_of_c_are_followed_by_messages():
    log = '  File "H5FDsec2.c", line 939, in H5FD_sec2_lock\n    No space left on device\n'
    assert [one.signature.id for one in explain([log]).findings] == ["system.no-space"]


def test_the_line_that_a_consequence_announces_is_where_to_look():
    announced = "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:\n"
    found = explain([f"{announced}QuuxError: no handle\n"])
    assert found.lead is None
    assert found.unknown[0].text == "QuuxError: no handle"


def test_a_traceback_that_is_cut_is_no_healthy_end():
    cut = 'Traceback (most recent call last):\n  File "train.py", line 7, in <module>\n'
    assert explain(["step 1\n" * 30 + cut]).severity is Severity.ERROR
    inside = '  File "/quux/load.py", line 7, in load\n    with opened(f):\n'
    assert explain([inside]).severity is Severity.ERROR
    assert explain([inside + "step 1\n" * 30]).severity is Severity.INFO


@pytest.mark.parametrize(
    ("tag", "message", "expected"),
    [
        ("", "The daemon has no handle for it.\n\n  Local host: a", "mpi.message"),
        ("[1,3]<stderr>:", "An MPI process has\nno handle. Please give it one.", "mpi.message"),
        ("", "WARNING: The daemon has no handle for it.", "mpi.remark"),
        ("", "The job has no handle, and will continue without it.", "mpi.remark"),
        ("", "There are not enough slots available in the system.", "mpi.not-enough-slots"),
    ],
)
def test_a_framed_message_of_open_mpi_explains_itself(tag, message, expected):
    """It needs no word of a failing form, and any line of it may be that of a signature."""
    lines = [DASHES, *message.split("\n"), DASHES]
    found = explain(["step 1\n", *(f"{tag}{line}\n" for line in lines)])
    assert found.lead and found.lead.signature.id == expected
    assert found.lead.line == 3 and found.lead.text in message
    assert not found.failing
    if "Please" in message:
        assert found.lead.cause.endswith("An MPI process has no handle")
        assert found.lead.remedy == "Please give it one."


def test_the_values_in_the_lines_of_a_known_message_of_open_mpi_are_told():
    rule = "-" * 74
    says = "A request was made to bind to that would result in binding more\nprocesses than cpus\n"
    values = "\n   Node:        demo-1\n   #cpus:       1\n"
    lead = explain([f"{rule}\n{says}{values}{rule}\n   Node:        demo-7\n"]).lead
    assert lead and lead.cause.endswith("(Node: demo-1; #cpus: 1)")
    assert "demo-7" not in (explain([f"{says}   Node:        demo-7\n"]).lead or lead).cause


def test_a_message_that_is_a_cause_of_a_general_kind_is_not_certain_after_a_symptom(
    tmp_path, capsys
):
    log = tmp_path / "log"
    symptom = "[demo-1:17] PMIX ERROR: UNREACHABLE in file ptl_tcp.c at line 7\n"
    log.write_text(f"{symptom}{DASHES}\nThe daemon has no handle for it.\n{DASHES}\n")
    assert run_command(cli, ["explain", str(log)]) == 2
    shown = capsys.readouterr().out
    assert "error: mpi.message" in shown and "Not certain: mpi.error-log, line 1" in shown


def test_a_framed_message_without_a_word_of_mpi_is_shown_if_something_failed():
    message = "The handle of quux: no such widget, aborting."
    found = explain([f"{DASHES}\n{message}\n{DASHES}\n", "0.5 0.7\n" * 30])
    assert found.lead and found.lead.text == message
    table = f"{DASHES}\nname   size\n{DASHES}\n"
    assert explain([table]).severity is Severity.INFO


def test_a_signature_that_begins_above_an_exception_explains_it():
    log = (
        'Traceback (most recent call last):\n  File "rendezvous.py", line 113, in _call_store\n'
        "    return getattr(self._store, store_op)(*args, **kwargs)\nRuntimeError: Broken pipe\n"
    )
    found = explain([log])
    assert found.lead and found.lead.signature.id == "torch.store-closed"
    assert not found.failing


@pytest.mark.parametrize("data", [b"", b"\x1f\x8b\x08"])
def test_an_empty_or_unreadable_log_is_neither_healthy_nor_sick(tmp_path, data):
    log = tmp_path / "log"
    log.write_bytes(data)
    assert run_command(cli, ["explain", str(log)]) == 3
    assert run_command(cli, ["explain", str(tmp_path / "none")]) == 3


def test_an_unknown_failing_line_before_the_known_cause_lowers_its_certainty(tmp_path, capsys):
    log = tmp_path / "log"
    log.write_text(f"QuuxError: no handle\n{OOM}")
    assert run_command(cli, ["explain", str(log)]) == 2
    shown = capsys.readouterr().out
    assert shown.index("gpu.oom") < shown.index("Not certain") < shown.index("QuuxError")
    later = explain([f"{OOM}QuuxError: no handle\n"])
    assert later.is_certain and not later.unknown
    near = explain([f"unable to find the handle\n{OOM}"])
    assert not near.is_certain and near.lead


def test_a_log_has_not_only_consequences_if_an_unknown_failing_line_stands_above(tmp_path, capsys):
    log = tmp_path / "log"
    log.write_text(f"quux: error: no handle\n{AFTER}")
    assert run_command(cli, ["explain", str(log)]) == 2
    shown = capsys.readouterr().out
    assert "Only consequences" not in shown and "quux: error" in shown
    log.write_text(f"{AFTER}quux: error: no handle\n")
    run_command(cli, ["explain", str(log)])
    assert "Only consequences" in capsys.readouterr().out


def test_a_line_that_belongs_to_a_known_message_is_not_told_again():
    frame = (
        f"{DASHES}\nThere are not enough slots available in the system to satisfy the 4\n"
        f"slots that were requested by the application:\n\n  error: the process failed\n{DASHES}\n"
    )
    found = explain([frame])
    assert found.lead and found.lead.signature.id == "mpi.not-enough-slots"
    assert not found.failing


@pytest.mark.parametrize("width", [72, 80, 100])
def test_lines_that_a_terminal_broke_are_joined(width):
    line = (
        "2026-11-22 10:07:44.569715: W tensorflow/core/common_runtime/bfc_allocator.cc:497] on "
        "host demo-1 OP_REQUIRES failed at conv_ops.cc:684 : RESOURCE_EXHAUSTED: OOM when "
        "allocating tensor with shape[256,64,112,112] and type float on /job:localhost"
    )
    at = line.index("allocating tensor") + 4
    hard = [line[start : start + width] for start in range(at % width, len(line), width)]
    log = "\n".join(["step 1", *([line[: at % width]] if at % width else []), *hard, "step 2"])
    lead = explain([log]).lead
    assert lead and lead.signature.id == "gpu.oom"
    assert lead.line <= 2 + len(hard)


def test_the_line_after_a_rule_is_no_part_of_the_message_before():
    """The last line is the widest, and its first word would not have fit behind the dashes."""
    banner = f"""{DASHES}
prterun detected that one or more processes exited with non-zero status,
thus causing the job to be terminated. The first process to do so was:

   Process name: [prterun-demo-0-77@1,1]
   Exit code:    3
{DASHES}
"""
    last = "classification_accuracy after the last epoch was 0.9712, and its loss 0.1031 in the end"
    found = explain([banner + last])
    assert [one.signature.id for one in found.findings] == ["mpi.exit-code"]


@pytest.mark.parametrize("after", ["step 1 loss 2.1\nstep 2 loss 2.0\n", "epoch 1 begins\ndone\n"])
def test_one_line_longer_than_all_others_was_not_broken(after):
    handled = "No such file or directory: '/quux/checkpoints/last.pt', starting from scratch"
    text = f"2026-01-01 10:00:00 FileNotFoundError: [Errno 2] {handled}"
    found = explain([f"{text}\n{after}"])
    assert found.severity is Severity.WARNING
    assert [one.text for one in found.findings] == [text]


@pytest.mark.parametrize(
    ("log", "line"),
    [
        (
            '{"time": 7}\n{"text": "Traceback\\\\n  File \\"x\\"\\\\nundefined symbol: ncclFoo"}\n',
            2,
        ),
        ("https://example.org/?q=lib.so:%20undefined%20symbol:%20ncclFoo\n", 1),
    ],
)
def test_texts_within_json_and_addresses_are_read_as_they_were(log, line):
    lead = explain([log]).lead
    assert lead and (lead.signature.id, lead.line) == ("gpu.nccl-symbol", line)
    assert lead.values["symbol"] == "ncclFoo"


def test_an_error_of_aws_is_known_whatever_client_prints_it():
    """Each sample of boto's, as the clients of Go, Java and XML write it."""
    boto = re.compile(r".*\((?P<code>[A-Z][\w.]+)\) when .* operation: (?P<text>.+)")
    others = (
        "<Error><Code>{code}</Code><Message>{text}</Message></Error><RequestID>7</RequestID>",
        "Error launching source instance: {code}: {text}\n\tstatus code: 400, request id: 7",
        "Error: error creating it: {code}: {text}\n\tstatus code: 400, request id: 7",
        "operation error EC2: Quux, https response error StatusCode: 400, api error {code}: {text}",
        "com.amazonaws.Q: {text} (Service: AmazonEC2; Status Code: 400; Error Code: {code}; Id: 7)",
    )
    read = 0
    for one in catalogue():
        found = boto.match(one.samples[0]) if one.id.startswith(("ec2.", "iam.")) else None
        lead = found and explain([found[0]]).lead
        if found and lead and lead.signature.role is Role.ROOT:
            read += 1
            for other in others:
                told = explain([other.format(**found.groupdict())]).lead
                assert told and told.signature.id == lead.signature.id, (other, found[0])
    assert read > 5


def test_an_error_of_another_service_is_none_of_aws():
    for line in (
        "Error: request to the registry failed with status code: 404",
        "Forbidden: fetch of the model failed, status code: 403",
        "<Error><Code>Widget</Code><Message>no handle</Message></Error>",
        "quux: api error WidgetInvalid: no handle of quux",
    ):
        lead = explain([f"{line}\n"]).lead
        assert lead is None or not lead.signature.id.startswith(("aws.", "ec2.")), line


def test_a_message_that_is_broken_in_a_column_is_read_whole():
    log = (
        "WARNING  quux.compute:325 Got       \n"
        "                    quux.ClientError: An error occurred       \n"
        "                    (InvalidParameterCombination) when calling the           \n"
        "                    RunInstances operation: Cluster placement groups are not \n"
        "                    supported by the 't3.xlarge' instance type. Specify a    \n"
        "                    supported instance type.\n"
    )
    lead = explain([log]).lead
    assert lead and lead.signature.id == "ec2.parameter" and lead.line == 2
    assert "instances of that type cannot be in a placement group" in lead.cause


@pytest.mark.parametrize(
    "form", ["NCCL WARN Cuda failure {code} '{text}'", "CUDA failure {code}: {text} ; GPU=0"]
)
@pytest.mark.parametrize(
    ("code", "text", "signature"),
    [
        (802, "system not yet initialized", "gpu.fabric-manager"),
        (214, "uncorrectable ECC error encountered", "gpu.ecc"),
        (800, "operation not permitted", ""),
    ],
)
def test_an_error_of_cuda_is_known_whatever_library_quotes_it(form, code, text, signature):
    found = explain([form.format(code=code, text=text)])
    assert found.lead is None or found.lead.signature.id in (signature, "nccl.cuda-failure")
    assert not signature or (found.lead and found.lead.signature.id == signature)


def test_the_line_of_a_source_file_is_no_number_of_an_error():
    kind = by_words("Couldn't init CUDA: Error (quux.cpp:304): no handle")
    assert kind is None or "number 304" not in kind.cause


@pytest.mark.parametrize(
    "message",
    [
        "error: CUDA failure on rank 2: no handle",
        "cudaMemcpyAsync failed on stream 700",
        "cudaLaunchKernel failed at step 100",
        "CUDA error: 2 graphs were lost",
        "NCCL error on rank 5: no handle",
        "NCCL failed: 3 of 8 ranks are gone",
        "NCCL error 1/8: no handle",
        "error: nvml lost gpu 15",
        "libfabric: fi_recv failed on rank 265",
        "libfabric: fi_cq_read failed after 260 s",
        "quux returned -1",
        "returned non-zero exit status -11",
        "http://quux: [Errno -1] no handle",
    ],
)
def test_the_number_of_a_rank_or_of_things_is_no_number_of_an_error(message):
    kind = by_words(message)
    assert kind is None or not kind.cause.startswith("number "), kind.cause


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("CUDA error code=100(no handle)", "100 of CUDA"),
        ("quux: cuInit() returned 999", "999 of CUDA"),
        ("NVML error (15): no handle", "15 of NVML"),
        ("fi_recv returned error 265", "265 of libfabric"),
        ("quux_open: ret=-110", "110 of errno"),
    ],
)
def test_the_number_of_an_error_is_read_however_it_is_written(message, code):
    kind = by_words(message)
    assert kind and kind.cause.startswith(f"number {code} is "), message


@pytest.mark.parametrize(
    ("line", "host"),
    [
        ("2026-11-02 10:00:06 demo-9 quux[513]: error: no handle", "demo-9"),
        ("2026-11-02T10:00:06Z demo-9 quux: error: no handle", "demo-9"),
        ("2026-11-02 10:00:06 INFO: error: no handle", ""),
        ("2026-11-02 10:00:06 ERROR quux: error: no handle", ""),
        ("2026-11-02T10:00:06Z WARNING quux: error: no handle", ""),
        ("2026-11-02 10:00:06 UTC quux[513]: error: no handle", ""),
        ("2026-11-02 10:00:06.123 CEST quux: error: no handle", ""),
        ("2026-11-02 10:00:06,123 quux.compute ERROR: no handle", ""),
        ("2026-11-02 10:00:06,123 main quux: error: no handle", ""),
    ],
)
def test_a_level_a_zone_or_a_logger_after_the_time_is_no_host(line, host):
    assert [one.host for one in explain([line]).failing] == [host]


def test_a_bad_address_is_a_name_or_memory():
    name = explain(["ping: bad address 'demo-3'"]).lead
    assert name and name.signature.id == "net.resolve" and name.values["name"] == "demo-3"
    kind = by_words("quux: error: bad address 'demo-3'")
    assert kind and kind.signature.id == "words.name"
    memory = by_words("error: quux_reg failed: Bad address")
    assert memory and "memory" in memory.cause


def test_a_condition_of_gloo_is_explained_by_the_part_that_it_is_of():
    for file, word in (("allgather.cc", "shape and dtype"), ("rendezvous/file.cc", "new folder")):
        lead = explain([f"RuntimeError: [enforce fail at ../gloo/{file}:88] a == b. 7 vs 9"]).lead
        assert lead and lead.signature.id == "gloo.enforce"
        assert "a == b. 7 vs 9" in lead.cause and word in lead.remedy


def test_a_lost_connection_comes_after_the_unknown_line_that_fails_before_it(tmp_path, capsys):
    """The answer names the host of the line: the first failure, not the peer that noticed it."""
    log = tmp_path / "log"
    log.write_text(
        "2026-11-02 10:00:06 demo-9 quux[513]: error: could not make the widget\n"
        "2026-11-02 10:00:08 demo-7 quux[512]: Read error: Connection reset by peer\n"
    )
    assert run_command(cli, ["explain", str(log)]) == 2
    shown = capsys.readouterr().out.splitlines()
    assert shown[1].startswith("  line 1, on demo-9: ")
    assert shown[2].startswith("  line 2, on demo-7: ")
    # Without another failure it is where to look.
    alone = explain(["quux[512]: Read error: Connection reset by peer\n"])
    assert alone.unknown[0].line == 1


def test_the_rank_and_host_that_a_launcher_saw_fail_first_are_named():
    torchrun = (
        "train.py FAILED\n" + "-" * 60 + "\nFailures:\n  <NO_OTHER_FAILURES>\n" + "-" * 60 + "\n"
        "Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-02_10:00:00\n"
        "  host      : demo-3\n  rank      : 5 (local_rank: 1)\n  exitcode  : 7 (pid: 145)\n"
    )
    for log, code in (
        (torchrun, "code 7"),
        ("srun: error: demo-3: task 5: Exited with exit code 7\n", "code 7"),
    ):
        causes = [one.cause for one in explain([log]).findings]
        assert any("rank 5 on demo-3" in one and code in one for one in causes), causes
        assert not explain([log]).unknown


def test_what_a_command_prints_counts_as_such_behind_the_tag_of_cfn_init(tmp_path, capsys):
    """cfn-init calls INFO all that its commands print, their errors too."""
    log = tmp_path / "log"
    tag = "2026-11-01 04:03:41,389 P5245 [INFO] \t"
    log.write_text(f"{tag}Fetching quux\n{tag}Quux::WidgetError: no handle\n")
    assert run_command(cli, ["explain", str(log)]) == 2
    assert "line 2: Quux::WidgetError: no handle" in capsys.readouterr().out


def test_a_reason_of_a_table_is_not_explained_by_its_words_too():
    """Input/output error of UCX is no disk's."""
    lead = explain(["[n1:7:0] x.c:161  UCX  ERROR quux_open() failed: Input/output error\n"]).lead
    assert lead and lead.signature.id == "mpi.ucx"
    assert "disk" not in lead.cause + lead.remedy and "ibstat" in lead.remedy


def test_a_line_of_tail_begins_a_new_log():
    def traceback(error):
        return f'Traceback (most recent call last):\n  File "a.py", line 7, in f\n{error}\n'

    log = f"==> rank0.log <==\n{AFTER}==> rank1.log <==\n{traceback('QuuxError: no handle')}{OOM}"
    found = explain([log])
    assert found.lead and (found.lead.part, found.lead.line) == ("rank1.log", 7)
    assert [one.part for one in found.firsts] == ["rank0.log", "rank1.log"]
    cut = "Traceback (most recent call last):\n  File\n==> b <==\nQuuxError: no handle\n"
    assert [one.part for one in explain([cut]).failing] == ["", "b"]
    # The line in the other log does not stand before this one.
    other = explain([f"==> a <==\nQuuxError: no handle\n==> b <==\n{OOM}"])
    assert other.is_certain


def test_a_login_that_fails_yields_to_a_launch_that_failed():
    ssh = "ssh: connect to host 10.0.0.7 port 22: Connection timed out\n"
    launch = (
        "An error occurred (InsufficientInstanceCapacity) when calling the RunInstances operation\n"
    )
    for log in (ssh + launch, launch + ssh):
        lead = explain([log]).lead
        assert lead and lead.signature.id == "ec2.capacity"
    alone = explain([ssh]).lead
    assert alone and alone.signature.id == "ssh.timeout"


def test_a_generic_cause_yields_to_a_specific_one_wherever_it_stands():
    generic = "PermissionError: [Errno 13] Permission denied: '/data/x'\n"
    for log in (generic + OOM, OOM + generic):
        found = explain([log])
        assert found.lead and found.lead.signature.id == "gpu.oom"
        assert len(found.of(Role.ROOT)) == 2
    assert explain([generic]).lead


def test_a_symptom_yields_to_a_warning_that_its_signature_names():
    warns = "[rank9]: Warning: Unable to resolve hostname to a (local) address. Using the loopback"
    lead = explain([f"{warns}\nGloo connectFullMesh failed with [pair.cc:144] no error\n"]).lead
    assert lead and lead.signature.id == "gloo.loopback"


def test_of_several_logs_the_first_failure_by_time_stamps_leads(tmp_path, capsys):
    early, late, healthy = (tmp_path / name for name in ("rank7.log", "rank3.log", "rank1.log"))
    late.write_text(f"2026-11-22 10:07:45.5: step 1\n{OOM}")
    early.write_text("2026-11-22 10:07:44.9: start\nNCCL WARN NCCL version mismatch with remote\n")
    early.write_text(f"2026-11-22T10:07:44: start\n2026-11-22T10:07:45,2: E x.cc:1] {OOM}")
    healthy.write_text("2026-11-22 10:07:40: step 1\n")
    names = [str(late), str(early), str(healthy)]
    assert run_command(cli, ["explain", *names]) == 2
    shown = capsys.readouterr().out
    assert f"error: gpu.oom, {early}:2" in shown
    first = shown.index("The first failure in each log, by their time stamps")
    assert first < shown.index("11-22 10:07:45.2", first) < shown.index("11-22 10:07:45.5", first)
    late.write_text(OOM)
    assert run_command(cli, ["explain", *names, "--json"]) == 2
    told = json.loads(capsys.readouterr().out)
    assert told["lead"]["file"] == str(late) and told["firsts"][0]["time"] == ""


def test_json_has_the_lines_of_the_evidence(tmp_path, capsys):
    log = tmp_path / "log"
    log.write_text(f"QuuxError: no handle\n{OOM}step\n{OOM}")
    run_command(cli, ["explain", str(log), "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told["lead"]["lines"] == [2, 4] and told["lead"]["count"] == 2
    assert not told["is_certain"]
    assert [(one["line"], one["kind"]) for one in told["failing"]] == [(1, "failing")]


def test_a_long_log_of_unknown_failures_keeps_the_first_and_the_last():
    lines = [f"quux{chr(97 + n % 26)}{n}: unable to find {n:x}\n" for n in range(9000)]
    found = explain(["".join(lines), "QuuxError: no handle\n"])
    assert found.failing[-1].text == "QuuxError: no handle"
    assert len(found.failing) < 40


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("InvalidGroup.Duplicate", "ec2.state"),
        ("InvalidGroup.Quux", "aws.error"),
        ("AuthFailure.Quux", "aws.error"),
        ("InvalidAMIID.Quux", "aws.error"),
        ("AuthFailure", "ec2.auth-failure"),
        ("AuthFailure.ServiceLinkedRoleCreationNotPermitted", "iam.spot-role"),
        ("InsufficientFreeAddressesInSubnet", "ec2.subnet-full"),
        ("MaxSpotInstanceCountExceeded", "ec2.spot-limit"),
    ],
)
def test_what_stands_before_the_dot_of_an_error_code_decides_nothing(code, expected):
    log = f"An error occurred ({code}) when calling the RunInstances operation: no handle\n"
    found = explain([log])
    assert (found.lead.signature.id if found.lead else None) == expected


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.all)])
def test_failing_lines_among_harmless_ones_are_never_passed_over(seed):
    """Logs of the corpus with lines of healthy programs before, after and between theirs.

    Before them they change nothing, after them a doubtful line becomes a warning, and between them
    they break up messages of several lines; but nothing is called healthy.
    """
    chance = random.Random(seed)  # noqa: S311 - no secret
    calm = [line for path in HEALTHY for line in path.read_text().splitlines()]
    logs = sorted((Path(__file__).parent / "corpus").glob("*/*.log"))
    for path in logs if seed else chance.sample(logs, 100):
        text = path.read_text(errors="replace").splitlines()
        lines = [line for line in text if not line.startswith("#: ")]
        alone = explain(["\n".join(lines)])
        if alone.severity is not Severity.ERROR:
            continue
        later = explain(["\n".join([*chance.sample(calm, 30), *lines])])
        assert later.severity is Severity.ERROR, path.name
        some = [chance.sample(calm, chance.choice((0, 0, 3))) for _ in lines]
        among = [part for line, more in zip(lines, some, strict=True) for part in (*more, line)]
        for mixed in ([*lines, *chance.sample(calm, 30)], among):
            assert explain(["\n".join(mixed)]).severity is not Severity.INFO, path.name


def _logs(name: str) -> list[str]:
    """Return the short logs of a file in forms/. Between them stands a line of %%."""
    return (Path(__file__).parent / "forms" / name).read_text().split("\n%%\n")


@pytest.mark.parametrize(("name", "status"), [("ended-well.txt", 0), ("failed.txt", 2)])
def test_short_logs_that_failed_and_those_with_words_of_failures(name, status, capsys, tmp_path):
    for log in _logs(name):
        (tmp_path / "log").write_text(log + "\n")
        explained = run_command(cli, ["explain", str(tmp_path / "log")])
        assert explained == status, (log, capsys.readouterr().out)
        capsys.readouterr()


def test_what_does_not_work_because_it_is_deprecated_is_not_passed_over(capsys, tmp_path):
    (tmp_path / "log").write_text("cannot start: the option is deprecated and not supported\n")
    assert run_command(cli, ["explain", str(tmp_path / "log")]) == 1, capsys.readouterr().out


def test_the_text_of_a_failure_on_the_next_line_is_shown(capsys, tmp_path):
    logs = [log for log in _logs("failed.txt") if "gmx" in log or "panicked" in log]
    (tmp_path / "log").write_text("\n".join(logs))
    run_command(cli, ["explain", str(tmp_path / "log")])
    shown = " ".join(capsys.readouterr().out.split())
    assert "The total potential energy is nan" in shown
    assert "a program in Rust stopped: index out of bounds" in shown


def test_what_cannot_be_read_hides_nothing_of_the_rest(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    failed = b"make: *** [Makefile:3: all] Error 2\n"
    Path("failed").write_bytes(failed)
    Path("fine").write_text("done\n")
    Path("no.gz").write_bytes(b"\x1f\x8b\x08" + bytes(7) + b"\xff\xff\xff")
    random = b"".join(b"%d\n" % (n * 7919 % 65537) for n in range(90_000))
    Path("cut.gz").write_bytes(gzip.compress(failed + random)[:-20])
    Path("after.gz").write_bytes(gzip.compress(failed) + b"garbage")
    for words, status in (
        (("failed", "nowhere"), 2),
        (("nowhere", "failed"), 2),
        (("failed", "."), 2),
        (("failed", "no.gz"), 2),
        (("cut.gz",), 2),
        (("after.gz", "fine"), 2),
        (("fine", "nowhere"), 3),
        (("nowhere", "no.gz"), 3),
        (("no.gz",), 3),
    ):
        assert run_command(cli, ["explain", *words]) == status, words
        ran = capsys.readouterr()
        assert (status == 2) == ("build.stopped" in ran.out), words
        assert words[0] == "failed" or words[0] in ran.err or words == ("fine", "nowhere"), ran


def test_lines_that_are_only_counted_count_in_their_part_of_the_log():
    line = "Horovod has been shut down. This was caused by an exception\n"
    found = explain([f"==> a <==\n{line * 1500}==> b <==\n{line * 3000}"]).findings
    assert [(one.part, one.count, one.line) for one in found] == [("a", 1500, 2), ("b", 3000, 1503)]
