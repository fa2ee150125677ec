"""What was found in logs: the known lines, the unknown ones, and which of them leads."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from clusterctl.domain.findings import Severity
from clusterctl.explain.catalogue import libraries, settings, wordings
from clusterctl.explain.failing import LineKind
from clusterctl.explain.lines import NEAR
from clusterctl.explain.message import (
    GUESSES,
    is_bare,
    is_harmless,
    is_wrapper,
    lost_peer,
    message_of,
    object_of,
    reports_other,
)
from clusterctl.explain.signature import UNNAMED, Role, Signature
from clusterctl.explain.table import Search, compiled, named, table, with_meanings

_ROLES = list(Role)
_SEVERITIES = [Severity.ERROR, Severity.WARNING, Severity.INFO]


@dataclass(frozen=True)
class LogFinding:
    """A signature that was found in a log.

    `line` (from 1), `text` and `values` are those of the first matching line. `count` is the number
    of matching lines. `ranks` and `hosts` are those that the lines name. `origin` names the log,
    and `part` the file in it that a line `==> file <==` begins. `time` is the line's time stamp or
    the last one before it, `MM-DD hh:mm:ss`, or empty. `lines` are the first matching lines.
    `raised_at` is where Python raised the exception: `file:line, in function`, or empty. `shown`
    has the findings of the same log that show which alternatives of the cause are true.
    """

    signature: Signature
    line: int
    text: str
    values: Mapping[str, str] = field(default_factory=dict)
    count: int = 1
    ranks: frozenset[int] = frozenset()
    hosts: frozenset[str] = frozenset()
    origin: str = ""
    part: str = ""
    time: str = ""
    lines: tuple[int, ...] = ()
    raised_at: str = ""
    shown: Mapping[str, LogFinding] = field(default_factory=dict)

    @property
    def cause(self) -> str:
        """The signature's cause, with values from the log, what its words name, and the facts."""
        reason = self._reason
        facts = dict.fromkeys(one.cause for one in self.shown.values())
        own = self._filled(self.signature.cause)
        if left := self._left(own):
            own = f"{own.rstrip('. ')} ({left})"
        named = "By its words" if self.is_by_words else "That is"
        own = f"{own.rstrip('.: ')}. {named}: {reason.cause}" if reason else own
        return f"{own}. In this log: {'; '.join(facts)}" if facts else own

    def _left(self, cause: str) -> str:
        """The values of the line that no text of the signature tells: `path: /data; port: 22`.

        So are those of the rest of a help message of Open MPI.
        """
        one = self.signature
        texts = "".join((one.cause, *(part for both in one.remedies for part in both)))
        if one.hook or one.role not in (Role.ROOT, Role.SYMPTOM):  # a hook reads them
            return ""
        groups = {name.rstrip("23456789") for name in compiled(one.pattern).groupindex}
        told = (
            f"{name}: {value.strip(' .:,')}"
            for name, value in self.values.items()
            if name in groups - one.meanings.keys() and f"{{{name}" not in texts
            if not _VAGUE.fullmatch(name)
            if value.strip() not in ("", "(null)") and value not in cause
            if len(value) <= _MOST_VALUE
        )
        fields = self.values.get("fields", "").splitlines()
        new = (one for one in fields if one.partition(": ")[2] not in cause)
        return "; ".join((*told, *new))

    @property
    def remedies(self) -> tuple[tuple[str, str], ...]:
        """Alternatives of the cause, each with its remedy; one without a name if it is alone.

        Those that another line shows to be true come first, with that line, then those whose name
        has a value of this line.
        Of a message that quotes a reason, what it advises and the steps for that reason come first;
        advice that takes something away comes last.
        """
        ordered = sorted(
            self.signature.remedies,
            key=lambda both: (both[0] not in self.shown, not self._is_named(both[0])),
        )
        own = tuple((self._alternative(when), self._filled(do)) for when, do in ordered)
        reason = self._reason
        advice = self.values.get("advised", "")
        advised = (("", f"the message itself advises: {advice}"),) if advice else ()
        steps = (*(reason.remedies if reason else ()), *own, *self._settings)
        return (*advised, *steps) if is_harmless(advice) else (*steps, *advised)

    @property
    def _settings(self) -> tuple[tuple[str, str], ...]:
        """Where the daemon's settings are that wrote a line known by its form or words only."""
        one = self.signature
        is_general = one.generic or one.id.startswith("words.")
        names = _PROGRAM.findall(self.text) if is_general else ()
        known = next((settings()[name] for name in names if name in settings()), "")
        return (("its settings", known),) if known else ()

    @functools.cached_property
    def _reason(self) -> LogFinding | None:
        """What the reason is known as that a message quotes which is known by its form only.

        A signature with its own table of reasons is such a one if the reason is not in it.
        """
        one, reason = self.signature, self.values.get("error", "")
        own = {group: words["else"] for group, words in one.meanings.items() if "else" in words}
        has_table = one.role is Role.SYMPTOM and bool(own)
        is_unlisted = any(self.values.get(f"{group}_meaning") == own[group] for group in own)
        if not reason or not (is_unlisted if has_table else one.generic):
            return None
        return known_of(reason, (Role.ROOT,)) or by_words(reason)

    @property
    def is_by_words(self) -> bool:
        """Whether its cause is no more than the words of a message, or what kind they name."""
        reason = self._reason
        is_repeated = "problem" in self.values  # hooks.framed_text
        return is_repeated or (reason is not None and reason.signature.id.startswith("words."))

    @property
    def gives_no_reason(self) -> bool:
        """Whether it quotes a message whose words say only that something failed."""
        return self.signature.generic and "error" in self.values and self._reason is None

    @property
    def remedy(self) -> str:
        """The remedies as text, a line for each alternative."""
        return "\n".join(f"{when}: {do}" if when else do for when, do in self.remedies)

    def _is_named(self, when: str) -> bool:
        """Return whether an alternative's name has a value that the pattern took from the line."""
        groups = {name.rstrip("23456789") for name in compiled(self.signature.pattern).groupindex}
        values = (value for name, value in self.values.items() if name in groups)
        return any(
            len(value) >= _LEAST_VALUE and re.search(rf"(?<!\w){re.escape(value)}(?!\w)", when)
            for value in values
        )

    def _alternative(self, when: str) -> str:
        fact = self.shown.get(when)
        told = f" (line {fact.line} shows it)" if fact else ""
        return self._filled(when) + told

    def _filled(self, template: str) -> str:
        words = _Words({**self.signature.defaults, **self.values})
        if "rank" in self.values:
            words["rank"] = f"rank {self.values['rank']}"
        if "object" not in words and "{object" in template:
            words.update(object_of(message_of(self.text)))
        if "object" not in words:
            template = template.replace(" ({object})", "").replace(": {object}", "")
        return template.format_map(words)


