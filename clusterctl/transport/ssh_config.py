"""The file format ssh_config: parsing, and the settings that apply to a host.

This is OpenSSH's meaning of the file, which paramiko's SSHConfig does not have: it knows no
Include, matches other patterns and expands other tokens. tests/transport/test_ssh_config.py
compares it with `ssh -G` on generated files.
"""

from __future__ import annotations

import functools
import getpass
import glob
import os
import pwd
import re
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from clusterctl.domain.errors import UsageError

# Depth of nested Include lines, as in OpenSSH.
MOST_INCLUDES = 16
DEFAULT_PORT = "22"
# Keywords whose value is the rest of the line, of which quotes are a part.
_WHOLE_LINE = frozenset({"proxycommand", "proxyjump"})
# Keywords with any number of words.
_LISTS = frozenset(
    {
        "userknownhostsfile",
        "globalknownhostsfile",
        "canonicaldomains",
        "canonicalizepermittedcnames",
    }
)
_YES_OR_NO = frozenset({"identitiesonly", "proxyusefdpass", "canonicalizefallbacklocal"})
_ONE_WORD = _YES_OR_NO | {
    *("hostname", "user", "port", "hostkeyalias", "identityfile", "identityagent"),
    *("canonicalizehostname", "canonicalizemaxdots"),
}
_KEYWORD = re.compile(
    r'[ \t\r\n]*([^ \t\r\n"=#]+)(?:[ \t\r\n]*=[ \t\r\n]*|[ \t\r\n]+)(.*)', re.DOTALL
)
_TRUTH = {"yes": True, "true": True, "no": False, "false": False}
# Criteria of a Match line that have no value.
_WITHOUT_VALUE = frozenset({"all", "final", "canonical"})
# The tokens of `Match exec` and of most settings, and those of ProxyCommand and ProxyJump.
TOKENS, PROXY_TOKENS = frozenset("Ldhiklnpru"), frozenset("hknpr")


class _Setting(NamedTuple):
    keyword: str
    words: tuple[str, ...]


class _Include(NamedTuple):
    files: tuple[Sequence[_Section], ...]


class _Host(NamedTuple):
    patterns: tuple[str, ...]


class _Match(NamedTuple):
    """A Match line: criteria, each with whether it is negated and its value."""

    criteria: tuple[tuple[bool, str, str], ...]
    place: str


class _Section(NamedTuple):
    """A Host or Match line and the lines that follow it; None for the lines before the first."""

    condition: _Host | _Match | None
    entries: list[_Setting | _Include]


@dataclass
class HostSettings:
    """The settings of one host, before tokens, variables and ~ are expanded.

    `host` is the name that was given and `address` the one to connect to. `values` has the words of
    each keyword (in lower case) that the file sets; IdentityFile has one word for each file.
    """

    host: str
    address: str
    values: dict[str, list[str]] = field(default_factory=dict)

    def get(self, keyword: str, default: str = "") -> str:
        """Return the first word of a keyword."""
        return self.values.get(keyword, [default])[0]

    def is_set(self, keyword: str, default: str = "no") -> bool:
        """Return whether a keyword that is yes or no is yes."""
        return _TRUTH[self.get(keyword, default).lower()]

    @property
    def user(self) -> str:
        return self.get("user") or local_user()

    @property
    def port(self) -> int:
        return int(self.get("port", DEFAULT_PORT))

    def expand(
        self, text: str, what: str, tokens: frozenset[str] = TOKENS, variables: bool = False
    ) -> str:
        """Return the text with its %-tokens replaced, and with `variables` its `${NAME}`.

        Raises UsageError, which names `what`, for another token and for an unset variable.
        """

        def replaced(found: re.Match[str]) -> str:
            token, name = found.groups()
            if name is not None:
                if name in os.environ:
                    return os.environ[name]
                raise UsageError(f"{what} of {self.host}: the variable {name} is not set")
            if token == "%":
                return "%"
            if token not in tokens:
                raise UsageError(f"{what} of {self.host}: the token %{token} is not supported")
            return self._tokens[token]()

        pattern = r"%(.?)|\$\{([^}]*)\}" if variables else r"%(.?)|(?!)(.)"
        return re.sub(pattern, replaced, text, flags=re.DOTALL)

    @functools.cached_property
    def _tokens(self) -> Mapping[str, Callable[[], str]]:
        return {
            "L": lambda: socket.gethostname().partition(".")[0],
            "d": home,
            "h": lambda: self.address,
            "i": lambda: str(os.getuid()),
            "k": lambda: self.get("hostkeyalias", self.host),
            "l": socket.gethostname,
            "n": lambda: self.host,
            "p": lambda: self.get("port", DEFAULT_PORT),
            "r": lambda: self.user,
            "u": local_user,
        }


