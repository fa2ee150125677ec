"""Runs on a node: what a folder lacks of S3's objects comes by `s5cmd` or `aws`, whole files only.

The tool lists, and it fetches into a folder beside; here it is decided what is missing, and what
has come whole is given its name. So neither the tool's own comparison is trusted nor what it has
left behind when it was killed. The configuration, JSON that comes on stdin:

    {"sources": [{"bucket": B, "key_b64": K}], "names_b64": null | [...], "endpoint": null | URL,
     "region": null | R, "tool": "auto" | "s5cmd" | "aws",
     "credentials": null (the machine's) | "none" | {"access", "secret", "token"},
     "delete": false, "checksum": false, "dry_run": false}
"""

from __future__ import annotations

import base64
import calendar
import contextlib
import ctypes
import fcntl
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

STAGING = b".clusterctl-sync"
# Where transfers keep what is not whole yet: never names of a data set's.
OWN_FOLDERS = (b".clusterctl-copy", STAGING)
LONGEST_NAME, LONGEST_PATH = 255, 4000
MARGIN_BYTES = 64 << 20
CHANGED = "it has changed since it was listed"
# Warnings of one kind that are shown; the rest is counted.
SHOWN = 10
TICK_S = 0.25
# Between looks at whether what comes in parts is still what was listed, at the least.
CONFIRM_S = 10.0
# For aws: so many patterns make a command line of less than 2 MiB.
PATTERNS = 200
AT_ONCE = 16
TOOL_TIMEOUT_S = 20.0
SET_DEATH_SIGNAL = 1
_LIBC = ctypes.CDLL(None)
ARCHIVES = ("GLACIER", "DEEP_ARCHIVE")
# How each says its version, and which do: s5cmd before 2.1 writes to the file itself, aws 1 is four
# times slower.
TOOLS = {
    "s5cmd": ("version", r"v(2\.[1-9]|2\.\d\d|[3-9])"),
    "aws": ("--version", r"aws-cli/([2-9]|\d\d)"),
}
# What an installation of a user's own, and one that was sent, are in.
MORE_PATH = ("/usr/local/bin", "/snap/bin", "~/.local/bin", "~/.clusterctl/bin")


class SourceError(Exception):
    """It cannot go on: `why`, and what to do."""

    def __init__(self, why: str, hint: str = "") -> None:
        super().__init__(why)
        self.why, self.hint = why, hint


class Found(NamedTuple):
    """An object. `name` is its path below the destination; with a slash at its end, a folder."""

    name: bytes
    source: int
    key: bytes
    size: int
    mtime: int
    etag: str
    archived: bool


class Tree(NamedTuple):
    """What is to be there: files by their paths, folders; and how many objects are left out."""

    files: dict[bytes, Found]
    folders: set[bytes]
    warnings: list[str]
    left_out: int


class Progress:
    """How far it is. Files that were there already are in `present`; `listed`: all is known."""

    def __init__(self) -> None:
        self.how = ""
        self.source_files = self.source_bytes = 0
        self.total_files = self.total_bytes = 0
        self.files = self.bytes = 0
        self.present = self.left_out = self.delete = self.deleted = self.free = 0
        self.delete_names: list[str] = []
        self.warnings: list[str] = []
        self.writable = True
        self.listed = False
        self.path = ""

    def as_data(self) -> dict[str, Any]:
        return dict(vars(self))


# What is to be there


def tree_of(found: Sequence[Found]) -> Tree:
    """Of two files of one name the later source's is taken, as by one copy after the other."""
    left_out: dict[str, list[bytes]] = {}
    files: dict[bytes, Found] = {}
    folders: set[bytes] = set()
    for one in found:
        why = why_not(one)
        path = one.name.rstrip(b"/")
        if why:
            left_out.setdefault(why, []).append(one.name)
        elif one.name.endswith(b"/"):
            folders.add(path)
        else:
            if path in files:
                left_out.setdefault("a later source has it too", []).append(path)
            files[path] = one
    for path in files:
        parts = path.split(b"/")
        folders.update(b"/".join(parts[:n]) for n in range(1, len(parts)))
    for path in [path for path in files if path in folders]:
        left_out.setdefault("it is a file and a folder of others", []).append(path)
        del files[path]
    lines = []
    for why, names in left_out.items():
        lines += [f"left out {shown(name)}: {why}" for name in names[:SHOWN]]
        if len(names) > SHOWN:
            lines.append(f"left out {len(names) - SHOWN} more: {why}")
    return Tree(files, folders, lines, sum(map(len, left_out.values())))


