"""Where settings come from: flags, the environment, a file. Read by `cli/` only."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterctl.domain.errors import UsageError

if TYPE_CHECKING:
    from clusterctl.configuration.options import Values
    from clusterctl.configuration.specfile import SpecFile
    from clusterctl.configuration.yaml_tree import Problem

FILE_NAME = "clusterctl.yaml"
# No message is longer than what a terminal shows.
PROBLEMS_SHOWN = 40


@dataclass(frozen=True)
class Settings:
    """What every command needs to know. Empty fields leave the choice to boto3's own chain.

    `file` is what clusterctl.yaml says, where there is one.
    """

    home: Path
    lab: bool = False
    region: str | None = None
    profile: str | None = None
    endpoint_url: str | None = None
    file: SpecFile | None = None


def load_settings(
    environ: Mapping[str, str] = os.environ,
    *,
    lab: bool | None = None,
    region: str | None = None,
    profile: str | None = None,
    endpoint_url: str | None = None,
    config: Path | None = None,
    cluster: str | None = None,
) -> Settings:
    """Flags beat the environment (CLUSTERCTL_HOME, CLUSTERCTL_REGION, …), that beats the file.

    `config` is the file, in place of the one that would be found; `cluster` is whose entry
    counts. AWS_* is boto3's and comes last. Raises UsageError.
    """
    # runclust wants `home_folder` alone.
    from clusterctl.configuration.options import Value, account_values

    file = load_spec_file(config, environ)
    flags = {"lab": lab, "region": region, "profile": profile}
    said = {
        **(file.values(cluster) if file else {}),
        **account_values(environ),
        **{key: Value(value, "flag") for key, value in flags.items() if value is not None},
    }
    return Settings(
        home=home_folder(environ),
        lab=bool(_value(said, "lab")),
        region=_value(said, "region"),
        profile=_value(said, "profile"),
        endpoint_url=endpoint_url,
        file=file,
    )


def _value(said: Values, key: str) -> Any:
    return said[key].value if key in said else None


def home_folder(environ: Mapping[str, str] = os.environ) -> Path:
    home = environ.get("CLUSTERCTL_HOME")
    try:
        return Path(home) if home else Path.home() / ".clusterctl"
    except RuntimeError:  # a container's user, whom no password file names
        raise UsageError(
            "this user has no home folder", "name one: HOME=DIR, or CLUSTERCTL_HOME=DIR"
        ) from None


def load_spec_file(config: Path | None, environ: Mapping[str, str]) -> SpecFile | None:
    """The file that counts; None if there is none. Raises UsageError with all its problems."""
    path = find_file(config, environ)
    if path is None:
        return None
    file, problems = read_spec_file(path)
    if problems:
        raise UsageError(worded(path, problems))
    return file


def find_file(config: Path | None, environ: Mapping[str, str]) -> Path | None:
    """--config, CLUSTERCTL_CONFIG, ./clusterctl.yaml, ~/.clusterctl/clusterctl.yaml.

    /dev/null stands for no file at all.
    """
    chosen = config or environ.get("CLUSTERCTL_CONFIG")
    if chosen:
        return None if str(chosen) == os.devnull else Path(chosen)
    for folder in (Path(), home_folder(environ)):
        # A link that leads nowhere is a mistake that should be seen.
        if os.path.lexists(folder / FILE_NAME):
            return folder / FILE_NAME
    return None


def read_spec_file(path: Path) -> tuple[SpecFile, tuple[Problem, ...]]:
    """What it says, and all that is wrong with it. Raises UsageError if it cannot be read."""
    data = _read(path)
    # PyYAML costs every command its start-up, and most users have no file.
    from clusterctl.configuration.specfile import parse_spec_file

    return parse_spec_file(data, path)


def _read(path: Path) -> bytes:
    from clusterctl.configuration.yaml_tree import MAX_BYTES

    try:
        # Opening a pipe would wait for a writer.
        if not stat.S_ISREG(path.stat().st_mode):
            raise UsageError(f"{path} is not a file", "give another: --config FILE")
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror}", "give another: --config FILE"
        ) from None


def worded(path: Path, problems: tuple[Problem, ...]) -> str:
    """All problems of a file as one message."""
    lines = [problem.at(str(path)) for problem in problems[:PROBLEMS_SHOWN]]
    if len(problems) == 1:
        return lines[0]
    if len(problems) > PROBLEMS_SHOWN:
        lines.append(f"and {len(problems) - PROBLEMS_SHOWN} more")
    return "\n  ".join([f"{path} has {len(problems)} problems:", *lines])