@functools.lru_cache
def local_user() -> str:
    """Return the name of the user who runs this program."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return getpass.getuser()


def home() -> str:
    """Return the home folder of the user who runs this program, without a slash at its end."""
    return str(Path.home())


def expand_home(text: str) -> str:
    """Return a path with a ~ or ~USER at its beginning replaced."""
    return os.path.expanduser(text)  # noqa: PTH111  # Path would drop a double slash


class SshConfig:
    """Some ssh_config files, parsed."""

    def __init__(self) -> None:
        self._sections: list[Sequence[_Section]] = []

    def read(self, path: Path, includes: Path) -> None:
        """Read one more file, which applies after those read before. A missing one is ignored.

        Relative names of Include are in the folder `includes`. Raises UsageError.
        """
        if path.exists():
            self._sections.append(_Reader(includes).read(path))

    def names(self) -> Iterator[str]:
        """Yield the names of Host lines that are no patterns."""
        for section in _all_sections(self._sections):
            if isinstance(section.condition, _Host):
                yield from (one for one in section.condition.patterns if not {*"*?!"} & {*one})

    def lookup(self, host: str, user: str | None = None, port: int | None = None) -> HostSettings:
        """Return the settings of `ssh [-l USER] [-p PORT] HOST`. Raise UsageError.

        The commands of `Match exec` are run.
        """
        settings = HostSettings(host, host)
        if user:
            settings.values["user"] = [user]
        if port:
            settings.values["port"] = [str(port)]
        first = _Pass(settings, host)
        for sections in self._sections:
            first.apply(sections)
        _check(settings)
        if "hostname" in settings.values:
            settings.address = settings.expand(settings.get("hostname"), "HostName", frozenset("h"))
        settings.address = _canonical(settings)
        if first.wants_final or settings.get("canonicalizehostname", "no").lower() != "no":
            settings.values["hostname"] = [settings.address]
            final = _Pass(settings, settings.address, is_final=True)
            for sections in self._sections:
                final.apply(sections)
            _check(settings)
        return settings


class _Reader:
    """Reads files with their Include files."""

    def __init__(self, includes: Path) -> None:
        self._includes = includes

    def read(self, path: Path, depth: int = 0) -> list[_Section]:
        if depth > MOST_INCLUDES:
            raise UsageError(f"{path}: more than {MOST_INCLUDES} nested Include lines")
        try:
            text = path.read_bytes().decode(errors="surrogateescape")
        except (FileNotFoundError, IsADirectoryError):
            return []  # a pattern of Include may match a folder, or a link to nothing
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}") from None
        sections = [_Section(None, [])]
        for number, line in enumerate(text.split("\n"), 1):
            matched = _KEYWORD.fullmatch(line.rstrip(" \t\r\n\f"))
            keyword = matched[1].lower() if matched else line.strip(" \t\r\f").lower()
            place = f"{path} line {number}"
            entry = self._parse(keyword, matched[2] if matched else "", place, depth)
            if isinstance(entry, (_Host, _Match)):
                sections.append(_Section(entry, []))
            elif entry:
                sections[-1].entries.append(entry)
        return sections

    def _parse(
        self, keyword: str, rest: str, place: str, depth: int
    ) -> _Setting | _Include | _Host | _Match | None:
        known = _WHOLE_LINE | _LISTS | _ONE_WORD | {"host", "match", "include"}
        if keyword not in known:  # also a comment and an empty line
            return None
        words = split_words(rest, place)
        if not words or "" in words:
            raise UsageError(f"{place}: {keyword} has no argument or an empty one")
        if keyword == "host":
            return _Host(tuple(words))
        if keyword == "match":
            return _parse_match(words, place)
        if keyword == "include":
            names = [self._includes / expand_home(word) for word in words]
            found = [name for pattern in names for name in sorted(glob.glob(str(pattern)))]  # noqa: PTH207
            return _Include(tuple(self.read(Path(name), depth + 1) for name in found))
        if keyword in _WHOLE_LINE:
            words = [rest.lstrip(" \t\r\n=")]
        elif keyword in _ONE_WORD and len(words) > 1:
            raise UsageError(f"{place}: {keyword} has extra arguments at the end of the line")
        if keyword in _YES_OR_NO and words[0].lower() not in _TRUTH:
            raise UsageError(f"{place}: {keyword} must be yes or no, not {words[0]}")
        if keyword == "port":
            words = [_port(words[0], place)]
        return _Setting(keyword, tuple(words))


class _Unsupported(UsageError):
    """Of a criterion of Match it is not known whether it holds."""


class _Pass:
    """One reading of the settings of a host. A value that is set already stays.

    `name` is what Host patterns are compared with. OpenSSH reads the files a second time, with
    `is_final`, if a `Match final` line or CanonicalizeHostname requires it.
    """

    def __init__(self, settings: HostSettings, name: str, is_final: bool = False) -> None:
        self._settings = settings
        self._name = name
        self._is_final = is_final
        self.wants_final = False

    def apply(self, sections: Sequence[_Section], active: bool = True, never: bool = False) -> None:
        """Take the settings of a file's sections that apply to the host.

        `active` is whether the lines before the first Host or Match apply. With `never`, the file
        is included by a section that does not apply, so that none of its own sections can apply.
        """
        for section in sections:
            if section.condition is not None:
                try:
                    active = self._matches(section.condition, never) and not never
                except _Unsupported:
                    if self._may_change(section):
                        raise
                    active = False
            for entry in section.entries:
                if isinstance(entry, _Include):
                    for included in entry.files:
                        self.apply(included, active, never or not active)
                elif active:
                    self._set(entry)

    def _may_change(self, section: _Section) -> bool:
        """Return whether a section would set anything that is not set already."""
        values = self._settings.values
        return any(
            isinstance(one, _Include)
            or one.keyword not in values
            or (one.keyword == "identityfile" and not {*one.words} <= {*values[one.keyword]})
            for one in section.entries
        )

    def _set(self, setting: _Setting) -> None:
        values, keyword = self._settings.values, setting.keyword
        if keyword == "identityfile":
            files = values.setdefault(keyword, [])
            files += [word for word in setting.words if word not in files]
        elif keyword == "proxyjump":
            if "proxyjump" in values or "proxycommand" in values:
                return
            jump = setting.words[0].partition("#")[0].rstrip()
            values[keyword] = [jump]
            if jump.lower() != "none":
                # A later ProxyCommand does not count.
                values["proxycommand"] = ["none"]
        else:
            values.setdefault(keyword, list(setting.words))

    def _matches(self, condition: _Host | _Match, never: bool) -> bool:
        if isinstance(condition, _Host):
            return _matches_any(self._name, condition.patterns)
        holds = not never
        for negated, criterion, value in condition.criteria:
            if criterion == "final" and not negated:
                self.wants_final = True
            # An `exec` after a criterion that is false is not run.
            holds = holds and self._holds(criterion, value, condition.place) != negated
        return holds

    def _holds(self, criterion: str, value: str, place: str) -> bool:
        settings = self._settings
        if criterion in ("final", "canonical"):
            return self._is_final
        if criterion == "all":
            return True
        if criterion == "originalhost":
            return matches_list(settings.host.lower(), value.lower())
        if criterion == "user":
            return matches_list(settings.user, value)
        if criterion == "localuser":
            return matches_list(local_user(), value)
        # HostName may have been set by now.
        name = settings.address
        if "hostname" in settings.values and not self._is_final:
            name = settings.expand(settings.get("hostname"), f"{place}: HostName", frozenset("h"))
        if criterion == "host":
            return matches_list(name.lower(), value.lower())
        if criterion == "exec":
            known = HostSettings(settings.host, name, settings.values)
            return _succeeds(known.expand(value, f"{place}: Match exec"), place)
        raise _Unsupported(
            f"{place}: Match {criterion} is not supported",
            "set all that it sets in a Host block of the host before it, or use Match host, user "
            "or exec",
        )


def _parse_match(words: list[str], place: str) -> _Match:
    """Return a Match line. Raise UsageError for a criterion without a value."""
    criteria = []
    rest = iter(words)
    for word in rest:
        name, _, value = word.partition("=")
        criterion = name.lower().removeprefix("!")
        if criterion not in _WITHOUT_VALUE and not value:
            value = next(rest, "")
            if not value or value.startswith("#"):
                raise UsageError(f"{place}: Match {criterion} has no value")
        criteria.append((name.startswith("!"), criterion, value))
    if any(criterion == "all" for _, criterion, _ in criteria[:-1]) or (
        criteria[-1][1] == "all" and len(criteria) > 2
    ):
        raise UsageError(f"{place}: `all` cannot be combined with other criteria of Match")
    return _Match(tuple(criteria), place)


def split_words(text: str, place: str) -> list[str]:
    """Split the arguments of a line as OpenSSH does: quotes of both kinds, `\\`, and comments.

    Raises UsageError, which names the `place`, for a quote without an end.
    """
    words: list[str] = []
    position = 0
    while position < len(text):
        if text[position] in " \t":
            position += 1
            continue
        if text[position] == "#":
            break
        word, quote = "", ""
        while position < len(text):
            char, following = text[position], text[position + 1 : position + 2]
            if (
                char == "\\"
                and following
                and (following in "'\"\\" or (following == " " and not quote))
            ):
                word += following
                position += 1
            elif not quote and char in " \t":
                break
            elif not quote and char in "'\"":
                quote = char
            elif char == quote:
                quote = ""
            else:
                word += char
            position += 1
        if quote:
            raise UsageError(f"{place}: a quote has no end")
        words.append(word)
    return words


@functools.lru_cache(maxsize=4096)
def _pattern(text: str) -> re.Pattern[str]:
    parts = {"*": ".*", "?": "."}
    return re.compile("".join(parts.get(char) or re.escape(char) for char in text), re.DOTALL)


def _fits(name: str, pattern: str) -> bool:
    """Return whether a name matches a pattern with `*` and `?`."""
    if "*" not in pattern and "?" not in pattern:
        return name == pattern
    return _pattern(pattern).fullmatch(name) is not None


def matches_list(name: str, patterns: str) -> bool:
    """Return whether a name matches a list of patterns, `PATTERN,!PATTERN,…`.

    A negated pattern that matches excludes the name.
    """
    return _matches_any(name, patterns.split(","))


def _matches_any(name: str, patterns: Sequence[str]) -> bool:
    found = False
    for pattern in patterns:
        if pattern.startswith("!"):
            if _fits(name, pattern[1:]):
                return False
        else:
            found = found or _fits(name, pattern)
    return found


def _all_sections(files: Sequence[Sequence[_Section]]) -> Iterator[_Section]:
    for sections in files:
        for section in sections:
            yield section
            for entry in section.entries:
                if isinstance(entry, _Include):
                    yield from _all_sections(entry.files)


def _port(text: str, place: str) -> str:
    try:
        port = int(text) if text.isdecimal() else socket.getservbyname(text, "tcp")
    except OSError:
        port = 0
    if not 0 < port < 1 << 16:
        raise UsageError(f"{place}: {text} is not a port")
    return str(port)


def user_shell() -> str:
    """Return the shell that runs the commands of ssh_config, as in OpenSSH."""
    return os.environ.get("SHELL") or "/bin/sh"


def _succeeds(command: str, place: str) -> bool:
    try:
        ended = subprocess.run(
            [user_shell(), "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            check=False,
        )
    except OSError as error:
        raise UsageError(f"{place}: cannot run {user_shell()}: {error.strerror}") from None
    return ended.returncode == 0


def _check(settings: HostSettings) -> None:
    """Raise UsageError for a setting that would choose the host's address in a way unknown here."""
    if settings.get("canonicalizepermittedcnames", "none").lower() != "none":
        raise UsageError(
            f"CanonicalizePermittedCNAMEs, which applies to {settings.host}, is not supported",
            "name the host in full in a HostName line",
        )


