"""The forms in which programs say that they failed, for lines that no signature knows.

A form says that something failed, not what. Each form has plain texts (`MARKS`) that the engine
searches for, so that most lines are never matched.
"""

from __future__ import annotations

import re
from enum import Enum


class LineKind(Enum):
    """What an unknown line says about a failure, the surest first."""

    EXCEPTION = "exception"  # the last line of a Python traceback, or of a C++ exception
    FAILING = "failing"  # its program calls it an error
    COMPLAINT = "complaint"  # a warning of a library that usually comes before a failure
    DOUBTFUL = "doubtful"  # something did not work, and the program may have gone on
    END = "end"  # something ended with a status other than 0
    REMARK = "remark"  # its program calls it a warning; it counts at the end of a log only


# Texts of lines that are an error by themselves, and of lines that may be one.
STRONG_MARKS = (
    *("Error", "rror: ", "ERROR", "xception", "atal", "FATAL", "panic", "CRITICAL", "NCCL WARN "),
    *("egmentation fault", "Killed", "Aborted", "core dumped", "Bus error", "*** ", "E: "),
    *("NotFound", "Expired", "Exceeded", "Denied", "Refused", "Unavailable", "Invalid"),
    *("Check failed: ", "what():  ", "ssertion", "error occurred", "llegal instruction"),
    *(
        "xit code",
        "xit status",
        "xited with",
        "non-zero",
        "code ",
        ": F tensorflow",
        "rror (",
        "getinfo",
        "oom-kill",
        "OOMKilled",
        "NVRM: Xid ",
        "xit Code",
        "Status Code: ",
        "link time reference",
        ".exc.",
        ".errors.",
        ".rb:",
        "overflow detected",
        "Terminated",
        "Hangup",
        "User defined signal ",
        "Alarm clock",
        "onverge",
        "SystemExit",
        "STOP ",
        "Speicherzugriffsfehler",
        "segment",
        "\u6bb5\u9519\u8bef",
        '": "error"',
        '": "fatal"',
        "EXIT CODE",
        "panicked at ",
        "unbound variable",
        "parameter n",
        "rc=",
        "RC=",
        "returncode",
        "retcode",
        "status=",
        "FEHLER",
        "Fehler",
        "rreur",
        "RREUR",
        "rrore",
        "\u30a8\u30e9\u30fc",  # error in Japanese, Chinese, Korean, Russian
        "\u9519\u8bef",
        "\uc624\ub958",
        "\u0448\u0438\u0431\u043a\u0430",
        "level=",
        "ERRO[",
        "FATA[",
        "curl: (",
        "_FAILED",
    ),
)
WEAK_MARKS = (
    *("ailed", "AILED", "ailure", "nable to ", "annot ", "ould not ", "an't ", "not found"),
    *("o such ", "enied", "efused", "imed out", "nvalid ", "nrecogni", "nknown ", "upported"),
    *("bort", "ismatch", "rrno", "ot permitted", "nreachable", "roken pipe", "reset by peer"),
    *("nput/output", "oo many ", "o space left", " error", ": E tensorflow", ".js:", ".java:"),
    *("iving up", "ot respond", "nresponsive", "marking ", "marked ", "ancelled", "ot exist"),
    *("orrupt", "xceeded", "ejected", "rashed", "not enough", "nsufficient", "too o", "too l"),
    *("too s", "ut of memory", "ut of range", "ndefined symbol", "xpired", " fault", "imeout"),
    *("ttempting to ", "ot authori", "ot recogni", "ower than configured"),
    *("NaN ", " nan", ":nan", "=nan", "icht gefunden", "eine Berechtigung", "ucun fichier"),
    *("ntrouvable", "ermission non", "o existe", "ermiso denegado", "o encontrada"),
    *("signal", "deadlock", "NVRM: ", " is full"),
)

