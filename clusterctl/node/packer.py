"""Packs the programs that run on nodes: a module, and the modules of this package that it imports.

A program reaches a node in one of three ways. Most programs are text that is sent on the standard
input of the Python interpreter that runs it, and are never stored (`command`, `stdin`). Text is
stored (`text`) where something on the node starts the program later: runner.py and collect.py in a
job's folder (`start_job` of jobs/detached.py), and torch_rank.py (`example_files` of
jobs/deploy.py). A zip file is stored for `python3 -IS FILE` (`zipapp`): the guard, which starts at
every boot; the program that train.sh runs; and script mode's rank.pyz, which starts the user's
program for each rank. Text and zip file contain the same modules.

Text on standard input starts faster than a zip file. Measured as processor time: 30 ms for the
smallest program and 92 ms for the relay, against 40 ms and 125 ms as a zip file in memory
(memfd_create).
"""

from __future__ import annotations

import ast
import functools
import io
import json
import re
import shlex
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# A line that has only these tokens is not code.
_NO_CODE = (
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE),
    *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
)
# The folder that holds the package `clusterctl`.
HERE = Path(__file__).parents[2]
OLDEST_PYTHON = (3, 8)
# An import of this package's modules. A whole parser would take 1 ms for each module of a program.
_IMPORT = re.compile(r"^from (clusterctl[\w.]*) import (\([^)]*\)|.*)$", re.MULTILINE)
# The program's text is this loader, then a call of `load` for each module, then `main()`. Each
# module is registered under the name by which the others import it. Whatever follows the program on
# stdin is its input. Nothing that is loaded becomes garbage; looking for it took 7 % of the time.
# `dataclasses` needs `inspect` only for a class without a docstring (Python 3.12 for every class),
# and `shutil` the compressors only for archives. They are loaded when used: it took an eighth.
_LOADER = """\
import gc, sys, types
gc.disable()
class Later(types.ModuleType):
    def __getattr__(self, name):
        if sys.modules[self.__name__] is self:
            del sys.modules[self.__name__]
        return getattr(__import__(self.__name__), name)
for name in ("inspect", "bz2", "lzma"):
    sys.modules[name] = Later(name)
def load(name, source, is_package):
    module = sys.modules[name] = types.ModuleType(name)
    if is_package:
        module.__path__ = []
    exec(compile(source, name, "exec"), module.__dict__)
"""


@dataclass(frozen=True)
class Program:
    """A program, given by names of modules. The last one has `main()`. The modules that these
    import at their top level are added."""

    names: tuple[str, ...]

    @functools.cached_property
    def modules(self) -> tuple[str, ...]:
        """All modules of the program and their packages, each after those that it imports."""
        ordered: dict[str, None] = {}

        def add(name: str) -> None:
            if name in ordered:
                return
            if "." in name:
                add(name.rpartition(".")[0])
            for imported in _imports(name):
                add(imported)
            ordered[name] = None

        for name in self.names:
            add(name)
        return tuple(ordered)

    @functools.cached_property
    def text(self) -> str:
        """The program as the text of one Python script."""
        loads = "".join(
            f"load({name!r}, {_source(name)!r}, {_is_package(name)})\n" for name in self.modules
        )
        main = f"gc.freeze()\ngc.enable()\nsys.modules[{self.names[-1]!r}].main()\n"
        return f"{_LOADER}{loads}{main}"

    @functools.cached_property
    def _sent(self) -> bytes:
        return zlib.compress(self.text.encode(), 9)

    def argv(self, *arguments: str, python: str = "python3") -> list[str]:
        """Return the command line that reads the program from stdin and runs it.

        `-IS` skips the site packages of the node, which halves the start time. `ps` shows the
        program's name, for example `clusterctl:relay`.
        """
        version = ".".join(map(str, OLDEST_PYTHON))
        name = f"clusterctl:{self.names[-1].rpartition('.')[2]}"
        read = (
            "import sys, zlib; "
            f"sys.version_info >= {OLDEST_PYTHON} or "
            f"sys.exit('python3 is ' + sys.version.split()[0] + ', {version} is needed'); "
            f"exec(compile(zlib.decompress(sys.stdin.buffer.read({len(self._sent)})), "
            f"{name!r}, 'exec'))"
        )
        return [python, "-ISu", "-c", read, *arguments]

    def command(self, *arguments: str) -> str:
        """Return the command line, quoted for a node's shell."""
        return shlex.join(self.argv(*arguments))

    def stdin(self, content: bytes | Mapping[str, Any] = b"") -> bytes:
        """Return the bytes to send on stdin: the program, then its input `content`. A mapping is
        sent as one line of JSON."""
        return self._sent + (
            content if isinstance(content, bytes) else json.dumps(content).encode() + b"\n"
        )

    @functools.lru_cache(maxsize=4)  # noqa: B019 - programs are few, and kept by program_of
    def zipapp(self, compress: bool = False, comments: bool = True) -> bytes:
        """Return the program as a zip file for `python3 -IS FILE`."""
        main = f"from {self.names[-1]} import main\n\nmain()\n"
        paths = [_path_of(name) for name in self.modules]
        texts = {path.relative_to(HERE).as_posix(): path.read_text("utf-8") for path in paths}
        how = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w") as package:
            for name, text in {"__main__.py": main, **texts}.items():
                kept = text if comments else without_comments(text)
                # ZipInfo has a fixed date: the same modules give the same bytes.
                package.writestr(zipfile.ZipInfo(name), kept, how)
        return content.getvalue()


