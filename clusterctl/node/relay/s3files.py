"""Runs on a node: fetches missing objects from S3 with `s5cmd` or `aws`, and publishes whole files.

The tool lists and fetches, with retries, in parts and in parallel. What is missing is found, and
files are published, as in any copy (Destination): the tools do not set a file's time to the
object's, do not compare the content, and trust what a killed tool has left. The configuration is
JSON (copy/fetch.py makes it):

    {"sources": [{"bucket": B, "key_b64": K}], "names_b64": null | [...], "endpoint": null | URL,
     "region": null | R, "tool": "s5cmd" | "aws",
     "credentials": null (the machine's) | "none" | {"access", "secret", "token"},
     "delete": false, "checksum": false, "dry_run": false}
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from clusterctl.node.death_signal import die_with
from clusterctl.node.objects import ARCHIVES, NotStreamed, ObjectReader, epoch_s, has_role
from clusterctl.node.record import RecordError, from_json, read_rows
from clusterctl.node.relay.base import Failure
from clusterctl.node.relay.compare import SECOND_NS
from clusterctl.node.relay.destination import Destination
from clusterctl.node.relay.entries import Entries
from clusterctl.node.relay.manifest import (
    FILE,
    FOLDER,
    UNKNOWN_MODE,
    Entry,
    bytes_of,
    sort_key,
    text_of,
)
from clusterctl.node.relay.messages import MOST_WARNINGS, Begin, Event, Gap, Listed
from clusterctl.node.relay.scan import is_own
from clusterctl.node.relay.wire import Waits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

# Bytes of a file's name and of a path below the destination.
LONGEST_NAME, LONGEST_PATH = 255, 4000
# S3 and web servers know no modes.
FILE_MODE = 0o644
CHANGED = "it has changed since it was listed"
_MD5 = re.compile("[0-9a-f]{32}")
# The prefix of the folders in the staging folder that the tools write to.
PREFIX = b"s3-"
# Seconds between two checks for files that have come.
TICK_S = 0.25
# The least time between two listings that confirm what was fetched in parts.
CONFIRM_S = 10.0
# Patterns per `aws` command line: keeps it below the kernel's 2 MiB limit for arguments.
PATTERNS = 200
# For the command that prints a tool's version.
TOOL_TIMEOUT_S = 20.0
# By tool: the argument that prints its version, and a pattern of the versions that can be used.
# s5cmd before 2.1 writes directly to the file, and aws 1 is four times slower.
TOOLS = {
    "s5cmd": ("version", r"v(2\.[1-9]|2\.\d\d|[3-9])"),
    "aws": ("--version", r"aws-cli/([2-9]|\d\d)"),
}
# Where else a tool may be: installed by the user, or sent by clusterctl (the last one).
MORE_PATH = ("/usr/local/bin", "/snap/bin", "~/.local/bin", "~/.clusterctl/bin")


class Object(NamedTuple):
    """An object in S3. `name` is its path below the destination; a folder's ends with a slash.

    `source` is the index of its source. `mtime` is in seconds.
    """

    name: bytes
    source: int
    key: bytes
    size: int
    mtime: int
    etag: str
    archived: bool


class ObjectProgress:
    """How far a download is. `path` is where a single file goes, in terms of DST as given.
    `remarks` are warnings that do not make the copy incomplete."""

    def __init__(self) -> None:
        self.path = ""
        self.gap = Gap()
        self.remarks: list[str] = []
        self.files = self.bytes = 0


class Download:
    """Downloads what a destination lacks. `emit` is called with Listed, Gap and Done.

    Subclasses define `run`, which does the whole job, and `fetch`, which gets the files with these
    numbers. Both raise Failure, OSError, Busy, Removed.
    """

    def __init__(
        self, config: Mapping[str, Any], destination: str, emit: Callable[[Event], None]
    ) -> None:
        self.progress = ObjectProgress()
        self.config, self.given, self.emit = config, destination, emit

    def run(self) -> None:
        raise NotImplementedError

    def fetch(self, missing: list[int]) -> None:
        raise NotImplementedError

    def fill(self, entries: Iterable[Entry], listed: Listed, delete: bool = False) -> None:
        """Find out which entries are missing, call `fetch` for them, and finish the destination."""
        progress, config = self.progress, self.config
        self.emit(listed)
        dry = config.get("dry_run")
        request = {"destination": self.given, "delete": delete, "dry_run": dry}
        self.target = Destination({**request, "checksum": config.get("checksum")}, Waits())
        try:
            gap = self.target.prepare(
                Entries(entries), Begin(single=listed.single, left_out=listed.left_out)
            )
            progress.gap = gap
            warnings = (*progress.remarks, *gap.warnings)
            self.emit(gap._replace(warnings=warnings[:MOST_WARNINGS]))
            if dry:
                return
            missing = [n for n in self.target.plan.missing if self.target.entries[n].data]
            if missing:
                self.fetch(missing)
            done = self.target.finish()
            progress.files = done.files
            self.emit(done._replace(bytes=progress.bytes, path=progress.path))
        finally:
            self.target.leave()

    def put(self, number: int, part: bytes) -> None:
        """Publish a whole file. Raises the error, if any, after which nothing can be published."""
        if self.target.publisher.error:
            raise self.target.publisher.error
        self.target.publisher.put([(number, part, False)])

    def leave_out(self, number: int, why: str) -> None:
        """Record why a file is not published."""
        name = text_of(self.target.entries[number].path)
        self.target.publisher.refused[number] = f"{name}: {why}"


# Which files there should be


def chosen(found: Sequence[Object], names: Sequence[bytes]) -> list[Object]:
    """Return the objects that --files-from names, and those below folders that it names.

    Raises Failure for a name without objects.
    """
    wanted = {name.strip(b"/"): False for name in names}
    taken = []
    for one in found:
        parts = one.name.rstrip(b"/").split(b"/")
        hits = {b"/".join(parts[:n]) for n in range(1, len(parts) + 1)} & wanted.keys()
        wanted.update(dict.fromkeys(hits, True))
        taken += [one] if hits else []
    for name, there in wanted.items():
        if not there:
            raise Failure(
                "source", f"there is no {text_of(name)} at the source", "see --files-from"
            )
    return taken


class Tree:
    """The files and folders that there should be, by their paths.

    `left_out` names objects that cannot be files, with the reason. `remarks` name paths that are in
    several sources.
    """

    def __init__(self, found: Sequence[Object]) -> None:
        self.files: dict[bytes, Object] = {}
        self.folders: set[bytes] = set()
        self.left_out: list[str] = []
        self.remarks: list[str] = []
        for one in found:
            why, path = why_not(one), one.name.rstrip(b"/")
            if why:
                self._leave_out(one.name, why)
            elif one.name.endswith(b"/"):
                self.folders.add(path)
            else:
                # The last source wins, as if the sources were copied one after the other.
                if path in self.files:
                    self.remarks.append(f"{text_of(path)} is in several sources: the last counts")
                self.files[path] = one
        for path in self.files:
            parts = path.split(b"/")
            self.folders.update(b"/".join(parts[:n]) for n in range(1, len(parts)))
        for path in self.files.keys() & self.folders:
            self._leave_out(path, "it is a file and a folder of others")
            del self.files[path]

    def _leave_out(self, name: bytes, why: str) -> None:
        self.left_out.append(f"{text_of(name)}: {why}")

    def entries(self, with_folders: bool, checksum: bool) -> list[Entry]:
        """Return manifest entries, as a source of files would have them.

        S3 has no modes and times of folders. `checksum` adds the MD5, which S3 has for objects that
        were uploaded in one piece and without a KMS key.
        """
        found = [
            Entry(
                path,
                FILE,
                FILE_MODE,
                one.mtime * SECOND_NS,
                one.size,
                digest=bytes.fromhex(one.etag) if checksum and _MD5.fullmatch(one.etag) else b"",
            )
            for path, one in self.files.items()
        ]
        folders = {b".", *self.folders} if with_folders else set()
        found += [Entry(path, FOLDER, UNKNOWN_MODE, 0) for path in folders]
        return sorted(found, key=lambda entry: sort_key(entry.path))


def why_not(one: Object) -> str:
    """Return why an object cannot become a file or folder; empty if it can."""
    name = one.name[:-1] if one.name.endswith(b"/") else one.name
    parts = name.split(b"/")
    if one.name.endswith(b"/") and one.size:
        return "it has content, and the name of a folder"
    if any(part in (b"", b".", b"..") for part in parts) or b"\0" in name:
        return "it is no name that a file can have"
    if b"\n" in name:
        return "no tool is given names of more than one line"
    if is_own(name):
        return "the name is one that copies give while they go on"
    if any(len(part) > LONGEST_NAME for part in parts) or len(name) > LONGEST_PATH:
        return "its name is too long for a file"
    return "it is archived: copy it to another storage class" if one.archived else ""


def below(source: int, key: bytes, listed: Sequence[Object]) -> list[Object]:
    """Return the object with this key, or else the objects below `KEY/`.

    `listed` are the objects whose keys begin with the key.
    """
    if key and not key.endswith(b"/"):
        for one in listed:
            if one.key == key:
                return [one._replace(name=key.rpartition(b"/")[2], source=source)]
        key += b"/"
    return [
        one._replace(name=one.key[len(key) :], source=source)
        for one in listed
        # An object whose key is `KEY/` itself only marks the folder.
        if one.key.startswith(key) and one.key != key
    ]


# The tools


class Tool:
    """A tool of the node, and how it is called. Raises Failure if the node has none.

    Objects of more than `part_bytes` are fetched in parts, which may be of different versions.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self.endpoint = config.get("endpoint") or os.environ.get("AWS_ENDPOINT_URL_S3") or ""
        self.env = self._environment()
        self.name = str(config["tool"])
        self.path = tool_at(self.name)
        if not self.path:
            raise Failure("source", f"{self.name} is not on the node", "install it there")
        self.part_bytes = (50 if self.name == "s5cmd" else 8) << 20
        self.sources = [
            (str(one["bucket"]), base64.b64decode(one.get("key_b64") or ""))
            for one in config["sources"]
        ]
        self.errors: list[str] = []

    def _environment(self) -> dict[str, str]:
        """Return the tool's environment. Only this process and the tool have the temporary keys."""
        env = {**os.environ, "AWS_PAGER": "", "LC_ALL": "C.UTF-8"}
        if self.config.get("region"):
            env["AWS_REGION"] = env["AWS_DEFAULT_REGION"] = str(self.config["region"])
        temporary = self.config.get("credentials")
        if isinstance(temporary, dict):
            for name in ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_SESSION_TOKEN"):
                env.pop(name, None)
            env["AWS_ACCESS_KEY_ID"] = str(temporary["access"])
            env["AWS_SECRET_ACCESS_KEY"] = str(temporary["secret"])
            if temporary.get("token"):
                env["AWS_SESSION_TOKEN"] = str(temporary["token"])
        if self.endpoint and "AWS_REGION" not in env and "AWS_DEFAULT_REGION" not in env:
            # An S3 other than AWS's accepts any region. To ask it for a bucket's region may fail.
            env["AWS_REGION"] = env["AWS_DEFAULT_REGION"] = "us-east-1"
        return env

    def line(self, *words: str, retries: int = 10) -> list[str]:
        """Return a command line of the tool. `retries` is for s5cmd."""
        if self.name == "s5cmd":
            return [self.path, "--json", "--retry-count", str(retries), *self._options, *words]
        return [self.path, *words, *self._options]

    @property
    def _options(self) -> list[str]:
        """The options of both tools, in the words of both."""
        options = ["--endpoint-url", self.endpoint] if self.endpoint else []
        return options + ["--no-sign-request"] * (self.config.get("credentials") == "none")

    def run(self, argv: Sequence[str]) -> subprocess.CompletedProcess[bytes]:
        """Run a command to its end, with `retry_without_credentials`. Return its output."""
        done: list[subprocess.CompletedProcess[bytes]] = []

        def attempt() -> str:
            last = subprocess.run(
                argv, stdin=subprocess.DEVNULL, capture_output=True, env=self.env, check=False
            )
            done.append(last)
            return last.stderr.decode("utf-8", "replace") if last.returncode else ""

        retry_without_credentials(attempt)
        return done[-1]

    def list_all(self) -> list[list[Object]]:
        """Return the objects of each source. Raises Failure."""
        return [
            below(number, key, self._list(bucket, key))
            for number, (bucket, key) in enumerate(self.sources)
        ]

    def _list(self, bucket: str, key: bytes) -> list[Object]:
        """Return the objects whose keys begin with `key`. Raises Failure."""
        if self.name == "aws":
            listed = self._list_by_aws(self.path, bucket, key)
        else:
            listed = self._list_by_s5cmd(bucket, key)
        return [one for one in listed if one.key.startswith(key)]

    def _list_by_s5cmd(self, bucket: str, key: bytes) -> list[Object]:
        text = text_of(key)
        # s5cmd takes patterns. `?` stands for a special character of the key; objects that do not
        # begin with the key are dropped above.
        pattern = re.sub(r"[*?\[\]{}]", "?", text) + "*"
        listing = self.run(self.line("ls", "--etag", "-s", f"s3://{bucket}/{pattern}", retries=3))
        if listing.returncode and b"no object found" not in listing.stderr:
            stderr = listing.stderr.decode("utf-8", "replace")
            # XML has no control characters. aws has S3 encode the keys, s5cmd does not.
            if not re.search(CONTROL_CHARACTER, stderr):
                raise explained(stderr, self, f"s3://{bucket}/{text}")
            aws = tool_at("aws")
            if aws:
                return self._list_by_aws(aws, bucket, key)
            return self._list_signed(bucket, key)
        objects = read_rows(_S5cmdObject, listing.stdout, is_whole=True)
        if objects.damaged:
            raise Failure("source", f"{self.path} printed no list: {objects.damaged[0]}")
        skip = len(f"s3://{bucket}/")
        return [
            _object(one.key[skip:], one.size, one.last_modified, one.etag, one.storage_class)
            for one in objects.rows
        ]

    def _list_by_aws(self, aws: str, bucket: str, key: bytes) -> list[Object]:
        where = ("--bucket", bucket, "--prefix", text_of(key))
        listing = self.run(
            [aws, "s3api", "list-objects-v2", *where, "--output", "json", *self._options]
        )
        if listing.returncode:
            stderr = listing.stderr.decode("utf-8", "replace")
            raise explained(stderr, self, f"s3://{bucket}/{text_of(key)}")
        try:
            contents = from_json(_AwsListing, listing.stdout or b"{}").Contents or ()
        except RecordError as error:
            raise Failure("source", f"{aws} printed no list: {error}") from error
        return [
            _object(one.Key, one.Size, one.LastModified, one.ETag, one.StorageClass)
            for one in contents
        ]

    def _list_signed(self, bucket: str, key: bytes) -> list[Object]:
        """List without a tool. Raises Failure."""
        region = self.env.get("AWS_REGION") or self.env.get("AWS_DEFAULT_REGION")
        channel = {
            "source": f"s3://{bucket}/{text_of(key)}",
            "endpoint": self.endpoint,
            "region": region,
            "unsigned": self.config.get("credentials") == "none",
            "env": self.env,
        }
        try:
            rows = [*ObjectReader(channel).rows()]
        except NotStreamed as error:
            why = f"s5cmd cannot list a key with a control character, and {error}"
            raise Failure("source", why, "install aws of version 2 on the nodes") from error
        names = ("Size", "LastModified", "ETag", "StorageClass")
        return [_object(one["Key"], *map(one.get, names)) for one in rows]

    def staged(self, number: int, one: Object) -> bytes:
        """Return where the tool puts a file, relative to the folder that it writes to."""
        # While a file is incomplete, s5cmd appends digits to its name: `_` separates them.
        return b"f%d_" % number if self.name == "s5cmd" else b"%d/%s" % (one.source, one.name)

    def fetch(
        self, wanted: Sequence[Object], everything: bool, folder: bytes, tick: Callable[[], None]
    ) -> None:
        """Fetch these objects into the folder, and call `tick` repeatedly meanwhile.

        Raises nothing if an object does not come: its file is missing, and `errors` has messages.
        """
        for argv, fed in self._commands(wanted, everything, text_of(folder)):
            with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as given:
                given.write(fed)
                given.seek(0)
                # If this process is killed, the kernel kills the tool, too.
                die = partial(die_with, os.getpid())
                running = subprocess.Popen(
                    argv,
                    stdin=given,
                    stdout=subprocess.DEVNULL,
                    stderr=output,
                    env=self.env,
                    preexec_fn=die,  # noqa: PLW1509 - two system calls, no lock
                )
                try:
                    while running.poll() is None:
                        tick()
                        with contextlib.suppress(subprocess.TimeoutExpired):
                            running.wait(TICK_S)
                finally:
                    running.kill()
                    running.wait()
                output.seek(0)
                lines = output.read(1 << 20).decode("utf-8", "replace").splitlines()
                self.errors += [line for line in map(_message, lines) if line]

    def _commands(
        self, wanted: Sequence[Object], everything: bool, folder: str
    ) -> list[tuple[list[str], bytes]]:
        """Return command lines, each with its standard input."""
        if self.name == "s5cmd":
            copies = []
            for number, one in enumerate(wanted):
                url = f"s3://{self.sources[one.source][0]}/{text_of(one.key)}"
                to = os.path.join(folder, text_of(self.staged(number, one)))
                copies.append(f"cp --raw {shlex.quote(url)} {shlex.quote(to)}\n")
            fed = "".join(copies).encode("utf-8", "surrogateescape")
            return [(self.line("--log", "error", "run"), fed)]
        commands = []
        for source, (bucket, key) in enumerate(self.sources):
            ours = [one for one in wanted if one.source == source]
            to = os.path.join(folder, str(source))
            if len(ours) == 1:
                [one] = ours
                url, to = f"s3://{bucket}/{text_of(one.key)}", os.path.join(to, text_of(one.name))
                commands.append(self.line("s3", "cp", "--only-show-errors", url, to))
                continue
            url = f"s3://{bucket}/{text_of(key)}".rstrip("/") + "/"
            copy = ("s3", "cp", "--recursive", "--only-show-errors", url, to)
            if everything and ours:
                commands.append(self.line(*copy))
                continue
            for first in range(0, len(ours), PATTERNS):
                names = [text_of(one.name) for one in ours[first : first + PATTERNS]]
                some = [
                    w for name in names for w in ("--include", re.sub(r"([*?\[])", r"[\1]", name))
                ]
                commands.append(self.line(*copy, "--exclude", "*", *some))
        return [(argv, b"") for argv in commands]


