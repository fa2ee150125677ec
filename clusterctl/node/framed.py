"""Commands over SSH whose input, output and exit status are separate from those of the login files.

sshd runs a command through the user's login shell, which first reads files of the user's (bash
~/.bashrc). These may print text, read the input, set the shell's options, define functions, and end
or replace the shell. So what sshd gets is a fixed text that means the same to every shell: it makes
/bin/sh of the login shell. The command itself comes on stdin, after a line with a random word. Its
output is between two lines with this word, the second of which has its exit status.

Python 3.8 and the standard library only: nodes run commands on each other, too.
"""

from __future__ import annotations

import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

# The two halves of the word are apart on the command line, since the login shell may print that
# (`set -x`). To most shells a backslash, an exclamation mark, a newline or a quote inside of quotes
# is something else. A user command goes on in the login shell, with all that its files have set.
_USER = """/bin/sh -c 'echo "$0$1" >&2; echo "$0$1 $PPID"'"""
# The login files may have read lines of stdin, so it begins with empty ones. A script that is not
# there to its end is not run. Where /bin/sh is bash, it takes functions and options from the
# environment.
_PROGRAM = (
    "exec /bin/sh -c '"
    "unset -f cat cd echo head printf python3 rm 2>/dev/null; set +eufCvx; "
    'w=$0$1 n=0 s=input; shift; echo "$w" >&2; echo "$w $$"; '
    "for l in cat head python3; do command -v $l >/dev/null || "
    "PATH=$PATH:/usr/local/bin:/usr/bin:/bin; done; unset CDPATH GREP_OPTIONS TMOUT; "
    "while [ $n -lt 99 ] && IFS= read -r l; do n=$((n+1)); "
    'case $l in *"# $w "*) c=$(head -c "${l##* }"); '
    'case $c in *"$w") (eval "$c"); s=$?;; esac; break;; esac; done; '
    'echo "$w $s"; case $s in input) s=125;; esac; exit $s'
    "'"
)
_EMPTY_LINES = 20
# Exit status of a shell that has replaced the login shell and takes stdin for commands.
_OTHER_SHELL = 125
# Bytes of what the login files print that are kept for a message.
_KEPT = 4096


class FramedCommand:
    """One command: the line for sshd, the start of its stdin, and a filter for its output.

    With `as_user` the command is the user's own: it runs in the login shell, and its stdin, the end
    of its output and its exit status are what sshd makes of them. `process` is the process id of
    the session's leader, None until the command has started. `status` is the exit status of a
    command that has ended, None before.
    """

    def __init__(self, command: str, as_user: bool = False) -> None:
        self.process: Optional[int] = None
        self.status: Optional[int] = None
        self.input_lost = False
        self._as_user = as_user
        word = "@" + os.urandom(12).hex()
        self._word = word.encode()
        halves = f"{word[:9]} {word[9:]}"
        if as_user:
            # On a line of its own: a shell that cannot parse the command has run what is before it.
            self.line, self.stdin = f"{_USER} {halves}\n{command}", b""
        else:
            # Arguments may have bytes that are not UTF-8, such as file names.
            script = f"{command}\n#{word}".encode(errors="surrogateescape")
            head = f"exit {_OTHER_SHELL} # {word} {len(script)}\n"
            self.line = f"{_PROGRAM} {halves}"
            self.stdin = b"\n" * _EMPTY_LINES + head.encode() + script
        self._started = {"stdout": False, "stderr": False}
        self._held: dict[str, bytes] = {"stdout": b"", "stderr": b""}

    def take(self, stream: str, chunk: bytes) -> bytes:
        """Return the part of a chunk of `stdout` or `stderr` that is the command's own output."""
        data = self._held[stream] + chunk
        if not self._started[stream]:
            number = rb" (\d{1,9})" if stream == "stdout" else b"()"
            line = re.search(self._word + number + b"\n", data)
            if not line:
                self._held[stream] = data[-_KEPT:]
                return b""
            self._started[stream] = True
            self.process = int(line[1]) if line[1] else self.process
            data = data[line.end() :]
        self._held[stream] = b""
        if self._as_user or stream == "stderr":
            return data
        return self._up_to_end(data)

    def _up_to_end(self, data: bytes) -> bytes:
        if self.status is not None or self.input_lost:
            return b""
        line = re.search(self._word + rb" (?:(\d{1,3})|input)\n", data)
        if line:
            self.status, self.input_lost = (int(line[1]), False) if line[1] else (None, True)
            return data[: line.start()]
        # The end of the data may be the beginning of the line.
        at = data.find(self._word)
        if at < 0:
            sizes = range(min(len(self._word) - 1, len(data)), 0, -1)
            size = next((one for one in sizes if data.endswith(self._word[:one])), 0)
            at = len(data) - size
        self._held["stdout"] = data[at:]
        return data[:at]

    def rest(self, stream: str) -> bytes:
        """Return what is held back of a stream that has ended."""
        return self._held[stream] if self._started[stream] else b""

    def trouble(self, exit_status: int) -> str:
        """Return why a command did not run, or not to its end, though its host ended it with this
        exit status; empty if it did."""
        if self.process is None:
            if exit_status == _OTHER_SHELL and not self._as_user:
                return "its login files start another shell, which did not run the command"
            printed = (self._held["stderr"].strip() or self._held["stdout"].strip())[-200:]
            last = printed.decode(errors="replace").rpartition("\n")[2]
            shown = "".join(one if one.isprintable() else "?" for one in last)
            return f"its login shell ended before the command, with {exit_status}" + (
                f": {shown}" if shown else ""
            )
        if self.input_lost:
            return "its login files read the input of the command"
        if not self._as_user and self.status is None and exit_status == 0:
            return "the output of the command broke off"
        return ""
