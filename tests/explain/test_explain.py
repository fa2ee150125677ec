"""The catalogue of errors, tried on logs from public issue trackers, noise, and hostile input."""

from __future__ import annotations

import gzip
import json
import random
import re
import tracemalloc
from fnmatch import fnmatch
from pathlib import Path

import pytest

from clusterctl.cli.main import cli, run_command
from clusterctl.domain.findings import Severity
from clusterctl.explain.catalogue import catalogue
from clusterctl.explain.engine import explain
from clusterctl.explain.signature import Role, branches, is_rare, literals

LOGS = sorted((Path(__file__).parent / "logs").glob("*.txt"))
SAMPLES = Path(__file__).parent.parent
# The part of all alternatives of patterns that a sample matches. It only grows: the cause of an
# alternative that no sample has may be that of the others, and not its own.
SAMPLED_SHARE = 0.59


def sample(path: Path) -> tuple[dict[str, str], str]:
    """Return a log's head (`# source: ...`, `# expect: ...`) and the log itself."""
    lines = path.read_text(errors="surrogateescape").splitlines(keepends=True)
    head = [line for line in lines if line.startswith("# ") and ": " in line][:3]
    told = dict(line[2:].rstrip("\n").split(": ", 1) for line in head)
    return told, "".join(lines[len(head) :])


MPIRUN_ENDS = """\
Primary job  terminated normally, but 1 process returned
a non-zero exit code. Per user-direction, the job has been aborted.
--------------------------------------------------------------------------
mpirun detected that one or more processes exited with non-zero status, thus causing
the job to be terminated. The first process to do so was:

  Process name: [[63415,1],3]
  Exit code:    7
"""


def test_a_rank_that_ended_by_itself_is_named_with_its_status():
    """As after sys.exit(7): mpirun's banner is then all that a log has of the failure."""
    warning = "[demo-0:1] plm:ssh: Warning: setpgid(2,2) failed in parent with errno=Permission"
    text = "rank 3 ended with exit status 7 by itself, without an error message"
    ours = "clusterctl: the command ended with exit status 7\n"
    for more in ("", ours):
        found = explain([f"{warning} denied(13)\n", MPIRUN_ENDS, more])
        assert found.exit_without_error == text
    # Without the banner, which mpirun leaves out if all ranks have ended, the line is a failure.
    alone = explain([ours])
    assert (alone.severity, alone.lead.values["status"]) == (Severity.ERROR, "7")
    assert alone.exit_without_error == ""
    for error in ("RuntimeError: no\n", "[demo-0:1] *** Process received signal ***\n"):
        assert explain([error, MPIRUN_ENDS]).exit_without_error == ""
    assert explain([MPIRUN_ENDS.partition("Process name")[0]]).exit_without_error == ""


def test_a_log_of_a_public_tracker_is_explained():
    """`# expect:` names the expected first signature. `unknown` is an exception that is shown but
    not explained; `nothing` is a log without known errors. `# values:` are values from the match.
    """
    for path in LOGS:
        told, log = sample(path)
        found = explain([log])
        lead = found.lead
        answer = lead.signature.id if lead else "unknown" if found.unknown else "nothing"
        where = path.stem, [(one.signature.id, one.line) for one in found.findings]
        assert answer == told["expect"], where
        for value in told.get("values", "").split():
            name, wanted = value.split("=", 1)
            assert lead and lead.values[name] == wanted, where


def test_what_the_examples_in_pytorch_report_of_themselves_is_the_cause():
    """Each text of theirs that begins with the program's name, with a number for each value."""
    for path in (SAMPLES.parent / "examples/horovod/pytorch").glob("*.py"):
        for text in re.findall(rf'"({path.name}: [^"]+)"', path.read_text()):
            line = re.sub(r"\{[^}]*\}", "7", text)
            lead = explain([f"{line}\n"]).lead
            assert lead and lead.signature.id == "clusterctl.example", line
            assert lead.values["program"] == path.name