# What stands before a message: time stamps, `[rank]`, `host:pid`, `program[pid]:`, a file's line.
_PREFIX = re.compile(
    r"(?:\[[^\]]{1,80}\]:?\s+|\[[^\]]{1,80}\]:|\d{4}-\d\d-\d\d[T ][\d:.,]+(?:Z|[+-][\d:]+)?:?\s+"
    r"|\d{4}-\d\d-\d\d\s+|\w{3} +\d+ [\d:]{8} (?:[\w.-]+ )?|[\d:]{8}(?:[.,]\d+)?:?\s+"
    r"|[\w.@/+-]+\[\d+\]:\s+|[\w.-]+:\d+(?::\d+)*:?\s+|\|\s+|[\w.-]+: (?=[\w.-]+: ))*"
)
# A level below an error.
_MILD = re.compile(
    r"(?<![=\w-])(?:WARN(?:ING)?|INFO|DEBUG|TRACE|NOTICE|NOTE|VERBOSE)\b|\b(?:\w*[Ww]arning|[Ww]arn"
    r"|note|info|debug\d?|hint)\s*[:\]]|: [WID] |^\[?[WID]\d{4} |^\[[WID] "
)
# Words by which a program says that it goes on, and that it only tries something.
_GOES_ON = re.compile(
    r"\b[Rr]etry|\bwill try|\b[Ii]gnor|\b[Ss]kip|\b[Ff]all(?:ing)?[ -]?back|\b[Dd]eprecat"
    r"|\bnot (?:an error|fatal)|\bnon-fatal|\bharmless|\boptional"
)
# Words by which it says that it does the same again.
_AGAIN = re.compile(
    r"(?<![Pp]lease )\b(?:[Rr]etry(?:ing)?\b(?! (?:limit|count|later|exceeded|failed))|will try\b"
    r"|[Tt]rying again\b|[Aa]ttempt \d+ ?(?:of|/) ?\d+)"
)
# The same of what it leaves out: one file of many.
_LEFT_OUT = re.compile(r"[,;:(] ?(?:skipp|ignor)(?:ed|ing)\b")
_TRIES = re.compile(r"^(?:-- |checking |Performing |Looking for )|^\[ *\d+(?:%|/\d+)\] ")
# A kernel prints errors of firmware and of devices at every start.
_KERNEL = re.compile(r"^(?:.* kernel: )?\[ *\d+\.\d+\] |^.* kernel: ")
# Words of advice and of guesses, as in "this is usually caused by".
_ADVICE = re.compile(
    r"\b(?:usually|possibl[ye]|probably|likely|may (?:be|have)|might (?:be|have)|typically|e\.g\."
    r"|for example|please|Please|in case|if you)\b"
)
# Counts of nothing, words that only name errors, and headings of what follows.
_NOTHING = re.compile(
    r"(?<![\d.])(?<!replica )(?<!rank )(?<!node )(?<!worker )(?<!process )(?<!task )(?<!GPU )"
    r"\b(?:0|no|No|without|zero) (?:\w+ )?(?:[Ee]rrors?|failures?|failed|exceptions?)\b"
    # "failed cells: 0", and not "failed on node: 0".
    r"|\b(?:[Ee]rrors?|[Ff]ailures?|[Ff]ailed) (?![\w ()-]*\b(?:to|on|in|at|of|with|for|from|by"
    r"|after|rank|node|task|step|code|errno)\b)[\w ()-]{1,40}[:=]\s*0\s*$"
    r"|(?<![Nn]ot )\b(?:all|then|finally|later) (?:of them )?(?:succeeded|passed|recovered)\b"
    r"|\b(?:errors?|failures?|failed|timeouts?)[\"']?\s*[:=]\s*(?:0\b|\[\]|[Nn]one|[Ff]alse|\"\")"
    # A figure that is named error, and nothing after it: "Error: 10.0.0.5 refused" is a failure.
    r"|\b[Tt]op-?\d+[ _-][Ee]rr"
    r"|\b[Ee]rror(?: (?:norm|estimate|bound|margin|tolerance))? *[:=]?"
    r" *[-+]?\d+(?:\.\d+(?:[eEdD][-+]?\d+)?|[eE][-+]?\d+)"
    r"(?: ?(?:%|[a-zA-Z]{1,2}))?\s*(?:[,;)|]|$|on \d+ degrees)"
    r"|\b(?:ERRORS?|FAILED|FAILURES?): *0 *$"
    r"|\b(?:residual|max(?:imum)?|min|relative|rel|abs(?:olute)?|truncation|mean|average|avg|final"
    r"|squared|rounding|reconstruction|interpolation) [Ee]rror *[:=]? *[-+]?\d"
    r"|\berror (?:rate|bars?)\b|^\d+ root error\(s\) found|^(?:Last )?[Ee]rrors?:$"
    r"|^\d+ (?:errors?|failures?) found in [\w ]+:$"
    r"|End of error message|^Signal: |^:::MLLOG |\bPASSED\b"
)
_NAME = (
    r"\.?(?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*|)(?:Error|Exception|Failure|Fault|[a-z]NotFound|[a-z]Expired"
    r"|[a-z]Exceeded|[a-z]Denied|[a-z]Refused|[a-z]Unavailable|[a-z]Invalid)"
)
_FAILING = re.compile(
    # SomethingError: text | std::runtime_error is `what()` below
    rf"(?:Uncaught )?{_NAME}(?: ?:\s|:?$| ?\()"
    # torch._dynamo.exc.Unsupported: text | pynvml.NVMLError_GpuIsLost: text
    r"|(?:[a-z_]\w*\.)*(?:\w*exc|errors|exceptions)\.(?:\w+\.)*[A-Z]\w*:\s"
    r"|(?:[a-z_]\w*\.)*[A-Z]\w*Error_\w+:\s"
    # Ruby's `file.rb:15:in `call': text (Some::Error)`; a level in a line of JSON.
    r"|.*\.rb:\d+:in .{1,80}: .*\((?:\w+::)*\w+\)$"
    r'|.*"(?:level|severity|levelname)": ?"(?:ERROR|FATAL|CRITICAL|error|fatal)"'
    # error: text | fatal: text | ERROR 5: text | E: text | program: file:12: fatal error: text
    r"|(?:[\w./+<>-]+:\s?(?:\d+:\s?)*){0,3}(?:[Ff]atal(?: [Ee]rror)?|FATAL(?: ERROR)?|[Pp]anic"
    r"|PANIC|CRITICAL|SEVERE|[Ee]rror|ERROR|ERR|E)(?: ?\(\w+\)| ?\[\w+\]| \d+)?(?::|!|\s-)\s*\S"
    r"|(?:FATAL|CRITICAL|SEVERE|ERROR)\b"
    r"|.*\b(?:what\(\):  |Check failed: |CUDA initialization: |Status Code: [45]\d\d\b"
    r"|with link time reference$)"
    r"|.*(?:\bAssertion\b.*\bfailed\b|\b[Aa]n error occurred\b|\[error\]|(?<![\w-])error=\S)"
    # Rust, Java, Go's logrus, curl, CloudFormation.
    r"|thread '.*' panicked at |Exception in thread |(?:ERRO|FATA)\[|curl: \(\d+\) "
    r"|.*\blevel=(?:error|fatal|panic)\b|.*\b(?:CREATE|UPDATE|DELETE|ROLLBACK)_FAILED\b"
    # A shell's words for a signal.
    r"|(?:.*: line \d+: +\d+ )?(?:Bus error|Segmentation fault|Killed|Aborted|Illegal instruction"
    r"|Floating point exception|Terminated|Hangup|User defined signal [12]|Alarm clock)"
    r"(?: +\(core dumped\).*|\s*$|: \d+)"
    r"|.*\bcore dumped\b|.*\(Speicherabzug geschrieben\)|Speicherzugriffsfehler"
    r"|(?:Erreur de segmentation|Viola..o de segmento|Falha de segmenta|Errore di segmentazione"
    r"|\u6bb5\u9519\u8bef)"
    # A shell's `set -u`, and what Ansible counts at the end.
    r"|.*: (?:line )?\d+: .{1,200}: (?:unbound variable|parameter (?:null or )?not set)$"
    r"|.*\bok=\d+ .*\b(?:unreachable|failed)=[1-9]"
    # The text is on the next line.
    r"|(?:[Ff]atal [Ee]rror|FATAL ERROR|Fatal|FATAL):$"
    r"|(?:FEHLER|Fehler|ERREUR|Erreur|ERRORE|Errore|\u30a8\u30e9\u30fc|\u9519\u8bef|\uc624\ub958"
    r"|\u041e\u0448\u0438\u0431\u043a\u0430) ?[:\uff1a]"
    r"|SystemExit: (?!0$|None$)\S"
    r"|\*\*\* .*(?:[Ee]rror|[Aa]bort|[Ff]ail|[Cc]rash|detected|signal)"
    r"|(?:FAILED|FAIL|Failed)(?::| \()"
)
# A level word of a logging library behind a time stamp: `… [main] ERROR module - text`.
_LEVEL = re.compile(r"^.{0,60}?(?:\s|\[|\||:)(?:ERROR|FATAL|CRITICAL|SEVERE)(?:\s|\]|\||:)")
# `F` of glog and TensorFlow, which ends the process; the kernel's and its drivers' surest words.
_GLOG = re.compile(r": F \S+\.cc:\d+\]|^F\d{4} [\d:.]+ |\boom-kill|\bOOMKilled\b|NVRM: Xid ")
# strerror's text at the end, with its number.
_ERRNO = re.compile(r": [A-Z][\w/ ]+ \((?:errno:? ?)?\d{1,3}\)\.?$|: -\d+ \([A-Z][\w/ ]+\)")
_END = re.compile(
    r"^g?make(?:\[\d+\])?: \*\*\* "
    r"|\b(?:exit(?:ed|ing)?|returned|ended|terminated|failed|finished|quit)\b[^.]{0,60}?"
    r"\b(?:code|status|value)s?\b(?: of| is|:)?[ =]*\(?-?(?!0+\b)\d+"
    r"|\b(?i:exit|return|error)[ _-]?(?i:code|status)s?\b(?: of| is|:)?[ =]*\(?-?(?!0+\b)\d+"
    r"|\bnon-?zero (?:exit )?(?:status|code)|\bexit(?:ed)? (?!0\b)\d+$|\(code (?!0\b)\d+\)"
    r"|\b(?:killed|terminated|died|ended|exited|crashed) (?:by|with|on|due to) (?:a )?signal\b"
    r"|\b[Cc]aught signal \d|\bcollective abort\b"
    r"|\b(?:rc|RC|returncode|retcode) ?[:=] ?-?(?!0\b)\d+$|\bstatus=\d+/(?!SUCCESS|OK)[A-Z]"
    r"|\bcode (?!0\b|2\d\d\b|3\d\d\b)\d{1,3}[.;,]?$|^(?:ERROR )?STOP (?!0\b)\d+$"
)
_END_WORDS = (
    *(
        "STOP",
        "rc",
        "RC",
        "code",
        "Code",
        "CODE",
        "status",
        "exit",
        "Exit",
        "***",
        "value",
        "non",
        "signal",
        "abort",
    ),
)
_LEVELS = ("ERROR", "FATAL", "CRITICAL", "SEVERE")
# A word in the name of a file, of an option or of a resource is none of a failure: `error.log`,
# `failed/a.txt`, `failed-jobs`, `--max-failed=3`. `state=failed` and `job-failed` are.
_NO_NAME, _NO_NAME_AFTER = r"(?<![\w/])(?<!\w\.)", r"(?!\w|-\w|/\w|=|\.[a-z]\w{0,7}\b)"
_DOUBTFUL = re.compile(
    rf"{_NO_NAME}[Ff]ail(?:ed|s|ure){_NO_NAME_AFTER}|\b[1-9]\d* (?:failures|errors)\b"
    r"|(?<![\w/-])(?:[Ee]rrors|[Ff]ailures|[Ff]ailed)\s*[:=]\s*[1-9]\d*\b(?!\.\d)"
    r"|\b(?:NOT|not|n't) (?:achieved|converged?)\b|\bFAILED\b|\b[Uu]nable to \w"
    r"|\b[Cc](?:annot|an't|an not)\s\w|\b[Cc]ould(?: not|n't)\s\w|\bnot found\b"
    r"|\b[Nn]o such \w|\b[Dd]enied\b|\brefused\b"
    r"|\btimed out\b|\b[Ii]nvalid \w|\b[Uu]nrecogni[sz]ed \w|\b[Uu]nknown (?:option|argument"
    r"|command|host|symbol|error)|\b(?:not|un) ?supported\b|\b[Aa]bort(?:ed|ing)\b"
    r"|\b[Mm]ismatch\b|\berrno\b|\bnot permitted\b|\bunreachable\b|\b[Bb]roken pipe\b"
    r"|\breset by peer\b|\b[Ii]nput/output error\b|\b[Tt]oo many \w|\b[Nn]o space left\b"
    rf"|{_NO_NAME}(?<!-)[Ee]rror{_NO_NAME_AFTER}"
    r"|\b[Gg]iving up\b|\bNaN (?:detected|found|encountered|loss|value)|[Ll]oss\b.{0,9}[ :=]nan\b"
    r"|\b[Nn]icht gefunden\b|\b[Kk]eine Berechtigung\b|\b[Aa]ucun fichier\b|\bintrouvable\b"
    r"|\b[Pp]ermission non \w|\b[Nn]o existe\b|\b[Pp]ermiso denegado\b|\b[Nn]o encontrada\b"
    r"|\bnot respond(?:ing)?\b|\b[Uu]nresponsive\b|\bcancelled\b"
    r"|\bmark(?:ed|ing) (?:\w+ ){0,2}(?:down|dead|failed|unhealthy)\b|\bnot exist\b|\b[Cc]orrupt"
    r"|\bexceeded\b|\b[Rr]ejected\b|\b[Cc]rashed\b|\bnot enough\b|\b[Ii]nsufficient\b"
    r"|\btoo (?:old|long|large|big|small|short|few|new|open)\b|\bnot (?:match|valid|reachable)\b"
    r"|\b[Ii]naccessible\b|\b[Oo]ut of (?:memory|range)\b|\bOOM\b|\b[Ee]xpired\b|\b[Ff]ault\b"
    r"|\b[Uu]ndefined symbol\b|\btimeout\b|\bproblem (?:with|confirming)\b|\bproblem:|\bFatal\b"
    r"|\b(?:was not|No \S+ \w+ was) reachable\b|\bsignal SIG|\bdeath signal\b|NotMatch\b"
    r"|\b[Uu]nhandled\b|\bbusy\b|\b[Ee]xhausted\b|\bnot a supported\b|\bis neither\b"
    r"|\balready (?:be )?(?:loaded|in use|running)\b|\bresult in binding more\b"
    r"|\bAttempting to (?:use|access|call) .*\b(?:before|after|uninitialized)\b"
    r"|\bnot authori[sz]ed\b|\bnot recogni[sz]ed\b|\breported lower than configured\b"
    r"|\bdeadlock\b|\w is full\b|NVRM: .*\b(?:No|not)\b"
    r"|\bboth .{0,60}\bwere specified\b|\battempt to run as root\b"
    r"|\b[Nn]o (?:\w+ )?(?:devices?|GPUs?|adapters?) (?:were )?(?:found|available|detected)\b"
)
# `E` of glog and TensorFlow, which the library prints for things that it does without, too.
_ERROR_LEVEL = re.compile(r": E \S+\.cc:\d+\]|^E\d{4} [\d:.]+ |^\[E[\d ][^\]]*\.cpp:\d+\]")
_STACK_FRAME = re.compile(r"^\s+at \S.*[.](?:js|java|ts|mjs|cjs):\d+(?::\d+)?\)?$")
_PYTHON_FRAME = re.compile(r'\s*File "[^"]+", line \d+, in \S')
# Words of a program that got somewhere.
_PROGRESS = re.compile(
    r"\b(?:[Ss]uccess(?:ful(?:ly)?)?|[Cc]ompleted?|[Dd]one|[Ff]inished|passed|PASSED|[Rr]eady"
    r"|[Ee]poch|[Ss]teps?[ :/]|images?/s(?:ec)?|[Ll]istening|[Rr]unning|OK"
    r"|SUCCESS(?:FUL)?|(?:[Dd]own|[Uu]p)loaded|[Ww]rote \d+)\b"
)