# What is read of the output of s5cmd and aws. The names are theirs.


@dataclass(frozen=True)
class _S5cmdObject:
    key: str
    last_modified: str
    size: Optional[int] = None
    etag: Optional[str] = None
    storage_class: Optional[str] = None


@dataclass(frozen=True)
class _S5cmdError:
    command: str = ""
    error: str = ""


@dataclass(frozen=True)
class _AwsObject:
    Key: str
    LastModified: str
    Size: Optional[int] = None
    ETag: Optional[str] = None
    StorageClass: Optional[str] = None


@dataclass(frozen=True)
class _AwsListing:
    Contents: Optional[tuple[_AwsObject, ...]] = None


def _object(key: str, size: Any, changed: Any, etag: Any, kind: Any) -> Object:
    etag = (etag or "").strip('"')
    return Object(b"", 0, bytes_of(key), int(size or 0), epoch_s(changed), etag, kind in ARCHIVES)


def _message(line: str) -> str:
    """Return the message in a line of a tool's stderr."""
    if line.startswith("{"):
        with contextlib.suppress(RecordError):
            problem = from_json(_S5cmdError, line)
            words = problem.command.split(" s3://")[-1].split(" /")[0]
            return f"s3://{words}: {problem.error}"
    return line.strip()


def tool_at(name: str) -> str:
    """Return the path of a tool that is new enough; empty if the node has none.

    All folders are searched, since an old version may come before the one that was sent.
    """
    for folder in (*os.environ.get("PATH", "").split(os.pathsep), *MORE_PATH):
        path = shutil.which(name, path=os.path.expanduser(folder)) if folder else None
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            if path and re.match(TOOLS[name][1], _version(path, TOOLS[name][0])):
                return path
    return ""


