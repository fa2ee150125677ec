"""What else a log shows beside the line of an error: it decides between the causes of one line."""

from __future__ import annotations

import re

import pytest

from clusterctl.domain.findings import Severity
from clusterctl.explain.catalogue import catalogue
from clusterctl.explain.engine import explain

NO_TORCH = "ModuleNotFoundError: No module named 'torch'"
PIP = "  Getting requirements to build wheel ... error"
BATCH = (
    "AssertionError: Check batch related parameters. train_batch_size is not equal to "
    "micro_batch_per_gpu * gradient_acc_step * world_size {}"
)
TORCHRUN = "W0711 10:24:01 torch/distributed/elastic/multiprocessing/api.py:145] closing"
FORKED = (
    "RuntimeError: Cannot re-initialize CUDA in forked subprocess. Use the 'spawn' start method"
)
UNCLEAN = "protocol version mismatch -- is your shell clean?"


def lead(*lines: str):
    found = explain(["\n".join(lines) + "\n"]).lead
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("error", "other", "without", "with_it"),
    [
        (NO_TORCH, PIP, "python.no-torch", "pip.isolated-build"),
        (BATCH.format("256 != 4 * 8 * 1"), TORCHRUN, "deepspeed.batch", "deepspeed.one-rank"),
        (FORKED, "Exception in cell 3 of ipykernel", "torch.fork", "torch.fork-launcher"),
        (UNCLEAN, 'opening: ssh -tt maple "sudo rsync"', "rsync.protocol", "rsync.terminal"),
        (
            "ValueError: Neither MPI nor Gloo support has been built.",
            "Requirement already satisfied: horovod in /usr/lib/python3/dist-packages",
            "horovod.mpi-unavailable",
            "horovod.not-rebuilt",
        ),
    ],
)
def test_a_line_nearby_decides_between_the_causes_of_an_error(error, other, without, with_it):
    assert lead("begin", error).signature.id == without
    assert lead(other, error).signature.id == with_it
    assert lead(error, other).signature.id == with_it
    assert lead(other, *["step 1 of 2, all is well"] * 50, error).signature.id == without


def test_what_is_near_is_counted_in_the_lines_of_one_rank():
    others = [
        f"[1,{rank}]<stderr>: loading part {part}" for part in range(9) for rank in range(1, 9)
    ]
    error = f"[1,0]<stderr>: {NO_TORCH}"
    assert lead(f"[1,0]<stderr>: {PIP}", *others, error).signature.id == "pip.isolated-build"
    assert lead(f"[1,3]<stderr>: {PIP}", error).signature.id == "python.no-torch"


@pytest.mark.parametrize(
    ("offered", "says"),
    [
        ("2.0.0, 2.0.1", "this Python is newer"),
        ("1.0.0, 1.12.1", "is too old for that version"),
        ("1.12.1, 2.0.0", "it lists older and newer ones"),
    ],
)
def test_the_versions_that_pip_is_offered_say_in_which_direction_the_python_is_wrong(offered, says):
    error = "ERROR: Could not find a version that satisfies the requirement torch==1.13.1"
    assert says in lead(f"{error} (from versions: {offered})").cause


def test_a_batch_size_that_fits_no_number_of_steps_is_named():
    assert "256 is no multiple of 2 times 7" in lead(BATCH.format("256 != 2 * 18 * 7")).cause
    found = lead(BATCH.format("16 != 2 * 1 * 4"))
    assert "multiple" not in found.cause and "multiple of 8" in found.remedy


def test_only_the_layer_that_differs_is_blamed():
    error = (
        "\tsize mismatch for {}: copying a param with shape torch.Size([{}]) from checkpoint, "
        "the shape in current model is torch.Size([{}])."
    )
    head = "RuntimeError: Error(s) in loading state_dict for Net:"
    tokens = error.format("encoder.embed_tokens.weight", "50264, 1024", "50265, 1024")
    assert lead(head, tokens).signature.id == "torch.vocabulary"
    classes = error.format("fc.weight", "1000, 2048", "10, 2048")
    assert lead(head, classes).signature.id == "torch.classes"
    width = error.format("encoder.embed_tokens.weight", "50264, 1024", "50264, 768")
    assert lead(head, width).signature.id == "torch.size-mismatch"


def test_what_a_message_guesses_is_no_evidence():
    guess = "quux.WidgetError: a worker ended. This could be caused by a segmentation fault here."
    found = explain([f"{guess}\n"])
    assert [one.signature.id for one in found.findings] == []
    assert found.unknown[0].text == guess
    after = f"{guess} No space left on device\n"
    assert [one.signature.id for one in explain([after]).findings] == ["system.no-space"]