# The last line of a program that did what it was to do.
_ENDED_WELL = re.compile(
    r"(?!.*(?i:error|fail|abort|exception|kill|warn|0 of))(?:.*\b(?:[Tt]raining|[Ee]valuation"
    r"|[Jj]ob|[Rr]un|[Pp]rogram|[Tt]ests?|All)\b.{0,40}\b(?:completed?|finished|done|succeeded)\b"
    r"|.*\b[Ss]uccessfully (?:completed|finished)\b|.*\bcompleted successfully\b"
    r"|.*\bexit(?:ed)? (?:with )?(?:code|status) 0\b)"
)


def kind_of(line: str, below: str = "") -> LineKind | None:
    """Return what a line without tags says about a failure, or None if it says nothing.

    `below` is the line after it, which may say that the program tries again.
    """
    text = line.strip()
    message = message_of(text)
    kind = _form(text, message)
    if kind is None or below.strip() == "...ignoring":
        return None
    if _NOTHING.search(message) and not _COUNTED.search(message):
        return None
    if kind is LineKind.DOUBTFUL and (_DEPRECATES.search(text) or _is_table(message, below)):
        return None
    if kind is LineKind.FAILING and _KERNEL.match(text):
        kind = LineKind.DOUBTFUL
    if kind is LineKind.COMPLAINT:
        return kind
    if kind is LineKind.FAILING and (_LEFT_OUT.search(message) or tries_again(below)):
        kind = LineKind.DOUBTFUL
    if _TRIES.search(text) or (kind is LineKind.DOUBTFUL and _is_advice(message)):
        return None
    is_mild = _MILD.search(text) or (kind is not LineKind.FAILING and _GOES_ON.search(text))
    return LineKind.REMARK if is_mild else kind