def _version(path: str, word: str) -> str:
    done = subprocess.run(
        [path, word],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=TOOL_TIMEOUT_S,
        check=False,
    )
    return done.stdout.decode("utf-8", "replace")


# What the tools print if they find no credentials.
NO_KEYS = r"NoCredentialProviders|Unable to locate credentials|no EC2 IMDS role"
# Pauses between attempts to get credentials.
ASK_AGAIN_AFTER_S = (1.0, 2.0, 4.0, 8.0, 15.0)


def retry_without_credentials(attempt: Callable[[], str]) -> None:
    """Call `attempt`, and repeat it while it returns that credentials are lacking.

    It is repeated only on a node that has a role. The tools query the metadata service once, for a
    second or two, and on a busy node the answer takes longer
    (https://github.com/peak/s5cmd/issues/60).
    """
    for pause_s in ASK_AGAIN_AFTER_S:
        if not re.search(NO_KEYS, attempt()) or not has_role():
            return
        time.sleep(pause_s)
    attempt()


# s5cmd's message if a listed key has a character that XML cannot have.
CONTROL_CHARACTER = r"illegal character code (U\+[0-9A-F]{4})"
# A pattern of a tool's output, what it means, and what to do. {url} is what was requested.
MEANINGS = (
    (
        NO_KEYS,
        "there are no credentials for S3: no instance profile",
        "send the nodes credentials of yours for this command: --credentials mine; for a public "
        "bucket: --credentials none; or add a role: clusterctl up NAME --instance-profile new",
    ),
    (r"NoSuchBucket", "there is no bucket {bucket}", "`aws s3 ls` shows the names"),
    (
        r"RequestTimeTooSkewed",
        "S3 refuses requests by this node's clock: it is wrong by more than 15 minutes",
        "set it right: sudo chronyc makestep there; clusterctl doctor NAME compares the clocks",
    ),
    (
        r"(ExpiredToken|InvalidToken|InvalidAccessKeyId|SignatureDoesNotMatch)",
        "S3 does not accept the credentials ({0})",
        "log in again on this machine; on nodes the profile's role has perhaps been removed",
    ),
    (
        r"AccessDenied|Forbidden|status code: 403|\(403\)|AllAccessDisabled",
        "S3 refuses {url}{unsigned}",
        "the nodes' role needs s3:ListBucket and s3:GetObject there, s3:PutObject to write, with a "
        "KMS key kms:Decrypt; the role that clusterctl made gets the first two by: clusterctl up "
        "NAME --instance-profile new, PutObject by --checkpoint-prefix BUCKET/PREFIX with it",
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


# What to do if a bucket refuses requests without credentials.
PRIVATE = "it is not public: leave out --credentials none, or send yours (--credentials mine)"


def explained(stderr: str, tool: Tool, url: str) -> Failure:
    """Return the Failure that a tool's output means."""
    unsigned = tool.config.get("credentials") == "none"
    bucket = url[5:].partition("/")[0]
    lines = [line for line in map(_message, stderr.splitlines()) if line]
    stderr = "\n".join(lines)
    for pattern, why, hint in MEANINGS:
        found = re.search(pattern, stderr)
        if found:
            words = {"url": url, "bucket": bucket}
            words["unsigned"] = " to requests without credentials" if unsigned else ""
            refused = unsigned and "{unsigned}" in why
            return Failure(
                "source",
                why.format(*found.groups(), **words),
                PRIVATE * refused or hint.format(**words),
            )
    return Failure(
        "source", f"{tool.name}: {lines[-1] if lines else 'it failed without a message'}"
    )


# The download


class ObjectDownload(Download):
    """Downloads from S3 into one folder."""

    def run(self) -> None:
        tool = self._tool = Tool(self.config)
        listed = tool.list_all()
        for each, (bucket, key) in zip(listed, tool.sources):
            if not each:
                raise Failure(
                    "source",
                    f"there is nothing at s3://{bucket}/{text_of(key)}",
                    f"see what there is: aws s3 ls s3://{bucket}/",
                )
        found = [one for each in listed for one in each]
        names = self.config.get("names_b64")
        if names is not None:
            found = chosen(found, [base64.b64decode(name) for name in names])
        tree = Tree(found)
        # Whether each source is one object, and not a prefix.
        keys = ([one.key for one in each] for each in listed)
        objects = [found == [key] for found, (_, key) in zip(keys, tool.sources)]
        single = names is None and objects == [True] and len(tree.files) == 1
        entries = tree.entries(not single, bool(self.config.get("checksum")))
        objects_of = enumerate(tree.files.get(entry.path) for entry in entries)
        self._objects = {number: one for number, one in objects_of if one}
        self._all = sum(map(len, listed))
        self.progress.remarks = tree.remarks[:MOST_WARNINGS]
        self.fill(
            entries,
            Listed(
                files=len(tree.files),
                bytes=sum(one.size for one in tree.files.values()),
                warnings=tuple(tree.left_out[:MOST_WARNINGS]),
                left_out=len(tree.left_out),
                single=single,
            ),
            # --delete applies only if a source is a prefix: of a single object's folder, the source
            # does not show what else should be in it.
            bool(self.config.get("delete")) and names is None and not all(objects),
        )

    def fetch(self, missing: list[int]) -> None:
        staging = self.target.publisher.staging
        held = staging.held_paths()
        _clear(held)
        folder = staging.tool_folder([self.target.entries[n] for n in missing])
        # A new folder each time: a tool of an earlier run may still be writing to the previous one.
        self._folder = tempfile.mkdtemp(prefix=PREFIX, dir=folder)
        # By the paths that the tool gives them: files that are under way, those of them that came
        # in parts and have to be confirmed, and files that were published.
        wanted = {number: self._objects[number] for number in missing}
        self._waiting = {
            self._tool.staged(place, one): number
            for place, (number, one) in enumerate(wanted.items())
        }
        self._large: dict[bytes, int] = {}
        self._put: set[bytes] = set()
        self._had = 0
        self._confirmed_at = time.monotonic()
        everything = self.progress.gap.files == self._all

        def attempt() -> str:
            self._tool.errors = []
            self._tool.fetch(list(wanted.values()), everything, self._folder, self._collect)
            self._collect(last=True)
            return "" if self._put else "\n".join(self._tool.errors)

        try:
            retry_without_credentials(attempt)
            self._leave_out_the_rest()
            self.target.publisher.finish()
        finally:
            _clear(held)

    def _collect(self, last: bool = False) -> None:
        """Publish files that have come whole, and count the bytes of the others.

        What was fetched in parts is published only if S3 still has what was listed: the parts may
        be of two versions of the object.
        """
        coming = 0
        for at, _, names in os.walk(self._folder):
            for name in names:
                full = os.path.join(at, name)
                staged = os.path.relpath(full, self._folder)
                with contextlib.suppress(FileNotFoundError):  # the tool has just renamed it
                    status = os.stat(full)
                    if staged not in self._put:
                        # Parts are written at their places, so a file may have holes.
                        coming += min(status.st_size, status.st_blocks * 512)
                    if staged in self._waiting:
                        self._take(staged, status.st_size, last)
        self.progress.bytes = min(self.progress.gap.bytes, self._had + coming)
        self.progress.files = self.target.publisher.written
        if self._large and (last or time.monotonic() - self._confirmed_at > CONFIRM_S):
            self._confirm()

    def _take(self, staged: bytes, size: int, last: bool) -> None:
        number = self._waiting[staged]
        if size != self._objects[number].size:
            if last:
                self.leave_out(number, CHANGED)
                del self._waiting[staged]
        elif size > self._tool.part_bytes:
            self._large[staged] = number
        else:
            self._give_on(staged)

    def _give_on(self, staged: bytes) -> None:
        number = self._waiting.pop(staged)
        self._put.add(staged)
        self._had += self._objects[number].size
        self.put(number, os.path.join(self._folder, staged))

    def _confirm(self) -> None:
        """Publish files fetched in parts whose objects are as listed, and leave out the others."""
        began = time.monotonic()
        now = {
            (one.source, one.key): (one.size, one.mtime, one.etag)
            for each in self._tool.list_all()
            for one in each
        }
        took, self._confirmed_at = time.monotonic() - began, time.monotonic()
        # A listing of millions of objects takes minutes: spend at most a tenth of the time on it.
        self._confirmed_at += max(0.0, 9 * took - CONFIRM_S)
        for staged, number in self._large.items():
            one = self._objects[number]
            if now.get((one.source, one.key)) == (one.size, one.mtime, one.etag):
                self._give_on(staged)
            else:
                self.leave_out(number, CHANGED)
                del self._waiting[staged]
        self._large = {}

    def _leave_out_the_rest(self) -> None:
        """Record why the rest has not come. Raises Failure if nothing has."""
        errors = self._tool.errors
        for number in self._waiting.values():
            one = self._objects[number]
            url = f"s3://{self._tool.sources[one.source][0]}/{text_of(one.key)}"
            own = [line for line in errors if f"{url}:" in line or f"{url} " in line]
            failure = explained("\n".join(own or errors), self._tool, url)
            if not self._put:
                raise failure
            self.leave_out(number, str(failure))


def _clear(folders: Sequence[bytes]) -> None:
    """Remove what tools have written to in these staging folders."""
    for path in (os.path.join(folder, name) for folder in folders for name in os.listdir(folder)):
        if os.path.basename(path).startswith(PREFIX):
            shutil.rmtree(path, ignore_errors=True)
