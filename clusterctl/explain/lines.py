"""A line of a log: its tag, its time stamp, the host and rank that it names, and its traceback."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

# Lines after a line that may belong to it, as in tracebacks and stall reports.
FOLLOWING = 400
# Bytes of a line that are matched. Of a longer line these are around the first known text.
LONGEST_LINE = 4000
TRACEBACK = "Traceback (most recent call last)"
# Python prints one of these between two tracebacks of a chain of exceptions.
CHAINED = ("During handling of the above exception", "was the direct cause of the following")
# Lines before the lead in which a doubtful line makes it uncertain.
NEAR = 40
# Lines of the same rank on each side of a line in which is read what else tells its cause.
BESIDE = 20
# `tail` and `head` print this before each of several files.
FILE = re.compile(r"^==> (?P<name>.+) <==$")
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")
# Tags with the rank: mpirun's `[1,6]<stderr>:` and `[prterun-demo-0-17@1,6]<stderr>:`, horovodrun's
# `[6]<stderr>:`, all with or without a time stamp; PyTorch's `[rank6]:`, torchrun's `[default6]:`.
# cfn-init's tag has no rank: `2016-11-01 04:03:41,389 P5245 [INFO]` and a tab stand before all that
# its commands print, errors too.
_TAG = re.compile(
    r"(?:\w{3} \w{3} +\d+ [\d:]{8} \d{4})?\[(?:[\w.@-]+,)?(?P<rank>\d+)\](?:\[[\w.:-]+\])?<std"
    r"(?:out|err|diag)>: ?"
    r"|\[(?:rank|default)(?P<torch>\d+)\]: ?"
    r"|^\d{4}-\d\d-\d\d [\d:]{8},\d{3} P\d+ \[INFO\] (?:\t|  )\s*"
)
# The label of `srun -l` and ctest, `3: `. It is a task or a test, so it claims no rank.
_LABEL = re.compile(r" {0,2}(\d{1,5}):(?: (?=[^\d\[]|\[[\w.-]+:\d)|$)")
_MONTHS = "JanFebMarAprMayJunJulAugSepOctNovDec"
_MONTH = "[A-Z][a-z]{2}"
# Time stamps: 2026-11-22T10:07:44.5 | Sun Nov 22 10:07:44 2026 | I1122 10:07:44.5
_STAMP = re.compile(
    rf"(?:\b\d{{4}}[-/](?P<month>\d\d)[-/](?P<day>\d\d)[T ]|\b(?P<name>{_MONTH}) +(?P<day2>\d+) "
    rf"|\b(?P<day3>\d\d) (?P<name2>{_MONTH}) \d{{4}} )(?P<time>\d\d:\d\d:\d\d(?:[.,]\d+)?)"
)
# Prefixes of log lines that tell host, pid or rank, and the characters in which they are searched.
_PREFIX = 600
_PLACES = tuple(
    re.compile(pattern)
    for pattern in (
        # [demo-1][[20817,1],5][btl_tcp_frag.c:242:mca_btl_tcp_frag_recv]
        r"\[(?P<host>[\w.-]+)\]\[\[\d+,\d+\],(?P<rank>\d+)\]\[",
        # demo-1:3063:3066 [0] misc/socket.cc:49 NCCL WARN
        r"(?<![\w.-])(?P<host>\w[\w.-]*):(?P<pid>\d+):\d+ \[-?\d+\].*NCCL",
        # [demo-1:03063] *** An error occurred in MPI_Init
        r"^\[(?P<host>[A-Za-z][\w.-]*):(?P<pid>\d+)\]",
        # Jun  1 12:00:00 demo-1 kernel: | 2026-11-22T10:07:44+00:00 demo-1 kernel:
        # A level or a zone there has capitals alone. Without the T it may be a logger's name.
        r"^(?:\w{3} +\d+ [\d:]{8}|\d{4}-\d\d-\d\dT\S+) (?![A-Z]+ )(?P<host>[\w.-]+)"
        r" (?![A-Z]+:)[\w.-]+(?:\[\d+\])?:",
        r"^\d{4}-\d\d-\d\d \S+ (?![A-Z]+ )(?P<host>[\w.-]+) (?:[\w.-]+\[\d+\]|kernel):",
        # 172.16.220.18: bash: line 0: cd: , as pdsh and a shell have it
        r"^(?P<host>(?:\d+\.){3}\d+|(?!(?:ba|da|z|k|c|tc)?sh:|(?i:error|fatal|warning):)[a-zA-Z]"
        r"[\w.-]*): -?(?:ba|da|z|k|c|tc)?sh: (?=[^:]+: )",
        # (Worker pid=1890, ip=10.41.0.8), as Ray has it
        r"^\((?:\S+ )?pid=(?P<pid>\d+), ip=(?P<host>[\d.]+)\)",
    )
)
# The last line of a traceback: `tensorflow.python.framework.errors_impl.NotFoundError: ...`
EXCEPTION = re.compile(
    r"[A-Za-z_][\w.]*(?:\.[A-Z]\w*|Error|Exception|Interrupt|Exit|Warning)\b|[A-Z]\w*:"
)
# A frame of a traceback, and the folders of Python and of installed packages.
_FRAME_OF = re.compile(r'\s*File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>\S+)')
_FIRST_FRAME = '  File "'
# Lines in which the first frame of a traceback is looked for.
_UNTIL_FRAME = 6
_INSTALLED = re.compile(r"/(?:site|dist)-packages/|/lib(?:64)?/python[\d.]+/|^<|/bin/[^/]+$")
# A line of a source with its number, as IPython and rich print it: `--> 354     raise KeyError`.
_NUMBERED = re.compile(r"[│\s]*(?:-+>|❱)?\s*(\d{1,5})(?: │)?(?:[│\s]+|$)")
_CODE = re.compile(r"(?:raise|except|return|assert|if|elif|class|from|import|def)\b|[\w.]+ = |#")
_ZEROS = dict.fromkeys(map(ord, "123456789"), "0")
# The end of what a logger writes before a line: `worker-1  | `, `[pod/a] `, `host orted[71]: `, a
# time stamp (with `stderr F`, as containers' logs have it), a level after it, ` - `. Digits are 0.
_LABEL_END = re.compile(
    r"[\])>|:] +| - +|00:00:00(?:[.,]0+)?(?:Z|[+-]00:?00)? +"
    r"(?:std(?:out|err) [FP] +|[A-Z]{4,8} +)?"
)
# Lines of a traceback that are read for where its exception was raised.
_FRAMES = 120


def clean(text: str) -> str:
    """Return the line without colours and without the tag of mpirun, horovodrun or PyTorch."""
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    if "<std" in text or "]:" in text or "[INFO]" in text:
        text = _TAG.sub("", text)
    if label := _LABEL.match(text):
        text = text[label.end() :]
    return text.rstrip()


def tag_of(raw: str) -> str:
    """Return what tells the writers of lines apart: the rank in a line's tag, or the number of its
    label; "" if the line has neither."""
    if label := _LABEL.match(raw):
        return label[1]
    tag = _TAG.search(raw)
    return tag["rank"] or tag["torch"] or "" if tag else ""


def following(lines: Sequence[bytes], number: int, count: int) -> list[tuple[int, str]]:
    """Return a line and up to `count` - 1 lines after it with the same tag, without tags.

    Each comes with its distance from the first one. Lines of other ranks in between are left out.
    """
    found: list[tuple[int, str]] = []
    own: str | None = None
    for distance, line in enumerate(lines[number : number + min(4 * count, FOLLOWING)]):
        raw = line[:LONGEST_LINE].decode(errors="replace")
        tag = tag_of(raw)
        own = tag if own is None else own
        if tag == own:
            if found and b" <==" in line and FILE.match(clean(raw)):
                break
            found.append((distance, clean(raw)))
            if len(found) == count:
                break
    return found


def raised_at(lines: Sequence[bytes], number: int) -> str:
    """Return where Python raised the exception of a line: `file:line, in function`, or "".

    It is the last frame of the traceback outside of installed packages, else the last one.
    """
    return raised_in(_frames(lines, number))


def raised_in(traceback: Iterable[str]) -> str:
    """Return the same of the lines of a traceback, the last one first."""
    frames = [frame for line in traceback if (frame := _FRAME_OF.match(line))]
    own = [frame for frame in frames if not _INSTALLED.search(frame["file"])]
    return "{file}:{line}, in {name}".format(**(own or frames)[0].groupdict()) if frames else ""


def _frames(lines: Sequence[bytes], number: int) -> Iterator[str]:
    """Yield the lines of a traceback from the one before its exception to its first one."""
    if number >= len(lines) or not EXCEPTION.match(text_of(lines[number]).strip()):
        return
    for line in reversed(lines[max(0, number - _FRAMES) : number]):
        text = text_of(line)
        yield text
        if TRACEBACK in text or not text.strip():
            return


def without_prefix(said: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
    """Return the lines of a traceback without what a logger wrote before each.

    Lines before which something else than that stands are left out. Only digits may differ.
    """
    frames = (text.find(_FIRST_FRAME) for _, text in said[1:_UNTIL_FRAME])
    width = next((at for at in frames if at >= 0), 0)
    prefix = said[0][1][:width].translate(_ZEROS)
    lines = ((at, text[:width].translate(_ZEROS), text[width:]) for at, text in said)
    found = [(at, text) for at, before, text in lines if before == prefix]
    return found if prefix.strip() and len(found) > 1 else list(said)


def without_label(said: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
    """Return the lines of a message without what a logger wrote before each, or [] if it did not.

    That is what the first two lines begin with, up to a bracket, bar or colon. Only digits may
    differ. Lines that begin otherwise are left out.
    """
    plain = [text.translate(_ZEROS) for _, text in said]
    # Of an empty line the label is all, without its last blank.
    common = os.path.commonprefix([*plain[:1], *(f"{one} " for one in plain[1:2])])
    ends = [found.end() for found in _LABEL_END.finditer(common)]
    if not ends:
        return []
    width, label = ends[-1], common[: ends[-1]]
    return [
        (at, text[width:])
        for (at, text), line in zip(said, plain)
        if line.startswith(label) or line == label.rstrip()
    ]


def is_source(lines: Sequence[bytes], number: int) -> bool:
    """Return whether a line is of the source text in a Python traceback, or in one of IPython's."""
    own = lines[number][:LONGEST_LINE].decode(errors="replace")
    tag, said = tag_of(own), clean(own)
    numbered = _NUMBERED.match(said)
    if numbered and _CODE.match(said, numbered.end()):
        beside = (*lines[max(0, number - 1) : number], *lines[number + 1 : number + 2])
        others = (_NUMBERED.match(text_of(one)) for one in beside)
        if any(one and abs(int(one[1]) - int(numbered[1])) == 1 for one in others):
            return True
    for line in reversed(lines[max(0, number - NEAR) : number]):
        raw = line[:LONGEST_LINE].decode(errors="replace")
        if tag_of(raw) == tag:
            above = clean(raw)
            frame = _FRAME_OF.match(above)
            # HDF5 and others write their own errors in this form, below a file in C.
            is_python = frame is not None and not frame["file"].endswith((".c", ".cc", ".cpp"))
            return is_python and _indent(above) < _indent(said)
    return False


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def is_beside(lines: Sequence[bytes], number: int) -> bool:
    """Return whether Python ignored the exception of a line, or raised another one handling it."""
    above = list(_frames(lines, number))
    first = number - len(above)
    ignored = above and first and b"Exception ignored in" in lines[first - 1]
    return bool(ignored) or any(
        CHAINED[0].encode() in line for line in lines[number + 1 : number + 4]
    )