# Counts of failures, which beside counts of nothing are failures all the same.
_COUNTED = re.compile(
    r"(?<![\w/-])(?:unreachable|[Ff]ailed|[Ee]rrors|[Ff]ailures)\s*[:=]\s*[1-9]\d*\b(?!\.\d)"
    r"|(?:^|[,;:(|=] *)[1-9]\d* (?:errors?|failures?|failed)\b"
)
# What a later version will do without.
_DEPRECATES = re.compile(r"\bnpm (?:warn|WARN) deprecated |\b(?:Future|\w*Deprecation)Warning: ")
# A row of a table: a name and at least three figures.
_FIGURE = r"[-+]?\d[\d.,]*(?:[eE][-+]?\d+)?(?:%|[a-z]{1,2})?"
_ROW = re.compile(rf"[\w -]{{1,40}}?(?:\s*[|\s]\s*{_FIGURE}){{3,}}\s*$")
_HEAD = re.compile(r"\w+(?:,\w+){2,}$")
# Words of a sentence, which no head of columns has: "could not reach these", and the nodes below.
_SENTENCE = re.compile(
    r"(?i)\b(?:not?|cannot|unable|too|to|was|were|is|are|has|have|these|this|of|in|on|at|for|by)\b|n't"
)


def _is_table(message: str, below: str) -> bool:
    """Return whether a line is a row of figures, or the head of columns of which a row follows.

    Without a fraction or a column's line, figures may be what failed: "nodes unreachable 4 5 6".
    """
    if _HEAD.match(message):
        return True
    if _SENTENCE.search(message):
        return False
    if _ROW.match(message):
        return "|" in message or bool(re.search(r"\d\.\d", message))
    words, row = message.split(), below.split() if "." in below else []
    figures = sum(bool(re.fullmatch(_FIGURE, one)) for one in row)
    is_row = figures >= 2 and 2 * figures >= len(row)
    return is_row and figures <= len(words) <= 3 * figures and ":" not in message


