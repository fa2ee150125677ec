"""Modules that run on a node, joined to one self-contained program that is sent over SSH."""

from __future__ import annotations

import functools
import json
import re
import shlex
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NODE = Path(__file__).parent / "relay"
PACKAGE = "clusterctl.node.relay"
OLDEST_PYTHON = (3, 8)
# The modules stand one after another, each under the name that the others import it by. What
# follows the program on stdin is its input.
_LOADER = """\
import sys, types
def load(name, source):
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(source, name, "exec"), module.__dict__)
for package in {packages!r}:
    sys.modules[package] = types.ModuleType(package)
    sys.modules[package].__path__ = []
"""


@dataclass(frozen=True)
class JoinedProgram:
    """Modules of `clusterctl.node.relay`, each after those it imports; the last has `main()`."""

    modules: tuple[str, ...]

    @functools.cached_property
    def text(self) -> str:
        """Python that needs nothing but the standard library of 3.8."""
        parts = PACKAGE.split(".")
        packages = [".".join(parts[: n + 1]) for n in range(len(parts))]
        loads = [
            f"load({f'{PACKAGE}.{name}'!r}, {(NODE / f'{name}.py').read_text()!r})\n"
            for name in self.modules
        ]
        run = f"sys.modules[{f'{PACKAGE}.{self.modules[-1]}'!r}].main()\n"
        return _LOADER.format(packages=packages) + "".join(loads) + run

    @functools.cached_property
    def _sent(self) -> bytes:
        return zlib.compress(self.text.encode(), 9)

    def argv(self, *arguments: str, python: str = "python3") -> list[str]:
        """`-IS`: nothing of the node's own packages is looked for, which is half of the start."""
        version = ".".join(map(str, OLDEST_PYTHON))
        name = f"clusterctl:{self.modules[-1]}"
        read = (
            "import sys, zlib; "
            f"sys.version_info >= {OLDEST_PYTHON} or "
            f"sys.exit('python3 is ' + sys.version.split()[0] + ', {version} is needed'); "
            f"exec(compile(zlib.decompress(sys.stdin.buffer.read({len(self._sent)})), "
            f"{name!r}, 'exec'))"
        )
        return [python, "-ISu", "-c", read, *arguments]

    def command(self, *arguments: str) -> str:
        """For the shell of a node."""
        return shlex.join(self.argv(*arguments))

    def stdin(self, first_line: dict[str, Any] | None = None) -> bytes:
        """What goes in first: the program, then one line of JSON."""
        line = b"" if first_line is None else json.dumps(first_line).encode() + b"\n"
        return self._sent + line


_IMPORT = re.compile(rf"^from {re.escape(PACKAGE)}\.(\w+) import", re.MULTILINE)


@functools.cache
def program_of(*modules: str) -> JoinedProgram:
    """The program of the last module; what these import at their top comes with them."""
    ordered: list[str] = []

    def add(name: str) -> None:
        if name not in ordered:
            for imported in _IMPORT.findall((NODE / f"{name}.py").read_text()):
                add(imported)
            ordered.append(name)

    for name in modules:
        add(name)
    return JoinedProgram(tuple(ordered))
