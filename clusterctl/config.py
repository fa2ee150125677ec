"""The settings of a run, from flags, environment and clusterctl.yaml.

Read by `cli/`, `api.py` and `sagemaker.py` only; deeper layers get values.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from clusterctl.domain.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from clusterctl.configuration.options import Values
    from clusterctl.configuration.specfile import SpecFile
    from clusterctl.configuration.yaml_tree import Problem

FILE_NAME = "clusterctl.yaml"
# Problems of a file that one message lists: about as many as a terminal shows.
PROBLEMS_SHOWN = 40


@dataclass(frozen=True)
class Settings:
    """The settings that every command needs.

    Where `region`, `profile` or `endpoint_url` is None, boto3 reads it from its usual places.

    `home` is the folder of clusterctl's state. `file` is the parsed clusterctl.yaml, None if there
    is none.
    """

    home: Path
    lab: bool = False
    region: str | None = None
    profile: str | None = None
    endpoint_url: str | None = None
    file: SpecFile | None = None


class AccountOptions(TypedDict, total=False):
    """Which account and region. One that is left out, or None, has the value that it has on the
    command line: from the environment, or from clusterctl.yaml."""

    lab: bool | None
    region: str | None
    profile: str | None


class AccountFlags(AccountOptions, total=False):
    """The same options of a command. `config` is a file to read in place of the one that
    `find_file` finds."""

    endpoint_url: str | None
    config: Path | None


def load_settings(
    environ: Mapping[str, str] = os.environ,
    *,
    cluster: str | None = None,
    **given: Unpack[AccountFlags],
) -> Settings:
    """Return the settings. Flags override the environment (CLUSTERCTL_HOME, …), which overrides
    the file.

    `cluster` selects the file's entry that applies. boto3 reads AWS_* for what is left None. Raises
    UsageError, also for a profile or endpoint with the local EC2.
    """
    # Imported here: runclust uses only `home_folder`, and starts faster without these.
    from clusterctl.configuration.options import ACCOUNT, OPTIONS, environment_values, parse_value

    file = load_spec_file(given.get("config"), environ)
    profile, endpoint_url = given.get("profile"), given.get("endpoint_url")
    texts = {"region": given.get("region"), "profile": profile}
    flags = {
        "lab": given.get("lab"),
        **{key: text and parse_value(OPTIONS[key], text) for key, text in texts.items()},
    }
    entries = {
        **(file.values(cluster) if file else {}),
        **environment_values(environ, ACCOUNT),
        **{key: value for key, value in flags.items() if value is not None},
    }
    elsewhere = {"--profile": profile, "--endpoint-url": endpoint_url}
    named = [f"{option} {text}" for option, text in elsewhere.items() if text is not None]
    if entries.get("lab") and named:
        raise UsageError(
            f"{' and '.join(named)} cannot be used with the local EC2, which is selected by --lab, "
            "CLUSTERCTL_LAB or clusterctl.yaml",
            "without the local EC2: --no-lab",
        )
    return Settings(
        home=home_folder(environ),
        lab=bool(entries.get("lab")),
        region=entries.get("region"),
        profile=entries.get("profile"),
        endpoint_url=endpoint_url,
        file=file,
    )


def home_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of clusterctl's state: CLUSTERCTL_HOME, else ~/.clusterctl.

    Raises UsageError if the user has no home folder.
    """
    home = environ.get("CLUSTERCTL_HOME")
    try:
        return Path(home) if home else Path.home() / ".clusterctl"
    except RuntimeError:  # a container's user that has no entry in /etc/passwd
        raise UsageError(
            "this user has no home folder", "name one: HOME=DIR, or CLUSTERCTL_HOME=DIR"
        ) from None


def load_spec_file(config: Path | None, environ: Mapping[str, str]) -> SpecFile | None:
    """Return the parsed file, None if there is none. Raises UsageError with all its problems."""
    path = find_file(config, environ)
    if path is None:
        return None
    file, problems = read_spec_file(path)
    if problems:
        raise UsageError(problems_message(str(path), problems))
    return file


def find_file(config: Path | None, environ: Mapping[str, str]) -> Path | None:
    """Return the path of the settings file, None if there is none.

    It is the first of --config, CLUSTERCTL_CONFIG, ./clusterctl.yaml and clusterctl.yaml in
    `home_folder`. /dev/null as --config or CLUSTERCTL_CONFIG means no file at all.
    """
    chosen = config or environ.get("CLUSTERCTL_CONFIG")
    if chosen:
        return None if str(chosen) == os.devnull else Path(chosen)
    for folder in (Path(), home_folder(environ)):
        # lexists, not exists: a dangling link is a mistake that must be reported, not skipped.
        if os.path.lexists(folder / FILE_NAME):
            return folder / FILE_NAME
    return None


def read_spec_file(path: Path) -> tuple[SpecFile, tuple[Problem, ...]]:
    """Return the parsed file and all its problems. Raises UsageError if it cannot be read."""
    data = _read(path)
    # Imported here: PyYAML slows the start of every command, and most users have no file.
    from clusterctl.configuration.specfile import parse_spec_file

    return parse_spec_file(data, path)


def settings_of(given: Mapping[str, Any]) -> Values:
    """Return a cluster's settings that a Python program gives, checked as those of the file.

    Raises UsageError with all problems.
    """
    import yaml

    from clusterctl.configuration.specfile import parse_spec_file

    path = Path("settings")  # paths of files are from the current folder on
    plain = {key: str(one) if isinstance(one, Path) else one for key, one in given.items()}
    for key, one in plain.items():
        try:
            yaml.safe_dump({key: one})
        except (yaml.YAMLError, ValueError):
            raise UsageError(
                f"{key}: no clusterctl.yaml can have this value, of type {type(one).__name__}",
                "use texts, numbers, True, False and None, and lists and dicts of them",
            ) from None
    text = yaml.safe_dump({"clusters": {"settings": plain}}, allow_unicode=True)
    file, problems = parse_spec_file(text.encode(), path)
    if problems:
        named = [(one.key.rpartition("settings.")[2], one.message) for one in problems]
        raise UsageError("; ".join(f"{key}: {message}" for key, message in named))
    return file.values("settings")


def _read(path: Path) -> bytes:
    from clusterctl.configuration.yaml_tree import MAX_BYTES

    try:
        # Opening a named pipe would wait for a writer.
        if not stat.S_ISREG(path.stat().st_mode):
            raise UsageError(f"{path} is not a file", "give another: --config FILE")
        with path.open("rb") as file:
            # One byte more than allowed: `decode` refuses a file that is too large.
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror}", "give another: --config FILE"
        ) from None


def problems_message(path: str, problems: tuple[Problem, ...]) -> str:
    """Return all problems of a file as one message."""
    lines = [problem.at(path) for problem in problems[:PROBLEMS_SHOWN]]
    if len(problems) == 1:
        return lines[0]
    if len(problems) > PROBLEMS_SHOWN:
        lines.append(f"and {len(problems) - PROBLEMS_SHOWN} more")
    return "\n  ".join([f"{path} has {len(problems)} problems:", *lines])