# Groups of patterns whose names say nothing by themselves, or that stand before the message.
_VAGUE = re.compile(
    "host|rank|pid|error|first|code|number|line|n|what|why|text|rest|at|kind|part|by|to|from|who"
    "|where|second|mod|program|class"
)
# Characters of such a value.
_LEAST_VALUE = 3
_MOST_VALUE = 80
# The daemon that wrote a line of the system's log: `dockerd[6317]: `.
_PROGRAM = re.compile(r"(?:^|\s)([A-Za-z][\w.-]*?)(?:-current|\.service)?(?:\[\d+\])?: ")


@dataclass(frozen=True)
class UnknownError:
    """A line that reports a failure and is not in the catalogue.

    `rank` and `host` are those that the line names, or empty. `ends_log` is set for a doubtful line
    at the end of its log, with no sign of progress after it.
    `raised_at` is where Python raised the exception: `file:line, in function`, or empty. `message`
    is the line's message, with the lines after it that belong to it. `advice` is what the program
    says to do about it, or empty.
    """

    line: int
    text: str
    rank: str = ""
    origin: str = ""
    kind: LineKind = LineKind.EXCEPTION
    ends_log: bool = False
    part: str = ""
    time: str = ""
    raised_at: str = ""
    message: str = ""
    advice: str = ""
    host: str = ""

    @property
    def fatal(self) -> bool:
        """Whether the line may be the cause of a failure by itself."""
        return self.kind in (LineKind.EXCEPTION, LineKind.FAILING) or (
            self.kind is LineKind.DOUBTFUL and self.ends_log
        )

    @property
    def is_vague(self) -> bool:
        """Whether the words of a line that is no exception name no kind of failure."""
        return self.kind is not LineKind.EXCEPTION and not self.by_words

    @functools.cached_property
    def by_words(self) -> LogFinding | None:
        """The kind of failure that the words of the message name, or None."""
        return by_words(self.message, self.line, self.text)