def why_not(one: Found) -> str:
    """Why there can be no such file; empty if there can."""
    name = one.name[:-1] if one.name.endswith(b"/") else one.name
    parts = name.split(b"/")
    if one.name.endswith(b"/") and one.size:
        return "it has content, and the name of a folder"
    if any(part in (b"", b".", b"..") for part in parts) or b"\0" in name:
        return "it is no name that a file can have"
    if b"\n" in name:
        return "no tool is given names of more than one line"
    if parts[0] in OWN_FOLDERS:
        return "the name is that of a folder of clusterctl's own"
    if any(len(part) > LONGEST_NAME for part in parts) or len(name) > LONGEST_PATH:
        return "its name is too long for a file"
    return "it is archived: copy it to another storage class" if one.archived else ""


def below(source: int, key: bytes, listed: Sequence[Found]) -> list[Found]:
    """Of what begins with the key: the object of that name, or else what is below `KEY/`."""
    if key and not key.endswith(b"/"):
        for one in listed:
            if one.key == key:
                return [one._replace(name=key.rpartition(b"/")[2], source=source)]
        key += b"/"
    return [
        one._replace(name=one.key[len(key) :], source=source)
        for one in listed
        # The marker of the folder that was asked for has no name below it.
        if one.key.startswith(key) and one.key != key
    ]


def chosen(found: Sequence[Found], names: Sequence[bytes]) -> list[Found]:
    """What --files-from names, objects and folders. Raises SourceError for what is not there."""
    wanted = {name.strip(b"/"): False for name in names}
    taken = []
    for one in found:
        parts = one.name.rstrip(b"/").split(b"/")
        hits = {b"/".join(parts[:n]) for n in range(1, len(parts) + 1)} & wanted.keys()
        wanted.update(dict.fromkeys(hits, True))
        taken += [one] if hits else []
    for name, there in wanted.items():
        if not there:
            raise SourceError(f"there is no {shown(name)} at the source", "see --files-from")
    return taken


def shown(name: bytes) -> str:
    text = name.decode("utf-8", "backslashreplace")
    text = text if text.isprintable() else repr(text)
    return text if len(text) <= 100 else f"{text[:97]}..."


# The tools


