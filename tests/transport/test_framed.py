"""Commands and their output, apart from what login files print, read and set."""

from __future__ import annotations

import itertools
import os
import random
import re
import shutil
import subprocess

import pytest

from clusterctl.domain.errors import CommandNotRun
from clusterctl.node.framed import FramedCommand

SHELLS = [
    name for name in ("sh", "bash", "dash", "zsh", "ksh", "fish", "tcsh") if shutil.which(name)
]
COMMAND = "printf '%s|' a \"b  c\" '\\n!'\ncat; sh -c 'echo wrong >&2; exit 7'"


def run(frame, argv, stdin=b"", **environ):
    """Run the line with a shell, as sshd does. Return the command's own output."""
    with subprocess.Popen(
        [*argv, frame.line],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **environ},
    ) as process:
        out, err = process.communicate(frame.stdin + stdin)
    own = [frame.take("stdout", out) + frame.rest("stdout"), frame.take("stderr", err)]
    return *own, process.returncode, process.pid


@pytest.mark.parametrize("as_user", [False, True])
@pytest.mark.parametrize("shell", SHELLS)
def test_each_login_shell(shell, as_user):
    frame = FramedCommand(COMMAND, as_user)
    assert run(frame, [shutil.which(shell), "-c"], b"in\0put") == (
        *(b"a|b  c|\\n!|in\0put", b"wrong\n", 7),
        frame.process,
    )
    assert (frame.status, frame.trouble(7)) == (None if as_user else 7, "")


def test_a_bin_sh_that_is_bash():
    """It takes options and functions from the environment."""
    frame = FramedCommand("set -- x*; echo $# ${NONE}; cat /dev/null; cd /; false; echo on")
    frame.line = frame.line.replace("exec /bin/sh", "exec bash --posix")
    functions = {f"BASH_FUNC_{one}%%": "() { echo no; }" for one in ("cat", "head", "echo", "cd")}
    options = {"SHELLOPTS": "errexit:nounset:xtrace:noglob", "CDPATH": "/:/tmp", "BASH_ENV": "/no"}
    out, err, status, _ = run(frame, ["bash", "-c"], **functions, **options)
    assert (out, err, status) == (b"1\non\n", b"", 0)


@pytest.mark.parametrize("as_user", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_output_is_found_however_it_is_cut(seed, as_user):
    rng = random.Random(seed)
    frame = FramedCommand("true", as_user)
    halves = re.findall(r"@\w+ \w+$" if not as_user else r"(@\w+ \w+)\n", frame.line)
    word = halves[0].replace(" ", "").encode()
    before = rng.choice([b"", b"motd\n", b"\0\xff" + word[:5], word[:-1], word[:3], b"m" * 9999])
    own = rng.choice([b"", b"x", word[:9], word[:-1] + b"\n", rng.randbytes(50)])
    after = rng.choice([b"", b"bye\n", rng.randbytes(50), word + b" 9\n"])
    data = before + word + b" 4711\n" + own
    data += b"" if as_user else word + b" 3\n" + after
    cuts = sorted(rng.choices(range(len(data) + 1), k=rng.randrange(6)))
    chunks = [data[a:b] for a, b in itertools.pairwise([0, *cuts, len(data)])]
    found = b"".join(frame.take("stdout", chunk) for chunk in chunks) + frame.rest("stdout")
    assert (found, frame.process, frame.status) == (own, 4711, None if as_user else 3)


def test_a_script_that_is_not_there_to_its_end_is_not_run(tmp_path):
    made = tmp_path / "made"
    for size in (0, 30, -60, -1):
        frame = FramedCommand(f"touch {made}; echo done")
        frame.stdin = frame.stdin[:size]
        out, _, status, _ = run(frame, ["bash", "-c"])
        assert (out, status, made.exists()) == (b"", 125, False)
        assert "read the input" in frame.trouble(status)


@pytest.mark.parametrize("shell", SHELLS)
def test_another_shell_in_place_of_the_login_shell_runs_nothing(shell, tmp_path):
    """`exec zsh` in a login file: it would take the input for commands."""
    frame = FramedCommand(f"touch {tmp_path}/made")
    out, _, status, _ = run(frame, ["bash", "-c", f"exec {shell}"], b"touch made\n")
    assert (out, list(tmp_path.iterdir())) == (b"", [])
    assert "another shell" in frame.trouble(status)


def test_bytes_that_are_not_utf_8_and_long_commands():
    name = os.fsdecode(b"a\xff")
    frame = FramedCommand(f"printf %s {name}; : {'x' * 300_000}")
    assert run(frame, ["bash", "-c"])[0] == b"a\xff"


@pytest.mark.parametrize(
    ("printed", "other_account"),
    [
        ("This account is currently not available.", True),
        ("bash: line 1: exec: restricted", True),
        ("rbash: line 1: /bin/sh: restricted: cannot specify `/' in command names", True),
        ("Access is restricted to members of the project.", False),
        ("The compute nodes are restricted: see the wiki", False),
    ],
)
def test_an_account_is_called_one_without_commands_for_its_shells_words_only(
    printed, other_account
):
    """A banner of the login files may have such words, too."""
    hint = CommandNotRun("h", f"its login shell ended before the command, with 1: {printed}").hint
    assert hint.startswith("this account takes no commands") == other_account


def test_a_login_shell_that_runs_and_prints_nothing_may_be_bin_false():
    silent = CommandNotRun("h", FramedCommand("true").trouble(1))
    assert silent.hint.startswith("if its login shell is /bin/false, log in as another user; else ")
    assert "/bin/false" not in CommandNotRun("h", FramedCommand("true").trouble(2)).hint
