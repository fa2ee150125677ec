"""The message of a line: what stands before it, what it names, and what it advises."""

from __future__ import annotations

import re
from collections.abc import Iterable

# What stands before a message: time stamps, `[rank]`, `host:pid`, `program[pid]:`, a file's line.
_PREFIX = re.compile(
    r"(?:\[[^\]]{1,80}\]:?\s+|\[[^\]]{1,80}\]:|\d{4}-\d\d-\d\d[T ][\d:.,]+(?:Z|[+-][\d:]+)?:?\s+"
    r"|\d{4}-\d\d-\d\d\s+|\w{3} +\d+ [\d:]{8} (?:[\w.-]+ )?|[\d:]{8}(?:[.,]\d+)?:?\s+"
    r"|[\w.@/+-]+\[\d+\]:\s+|[\w.-]+:\d+(?::\d+)*:?\s+|\|\s+|[\w.-]+-\d+\s+\|\s+"
    r"|\(\w+ pid=\d+[^)]*\)\s+"
    r"|(?!\S*(?:error|fatal|panic|exc|fail|fault|warn|info|debug|note|abort|exit|make))"
    r"[a-z\d][a-z\d_.-]*: (?=\D))*"
)


def message_of(text: str) -> str:
    """Return a line without the time stamps and names that stand before its message."""
    prefix = _PREFIX.match(text)
    return text[prefix.end() :] if prefix else text


# What a message names: in quotes, an address, a path, a host with its port.
_OBJECT = re.compile(
    r"""`(?P<object5>[\w.]+=["'][^`'"\n]+["'])`"""
    r"""|(?<!\w)["'`‘“](?P<object>[^"'`’”\s\\][^"'`’”\n\\]{1,119})["'`’”](?! ?:)"""
    r"|(?<![\w./-])(?P<object6>lib[\w.+-]+\.so(?:\.\d+)*)"
    r"|(?P<object2>[a-z]\w+://[^\s,;)]+)|(?P<object3>(?<![\w.)<])~?/[\w@.+=/-]{2,}\w)"
    r"|(?:(?<![\w:.])|(?<=host:))(?P<object4>(?:[a-zA-Z][\w-]*(?:\.[\w-]+)*(?<!\.cc|\.py|\.go|\.cu)(?<!\.cpp)"
    r"(?<!\.[chf])|\d+\.\d+\.\d+\.\d+|\[[\da-f:]+\]):\d{2,5}\b(?![:.\d]))"
)


# What looks like the name of something: with an underscore or slash within, or capitals within.
_IDENTIFIER = re.compile(
    r"(?<![\w./<-])(?!\w*(?:Error|Exception|Warning)\b)"
    r"(?:[A-Za-z]\w*(?:_[A-Za-z\d]+)+|[A-Z]{2,}/[A-Za-z]\w+|[a-z]+[A-Z]\w+|[A-Z][a-z]+[A-Z]\w+)(?![\w(/.:])"
)
# What a message is about if it names nothing so: the value after the kind that is invalid, and what
# is not there, before or after the words for that.
_VALUE = re.compile(
    r"\b(?i:invalid|unknown|illegal|bad|wrong|unexpected|unsupported|missing) "
    r"(?!error|exception|fault|failure)[\w -]{2,40}: ?"
    r"(?P<value>[^\s:\"'](?:[^,;:\"'\n]|:\b){0,60}?)\.?(?=[,;\"'\n]|:(?!\b)|$)"
)
_SUBJECT = re.compile(
    r"\b[Nn]o (?P<subject2>(?!such|more|longer)[\w.-]+(?: [\w.-]+){0,3}?) (?:found|available)\b"
    r"|(?:^|[:;,(] ?|\b[Tt]he )(?P<subject3>"
    r"(?!(?i:it|this|that|which|file|command|can|could|did|do|does)\b)"
    r"[A-Za-z][\w.+-]*(?: [\w.+-]+){0,4}?) (?:is |was |are |were |has |have |does )?"
    r"(?:not (?:found|set|supported|available)|missing|unavailable|unsupported|not exist)\b"
    r"|\b(?:connect|talk|listen|log ?in|communicate)(?:ing|ion)? (?:to|with|on|at) "
    r"(?!(?:the|an?|this|any|all)\b)(?:(?:address|host|node|server) )?(?P<subject4>[\w.:-]*\w)"
)
_KINDS = (_IDENTIFIER, _SUBJECT)
# Words of what is a message, and no name any more.
_SENTENCE = 5
# A place in a source file, and a page or a log to read: neither is what a message is about.
_SOURCE = re.compile(
    r"\.(?:cc|cpp|cuh?|c|h|hpp|py|go|rs|f90|java)(?:['\"`]?,? ?(?:line[ =]|:|\()\d|:\d)"
)
_TO_READ = re.compile(
    r"(?i:\b(?:see|at|visit|docs?|documentation|to|information)\W{0,3}https?:"
    r"|\b(?:see|check)\W{1,3}[\w./-]+\.(?:err|log|out|txt)\b)"
)