@pytest.mark.parametrize(
    "consequence",
    [
        f"{'-' * 74}\nprterun detected that one or more processes exited with non-zero status,\n"
        "thus causing the job to be terminated. The first process to do so was:\n\n"
        f"   Process name: [prterun-a-1771@1,1]\n   Exit code:    1\n{'-' * 74}\n",
        "E1126 10:10:10.123000 140 torch/distributed/elastic/multiprocessing/api.py:869] "
        "failed (exitcode: 1) local_rank: 1 (pid: 12) of binary: /usr/bin/python3\n",
        "  exitcode  : -9 (pid: 12)\n",
        "clusterctl: the command ended with exit status 137 (SIGKILL)\n",
        "clusterctl: the command ended with exit status 1\n",
    ],
)
def test_an_exception_of_the_program_is_not_taken_for_the_line_that_follows_it(consequence):
    raised = 'Traceback (most recent call last):\n  File "t.py", line 4, in <module>\n    f()\n'
    found = explain([f"{raised}ValueError: the batch has no weights\n{consequence}"])
    assert [one.text for one in found.unknown] == ["ValueError: the batch has no weights"]
    assert (found.lead, len(found.findings)) == (None, 1)


RAISED = """\
Traceback (most recent call last):
  File "/job/train.py", line 12, in main
    step(batch)
  File "/opt/env/lib/python3.10/site-packages/torch/nn/modules/module.py", line 9, in _call
    return forward()
"""


@pytest.mark.parametrize(
    ("exception", "signature"),
    [
        ("KeyError: 'state_dict'", "python.key"),
        ("AttributeError: 'Accelerator' object has no attribute 'wrapped'", "python.attribute"),
        ("TypeError: fit() got an unexpected keyword argument 'amp'", "python.keyword"),
        ("ValueError: the batch has no weights", None),
    ],
)
def test_an_exception_is_shown_with_the_line_of_the_program_that_raised_it(exception, signature):
    found = explain([f"{RAISED}{exception}\n"])
    first = found.lead or found.unknown[0]
    assert first.raised_at == "/job/train.py:12, in main"
    assert (found.lead and found.lead.signature.id) == signature


@pytest.mark.parametrize(
    "log",
    [
        f"Exception ignored in: <function Session.__del__ at 0x7f>\n{RAISED}KeyError: 'x'\n",
        f"{RAISED}KeyError: 'x'\n\nDuring handling of the above exception, another exception "
        f"occurred:\n\n{RAISED}ValueError: no such model\n",
    ],
)
def test_an_exception_that_python_ignored_or_the_program_handled_is_no_root(log):
    assert explain([log]).lead is None


def test_a_symptom_does_not_lead_before_the_exception_of_the_program():
    reset = "ConnectionResetError: [Errno 104] Connection reset by peer\n"
    found = explain([f"[rank1]: {reset}[rank0]: {RAISED}".replace("\n  ", "\n[rank0]:   ")])
    assert found.lead.signature.id == "python.connection"
    found = explain([f"{reset}{RAISED}KeyError: 'x'\n"])
    assert found.lead.signature.id == "python.key"


@pytest.mark.parametrize(
    ("line", "signature"),
    [
        ("write '7' to '/sys/fs/cgroup/cpuset/job_1/cgroup.procs' failed", "system.cgroup-space"),
        ("inotify_add_watch('/data')", "system.inotify"),
        ("tar: /data/x: Cannot write", "system.no-space"),
    ],
)
def test_no_space_left_is_not_always_a_full_disk(line, signature):
    assert explain([f"{line}: No space left on device\n"]).lead.signature.id == signature


@pytest.mark.parametrize(
    ("module", "remedy"),
    [
        ("torch", "--launcher torchrun"),
        ("torchvision", "--launcher torchrun"),
        ("PIL", "its package is Pillow"),
    ],
)
def test_a_module_that_is_not_there(module, remedy):
    found = explain([f"ModuleNotFoundError: No module named '{module}'\n"])
    assert remedy in found.lead.remedy