def message_of(text: str) -> str:
    """Return a line without the time stamps and names that stand before its message."""
    prefix = _PREFIX.match(text)
    return text[prefix.end() :] if prefix else text


def _is_advice(message: str) -> bool:
    """Return whether each sentence that something did not work gives advice or guesses."""
    said = [one for one in re.split(r"(?<=[.!?])\s+", message) if _DOUBTFUL.search(one)]
    return bool(_ADVICE.search(message)) and all(_ADVICE.search(one) for one in said)


def _form(text: str, message: str) -> LineKind | None:
    """Return the form of a line, whose `message` is its text without time stamps and the like."""
    # The test for a word takes a tenth of a search's time.
    if any(word in text for word in _END_WORDS) and _END.search(text):
        return LineKind.END
    if "NCCL WARN" in text or "UCX  ERROR" in text:
        return LineKind.COMPLAINT
    if (
        _FAILING.match(message)
        or _FAILING.match(text)
        or (any(word in text for word in _LEVELS) and _LEVEL.search(text))
        or (text.endswith((")", ").")) and _ERRNO.search(message))
        or _GLOG.search(text)
    ):
        return LineKind.FAILING
    return LineKind.DOUBTFUL if _DOUBTFUL.search(message) or _ERROR_LEVEL.search(text) else None