def by_words(message: str, line: int = 0, text: str = "") -> LogFinding | None:
    """Return the kind of failure that the words of a message name, or None.

    Of a chain, `cannot start: mount failed: no such device`, the last part is the reason. What
    comes after words that begin guesses is left out. The number of an error of a library counts
    before the words, which may mean something else there, and the name of an error after them.
    """
    message = _GRPC_CODE.sub("", GUESSES.split(message)[0] or message)
    if known := _by_code(message, line, text):
        return known
    spelled = (_spelled(one) for one in (_innermost(message), message))
    for part in dict.fromkeys((_innermost(message), message, *spelled)):
        for one in wordings():
            match = compiled(one.pattern).search(part)
            values = match and with_meanings(one, named(match))
            if match and values is not None:
                at = max(message.rfind(part), 0) + match.start()
                about = object_of(message, at)
                if about.get("object", "").lower() in values.get("error", "-"):
                    about = {}  # the error itself, as in "no locks available"
                return LogFinding(one, line, text, {**about, **values})
    return None


def _by_code(message: str, line: int, text: str) -> LogFinding | None:
    """Return what the number of an error stands for that a message has, or None."""
    for library in libraries():
        match = compiled(library.pattern).search(message)
        code = named(match)["code"] if match else ""
        if meaning := library.texts.get(code):
            spelled = library.says.format(text=meaning)
            known = known_of(spelled, _ROLES[:3]) or by_words(spelled)
            if known:
                cause = f'number {code} of {library.name} is "{meaning}": {known.signature.cause}'
                one = replace(known.signature, cause=cause)
                return replace(known, signature=one, line=line, text=text)
    return None


def known_of(message: str, roles: Sequence[Role]) -> LogFinding | None:
    """Return the first finding of some roles that the catalogue has for a message, or None.

    Signatures that know only how a message looks, without a table of reasons, do not count.
    """
    for one in table().named(hit[0] for hit in table().hits(message.encode(), Search.ALL)):
        is_specific = one.role in roles and not one.hook and (one.meanings or not one.generic)
        match = compiled(one.pattern).search(message) if is_specific else None
        values = match and with_meanings(one, named(match))
        if values is not None and one.severity is Severity.ERROR:
            return LogFinding(one, 0, message, values)
    return None


# What containerd puts after its messages: a code of gRPC without a meaning of its own.
_GRPC_CODE = re.compile(r"(?:: unknown)+[.\"\s]*$")
# Reasons that belong to the name before them.
_OF_NAME = re.compile(r"(?i:not? |executable file )")


def _innermost(message: str) -> str:
    """Return the last part of a chain of three or more with colons between that has two words.

    "not found", "permission denied" and the like are no part of their own: what stands before
    belongs to it.
    """
    parts = message.split(": ")
    last = next((at for at in range(len(parts) - 1, 1, -1) if " " in parts[at].strip()), 0)
    if not last:
        return message
    first = last
    if _OF_NAME.match(parts[last]) or len(parts[last].split()) < 4:
        # A part of one word is a call: `connect`.
        first = max(at for at in range(last) if at == 0 or " " in parts[at].strip())
    return ": ".join(parts[first:])