def test_every_alternative_fills_in_what_the_texts_name():
    assert len({one.id for one in catalogue()}) == len(catalogue())
    for one in catalogue():
        texts = [one.cause, *(part for pair in one.remedies for part in pair)]
        named = set(re.findall(r"\{(\w+)\}", "".join(texts))) - {"rank", "host", "gpu", "object"}
        named -= {*one.defaults, *(f"{group}_meaning" for group in one.meanings)}
        for branch in branches(one.pattern):
            re.compile(branch, re.ASCII)
            groups = {name.rstrip("23456789") for name in re.findall(r"\?P<(\w+)>", branch)}
            assert one.hook or named <= groups, f"{one.id}: {named - groups} in {branch}"
        words = (word for meaning in one.meanings.values() for word in meaning.values())
        assert not [word for word in words if re.search(r"\{\w+\}", word)], one.id
        for other in (*one.yields_to, *one.evidence.values()):
            assert any(fnmatch(known.id, other) for known in catalogue()), (one.id, other)


def test_a_line_that_shows_which_alternative_is_true_puts_it_first():
    set_to = "n1:7:9 [0] NCCL INFO NCCL_GRAPH_FILE set by environment to /opt/graph.xml\n"
    warns = "n1:7:9 [0] graph/search.cc:703 NCCL WARN XML Import Channel : dev 1 not found.\n"
    alone = explain([warns]).lead.remedies
    found = explain([f"{warns}{set_to}"])
    when, do = found.lead.remedies[0]
    assert when == "NCCL_GRAPH_FILE is set (line 2 shows it)"
    assert do == alone[0][1] and len(found.lead.remedies) == len(alone)
    assert found.lead.cause.endswith("In this log: NCCL_GRAPH_FILE is /opt/graph.xml")
    bridge = "n1:7:9 [0] NCCL INFO Bootstrap : Using [0]docker0:172.22.0.1<0>\n"
    refused = "n1:7:9 [0] NCCL WARN Connect to 172.22.0.1<51577> failed : Connection refused\n"
    assert "docker0 (172.22.0.1)" in explain([f"{bridge}{refused}"]).lead.cause


def test_a_line_that_only_tells_alternatives_apart_is_no_failure_and_is_not_shown(tmp_path, capsys):
    log = tmp_path / "log"
    log.write_text("SecureBoot enabled\n\tKernel driver in use: vfio-pci\n")
    assert run_command(cli, ["explain", str(log)]) == 0
    shown = capsys.readouterr().out
    assert "nothing that this catalogue knows" in shown and "fact." not in shown
    failing = "modprobe: ERROR: could not insert 'nvidia': Unknown symbol in module\n"
    fact_too = f"srun: error: pyxis: {failing}"
    assert explain([fact_too]).lead.signature.id == "kernel.module-refused"


def test_each_sample_is_found_by_its_signature_and_no_other_first():
    for one in catalogue():
        assert one.samples, one.id
        for text in one.samples:
            found = explain([text]).findings
            at = [other for other in found if other.line == found[0].line]
            first = [other.signature.id for other in at if other.signature.role is one.role]
            assert first == [one.id], (one.id, text)
            failing = {other.signature.id for other in at if other.signature.role.is_failure}
            assert one.role is Role.FACT or failing <= {one.id}, (one.id, text)


def test_few_signatures_are_searched_by_a_text_of_very_many_lines():
    """Such a line is matched with its patterns: " failed" makes a long log take twice the time."""
    common = {text for one in catalogue() for text in literals(one.pattern) if not is_rare(text)}
    assert common <= {": version ", ": not found", "ERROR ", " error: ", "Warning", "error: "}


def test_most_alternatives_of_a_pattern_have_a_sample():
    every = [(one, branch) for one in catalogue() for branch in branches(one.pattern)]
    bare = [
        (one.id, branch)
        for one, branch in every
        if not any(re.search(branch, text, re.ASCII | re.MULTILINE) for text in one.samples)
    ]
    assert 1 - len(bare) / len(every) >= SAMPLED_SHARE, f"{len(bare)} of {len(every)}: {bare[-40:]}"