# What a message names: in quotes, an address, a path, a host with its port.
_OBJECT = re.compile(
    r"""(?<!\w)["'`‘“](?P<object>[^"'`’”\n]{2,120})["'`’”](?! ?:)"""
    r"|(?P<object2>[a-z]\w+://[^\s,;)]+)|(?P<object3>(?<![\w.)<])~?/[\w@.+=/-]{2,}\w)"
    r"|(?<![\w:.])(?P<object4>(?:[a-zA-Z][\w-]*(?:\.[\w-]+)*(?<!\.cc|\.py|\.go|\.cu)(?<!\.cpp)"
    r"(?<!\.[chf])|\d+\.\d+\.\d+\.\d+|\[[\da-f:]+\]):\d{2,5}\b(?![:.\d]))"
)


def object_of(message: str) -> dict[str, str]:
    """Return `object`, the first thing that a message names, if it names one."""
    found = _OBJECT.search(message)
    return {"object": next(filter(None, found.groups()))} if found else {}


# Lines that report only that something else failed.
_WRAPPER = re.compile(
    r"CalledProcessError|returned non-?zero|ChildFailedError|RayTaskError|Exception in thread"
    r"|Error walking|\b400 Bad Request|Unexpected error while running command|^\s*raise \w"
    r"|\"(?:level|severity|levelname)\": ?\"\w+\",?$|could not be loaded|^FAILED \("
    r"|Exception while "
)


def is_wrapper(line: str) -> bool:
    """Return whether a line reports only that something else failed."""
    return bool(_WRAPPER.search(line)) or line.rstrip().endswith((":", "failed", ","))


def is_frame(line: str) -> bool:
    """Return whether a line is a frame of a stack of JavaScript or Java."""
    return bool(_STACK_FRAME.match(line))


def is_python_frame(line: str) -> bool:
    """Return whether a line is a frame of a Python traceback."""
    return bool(_PYTHON_FRAME.match(line))


def tries_again(line: str) -> bool:
    """Return whether a line says that its program does again what did not work."""
    return bool(_AGAIN.search(line))


def goes_on(lines: list[str]) -> bool:
    """Return whether one of the lines says that a program got somewhere."""
    return any(_PROGRESS.search(line) and not kind_of(line) for line in lines)


def ended_well(lines: list[str]) -> bool:
    """Return whether the last line says that its program did what it was to do."""
    last = next((line for line in reversed(lines) if line.strip()), "")
    return bool(_ENDED_WELL.match(last)) and not kind_of(last)
