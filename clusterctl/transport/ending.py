"""The end of a command on its host: which processes it is, ending them, and what is left of them.

sshd sends signals to a command for users other than root only, without saying whether it did, and
closing a channel ends nothing. So each command tells at its start the process that it runs as, and
a second channel of the same connection ends it: SIGTERM to all processes of its session, after
GRACE_S SIGKILL to those that remain. sshd makes a session for each command.

Processes that have left the session, such as daemons, are not ended. They are found by the variable
SSH_CONNECTION in their environment, and reported.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

# Seconds that a command has to end after SIGTERM.
GRACE_S = 2.0
# Seconds in which a host must have ended a command and have reported it.
WITHIN_S = GRACE_S + 6.0
# Processes that a message names.
MOST_NAMED = 4
# Login shells in which `$$` is the process id of the shell.
_POSIX_SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh", "ksh93", "mksh"})


@dataclass(frozen=True)
class Ending:
    """What is known of a command after it was ended.

    `left` names the processes that still run. `unknown` is empty, or the reason why it is not known
    whether any do.
    """

    left: tuple[str, ...] = ()
    unknown: str = ""

    def __str__(self) -> str:
        """Return what a message says of it; empty if nothing is left."""
        if self.unknown:
            return f"it may still run there: {self.unknown}"
        if not self.left:
            return ""
        more = len(self.left) - MOST_NAMED
        names = ", ".join(self.left[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
        return f"still running there: {names}"


class StartMarker:
    """Puts a line before a command's stderr that names its process, and takes it out again.

    The line has a random word, so that no other output is taken for it. Everything else passes
    unchanged. `shell` is the name of the login shell as an earlier line on the same connection had
    it, or empty. `process` is the process id of the login shell that runs the command, None until
    the line has come.
    """

    def __init__(self, shell: str = "") -> None:
        self.shell = shell
        self.process: int | None = None
        self._word = os.urandom(12).hex().encode()
        self._held = b""

    def command(self, command: str) -> str:
        """Return a command line for the login shell that prints the line and runs the command."""
        word = self._word.decode()
        if self.shell in _POSIX_SHELLS:
            return f"echo {word} $$ >&2; {command}"
        # Of the shells that may be there, not all know `$$`. All run a program, which costs the
        # host 1 ms; its parent is the shell.
        # SHELL is no proof of which shell that is: the user's own files may set it.
        program = (
            "c=; if [ -r /proc/$PPID/comm ]; then read -r c </proc/$PPID/comm; fi; "
            f'echo "{word} $PPID $c" >&2'
        )
        return f"sh -c {shlex.quote(program)}; {command}"

    def take(self, chunk: bytes) -> bytes:
        """Return the part of a chunk of stderr that is known to be the command's own."""
        if self.process is not None:
            return chunk
        data = self._held + chunk
        # A shell may also show the line that prints it: one that it cannot parse, or each (set -x).
        line = re.search(rb"%b (\d{1,9})(?: (\S*))?\n" % self._word, data)
        if line:
            self._held = b""
            self.process = int(line[1])
            self.shell = (line[2] or b"").decode(errors="replace") or self.shell
            return data[: line.start()] + data[line.end() :]
        # The end of the last line may be the beginning of it.
        last = data.rfind(b"\n") + 1
        at = data.find(self._word, last)
        if at < 0:
            sizes = range(min(len(self._word) - 1, len(data) - last), 0, -1)
            size = next((one for one in sizes if data.endswith(self._word[:one])), 0)
            at = len(data) - size
        self._held = data[at:]
        return data[:at]

    def rest(self) -> bytes:
        """Return what is held back when the stream has ended."""
        held, self._held = self._held, b""
        return held