# What several programs print, of which only one was meant, and what is said of it instead.
OF_OTHERS = {
    "This account is currently not available.": "ssh.no-shell",
    "mongo: Authentication failed.": "",
    "jwt: token is expired": "",
    "BlockingIOError: [Errno 11] Resource temporarily unavailable": "python.would-block",
    "decoder: invalid message 12: no body": "",
    "terminate called after throwing an instance of 'std::bad_alloc'": "system.allocation",
    "bind: Address already in use": "net.address-in-use",
}


@pytest.mark.parametrize("line", OF_OTHERS)
def test_a_line_of_many_programs_names_none_of_them(line):
    assert [one.signature.id for one in explain([line]).findings] == [OF_OTHERS[line]] * bool(
        OF_OTHERS[line]
    )


def test_the_stack_of_a_sanitizer_or_of_go_names_the_line_of_the_program():
    go = """\
panic: runtime error: invalid memory address or nil pointer dereference
[signal SIGSEGV: segmentation violation code=0x1 addr=0x18 pc=0x47a1b2]

goroutine 1 [running]:
panic({0x5c3d20, 0xc0000140a0})
\t/usr/local/go/src/runtime/panic.go:884 +0x212
main.(*Server).train(0x0, {0x5c3d20, 0xc0000140a0})
\t/home/u/srv/main.go:41 +0x22
"""
    asan = """\
step 10 loss 2.2
==41==ERROR: AddressSanitizer: heap-use-after-free on address 0x602 at pc 0x55 bp 0x7f sp 0x7f
    #0 0x55d in main /home/u/a.c:7
SUMMARY: AddressSanitizer: heap-use-after-free /home/u/a.c:7 in main
"""
    for log, name, where in (
        (go, "go.panic", "/home/u/srv/main.go:41"),
        (asan, "sanitizer.memory", "/home/u/a.c:7 in main"),
    ):
        lead = explain([log]).lead
        assert (lead.signature.id, lead.values["where"]) == (name, where)


@pytest.mark.parametrize(
    "log",
    [
        b"",
        b"\n\n\n",
        b"no line end",
        bytes(range(256)) * 4000,
        random.Random(1).randbytes(3_000_000),
        b"x" * 5_000_000,
        b"[1,0]<stderr>:" * 300_000,
        b"Traceback (most recent call last):\n" * 5000,
        b"Traceback (most recent call last)",
        b"\x1b[31m\x1b[" * 100_000,
        b"[" * 100_000 + b"undefined symbol: " + b"_" * 100_000,
        b"One or more tensors were submitted to be reduced, gathered or broadcasted by subset",
        b"NVRM: Xid (PCI:" + b"0" * 100_000,
        b"{rank} {} {0} %s\r" * 1000,
    ],
    ids=range(14),
)
def test_hostile_input_does_no_harm(log):
    explain([log]).lead


def test_pieces_may_be_cut_anywhere():
    log = "\n".join(sample(path)[1] for path in LOGS[:20])
    whole = explain([log])
    assert explain(log) == whole
    assert explain([log.encode()[at : at + 7] for at in range(0, len(log.encode()), 7)]) == whole
    assert whole.lines == log.count("\n") + (not log.endswith("\n"))


HEALTHY = """\
2026-11-22 10:07:44.569715: I tensorflow/core/platform/cpu_feature_guard.cc:193] This TensorFlow \
binary is optimized with oneAPI Deep Neural Network Library (oneDNN)
2026-11-22 10:07:45.1: W tensorflow/compiler/tf2tensorrt/utils/py_utils.cc:38] TF-TRT Warning: \
Could not find TensorRT
2026-11-22 10:07:45.2: E tensorflow/compiler/xla/stream_executor/cuda/cuda_dnn.cc:9342] Unable to \
register cuDNN factory: Attempting to register factory for plugin cuDNN when one has already been \
registered
W tensorflow/core/framework/cpu_allocator_impl.cc:83] Allocation of 411041792 exceeds 10% of free \
system memory.
[1,0]<stderr>:demo-0:4711:4790 [0] NCCL INFO NET/Plugin: Failed to find ncclCollNetPlugin_v6 symbol.
[1,0]<stderr>:demo-0:4711:4790 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC
Warning: Permanently added '10.0.3.7' (ED25519) to the list of known hosts.
[demo-0:04242] 1 more process has sent help message help-mpi-btl-base.txt / btl:no-nics
2026-11-22 10:09:00: I tensorflow/core/framework/local_rendezvous.cc:404] Local rendezvous is \
aborting with status: OUT_OF_RANGE: End of sequence
:::MLLOG {"namespace": "", "time_ms": 1, "event_type": "INTERVAL_END", "key": "run_stop", \
"value": null, "metadata": {"status": "aborted"}}
"""