def object_of(message: str, at: int = 0) -> dict[str, str]:
    """Return `object`, of what a message names the one nearest to index `at`, if it names any."""
    named = (*_VALUE.finditer(message), *_OBJECT.finditer(message))
    found = [one for one in named if not _is_aside(message, one)]
    found = found or next(filter(None, (list(one.finditer(message)) for one in _KINDS)), [])
    nearest = min(found, key=lambda one: _distance(one, at), default=None)
    return {"object": nearest[nearest.lastindex or 0]} if nearest else {}


def _distance(one: re.Match[str], at: int) -> int:
    return max(one.start() - at, at - one.end(), 0)


def _is_aside(message: str, one: re.Match[str]) -> bool:
    """Return whether a name is a place in a source file, a text to read, or a message quoted."""
    name = one[one.lastindex or 0]
    is_place = _SOURCE.search(message, one.start(), one.end() + 8)
    near = _TO_READ.finditer(message, max(0, one.start() - 40), one.end())
    to_read = any(other.end() > one.start() for other in near)
    is_message = ": " in name or len(name.split()) >= _SENTENCE
    return bool(is_place or to_read or is_message)


# Sentences in which a program says what to do about its failure.
_ADVICE = re.compile(
    r"(?i:(?:^|[,;:(-] ?|\b(?:then|and|or|either) )(?:try|consider|make sure|ensure|check|verify"
    r"|use|set|run|rerun|re-run|install|reinstall|upgrade|update|downgrade|add|remove|specify|pass"
    r"|increase|reduce|decrease|enable|disable|export|rename|delete|switch|replace|provide|change"
    r"|rebuild|recompile|fix) (?!error|failed)\S"
    r"|\bplease \w|\bdid you (?:mean|forget)|\b(?:hint|tip|suggestion|solution|fix|workaround)s?:"
    r"|\byou (?:(?:can|may)(?! not)|should|must|need to|might want to|have to|could"
    r"|probably want)\b"
    r"|\b(?:must|should|needs? to|has to) be (?:set|installed|specified|enabled|disabled|used)\b"
    r"|\bto (?:fix|solve|resolve|avoid|use|enable|disable|install|proceed|continue|override|allow)"
    r" .{3,80}?(?:,| use | run | set )|\b(?:pip3?|conda|apt(?:-get)?|yum|dnf) install \S"
    r"|\b(?:use|try|set|run|pass|specify) .{2,60} instead\b|\bmaybe you meant)"
)
# Advice that helps nobody.
_NO_ADVICE = re.compile(
    r"(?i:\b(?:report|file an? (?:bug|issue)|open an? issue|contact|ignore this|mailing list"
    r"|for (?:more|further|additional) (?:information|details|help)|stack ?trace|log ?files?"
    r"|see (?:above|below|previous|the (?:log|output|error)))\b)"
)
_SENTENCES = re.compile(r"(?<=[.!?;])\s+(?=\S)|\s{3,}")
# Characters of advice that are shown, and of a line in which a message is read.
_MOST_ADVICE, MOST_READ = 300, 800