# The name of an error, as in `CUBLAS_STATUS_NOT_SUPPORTED` and `ResourceLimitExceededException`.
_ERROR_NAME = re.compile(r"\b[A-Z]{2,}(?:_[A-Z\d]+)+\b|\b(?:[A-Z]+[a-z]+){2,}\b")
_WITHIN_NAME = re.compile(r"_|(?<=[a-z])(?=[A-Z])")


def _spelled(message: str) -> str:
    """Return a message with the names of errors in it as words."""
    return _ERROR_NAME.sub(lambda name: _WITHIN_NAME.sub(" ", name[0]).lower(), message)


# What mpirun prints when a rank ends with an exit status, whatever the reason.
_MPIRUN_ENDS = {
    "mpi.primary-job",
    "mpi.child-ended",
    "mpi.exit-code",
    "clusterctl.command-ended",
}


@dataclass(frozen=True)
class Explanation:
    """The result for one or several logs.

    `findings` are in the order of their first lines, log by log. `failing` are the lines that
    report a failure and are not in the catalogue, the first of each kind. `lines` counts the lines
    read.
    """

    findings: tuple[LogFinding, ...] = ()
    failing: tuple[UnknownError, ...] = ()
    lines: int = 0

    def of(self, role: Role) -> tuple[LogFinding, ...]:
        """Return the findings of a role, errors before warnings, each in the order of the log."""
        found = [finding for finding in self.findings if finding.signature.role is role]
        return tuple(sorted(found, key=lambda one: _SEVERITIES.index(one.signature.severity)))

    @functools.cached_property
    def _first(self) -> LogFinding | None:
        """The finding that leads if no unknown line has to."""
        ranked = [one for role in _ROLES[:3] for one in self.of(role)]
        ranked.sort(key=lambda one: _SEVERITIES.index(one.signature.severity))
        if not ranked:
            return None
        peers = [
            one
            for one in ranked
            if (one.signature.role, one.signature.severity)
            == (ranked[0].signature.role, ranked[0].signature.severity)
        ]
        if len({log_of(one) for one in peers}) > 1 and all(one.time for one in peers):
            peers.sort(key=lambda one: one.time)
        first = next((one for one in peers if not _yields(one, peers)), peers[0])
        named = (one for one in self.of(Role.ROOT) if _names(first, one))
        return next(named, None) or self._said_before(first) or first

    def _said_before(self, cause: LogFinding) -> LogFinding | None:
        """The first symptom before a cause that gives a reason, if the cause's words give none."""
        if not (is_cause(cause) and cause.gives_no_reason):
            return None
        before = (
            one
            for one in self.of(Role.SYMPTOM)
            if log_of(one) == log_of(cause) and one.line < cause.line
        )
        errors = (one for one in before if one.signature.severity is Severity.ERROR)
        return next((one for one in errors if one._reason), None)

    @functools.cached_property
    def lead(self) -> LogFinding | None:
        """The finding to begin with, or None.

        It is the earliest root that does not yield to another, else the earliest symptom, else the
        earliest consequence; a warning only if there is no error. Of several logs the earliest by
        time stamps counts, or that of the first log if one has no time stamps. It is None if
        nothing is known to be wrong. It is also None if there is no root that is an error, and the
        log has an exception that is not in the catalogue, or another unknown failing line before
        that finding: then the unknown line is the most likely cause. So it is before a root whose
        words give no reason, if its own do, and beside an exception that says no more than a key.
        """
        first = self._first
        if first is None:
            return None
        if is_cause(first):
            before = (one for one in self.failing if one.fatal and _is_before(one, first))
            chained = (one for one in self.failing if _is_next(one, first))
            others = before if first.gives_no_reason else chained if is_bare(first.text) else ()
            is_told = any(one.by_words and not is_wrapper(one.message) for one in others)
            return None if is_told else first
        hides = [LineKind.EXCEPTION, LineKind.FAILING]
        if first.signature.role is not Role.SYMPTOM:
            hides.append(LineKind.DOUBTFUL)
        hidden = any(
            (one.kind is LineKind.EXCEPTION and not reports_other(one.message))
            or (one.kind in hides and one.fatal and _may_cause(one, first))
            for one in self.failing
        )
        return None if hidden else first

    @property
    def unknown(self) -> tuple[UnknownError, ...]:
        """The lines of `failing` to look at: with a known cause only those that may precede it.

        Those that report only that something else failed come last, after those of a known kind.
        So does a lost connection if another line fails before it: the other end may have ended.
        """
        cause = self._first if self._first and is_cause(self._first) else None
        found = [
            one
            for one in self.failing
            if one.kind in (LineKind.EXCEPTION, LineKind.COMPLAINT)
            or (one.fatal and (cause is None or _is_before(one, cause)))
        ]
        if not found and self._first is None:
            ends = (one for one in self.failing if one.kind is LineKind.END)
            found = [one for one in ends if one.by_words]
        firsts = [one for one in found if not lost_peer(one.message)]
        followers = [
            one
            for one in found
            if is_wrapper(one.message)
            or (one not in firsts and any(_is_before(first, one) for first in firsts))
        ]
        return tuple(sorted(found, key=lambda one: (one in followers, one.is_vague)))

    @property
    def possible_causes(self) -> tuple[UnknownError, ...]:
        """The unknown lines of the lead's log that stand before it. Any may be the cause.

        So may one after a root of a general kind, if its words name a reason.
        """
        lead = self.lead
        is_general = lead is not None and is_cause(lead) and lead.signature.generic
        return tuple(
            one
            for one in self.failing
            if lead
            and (
                _is_before(one, lead)
                or (is_general and log_of(one) == log_of(lead) and not one.is_vague)
            )
            and not reports_other(one.message)
            and (one.fatal or (one.kind is LineKind.DOUBTFUL and 0 <= lead.line - one.line <= NEAR))
        )

    @property
    def other_errors(self) -> tuple[LogFinding, ...]:
        """The errors of the lead's log with which it may have a cause in common.

        Beside a cause of a general kind that is each root and symptom, else a symptom before it
        that is of a general kind or to which the lead's signature yields. One that quotes the lead
        as its reason is none.
        """
        lead = self.lead
        return tuple(
            one
            for one in (*self.of(Role.SYMPTOM), *self.of(Role.ROOT))
            if lead
            and is_cause(lead)
            and one is not lead
            and (
                lead.signature.generic
                or (
                    one.signature.role is Role.SYMPTOM
                    and (one.signature.generic or _names(lead, one))
                    and one.line < lead.line
                )
            )
            and one.signature.severity is Severity.ERROR
            and log_of(one) == log_of(lead)
            and (one._reason is None or one._reason.signature.id != lead.signature.id)
        )

    @functools.cached_property
    def firsts(self) -> tuple[LogFinding | UnknownError, ...]:
        """The first failure of each log that has one: its lead, or its first unknown line.

        They are sorted by their time stamps if all have one.
        """
        found: list[LogFinding | UnknownError] = []
        logs = [*map(log_of, self.findings), *map(log_of, self.failing)]
        for log in dict.fromkeys(logs):
            alone = Explanation(
                tuple(one for one in self.findings if log_of(one) == log),
                tuple(one for one in self.failing if log_of(one) == log),
            )
            if alone.severity is Severity.ERROR:
                found += [alone.lead] if alone.lead else (alone.unknown or alone.failing)[:1]
        if all(one.time for one in found):
            found.sort(key=lambda one: one.time)
        return tuple(found)

    @property
    def is_certain(self) -> bool:
        """Whether the lead is a cause by itself, and no other error may be the cause of it.

        What only the words of a message tell is never certain.
        """
        lead = self.lead
        is_root = lead is not None and lead.signature.role is Role.ROOT and not lead.is_by_words
        return is_root and not self.possible_causes and not self.other_errors

    @property
    def exit_without_error(self) -> str:
        """The rank that ended by itself, and its status; empty if anything else is reported.

        mpirun names the first rank that ended. It may be a victim only if another failed.
        """
        bad = [one for one in self.findings if one.signature.role.is_failure]
        if self.failing or not {one.signature.id for one in bad} <= _MPIRUN_ENDS:
            return ""
        ended = [one.values for one in bad if "code" in one.values]
        if not ended:
            return ""
        rank, code = ended[0]["first"], ended[0]["code"]
        return f"rank {rank} ended with exit status {code} by itself, without an error message"

    @property
    def severity(self) -> Severity:
        """ERROR, WARNING, or INFO if no line reports a failure."""
        if any(one.fatal or one.kind is LineKind.END for one in self.failing):
            return Severity.ERROR
        bad = (one.signature.severity for one in self.findings if one.signature.role.is_failure)
        least = Severity.WARNING if self.failing else Severity.INFO
        return min((*bad, least), key=_SEVERITIES.index)