class Tool:
    """A program of the node's, and how it is to get at S3. Raises SourceError where there is none.

    `part_bytes`: it gets larger objects in parts, which may be of different versions.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self.endpoint = config.get("endpoint") or os.environ.get("AWS_ENDPOINT_URL_S3") or ""
        self.env = self._environment()
        self.name, self.path = pick(str(config.get("tool") or "auto"))
        self.part_bytes = (50 if self.name == "s5cmd" else 8) << 20
        self.sources = [
            (str(one["bucket"]), base64.b64decode(one.get("key_b64") or ""))
            for one in config["sources"]
        ]
        self.errors: list[str] = []

    def _environment(self) -> dict[str, str]:
        """The tool's: lent keys are in the memory of these processes, and nowhere else."""
        env = {**os.environ, "AWS_PAGER": "", "LC_ALL": "C.UTF-8"}
        if self.config.get("region"):
            env["AWS_REGION"] = env["AWS_DEFAULT_REGION"] = str(self.config["region"])
        lent = self.config.get("credentials")
        if isinstance(lent, dict):
            for name in ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_SESSION_TOKEN"):
                env.pop(name, None)
            env["AWS_ACCESS_KEY_ID"] = str(lent["access"])
            env["AWS_SECRET_ACCESS_KEY"] = str(lent["secret"])
            if lent.get("token"):
                env["AWS_SESSION_TOKEN"] = str(lent["token"])
        if self.endpoint and "AWS_REGION" not in env and "AWS_DEFAULT_REGION" not in env:
            # Another S3 than AWS's takes any, and asking the bucket for its own may fail there.
            env["AWS_REGION"] = env["AWS_DEFAULT_REGION"] = "us-east-1"
        return env

    def line(self, *words: str, retries: int = 10) -> list[str]:
        options = ["--endpoint-url", self.endpoint] if self.endpoint else []
        options += ["--no-sign-request"] if self.config.get("credentials") == "none" else []
        if self.name == "s5cmd":
            return [self.path, "--json", "--retry-count", str(retries), *options, *words]
        return [self.path, *words, *options]

    def list_all(self) -> list[list[Found]]:
        """What each source has. Raises SourceError."""
        return [
            below(number, key, self._list(bucket, key))
            for number, (bucket, key) in enumerate(self.sources)
        ]

    def _list(self, bucket: str, key: bytes) -> list[Found]:
        text = key.decode("utf-8", "surrogateescape")
        if self.name == "s5cmd":
            # Its names are patterns: what a star in a key stands for is sorted out afterwards.
            pattern = re.sub(r"[*?\[\]{}]", "?", text) + "*"
            argv = self.line("ls", "--etag", "-s", f"s3://{bucket}/{pattern}", retries=3)
        else:
            argv = self.line(
                *("s3api", "list-objects-v2", "--bucket", bucket, "--prefix", text),
                *("--output", "json"),
            )
        told = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, env=self.env, check=False
        )
        if told.returncode and b"no object found" not in told.stderr:
            raise explained(told.stderr.decode("utf-8", "replace"), self, f"s3://{bucket}/{text}")
        if self.name == "s5cmd":
            objects = [json.loads(line) for line in told.stdout.splitlines()]
            skip = len(f"s3://{bucket}/")
            listed = [_object(one, one["key"][skip:], "last_modified") for one in objects]
        else:
            contents = json.loads(told.stdout or b"{}").get("Contents") or ()
            listed = [
                _object({name.lower(): value for name, value in one.items()}, one["Key"])
                for one in contents
            ]
        return [one for one in listed if one.key.startswith(key)]

    def staged(self, number: int, one: Found) -> bytes:
        """Where it puts a file, below the folder for what has come."""
        # s5cmd's files under way have digits behind their names.
        return b"f%d_" % number if self.name == "s5cmd" else b"%d/%s" % (one.source, one.name)

    def fetch(
        self, wanted: Sequence[Found], everything: bool, folder: bytes, tick: Callable[[], None]
    ) -> None:
        """Get these into the folder; `tick` is called again and again. What has not come shows in
        the folder, and in `errors`."""
        for argv, fed in self._commands(wanted, everything, _text(folder)):
            with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as given:
                given.write(fed)
                given.seek(0)
                running = subprocess.Popen(
                    argv,
                    stdin=given,
                    stdout=subprocess.DEVNULL,
                    stderr=said,
                    env=self.env,
                    preexec_fn=_die_with_parent,  # noqa: PLW1509 - one system call, no lock
                )
                try:
                    while running.poll() is None:
                        tick()
                        with contextlib.suppress(subprocess.TimeoutExpired):
                            running.wait(TICK_S)
                finally:
                    running.kill()
                    running.wait()
                said.seek(0)
                lines = said.read(1 << 20).decode("utf-8", "replace").splitlines()
                self.errors += [line for line in map(_message, lines) if line]

    def _commands(
        self, wanted: Sequence[Found], everything: bool, folder: str
    ) -> list[tuple[list[str], bytes]]:
        """Command lines, each with what goes into its stdin."""
        if self.name == "s5cmd":
            copies = []
            for number, one in enumerate(wanted):
                url = f"s3://{self.sources[one.source][0]}/{_text(one.key)}"
                to = os.path.join(folder, _text(self.staged(number, one)))
                copies.append(f"cp --raw {shlex.quote(url)} {shlex.quote(to)}\n")
            fed = "".join(copies).encode("utf-8", "surrogateescape")
            return [(self.line("--log", "error", "run"), fed)]
        commands = []
        for source, (bucket, key) in enumerate(self.sources):
            ours = [one for one in wanted if one.source == source]
            to = os.path.join(folder, str(source))
            if len(ours) == 1:
                [one] = ours
                url, to = f"s3://{bucket}/{_text(one.key)}", os.path.join(to, _text(one.name))
                commands.append(self.line("s3", "cp", "--only-show-errors", url, to))
                continue
            url = f"s3://{bucket}/{_text(key)}".rstrip("/") + "/"
            copy = ("s3", "cp", "--recursive", "--only-show-errors", url, to)
            if everything and ours:
                commands.append(self.line(*copy))
                continue
            for first in range(0, len(ours), PATTERNS):
                names = [_text(one.name) for one in ours[first : first + PATTERNS]]
                some = [
                    w for name in names for w in ("--include", re.sub(r"([*?\[])", r"[\1]", name))
                ]
                commands.append(self.line(*copy, "--exclude", "*", *some))
        return [(argv, b"") for argv in commands]