# What begins a sentence of advice on a line of its own.
_OPENS = re.compile(
    r"\s*(?:=\s*)?(?:(?i:hints?|tips?|help|suggestions?|solutions?|fix|workarounds?):"
    r"|Did you |Try (?!\d)|Maybe |Perhaps |Please |Consider |Make sure |Ensure "
    r"|You (?:can|may|should|must|need|might)\b"
    r"|(?:If|To) (?:you|fix|solve|resolve|avoid|use|enable|disable|install|proceed|continue)\b)"
)


def advice_of(message: str, below: Iterable[str] = ()) -> str:
    """Return the sentences in which a message says what to do about its failure, or "".

    Of the lines `below` it those count that are indented, begin like advice, or go on with it.
    """
    parts = _SENTENCES.split(message)
    told: list[str] = []
    for line in below:
        text = line.strip()
        goes_on = told and text[:1].islower() and not told[-1].endswith((".", "!", "?"))
        if goes_on:
            told.append(f"{told.pop()} {text}")
        elif text and (line[0].isspace() or _OPENS.match(line)):
            told += _SENTENCES.split(text)
    advice = [one for one in (*parts, *told) if _ADVICE.search(one) and not _NO_ADVICE.search(one)]
    return " ".join(advice)[:_MOST_ADVICE].strip(" .;")


# Words of advice that takes something away.
_TAKES_AWAY = re.compile(
    r"(?i:\b(?:delet|remov|overwrit|purg|prun)(?:e|es|ing)\b|\b(?:rm|kill|reset|force|uninstall|clean)\b)"
)


def is_harmless(advice: str) -> bool:
    """Return whether advice takes nothing away, so that it may be the first step."""
    return not _TAKES_AWAY.search(advice)


# Words that begin guesses at a cause, which are no evidence.
GUESSES = re.compile(
    r"(?i:\bthere (?:are|may be|can be) .{0,30}(?:causes|reasons)\b"
    r"|\b(?:this|it) (?:can|may|might|could) (?:happen|be)\b"
    r"|\b(?:possible|potential|common|likely) (?:root )?(?:causes?|reasons?)\b)"
)


def is_guess(message: str, at: int) -> bool:
    """Return whether what stands at an index of a message is part of a sentence that guesses."""
    guess = GUESSES.search(message[:at])
    return guess is not None and not re.search(r"[.!?:] ", message[guess.end() : at])


# Lines that report only that something else failed.
_WRAPPER = re.compile(
    r"CalledProcessError|returned non-?zero|ChildFailedError|RayTaskError|Exception in thread"
    r"|Error walking|\b400 Bad Request|Unexpected error while running command|^\s*raise \w"
    r"|\"(?:level|severity|levelname)\": ?\"\w+\",?$|could not be loaded|^FAILED(?: \(|: )"
    r"|Exception while |Error executing process|terminated with an error exit status"
    r"|(?:UNREACHABLE|FAILED)! => \{$|^(?:Status|Reason|State|Last State|Phase): +\w+$"
    r"|\.\.\. error$|\b\d+ error\(s\) occurred:$|terminated with the following error"
    r"|worker\.status\.FAILED|error_handler: \{$"
)


def is_wrapper(line: str) -> bool:
    """Return whether a line reports only that something else failed, or may do so."""
    return reports_other(line) or is_bare(line) or line.rstrip().endswith((":", "failed", ","))


def reports_other(line: str) -> bool:
    """Return whether a line reports only that something else failed."""
    return bool(_WRAPPER.search(line))


# Words of a program whose connection another one closed.
_PEER = re.compile(
    r"(?i:\bconnection (?:was )?(?:reset|closed|aborted|lost)\b|\breset by (?:remote )?peer"
    r"|\bbroken pipe\b|\bclosed by (?:the )?(?:remote|peer|foreign))"
)


def lost_peer(line: str) -> bool:
    """Return whether a line reports that the other end of a connection is gone."""
    return bool(_PEER.search(line))


# An exception that says no more than its kind, and a key that is not there.
_BARE = re.compile(
    r"(?:\w+\.)*(?:KeyError: \S+"
    r"|[A-Z]\w*(?:Error|Exception|Iteration|Timeout|Expired|Interrupt):?)$"
)


def is_bare(line: str) -> bool:
    """Return whether a line is an exception that says no more than its kind, or a key."""
    return bool(_BARE.match(line.strip()))
