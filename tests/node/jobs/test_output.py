"""The output of ranks in the job's log and by rank: split at any byte, and of real mpiruns."""

from __future__ import annotations

import os
import random
import re
import resource
import select
import subprocess
import sys
import threading

import pytest

from clusterctl.node.jobs.output import CommandOutput, GrowingFile, Logs, TaggedOutput, unread_limit
from tests.lab.running import wait_until

LINES = [b"plain\n", b"  two blanks\n", b"\n", b"\0\xff[1,x<\x1eTAG\n", b"[" * 9 + b"\n", b"no end"]
TAGS = {":": b"[1,%d]<stdout>:", ": ": b"[prterun-demo-0-7@1,%d]<stderr>: "}


@pytest.mark.parametrize("tag_end", TAGS)
@pytest.mark.parametrize("torchrun", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_tags_are_taken_away_wherever_a_read_ends(tag_end, torchrun, seed):
    chance = random.Random(seed)
    ranks: dict[bytes | None, bytes] = {}
    stream = log = b""
    for _ in range(300):
        rank = chance.randrange(12)
        text = chance.choice(LINES[:-1] if tag_end == ": " else LINES)
        tag = TAGS[tag_end] % (rank // 4 if torchrun else rank)
        marked = b"\x1e<rank%d>\x1f%s\x1e<rank>\x1f" % (rank, text) if torchrun else text
        # Open MPI 4 also adds a tag after each line end within one write of a rank.
        stream += tag + (marked.replace(b"\n", b"\n" + tag) if torchrun else text)
        ranks[b"%d" % rank] = ranks.get(b"%d" % rank, b"") + text
        log += text
        if text.endswith(b"\n") and not torchrun and chance.random() < 0.1:
            own = chance.choice([b"", TAGS[tag_end].replace(b"%d", b"WILDCARD")])
            stream, log = stream + own + b"mpirun's own\n", log + b"mpirun's own\n"
    output, pieces = TaggedOutput(tag_end.encode(), torchrun), []
    while stream:
        cut = chance.choice([1, 7, 50, 3000])
        pieces += output.feed(stream[:cut])
        stream = stream[cut:]
        if chance.random() < 0.3:
            pieces += output.flush()
    pieces += output.finish()
    assert b"".join(text for _, text in pieces) == log
    found: dict[bytes | None, bytes] = {}
    for number, text in pieces:
        found[number] = found.get(number, b"") + text
    found.pop(None, None)
    assert found == ranks


def test_a_full_disk_is_said_when_there_is_room_again(tmp_path):
    logs = Logs(tmp_path)
    logs.add(iter([(b"0", b"one\n")]))
    kept = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6, kept[1]))
    try:
        for _ in range(2):
            logs.add(iter([(b"0", b"two\n")]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, kept)
    logs.add(iter([(b"0", b"three\n")]))
    said = b"one\ntw\nclusterctl: 6 bytes of output are lost: the disk was full\nthree\n"
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [said, said]


def follow(process, output):
    """Log the output of a process to its end, as the runner does."""
    with output:
        while True:
            has_ended = process.poll() is not None
            if not output.poll() and has_ended:
                return process.returncode


def run_logged(folder, argv, tag_end):
    output = CommandOutput(Logs(folder), tag_end)
    out, err = output.fds
    line = [argv[0], "--tag-output", *argv[1:]]
    return follow(subprocess.Popen(line, stdout=out, stderr=err), output)


WRITES = """\
import os
rank = os.environ["OMPI_COMM_WORLD_RANK"].encode()
for text in (b"rank %s\\n" % rank, b"x" * (1 << 20) + b"\\n", bytes(range(256)), b"\\nbye"):
    while text:
        text = text[os.write(1, text):]
os.write(2, b"error of rank %s\\n" % rank)
"""


@pytest.mark.parametrize(
    ("mpirun", "tag_end"),
    [
        ("/usr/bin/mpirun", ":"),
        pytest.param("/opt/clusterctl/training/bin/mpirun", ": ", marks=pytest.mark.train),
    ],
)
def test_both_families_of_open_mpi_say_which_rank_wrote_what(tmp_path, mpirun, tag_end):
    (tmp_path / "writes.py").write_text(WRITES)
    line = [mpirun, "--allow-run-as-root", "--host", "localhost:2", "--oversubscribe", "-np", "2"]
    program = ["/usr/bin/python3", str(tmp_path / "writes.py")]
    assert run_logged(tmp_path, [*line, *program], tag_end) == 0
    for rank in (b"0", b"1"):
        said, error = (tmp_path / f"log-{rank.decode()}").read_bytes(), b"error of rank %s\n" % rank
        text = b"rank %s\n" % rank + b"x" * (1 << 20) + b"\n" + bytes(range(256)) + b"\nbye"
        assert (said.count(error), said.replace(error, b"")) == (1, text)
    log = (tmp_path / "log").read_bytes()
    assert (b"<std" in log, len(log)) == (False, 2 * len(said))


# Like Open MPI 5 at its end, after its ssh has made its output non-blocking.
DROPS = """\
#!{python}
import fcntl, os
fcntl.fcntl(1, fcntl.F_SETFL, os.O_NONBLOCK)
for part in range(64):
    try:
        os.write(1, b"[prterun-demo-0-7@1,0]<stdout>: " + b"%063d" % part * (1 << 14) + b"\\n")
    except BlockingIOError:
        break
"""


def test_what_mpirun_writes_last_is_kept_however_much_it_is(tmp_path):
    (tmp_path / "mpirun").write_text(DROPS.format(python=sys.executable))
    (tmp_path / "mpirun").chmod(0o755)
    assert run_logged(tmp_path, [str(tmp_path / "mpirun")], ": ") == 0
    log = (tmp_path / "log").read_bytes()
    assert log.split(b"\n") == [b"%063d" % part * (1 << 14) for part in range(64)] + [b""]
    assert (tmp_path / "log-0").read_bytes() == log


def test_lines_of_both_outputs_stay_in_order_without_tags(tmp_path):
    output = CommandOutput(Logs(tmp_path))
    out, err = output.fds
    shell = "for n in 1 2 3 4; do echo out; echo err >&2; done"
    assert follow(subprocess.Popen(["sh", "-c", shell], stdout=out, stderr=err), output) == 0
    assert (tmp_path / "log").read_text() == "out\nerr\n" * 4


FLOODS = """\
import os
for number in range(3000):
    os.write(1, b"[1,%d]<stdout>:" % (number % 2) + b"%07d" % number * 2048 + b"\\n")
"""


def test_memory_is_bounded_while_the_disk_does_not_take_the_output(tmp_path):
    """The log is a pipe that nobody reads at first: each write to it waits, as on a disk that
    hangs."""
    os.mkfifo(tmp_path / "log")
    most = 4 << 20
    output = CommandOutput(Logs(tmp_path), ":", most=most)
    out, err = output.fds
    process = subprocess.Popen([sys.executable, "-c", FLOODS], stdout=out, stderr=err)
    keeper = threading.Thread(target=follow, args=(process, output))
    keeper.start()
    assert process.wait(120) == 0
    wait_until(lambda: os.fstat(out).st_blocks * 512 <= 5 << 20, "memory to be given back")
    # What came last may be more than that until it is limited, too.
    unread = [lambda one=one: os.fstat(one.fd).st_size - one.position for one in output._outputs]
    wait_until(lambda: all(one() <= most for one in unread), "what waits to be limited")
    assert os.fstat(out).st_size > 40 << 20
    # Opened for writing, too, so that it does not end between two writes to the log.
    pipe, log = os.open(tmp_path / "log", os.O_RDWR | os.O_NONBLOCK), b""
    while keeper.is_alive() or select.select([pipe], [], [], 0)[0]:
        if select.select([pipe], [], [], 0.1)[0]:
            log += os.read(pipe, 1 << 16)
    os.close(pipe)
    *before, after = re.split(rb"\nclusterctl: (\d+) bytes of output are lost: [^\n]*\n", log)
    lines = after.splitlines()
    first = int(lines[0][:7])
    assert lines == [b"%07d" % number * 2048 for number in range(first, 3000)]
    assert 1 << 20 < len(after) <= most
    assert sum(map(int, before[1::2])) > 30 << 20
    for rank in (0, 1):
        own = (tmp_path / f"log-{rank}").read_bytes().splitlines()
        kept = [b"%07d" % number * 2048 for number in range(first, 3000) if number % 2 == rank]
        assert own[-len(kept) :] == kept


@pytest.mark.parametrize("seed", range(20))
def test_what_is_not_dropped_is_read_in_order(seed):
    chance, file = random.Random(seed), GrowingFile("x")
    written, at = b"", 0
    for _ in range(300):
        act = chance.random()
        if act < 0.5:
            more = chance.randbytes(chance.randrange(5000))
            os.write(file.fd, more)
            written += more
        elif act < 0.6:
            file.limit(6000)
            assert len(written) - file.position <= 6000
        else:
            lost, content = file.read()
            at += lost
            assert content == written[at : at + len(content)]
            at += len(content)
            assert at == file.position == len(written)
    os.close(file.fd)


def test_output_goes_on_after_a_command_has_opened_dev_stdout_anew():
    file = GrowingFile("x")
    os.write(file.fd, b"one, two\n")
    assert file.read() == (0, b"one, two\n")
    with open(f"/proc/self/fd/{file.fd}", "w") as again:  # noqa: PTH123
        again.write("3\n")
    os.write(file.fd, b"4\n")
    assert file.read() == (0, b"3\n4\n")
    file.close()


@pytest.mark.parametrize(
    ("table", "most"),
    [
        ("MemTotal: 9 kB\nMemAvailable:   16777216 kB\n", 2 << 30),
        ("MemAvailable: 1000 kB\n", 64 << 20),
        ("", 64 << 20),
    ],
)
def test_how_much_output_may_wait(table, most):
    assert unread_limit(table) == most