def test_quotes_that_a_page_has_made_typographic_are_read_as_plain_ones():
    page = "IOError: Unable to create file (unable to lock file, errno = 37, error message = ‘{}’)"
    assert lead(page.format("No locks available")).signature.id == "keras.h5-lock"


def test_a_daemons_own_line_comes_before_what_systemd_says_of_its_unit():
    own = "Nov 11 11:30:45 demo-0 chronyd[812]: Fatal error : Invalid syntax at line 3"
    unit = (
        "Nov 11 11:30:45 demo-0 systemd[1]: chronyd.service: Main process exited, code=exited, "
        "status=1/FAILURE"
    )
    found = explain([f"{own}\n{unit}\n"])
    assert found.lead is None and found.unknown[0].line == 1
    words = found.unknown[0].by_words
    assert words is not None and "its settings: /etc/chrony.conf" in words.remedy
    assert lead(unit).signature.id == "systemd.unit"


@pytest.mark.parametrize(
    ("text", "is_timeout"),
    [
        ("the widget did not start", False),
        ("the widget did not start within 30 s", True),
        ("the widget did not become ready after 5 attempts", True),
        ("the widget did not respond", True),
    ],
)
def test_what_did_not_start_has_not_timed_out_unless_a_time_is_named(text, is_timeout):
    error = explain([f"quux: error: {text}\n"]).unknown[0]
    found = error.by_words
    assert (found is not None and found.signature.id == "words.timeout") == is_timeout


def test_a_path_is_told_without_the_quote_and_comma_that_follow_it_in_the_line():
    found = lead('{"msg": "ssh: Bad owner or permissions on /etc/ssh/c.conf", "unreachable": true}')
    assert "chown $USER /etc/ssh/c.conf; chmod 600 /etc/ssh/c.conf" in found.remedy


def test_a_command_that_a_cards_firmware_refuses_is_an_error_only_where_the_card_is_full():
    said = "mlx5_core 0:0: mlx5_cmd_check:795:(pid 9): {}(0x8) op_mod(0x0) failed, status {}"
    refused = said.format("ACCESS_REG", "bad parameter(0x3), syndrome (0x1e5585)")
    assert explain([f"{refused}\n"]).severity is Severity.WARNING
    full = said.format("ALLOC_UAR", "limits exceeded(0x8), syndrome (0x5a7939)")
    assert lead(refused, full).signature.id == "mlx5.uar"
    queues = said.format("CREATE_QP", "no resources(0xf), syndrome (0x25b161), err(-11)")
    assert "CREATE_QP" in lead(queues).cause


def test_the_missing_program_of_fuse_comes_first_where_the_log_shows_it():
    refused = "FATAL: can't mount overlay filesystem to /mnt/session/final: invalid argument"
    missing = "INFO:    fuse-overlayfs not found, will not be able to use FUSE overlay"
    shown = lead(missing, refused)
    assert "finds no fuse-overlayfs" in shown.cause
    assert shown.remedy.startswith("programs of FUSE are missing on that node (line 1 shows it)")
    assert "fuse-overlayfs" not in lead(refused).cause


@pytest.mark.parametrize("number", ["0", "9" * 100])
def test_no_number_of_a_line_ends_what_is_computed_from_it(number):
    computed = [one for one in catalogue() if one.hook]
    assert computed
    for one in computed:
        for sample in one.samples:
            explain([re.sub(r"\d+", number, sample) + "\n"])
            explain([re.sub(r"(?<=[^\d])\d+(?=[^\d]*$)", number, sample) + "\n"])


@pytest.mark.parametrize(
    ("line", "first"),
    [
        ("unable to run bstrap_proxy on n1 (pid 7, exit code 65280)", "65280"),
        ("unable to run bstrap_proxy on n1 (pid 7, exit code 32512)", "32512"),
        ("unable to run bstrap_proxy on n1 (pid 7, exit code 256)", "256"),
        ("mount.lustre: mount a@tcp:/fs at /fsx failed: No such device", "No such device"),
        (
            "mount.lustre: mount a@tcp:/fs at /fsx failed: Connection timed out",
            "Input/output error",
        ),
    ],
)
def test_the_alternative_that_has_a_value_of_the_line_comes_first(line, first):
    assert lead(line).remedies[0][0].startswith(first)
