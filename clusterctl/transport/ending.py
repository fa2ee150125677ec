"""The end of a command on its host: which processes it is, ending them, and what is left of them.

sshd sends signals to a command for users other than root only, without saying whether it did, and
closing a channel ends nothing. So each command reports at its start the process that it runs as
(node/framed.py), and a second channel of the same connection ends it: SIGTERM to all processes of
its session, after GRACE_S SIGKILL to those that remain. sshd makes a session for each command.

Processes that have left the session, such as daemons, are not ended. They are found by the variable
SSH_CONNECTION in their environment, and reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# Seconds that a command has to end after SIGTERM.
GRACE_S = 2.0
# Seconds in which a host must have ended a command and have reported it.
WITHIN_S = GRACE_S + 6.0
# Processes that a message names.
MOST_NAMED = 4


@dataclass(frozen=True)
class Ending:
    """What is known of a command after it was ended.

    `left` names the processes that still run. `unknown` is empty, or the reason why it is not known
    whether any do.
    """

    left: tuple[str, ...] = ()
    unknown: str = ""

    def __str__(self) -> str:
        """Return the message about it; empty if nothing is left."""
        if self.unknown:
            return f"it may still run there: {self.unknown}"
        if not self.left:
            return ""
        more = len(self.left) - MOST_NAMED
        names = ", ".join(self.left[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
        return f"still running there: {names}"


# Arguments: the process id of the leader of the command's session, and the number of tenths of a
# second between the signals. It uses what any sh has. A process is PID/START,
# so that another one with a used id is not taken for it. The number of a session is not used again
# while a process is in it.
_SCRIPT = r"""
leader=$1 grace=$2

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
    # A process goes on without its main thread as long as it has others.
    case $state in Z | X) [ "${18}" -gt 1 ] || return 1 ;; esac
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
        echo "left $pid $its_name"
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
    kill -0 "-$leader" 2>/dev/null && echo "left $leader process group"
    echo "done"
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
        read_stat "${one%/*}" && echo "left ${one%/*} $name"
    done
fi
find_others
echo "done"
"""


def ending_script(process: int) -> str:
    """Return the script for a second channel that ends the command of this process."""
    return f"set -- {process} {round(GRACE_S * 10)}\n{_SCRIPT}"


def parse_ending(output: str) -> Ending:
    """Return what the script found."""
    lines = [line.split(" ", 2) for line in output.splitlines()]
    if ["done"] not in lines:
        return Ending(unknown="the host did not report its end")
    return Ending(tuple(f"{name} (pid {pid})" for _, pid, name in lines[:-1]))


def interruption(left: Mapping[str, str]) -> KeyboardInterrupt:
    """Return the exception for a Ctrl-C. Its text is empty, or names what is `left` on hosts."""
    if not left:
        return KeyboardInterrupt()
    named = "".join(f"\n{host}: {text}" for host, text in left.items())
    return KeyboardInterrupt(f"interrupted; not every command has ended:{named}")
