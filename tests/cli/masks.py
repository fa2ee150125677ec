"""Masks for values in a command's output that differ in each run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from clusterctl.node.relay.wire import KINDS

# Values that differ in each run.
MASKS = (
    (r"python -m pytest\.clusterctl", "clusterctl"),
    (r"http://127\.0\.0\.1:\d+", "ENDPOINT"),
    (r"\b(i|vpc|vpce|sg|subnet|pg|eipalloc|eni|vol|rtb)-[0-9a-f]{8,17}\b", r"\1-ID"),
    (r"\b(?:10\.[7-9]\d|198\.18|198\.19)\.\d+\.\d+(/\d+)?", r"ADDRESS\1"),
    (r"(\d{4}-\d\d-\d\d)[T ]\d\d:\d\d(:\d\d)?( ?UTC|Z|\+00:00)?", "TIME"),
    (r"SHA256:[\w+/]+", "SHA256:KEY"),
    (r"\b20\d\d-\d\d-\d\d\b", "TODAY"),
    (r"/\S*/home\b", "HOME"),
    (r"\b\d{8}-\d{6}-[0-9a-f]{4}\b", "JOB"),
    (r"MASTER_PORT=\d+", "MASTER_PORT=N"),
    (r"/\S*/bin/mpirun", "ENVIRONMENT/bin/mpirun"),
    (r"after \d+\.\d s", "after N s"),
    (r"\$[\d.]+ so far|\$[\d.]+(?= +ended)", "$N so far"),
    (r"(?<=TIME)( +\S+ +)\$[\d.]+", r"\1$N"),
    (r"ends in [\d hmin]+ by", "ends in N h by"),
    # Progress of hosts and instances depends on timing.
    (r"^(demo-\d: |terminating demo: |looking at what is there).*\n", ""),
    (r"(: not ready after N s): .*\n( +hint: if .*\n)?", r"\1: STATE\n"),
)
# Spot prices change every few hours.
SPOT = ((r"\$[\d.]+", "$N"),)
# Durations and rates of copies.
# A progress line is printed only if the copy takes long.
COPY = (
    (r"^\d+ connecting.*\n", ""),
    (r"\d+(\.\d+)? s\b.*?( +\d+)?$", r"N s\2"),
    (r"\d+\.\d GiB$", "N GiB"),
)
# What differs between the runs of a lab, and between machines, too.
LAB = (
    # Each state of a host is shown only if the command asks for it in time.
    (r"^[a-z]+-\d: (starting|waiting for .*|cloud-init|counting GPUs|checked|preparing|ready)\n",
     ""),
    *MASKS,
    # mpirun may lose a race with its own child.
    (r"^\[.*\] plm:ssh: Warning: setpgid.*\n", ""),
    (r"\bAKIA\w{16}\b", "KEY"),
    (r"(SECRET_ACCESS_KEY\W{1,4})[\w/+-]{40}", r"\1SECRET"),
    (r"\b(ami|key)-[0-9a-f]{17}\b", r"\1-ID"),
    (r"\b[0-9a-f]{32}\b", "ID"),
    (r"\b[0-9a-f]{64}\b", "DIGEST"),
    (r"ssh-ed25519 [\w/+=]+", "ssh-ed25519 KEY"),
    (r"^(mode|limits|tcp|process) .*", r"\1  OF THIS MACHINE"),
    (r"python(-?)3\.\d+", r"python\g<1>3"),
    (r"\b(\d+ min )?\d+(\.\d+)? (ms|s)\b", "N s"),
    (r"\b\d+(\.\d+)? [KMG]?i?B/s", "N B/s"),
    # A job's cost, which depends on its duration in the column before.
    (r"(?<= N s)( +)\$[\d.]+", r"\1$N"),
    # doctor's facts, a job's log and cost, pids
    (r'(?<!")\b(KERNEL|CPUS|MPIRUN ON PATH|MPIRUN|PYTHON|TENSORFLOW|HOROVOD|SCRIPTS|NOFILE'
     r"|MEMLOCK) [^,\n]+", r"\1 V"),
    (r"fullest disk .*", "fullest disk N %"),
    (r"is \S+mpirun \([\d.]+\), jobs take [\d.]+", "is ONE, jobs take ANOTHER"),
    (r"^\d\d:\d\d:\d\d ", "CLOCK "),
    (r"; \d nodes? at \d+% CPU", ""),
    (r"^([a-z]+-\d +)\d+(?= +\d+ +N s)", r"\1PID"),
)  # fmt: skip
# Sizes of files and disks.
SIZES = ((r"\b\d+(\.\d+)? ([KMG]iB)", "N B"), (r"\b\d+ %", "N %"))
# Values of --json that differ so. What is missing stays.
VARIES = re.compile(
    r"(_s|_at|spent_usd|^usd|pid|pid_started|memory_bytes|link|cgroups|mode|tcp|proxy_command"
    r"|rate|log_bytes|free_bytes|size_bytes|freed_bytes|_percent|grows|^/home/.*|load|disk|net|cpu"
    r"|wait_channel|rss_bytes|KERNEL|CPUS|MPIRUN|MPIRUN ON PATH|PYTHON|TENSORFLOW|HOROVOD"
    r"|SCRIPTS|NOFILE|MEMLOCK)$"
)
# Subtrees about a machine, of which only the names are kept, and one value of each list.
MACHINE = re.compile(r"^(facts|memory|gpus|versions)$")
NOTHING = re.compile(r"(?!)")
# What a relay has waited for. There are none if the copy was too short to tell.
WAITS = {*KINDS, "cpu"}


def masked_json(text: str, names: re.Pattern[str] = VARIES, sort: bool = False) -> str:
    """Return the output of --json with values masked by their names. Lines may be objects, too.

    `sort`: lists of objects have no order.
    """
    try:
        values = [json.loads(text)]
    except ValueError:
        values = [json.loads(line) for line in text.splitlines()]
    return "".join(json.dumps(_masked(one, names, sort), indent=2) + "\n" for one in values)


def _masked(value: Any, names: re.Pattern[str], sort: bool, name: str = "") -> Any:
    if names is VARIES and MACHINE.search(name) and isinstance(value, (dict, list)):
        return _names(value)
    if names is VARIES and name == "limits" and not value.keys() - WAITS:
        return "N"
    if isinstance(value, dict):
        return {key: _masked(one, names, sort, key) for key, one in value.items()}
    if value not in (None, "", []) and not isinstance(value, bool) and names.search(name):
        return "N"
    if isinstance(value, list):
        found = [_masked(one, names, sort, name) for one in value]
        return sorted(found, key=json.dumps) if sort and _are_objects(found) else found
    return value


def _are_objects(values: list[Any]) -> bool:
    return all(isinstance(one, dict) for one in values)


def _names(value: Any) -> Any:
    """Return the value with its names, and without its scalars."""
    if isinstance(value, dict):
        return {key: _names(one) for key, one in sorted(value.items())}
    if isinstance(value, list):
        return [_names(one) for one in value[:1]]
    return "N"


def masked(text: str, masks: Iterable[tuple[str, str]]) -> str:
    """Return the text with its values masked, and no column wider than two spaces apart."""
    for pattern, mask in masks:
        text = re.sub(pattern, mask, text, flags=re.MULTILINE)
    # The width of a column depends on masked words.
    return re.sub(r"(?<=\S) {2,}", "  ", text)