def with_evidence(found: Sequence[LogFinding]) -> list[LogFinding]:
    """Return the findings of a log, each with those that show which alternatives are true."""
    return [
        replace(
            one,
            shown={
                when: other
                for when, name in one.signature.evidence.items()
                for other in reversed(found)
                if fnmatchcase(other.signature.id, name)
            },
        )
        if one.signature.evidence
        else one
        for one in found
    ]


def is_cause(one: LogFinding) -> bool:
    return one.signature.role is Role.ROOT and one.signature.severity is Severity.ERROR


def _is_before(one: UnknownError, finding: LogFinding | UnknownError) -> bool:
    """Whether a line stands before a finding. It does not if its message goes on with that one."""
    if log_of(one) == log_of(finding):
        return one.line < finding.line and finding.text.strip() not in one.message
    return "" < one.time < finding.time


def _may_cause(one: UnknownError, finding: LogFinding) -> bool:
    """Whether a line stands before a finding, or is what its line announces: `it failed with:`."""
    is_next = log_of(one) == log_of(finding) and one.line == finding.line + 1
    return _is_before(one, finding) or (is_next and finding.text.endswith(":"))


def _is_next(one: UnknownError, first: LogFinding) -> bool:
    """Whether an exception stands shortly after a finding, and its rank is the same."""
    is_near = log_of(one) == log_of(first) and 0 < one.line - first.line <= NEAR
    is_same = one.rank == first.values.get("rank", "")
    return one.kind is LineKind.EXCEPTION and is_near and is_same


def log_of(one: LogFinding | UnknownError) -> tuple[str, str]:
    """Return the name of a finding's log, and of the file in it."""
    return one.origin, one.part


def _yields(one: LogFinding, peers: Sequence[LogFinding]) -> bool:
    """Return whether a finding gives way to another of its log, wherever that stands."""
    return any(
        (one.signature.generic and not other.signature.generic and log_of(other) == log_of(one))
        or _names(one, other)
        for other in peers
        if other is not one
    )


def _names(one: LogFinding, other: LogFinding) -> bool:
    """Return whether a finding's signature names another of its log as one to which it yields."""
    return log_of(other) == log_of(one) and any(
        fnmatchcase(other.signature.id, name) for name in one.signature.yields_to
    )


def merge(parts: Sequence[Explanation]) -> Explanation:
    """Return one explanation of several logs, in the order given."""
    return Explanation(
        tuple(finding for part in parts for finding in part.findings),
        tuple(one for part in parts for one in part.failing),
        sum(part.lines for part in parts),
    )


class _Words(dict[str, str]):
    """Values for a template, with a replacement for each value that the log does not have."""

    def __missing__(self, name: str) -> str:
        return UNNAMED.get(name, f"({name} not in the log)")