def _canonical(settings: HostSettings) -> str:
    """Return the host's canonical name: that of an IP address, and what CanonicalizeHostname gives.

    Raises UsageError.
    """
    try:
        # An address in another form, such as 127.1. No name server is queried.
        found = socket.getaddrinfo(settings.address, None, flags=socket.AI_NUMERICHOST)
        # With the scope of a link-local address, such as fe80::1%eth0.
        return socket.getnameinfo(found[0][4], socket.NI_NUMERICHOST)[0]
    except (OSError, UnicodeError):
        address = settings.address.lower()
    requested = settings.get("canonicalizehostname", "no").lower()
    proxied = any(
        settings.get(way, "none").lower() != "none" for way in ("proxycommand", "proxyjump")
    )
    if _TRUTH.get(requested) is False or (proxied and requested != "always"):
        return address
    if address.endswith("."):
        return address[:-1]
    if address.count(".") > int(settings.get("canonicalizemaxdots", "1")):
        return address
    for domain in settings.values.get("canonicaldomains", []):
        full = f"{address}.{domain}".rstrip(".").lower()
        try:
            socket.getaddrinfo(full, None)
        except OSError:
            continue
        return full
    if not settings.is_set("canonicalizefallbacklocal", "yes"):
        raise UsageError(f"{address} is in none of the CanonicalDomains of its ssh_config")
    return address