def noise(where: str) -> list[str]:
    found = sorted(SAMPLES.glob(where))
    assert found, where
    return [path.read_text(errors="replace") for path in found]


@pytest.mark.parametrize(
    "logs",
    [[HEALTHY], noise("jobs/metrics/samples/*"), noise("jobs/samples/nccl-p*.txt")],
    ids=["warnings of a healthy start", "our trainings", "NCCL on EFA"],
)
def test_a_healthy_log_is_not_called_sick(logs):
    for log in logs:
        found = explain([log])
        assert found.severity is Severity.INFO, [one.signature.id for one in found.findings]
        assert found.lead is None and not found.unknown


def test_the_first_root_leads_and_what_follows_from_it_is_told_with_its_ranks():
    """When Horovod fails, every rank complains, and mpirun names only one of the others."""
    ranks = "".join(
        f"[1,{rank}]<stderr>:UnknownError: Horovod has been shut down. This was caused by an "
        f"exception on one of the ranks\n"
        for rank in range(4, 32)
    )
    oom = "[1,3]<stderr>:ResourceExhaustedError: OOM when allocating tensor with shape[256,64]\n"
    tail = "mpirun detected that one or more processes exited with non-zero status, thus causing\n"
    found = explain([HEALTHY, ranks, oom, tail])
    assert found.lead and found.lead.signature.id == "gpu.oom"
    assert (found.lead.line, found.lead.values["rank"]) == (HEALTHY.count("\n") + 29, "3")
    after = {one.signature.id: one for one in found.of(Role.CONSEQUENCE)}
    assert list(after) == ["horovod.shut-down", "mpi.exit-code"]
    assert after["horovod.shut-down"].count == 28
    assert after["horovod.shut-down"].ranks == frozenset(range(4, 32))


def test_an_exception_that_nobody_knows_is_shown_and_sends_there():
    log = (
        "[1,2]<stderr>:Traceback (most recent call last):\n"
        "[1,0]<stdout>:   100   0.6 22000.0  6.935  7.850 0.00100\n"
        '[1,2]<stderr>:  File "train.py", line 7, in <module>\n'
        "[1,2]<stderr>:    check(config)\n"
        "[1,2]<stderr>:ConfigError: 7\n"
        "Primary job  terminated normally, but 1 process returned\n"
    )
    found = explain([log])
    assert found.lead is None and found.severity is Severity.ERROR
    assert [(one.line, one.rank, one.text) for one in found.unknown] == [(5, "2", "ConfigError: 7")]


def test_of_a_chain_of_exceptions_the_first_is_shown_and_of_separate_ones_each():
    def traceback(rank, error):
        lines = ["Traceback (most recent call last):", '  File "a.py", line 7, in f', error]
        return [f"[1,{rank}]<stderr>:{line}" for line in lines]

    between = "During handling of the above exception, another exception occurred:"
    chain = [f"[1,2]<stderr>:{line}" for line in ("the message goes on", "", between, "")]
    lines = [
        *traceback(3, "OtherError: of another rank"),
        *traceback(2, "FooError: first"),
        *chain,
        *traceback(2, "BarError: while the first was handled"),
        *traceback(2, "LaterError: of another thread"),
    ]
    found = explain(["\n".join(lines)]).unknown
    assert [one.text.split(":")[0] for one in found] == ["OtherError", "FooError", "LaterError"]


def test_the_meaning_of_a_signal_is_told_wherever_the_line_is_broken():
    log = "mpirun noticed that process rank 3 with PID 7 on node a exited on signal\n9 (Killed)."
    lead = explain([log]).lead
    assert lead and "killed from outside" in lead.cause