def _object(one: Mapping[str, Any], key: str, when: str = "lastmodified") -> Found:
    mtime = calendar.timegm(time.strptime(one[when][:19], "%Y-%m-%dT%H:%M:%S"))
    kind = one.get("storage_class", one.get("storageclass"))
    size, etag = int(one.get("size") or 0), str(one.get("etag") or "").strip('"')
    return Found(
        b"", 0, key.encode("utf-8", "surrogateescape"), size, mtime, etag, kind in ARCHIVES
    )


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _message(line: str) -> str:
    """What a line of a tool's stderr says."""
    if line.startswith("{"):
        with contextlib.suppress(ValueError):
            told = json.loads(line)
            words = str(told.get("command", "")).split(" s3://")[-1].split(" /")[0]
            return f"s3://{words}: {told.get('error', '')}"
    return line.strip()


def _die_with_parent() -> None:
    """Nothing goes on loading for a job that was killed."""
    _LIBC.prctl(SET_DEATH_SIGNAL, signal.SIGKILL)


def pick(asked: str) -> tuple[str, str]:
    """The name and path of the tool: s5cmd, else aws of version 2. Raises SourceError."""
    for name in TOOLS if asked == "auto" else (asked,):
        path = tool_at(name)
        if path:
            return name, path
    missing = "s5cmd, or aws of version 2," if asked == "auto" else asked
    raise SourceError(f"{missing} is not on the node", "install it there")


def tool_at(name: str) -> str:
    """Where the node has one that is new enough; empty where it has none.

    An old one may be before the one that was sent.
    """
    for folder in (*os.environ.get("PATH", "").split(os.pathsep), *MORE_PATH):
        path = shutil.which(name, path=os.path.expanduser(folder)) if folder else None
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            if path and re.match(TOOLS[name][1], _version(path, TOOLS[name][0])):
                return path
    return ""


def _version(path: str, word: str) -> str:
    told = subprocess.run(
        [path, word],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=TOOL_TIMEOUT_S,
        check=False,
    )
    return told.stdout.decode("utf-8", "replace")


# What a tool says, what it means, and what to do. {url} is what was asked for.
MEANINGS = (
    (
        r"NoCredentialProviders|Unable to locate credentials|no EC2 IMDS role",
        "there are no credentials for S3: no instance profile",
        "give the nodes one (`up --instance-profile`), or lend them yours (--credentials mine); "
        "for a public bucket --credentials none",
    ),
    (
        r"NoSuchBucket",
        "there is no bucket {bucket}",
        "`aws s3 ls` shows the names",
    ),
    (
        r"(ExpiredToken|InvalidToken|InvalidAccessKeyId|SignatureDoesNotMatch|RequestTimeTooSkewed)",
        "S3 does not accept the credentials ({0})",
        "log in again on this machine; on nodes the profile's role has perhaps been removed",
    ),
    (
        r"AccessDenied|Forbidden|status code: 403|\(403\)|AllAccessDisabled",
        "S3 refuses {url}{unsigned}",
        "the nodes' role needs s3:ListBucket and s3:GetObject there; with a KMS key kms:Decrypt",
    ),
    (
        r"PermanentRedirect|AuthorizationHeaderMalformed|BucketRegionError|status code: 301",
        "the bucket {bucket} is in another region",
        "name it: --s3-region REGION",
    ),
    (
        r"(dial tcp[^\n]*|Could not connect to[^\n]*|Connect timeout[^\n]*|no such host)",
        "no connection to S3: {0}",
        "see whether a route leads there from the node; `clusterctl network s3` makes one to S3",
    ),
)