@functools.cache
def program_of(*names: str) -> Program:
    """Return the program of these modules. Each program is packed once."""
    return Program(names)


@functools.cache
def _imports(name: str) -> tuple[str, ...]:
    """Return the modules of this package that the top level of a module imports. Imports inside
    functions and `if TYPE_CHECKING` are indented, and do not count."""
    found: dict[str, None] = {}
    for module, names in _IMPORT.findall(_source(name)):
        for one in names.strip("()").split(","):
            inner = f"{module}.{one.split()[0]}" if one.split() else module
            found[inner if _is_module(inner) else module] = None
    return tuple(found)


@functools.cache
def _source(name: str) -> str:
    return _path_of(name).read_text("utf-8")


@functools.cache
def _path_of(name: str) -> Path:
    path = HERE.joinpath(*name.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@functools.cache
def _is_package(name: str) -> bool:
    return _path_of(name).name == "__init__.py"


@functools.cache
def _is_module(name: str) -> bool:
    return name.split(".")[0] == __name__.split(".")[0] and _path_of(name).exists()


def without_comments(source: str) -> str:
    """Return the program without docstrings, blank lines and comment lines, indented by 1 column,
    and without the annotations of parameters and results.

    ast.unparse is not used: it may write syntax that Python 3.8 on a node cannot read.
    """
    lines = source.splitlines()
    for row, start, end in sorted(_annotations(source), reverse=True):
        lines[row] = lines[row][:start] + lines[row][end:]
    source = "\n".join([*lines, ""])
    kept: set[int] = set()
    depth, begins = 0, True
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        depth += {tokenize.INDENT: 1, tokenize.DEDENT: -1}.get(token.type, 0)
        if token.type not in _NO_CODE:
            kept.update(range(token.start[0], token.end[0] + 1))
            row, column = token.start[0] - 1, token.start[1]
            if not lines[row][:column].strip():
                # The first token of its line; one inside brackets needs no indentation.
                lines[row] = " " * (depth if begins else 0) + lines[row][column:]
            begins = False
        begins = begins or token.type == tokenize.NEWLINE
    for node in ast.walk(ast.parse(source)):
        has_body = isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        if not has_body or not ast.get_docstring(node):  # type: ignore[arg-type]
            continue
        first = node.body[0]  # type: ignore[attr-defined]
        kept -= {*range(first.lineno, (first.end_lineno or first.lineno) + 1)}
        # A body that was only a docstring needs a statement.
        if len(node.body) == 1:  # type: ignore[attr-defined]
            docstring = lines[first.lineno - 1]
            indent = len(docstring) - len(docstring.lstrip())
            lines[first.lineno - 1] = " " * indent + "pass"
            kept.add(first.lineno)
    return "".join(lines[number - 1] + "\n" for number in sorted(kept))


def _annotations(source: str) -> Iterator[tuple[int, int, int]]:
    """Yield the line, the start and the end of each annotation of a parameter or a result that is
    on one line of ASCII."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.arg) and node.annotation:
            found, row = node.annotation, node.lineno
            start = node.col_offset + len(node.arg)
        elif isinstance(node, ast.FunctionDef) and node.returns:
            found, row = node.returns, node.returns.lineno
            start = lines[row - 1].rfind(" ->", 0, found.col_offset)
        else:
            continue
        if row == found.lineno == found.end_lineno and start >= 0 and lines[row - 1].isascii():
            yield row - 1, start, found.end_col_offset or start