def test_the_rebuild_of_horovod_is_a_command_for_the_environment_of_the_line():
    path = next(path for path in LOGS if "tf-symbol-registrar" in path.name)
    lead = explain([sample(path)[1]]).lead
    assert lead
    env = "/home/ubuntu/.virtualenvs/venv"
    assert f"{env}/bin/pip uninstall -y horovod" in lead.remedy.splitlines()
    assert "HOROVOD_WITH_TENSORFLOW=1" in lead.remedy


def test_memory_does_not_grow_with_the_log(tmp_path):
    """A log of ten times the size takes the same memory, even if its lines vary in letters."""
    letters = random.Random(2)

    def pieces(megabytes):
        for _ in range(megabytes):
            words = "".join(letters.choices("abcdefghijklmnop \n", k=1 << 12))
            yield (words * 256 + "NCCL WARN Connection closed by remote peer\n").encode()

    peaks = []
    for megabytes in (2, 12):
        tracemalloc.start()
        explain(pieces(megabytes))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + (8 << 20), peaks


def test_the_command(tmp_path, capsys, monkeypatch):
    bad, healthy = tmp_path / "bad.log.gz", tmp_path / "healthy.log"
    bad.write_bytes(gzip.compress(b"kernel: NVRM: Xid (PCI:0000:10:1c): 79, pid=1, fallen off\n"))
    healthy.write_text(HEALTHY)
    assert run_command(cli, ["explain", str(healthy)]) == 0
    assert run_command(cli, ["explain", str(healthy), str(bad), "--json"]) == 2
    told = json.loads("{" + capsys.readouterr().out.partition("\n{")[2])
    assert told["lead"]["signature"] == "xid.79"
    assert told["lead"]["values"]["gpu"] == "0000:10:1c"
    assert (told["lead"]["file"], told["lead"]["line"]) == (str(bad), 1)
    assert run_command(cli, ["explain", str(tmp_path / "none")]) == 3
    with bad.open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert run_command(cli, ["explain"]) == 2


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-8-sig"])
def test_encodings_are_decoded_or_refused(tmp_path, capsys, encoding, pack):
    log = tmp_path / "log"
    text = "kernel: NVRM: Xid (PCI:0000:10:1c): 79, fallen off – ü\r\n"
    log.write_bytes(pack(text.encode(encoding)))
    refused = encoding == "utf-32"
    assert run_command(cli, ["explain", str(log), "--json"]) == (3 if refused else 2)
    shown = capsys.readouterr()
    assert ("is UTF-32" in shown.err) == refused
    assert ('"xid.79"' in shown.out) == (not refused)


@pytest.mark.parametrize(
    "data",
    [b"\xfd7zXZ\0", b"PK\x03\x04\0", gzip.compress(gzip.compress(b"Xid"))],
    # gzip has the time in it, and pytest's workers need the same names.
    ids=["xz", "zip", "gzip in gzip"],
)
def test_what_is_compressed_otherwise_is_refused(tmp_path, capsys, data):
    packed = tmp_path / "log"
    packed.write_bytes(data)
    assert run_command(cli, ["explain", str(packed)]) == 3
    assert "compressed" in capsys.readouterr().err


def test_a_rank_that_waits_for_its_peer_to_listen_is_no_error():
    log = "demo-1:301:301 [0] NCCL INFO Call to connect returned Connection refused, retrying\n"
    assert explain([log, HEALTHY]).severity is Severity.WARNING


@pytest.mark.parametrize(
    "line",
    [
        "[WARN] fuse: unknown option `uid=2039'",
        "libfabric:2210443:17::cxi:domain:cxip_domain():1712<warn> cxip_gen_auth_key failed: -38",
        "sshd[2211]: pam_limits(sshd:session): Could not set limit for 'memlock': Operation not "
        "permitted",
    ],
)
def test_a_warning_after_which_a_program_goes_on_is_no_error(line):
    assert explain([f"{line}\n", HEALTHY]).severity is Severity.WARNING