def explained(said: str, tool: Tool, url: str) -> SourceError:
    """What a tool's message means."""
    unsigned = tool.config.get("credentials") == "none"
    bucket = url[5:].partition("/")[0]
    lines = [line for line in map(_message, said.splitlines()) if line]
    said = "\n".join(lines)
    for pattern, why, hint in MEANINGS:
        found = re.search(pattern, said)
        if found:
            words = {"url": url, "bucket": bucket}
            words["unsigned"] = " to requests without credentials" if unsigned else ""
            return SourceError(why.format(*found.groups(), **words), hint)
    return SourceError(f"{tool.name}: {lines[-1] if lines else 'it failed and said nothing'}")


# The folder


class Sync:
    """One sync into one folder. `say` takes lines for the log."""

    def __init__(
        self, config: Mapping[str, Any], destination: bytes, say: Callable[[str], None]
    ) -> None:
        self.progress = Progress()
        self._config, self._say = config, say
        self._destination = os.path.expanduser(destination)
        # By the names under which they come: what is under way, and of it what came in parts.
        self._waiting: dict[bytes, tuple[bytes, Found]] = {}
        self._large: dict[bytes, tuple[bytes, Found]] = {}
        self._done = 0
        self._confirmed_at = 0.0

    def run(self) -> None:
        """To the end. Raises SourceError, OSError."""
        tool = self._tool = Tool(self._config)
        self.progress.how = tool.name
        listed = tool.list_all()
        tree, names = self._tree(listed)
        single = names is None and len(listed) == 1 and _is_object(tool, listed, 0)
        self._root, files = self._placed(tree.files, single)
        self._compare(files)
        whole = names is None and any(not _is_object(tool, listed, n) for n in range(len(listed)))
        extra = self._extra(files, tree.folders) if self._config.get("delete") and whole else []
        self._tell(files, tree, extra)
        if self._config.get("dry_run"):
            return
        os.makedirs(self._root, exist_ok=True)
        check_room(self._root, self.progress.total_bytes)
        everything = len(self._missing) == sum(map(len, listed))
        with self._staging() as folder:
            self._folder = folder
            for path in sorted(tree.folders):
                self._make_folder(path)
            if self._missing:
                wanted = list(self._missing.values())
                self._waiting = {
                    tool.staged(number, one): (path, one)
                    for number, (path, one) in enumerate(self._missing.items())
                }
                self._confirmed_at = time.monotonic()
                tool.fetch(wanted, everything, folder, self._collect)
                self._collect(last=True)
        self._end(extra)

    def _tree(self, listed: list[list[Found]]) -> tuple[Tree, list[bytes] | None]:
        found = [one for each in listed for one in each]
        told = self._config.get("names_b64")
        names = None if told is None else [base64.b64decode(name) for name in told]
        for number, each in enumerate(listed):
            if not each:
                bucket, key = self._tool.sources[number]
                raise SourceError(
                    f"there is nothing at s3://{bucket}/{_text(key)}",
                    f"see what there is: aws s3 ls s3://{bucket}/",
                )
        return tree_of(found if names is None else chosen(found, names)), names

    def _placed(self, files: dict[bytes, Found], single: bool) -> tuple[bytes, dict[bytes, Found]]:
        """The folder that files go to, and their names there. One file may get a new name."""
        path = self._destination
        if not single or not files or path.endswith(b"/") or os.path.isdir(path):
            return path, files
        [one] = files.values()
        return os.path.dirname(path) or b".", {os.path.basename(path): one}

    def _compare(self, files: dict[bytes, Found]) -> None:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            there = list(pool.map(self._has, files, files.values()))
        self._missing = {path: one for has, (path, one) in zip(there, files.items()) if not has}

    def _has(self, path: bytes, one: Found) -> bool:
        """Whether the file is the object's: of its size and time; with `checksum`, of its content,
        as far as S3 tells that: it does not of an object that was uploaded in parts."""
        full = os.path.join(self._root, path)
        try:
            status = os.lstat(full)
        except OSError:
            return False
        if not stat.S_ISREG(status.st_mode) or status.st_size != one.size:
            return False
        if self._config.get("checksum"):
            return md5_of(full) == one.etag
        return int(status.st_mtime) == one.mtime

    def _extra(self, files: dict[bytes, Found], folders: set[bytes]) -> list[bytes]:
        """What is in the folder and in no source, what is in a folder before it."""
        found = []
        for at, below_it, names in os.walk(self._root, topdown=False):
            inside = os.path.relpath(at, self._root)
            if inside.split(b"/")[0] in OWN_FOLDERS:
                continue
            for name in names + below_it:
                path = os.path.normpath(os.path.join(inside, name))
                if path not in files and path not in folders and path not in OWN_FOLDERS:
                    found.append(path)
        return found

    def _tell(self, files: dict[bytes, Found], tree: Tree, extra: list[bytes]) -> None:
        progress = self.progress
        for warning in tree.warnings:
            self._warn(warning)
        progress.left_out = tree.left_out
        progress.source_files = len(files)
        progress.source_bytes = sum(one.size for one in files.values())
        progress.total_files = len(self._missing)
        progress.total_bytes = sum(one.size for one in self._missing.values())
        progress.present = len(files) - len(self._missing)
        progress.free, progress.writable = room_at(self._root)
        if not tree.left_out:
            progress.delete = len(extra)
            progress.delete_names = [shown(path) for path in sorted(extra)[:SHOWN]]
        progress.listed = True
        self._say(
            f"files to get: {len(self._missing)}, {progress.total_bytes} bytes; "
            f"already there: {progress.present}; by {self._tool.name}"
        )

    def _warn(self, line: str) -> None:
        self._say(line)
        if len(self.progress.warnings) < 100:
            self.progress.warnings.append(line)

    @contextlib.contextmanager
    def _staging(self) -> Any:
        """A new folder for what is not whole yet. Raises SourceError while another is at work.

        It has a name of its own: what a tool that nobody ended still writes is in another one.
        """
        staging = os.path.join(self._root, STAGING)
        lock = take_lock(staging)
        try:
            _clear(staging)
            yield tempfile.mkdtemp(prefix=b"s3-", dir=staging)
        finally:
            _clear(staging)
            leave(staging, lock)

    def _make_folder(self, path: bytes) -> None:
        full = os.path.join(self._root, path)
        with contextlib.suppress(FileExistsError, NotADirectoryError, PermissionError):
            removes = self._config.get("delete") and not self.progress.left_out
            if removes and os.path.lexists(full) and not os.path.isdir(full):
                os.unlink(full)
            os.makedirs(full, exist_ok=True)

    def _collect(self, last: bool = False) -> None:
        """Give what has come whole its name, and count what is coming.

        What is got in parts is published when S3 still has what was listed: parts of two versions
        of an object are no version of it.
        """
        ready, coming = [], 0
        for at, _, names in os.walk(self._folder):
            for name in names:
                full = os.path.join(at, name)
                staged = os.path.relpath(full, self._folder)
                with contextlib.suppress(OSError):
                    status = os.stat(full)
                    coming += min(status.st_size, status.st_blocks * 512)
                    path, one = self._waiting.get(staged, (b"", None))
                    if one is None:
                        continue
                    if status.st_size != one.size:
                        if last:
                            self._leave_out(path, CHANGED)
                            del self._waiting[staged]
                    elif one.size > self._tool.part_bytes:
                        self._large[staged] = path, one
                    else:
                        ready.append((staged, path, one))
        self.progress.bytes = min(self.progress.total_bytes, self._done + coming)
        if self._large and (last or time.monotonic() - self._confirmed_at > CONFIRM_S):
            ready += self._confirmed()
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(lambda each: self._publish(*each), ready))
        for staged, _, one in ready:
            self._done += one.size
            del self._waiting[staged]

    def _confirmed(self) -> list[tuple[bytes, bytes, Found]]:
        began = time.monotonic()
        now = {
            (one.source, one.key): (one.size, one.mtime, one.etag)
            for each in self._tool.list_all()
            for one in each
        }
        took, self._confirmed_at = time.monotonic() - began, time.monotonic()
        # A listing of millions takes minutes: at most a tenth of the time goes into it.
        self._confirmed_at += max(0.0, 9 * took - CONFIRM_S)
        good = []
        for staged, (path, one) in self._large.items():
            if now.get((one.source, one.key)) == (one.size, one.mtime, one.etag):
                good.append((staged, path, one))
            else:
                self._leave_out(path, CHANGED)
                del self._waiting[staged]
        self._large = {}
        return good

    def _publish(self, staged: bytes, path: bytes, one: Found) -> None:
        """A whole file gets its name. Raises OSError for what concerns all files."""
        part = os.path.join(self._folder, staged)
        descriptor = os.open(part, os.O_RDWR)
        try:
            os.fchmod(descriptor, 0o644)
            os.utime(descriptor, (one.mtime, one.mtime))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        try:
            os.replace(part, os.path.join(self._root, path))
            self.progress.files += 1
        except (IsADirectoryError, NotADirectoryError, FileNotFoundError, PermissionError) as error:
            self._leave_out(path, str(error.strerror))

    def _leave_out(self, path: bytes, why: str) -> None:
        self._warn(f"left out {shown(path)}: {why}")
        self.progress.left_out += 1

    def _end(self, extra: list[bytes]) -> None:
        """Say what has not come; remove what no source has, where all has. Raises SourceError."""
        errors = self._tool.errors
        for line in errors[:100]:
            self._say(line)
        lost = self._waiting
        if lost and not self.progress.files:
            raise explained("\n".join(errors), self._tool, self._url(next(iter(lost.values()))[1]))
        for path, one in lost.values():
            url = self._url(one)
            own = [line for line in errors if f"{url}:" in line or f"{url} " in line]
            self._leave_out(path, explained("\n".join(own or errors), self._tool, url).why)
        if self.progress.left_out:
            return
        for path in extra:
            full = os.path.join(self._root, path)
            with contextlib.suppress(FileNotFoundError):
                (os.rmdir if os.path.isdir(full) and not os.path.islink(full) else os.unlink)(full)
                self.progress.deleted += 1

    def _url(self, one: Found) -> str:
        return f"s3://{self._tool.sources[one.source][0]}/{_text(one.key)}"