# Arguments: the word that begins each line of output, the process id of the login shell, and the
# number of tenths of a second between the signals. It uses what any sh has. A process is PID/START,
# so that another one with a used id is not taken for it. The number of a session is not used again
# while a process is in it.
_SCRIPT = r"""
word=$1 leader=$2 grace=$3

read_stat() {
    line=
    { IFS= read -r line </proc/$1/stat; } 2>/dev/null || return 1
    case $line in *') '*) ;; *) return 1 ;; esac
    name=${line#*\(}
    name=${name%\) *}
    set -f
    set -- ${line##*) }
    set +f
    state=$1 parent=$2 its_session=$4 start=${20}
    case $state in Z | X) return 1 ;; esac
}

pause() { sleep 0.1 2>/dev/null || sleep 1; }

# The processes of the command's session, and when the first of them started.
find_session() {
    found=
    if read_stat "$leader"; then
        # Else its number is that of another process now, or this server makes no sessions.
        [ "$parent" = "$sshd" ] && [ "$its_session" = "$leader" ] || return
        found=$leader/$start
        began=$start
    fi
    for folder in /proc/[0-9]*; do
        pid=${folder#/proc/}
        [ "$pid" != "$leader" ] && read_stat "$pid" && [ "$its_session" = "$leader" ] || continue
        found="$found $pid/$start"
        [ "$start" -ge "${began:-$start}" ] || began=$start
    done
}

send() {
    for one in $found; do
        kill "-$1" "${one%/*}" 2>/dev/null
    done
}

# Wait until none is left, at most $1 tenths of a second. Processes that may not be signalled are
# not waited for.
wait_for_all() {
    count=0
    while [ "$count" -lt "$1" ]; do
        waiting=
        for one in $found; do
            pid=${one%/*}
            read_stat "$pid" && [ "$start" = "${one#*/}" ] && kill -0 "$pid" 2>/dev/null &&
                waiting=1
        done
        [ "$waiting" ] || return
        pause
        count=$((count + 1))
    done
}

# The processes of this connection that are in no session of a command that it runs now.
find_others() {
    [ "$began" ] || return
    for file in $(grep -lzx "SSH_CONNECTION=$SSH_CONNECTION" /proc/[0-9]*/environ 2>/dev/null); do
        pid=${file#/proc/}
        pid=${pid%/environ}
        read_stat "$pid" || continue
        [ "$start" -ge "$began" ] || continue
        its_name=$name
        # This program's own, such as its pauses, have its session.
        [ "$its_session" != "$leader" ] && [ "$its_session" != "$own" ] || continue
        if read_stat "$its_session" && [ "$parent" = "$sshd" ]; then continue; fi
        echo "$word left $pid $its_name"
    done
}

# A host without /proc: the process group, of which zombies are a part until they are waited for.
end_group() {
    for signal in TERM KILL; do
        kill "-$signal" "-$leader" 2>/dev/null
        count=0
        while kill -0 "-$leader" 2>/dev/null && [ "$count" -lt "$grace" ]; do
            pause
            count=$((count + 1))
        done
    done
    kill -0 "-$leader" 2>/dev/null && echo "$word left $leader process group"
    echo "$word done"
}

if ! read_stat $$; then
    end_group
    exit
fi
began=
own=$its_session
read_stat "$own" && sshd=$parent
find_session
if [ -z "$found" ] && read_stat "$leader"; then exit; fi
send TERM
wait_for_all "$grace"
find_session
if [ "$found" ]; then
    send KILL
    wait_for_all 10
    find_session
    for one in $found; do
        read_stat "${one%/*}" && echo "$word left ${one%/*} $name"
    done
fi
find_others
echo "$word done"
"""


class EndingProgram:
    """The program that ends a command on its host, for a second channel."""

    stdin = _SCRIPT.encode()

    def __init__(self, process: int) -> None:
        self._word = os.urandom(12).hex()
        self.command = f"exec sh -s {self._word} {process} {round(GRACE_S * 10)}"

    def parse(self, output: bytes) -> Ending:
        """Return what the program found. Lines of a login shell's own output are skipped."""
        lines = [line.split(" ", 3) for line in output.decode(errors="replace").splitlines()]
        own = [line[1:] for line in lines if line[0] == self._word]
        if ["done"] not in own:
            return Ending(unknown="the host did not report its end")
        return Ending(tuple(f"{name} (pid {pid})" for _, pid, name in own[:-1]))


def interruption(left: Mapping[str, str]) -> KeyboardInterrupt:
    """Return the exception for a Ctrl-C. Its text is empty, or names what is `left` on hosts."""
    if not left:
        return KeyboardInterrupt()
    named = "".join(f"\n{host}: {text}" for host, text in left.items())
    return KeyboardInterrupt(f"interrupted; not every command has ended:{named}")