def test_a_known_line_is_a_warning_where_its_program_tries_again_and_gets_further():
    full = "OSError: [Errno 28] No space left on device: '/data/ckpt', retry in 5 s\n"
    steps = "".join(f"step {n} loss 0.1\n" for n in range(199))
    found = explain([full + steps])
    assert found.severity is Severity.WARNING
    assert found.lead and found.lead.signature.id == "system.no-space"
    first = f"I1120 02:11:03 no checkpoint ({full[:-16]}), starting from scratch\n"
    assert explain([first + steps]).severity is Severity.WARNING
    # Not if the log ends with it, or once it does not say so.
    for log in (
        steps + first,
        steps + full,
        steps + full * 3,
        full + full.replace(", retry in 5 s", "") + steps,
        full.replace("retry in 5 s", "please retry later") + steps,
    ):
        assert explain([log]).severity is Severity.ERROR


@pytest.mark.parametrize(
    ("refused", "worked"),
    [
        (
            "WARNING: You do not appear to have an NVIDIA GPU supported by the 535.54 NVIDIA Linux",
            "-> Installation of the NVIDIA Accelerated Graphics Driver (535.54) is now complete.",
        ),
        (
            "WARNING: Nouveau kernel driver is currently in use by your system.",
            "-> Installation of the driver is now complete.",
        ),
        (
            "level=error msg=\"'overlay' not found as a supported filesystem on this host.\"",
            'level=info msg="API listen on /var/run/docker.sock"',
        ),
        (
            "  - package perl-4:5.32.1 from appstream is filtered out by modular filtering",
            "Complete!",
        ),
        (
            "Warning  FailedAttachVolume  2m  attachdetach-controller  Multi-Attach error for "
            'volume "pvc-6b1c" Volume is already exclusively attached to one node',
            'AttachVolume.Attach succeeded for volume "pvc-6b1c"',
        ),
    ],
)
def test_what_then_works_is_a_warning(refused, worked):
    assert explain([f"{refused}\n"]).severity is Severity.ERROR
    assert explain([f"{refused}\n{worked}\n"]).severity is Severity.WARNING


def test_a_long_line_is_one_line_and_the_part_that_matches_is_shown():
    full = "OSError: [Errno 28] No space left on device: '/data/ckpt'"
    for at, size in ((0, 9 << 20), (8 << 20, 1 << 20), (1000, 5000)):
        long = b"x " * (at // 2) + full.encode() + b" y" * (size // 2)
        found = explain([b"step 1\n" + long + b"\nstep 2\n" + full.encode() + b"\n"])
        assert found.lead and found.lead.lines == (2, 4), (at, size)
        assert (found.lines, len(found.lead.text) <= 601) == (4, True)
        assert "No space left on device" in found.lead.text[:200]
    assert explain([b"x" * (9 << 20)]).lines == 1
    assert explain([b"x" * (9 << 20) + b"\n"]).lines == 1
    [unknown] = explain(["y" * 3000 + " FrobError: it failed\n" * 2 + "step 1\n"]).failing[:1]
    assert "failed" in unknown.text


def test_what_has_no_text_is_not_known(tmp_path, capsys):
    clean, bad = tmp_path / "clean", tmp_path / "bad"
    clean.write_text("step 1\n" * 30)
    bad.write_text("OSError: [Errno 28] No space left on device: '/data/ckpt'\n")
    assert run_command(cli, ["explain", str(clean)]) == 0
    rubbish = random.Random(1).randbytes(3000)
    cases = {b"": "is empty", b"\n": "is empty", rubbish: "is no text", b"\0" * 99: "is no text"}
    for content, said in cases.items():
        path = tmp_path / "log"
        path.write_bytes(content)
        for more, status in (([], 3), ([clean], 3), ([bad], 2)):
            capsys.readouterr()
            words = ["explain", str(path), *map(str, more)]
            assert run_command(cli, words) == status, (content[:9], more)
            assert said in capsys.readouterr().err
    clean.write_bytes(b"step 1 \xe9\xff\n" * 30 + "étape terminée ✓\n".encode())
    assert run_command(cli, ["explain", str(clean)]) == 0