def is_near(pattern: str, lines: Sequence[bytes], number: int) -> bool:
    """Return whether a pattern is found in a line, or in one of the BESIDE lines on each side.

    Lines with the tag of another rank do not count.
    """
    own = tag_of(lines[number][:LONGEST_LINE].decode(errors="replace"))

    def side(some: Sequence[bytes]) -> list[bytes]:
        tags = ((one, tag_of(one[:200].decode(errors="replace"))) for one in some)
        mine = (one for one, tag in tags if not own or tag in ("", own))
        return list(islice(mine, BESIDE))

    before = side(lines[max(0, number - FOLLOWING) : number][::-1])[::-1]
    around = b"\n".join([*before, lines[number], *side(lines[number + 1 : number + FOLLOWING])])
    return re.search(pattern, around.decode(errors="replace"), re.ASCII) is not None


def text_of(line: bytes) -> str:
    return clean(line[:LONGEST_LINE].decode(errors="replace"))


def time_of(lines: Sequence[bytes], number: int) -> str:
    """Return the time stamp of a line or the last one before it, `MM-DD hh:mm:ss`, or ""."""
    for line in reversed(lines[max(0, number - NEAR) : number + 1]):
        found = _STAMP.search(line[:200].decode(errors="replace"))
        if found:
            name = found["name"] or found["name2"]
            month = found["month"] or f"{_MONTHS.find(name) // 3 + 1:02}"
            day = int(found["day"] or found["day2"] or found["day3"])
            return f"{month}-{day:02} {found['time']}".replace(",", ".")
    return ""


def place_of(text: str) -> dict[str, str]:
    """Return rank, host and pid, if the line's tag or its program's prefix tells them."""
    found: dict[str, str] = {}
    tag = _TAG.search(text)
    if tag:
        rank = tag["rank"] or tag["torch"]
        found = {"rank": rank} if rank else {}
        text = text[: tag.start()] + text[tag.end() :]
    for pattern in _PLACES:
        match = pattern.search(text, 0, _PREFIX)
        if match:
            return {**match.groupdict(), **found}
    return found