def _is_object(tool: Tool, listed: list[list[Found]], number: int) -> bool:
    """Whether a source is one object, and not all that is below a prefix."""
    return [one.key for one in listed[number]] == [tool.sources[number][1]]


def room_at(folder: bytes) -> tuple[int, bool]:
    """How many bytes are free there, and whether it can be written to; of what is above it where
    it is still to be made."""
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder) or b"."
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize, os.access(folder, os.W_OK | os.X_OK)


def check_room(folder: bytes, size: int) -> None:
    """Raises SourceError."""
    free, _ = room_at(folder)
    if size + MARGIN_BYTES > free:
        raise SourceError(
            f"{shown(folder)} has {free} bytes free, {size} are to come",
            "make room there, or choose another destination",
        )


def _clear(staging: bytes) -> None:
    for name in os.listdir(staging):
        if name.startswith(b"s3-"):
            shutil.rmtree(os.path.join(staging, name), ignore_errors=True)


def md5_of(path: bytes) -> str:
    """What S3 calls the ETag of an object that came in one piece."""
    found = hashlib.md5()  # noqa: S324 - compared, not trusted
    with open(path, "rb") as file:
        for piece in iter(lambda: file.read(1 << 20), b""):
            found.update(piece)
    return found.hexdigest()


def take_lock(staging: bytes) -> int:
    """Make the folder and hold it. Raises SourceError while another holds it."""
    path = os.path.join(staging, b"lock")
    while True:
        os.makedirs(staging, exist_ok=True)
        # The one before us may just be leaving.
        with contextlib.suppress(FileNotFoundError), contextlib.ExitStack() as opened:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            opened.callback(os.close, lock)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                where = shown(os.path.dirname(staging))
                raise SourceError(f"another sync into {where} is running", "wait for it") from None
            if os.path.samestat(os.stat(path), os.fstat(lock)):
                opened.pop_all()
                return lock


def leave(staging: bytes, lock: int) -> None:
    """Let go of the folder; nothing of it stays but what another run can use."""
    with contextlib.suppress(OSError):
        if os.listdir(staging) == [b"lock"]:
            os.unlink(os.path.join(staging, b"lock"))
            os.rmdir(staging)
    os.close(lock)
