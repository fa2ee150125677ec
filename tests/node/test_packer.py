"""The packer: programs for nodes are complete, run on the oldest Python, and need nothing else."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

import clusterctl
from clusterctl.node.packer import program_of, without_comments
from tests.programs import completed
from tests.pythons import python_or_skip
from tests.variants import usual

PACKAGE = Path(clusterctl.__file__).parent
NODE = [
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    for path in sorted((PACKAGE / "node").rglob("*.py"))
    if path.name not in ("__init__.py", "packer.py")
]
LAUNCHER = program_of("clusterctl.jobs.train_sh").modules
OWN = [*NODE, *(name for name in LAUNCHER if name not in NODE)]


def source_of(name: str) -> str:
    path = PACKAGE.parent.joinpath(*name.split("."))
    return (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text()


def imported(source: str) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.update(one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level
            found.add(node.module)
    return found


def is_own(module: str) -> bool:
    return module.startswith("clusterctl")


def test_nothing_but_itself_and_the_standard_library():
    for name in OWN:
        ours = {one for one in imported(source_of(name)) if is_own(one)}
        others = {one.split(".")[0] for one in imported(source_of(name)) - ours}
        assert others <= sys.stdlib_module_names, name
        also = () if name in NODE else LAUNCHER
        assert all(one.startswith("clusterctl.node") or one in also for one in ours), name


def test_a_program_has_what_its_modules_import_at_their_top():
    """The packer finds imports without a parser: it takes 1 ms for each module, at each command."""
    for name in OWN:
        found = set()
        whole = ast.parse(source_of(name))
        for function in ast.walk(whole):
            if isinstance(function, ast.FunctionDef):  # in it, an import fails on a node
                assert not {one for one in imported(ast.unparse(function)) if is_own(one)}, name
        for node in whole.body:
            assert not isinstance(node, ast.Import) or "clusterctl" not in ast.unparse(node)
            if isinstance(node, ast.ImportFrom) and node.module.startswith("clusterctl"):
                inner = {f"{node.module}.{one.name}" for one in node.names}
                found |= {one if one in OWN else node.module for one in inner}
        assert {*program_of(name).modules} >= found, name


def test_no_methods_of_python_3_9():
    """ruff does not notice them: it sees syntax and imports only."""
    for name in OWN:
        used = {node.attr for node in ast.walk(ast.parse(source_of(name))) if hasattr(node, "attr")}
        assert not used & {"removeprefix", "removesuffix", "is_relative_to", "with_stem"}, name


@pytest.mark.parametrize(
    ("version", "comments"),
    usual(1, [("3.8", False), ("3.9", True), ("3.10", False), ("3.12", False), ("3.13", True)]),
)
def test_every_module_on_other_pythons(tmp_path, version, comments):
    program = program_of(*NODE, "clusterctl.jobs.train_sh")
    file = tmp_path / "all"
    file.write_bytes(program.zipapp(comments=comments))
    python = python_or_skip(version)
    imports = f"import sys; sys.path.insert(0, {str(file)!r}); import {', '.join(program.modules)}"
    done = subprocess.run([python, "-IS", "-c", imports], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_without_comments_it_is_the_same_program():
    for name in OWN:
        source = source_of(name)
        whole = ast.parse(source)
        for node in ast.walk(whole):
            kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
            if isinstance(node, kinds) and ast.get_docstring(node):
                node.body[:1] = [] if node.body[1:] else [ast.Pass()]
        short = ast.parse(without_comments(source))
        for node in (*ast.walk(whole), *ast.walk(short)):
            # Those that are on several lines are kept.
            if isinstance(node, ast.arg):
                node.annotation = None
            elif isinstance(node, ast.FunctionDef):
                node.returns = None
        assert ast.dump(short) == ast.dump(whole), name


def test_what_a_program_rarely_needs_is_loaded_when_used():
    """`inspect` and the compressors take an eighth of a program's start."""
    text = program_of("clusterctl.node.jobs.listing").text
    main = (
        "print('_lzma' in sys.modules, 'ast' in sys.modules and sys.version_info < (3, 12))\n"
        "import dataclasses, inspect, lzma, shutil\n"
        "print(inspect.isclass(dataclasses.Field), lzma.decompress(lzma.compress(b'x')))\n"
        "print(type(sys.modules['inspect']).__name__, inspect.signature(inspect.isclass))\n"
    )
    done = completed(
        [sys.executable, "-IS", "-c", text.rpartition("sys.modules[")[0] + main], check=True
    )
    assert done.stdout == "False False\nTrue b'x'\nmodule (object)\n"


@pytest.mark.parametrize("how", [{}, {"compress": True}, {"comments": False}])
def test_the_same_bytes_each_time(how):
    names = ("clusterctl.node.guard.guard",)
    program_of.cache_clear()
    first = program_of(*names).zipapp(**how)
    program_of.cache_clear()
    assert program_of(*names).zipapp(**how) == first


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_it_comes_on_standard_input_and_what_it_is_told_behind_it(home):
    unpack = program_of("clusterctl.node.jobs.unpack")
    told = {"a b": {"mode": 0o600, "content": "eA=="}}
    assert unpack.stdin(told) == unpack.stdin() + json.dumps(told).encode() + b"\n"
    done = subprocess.run(
        ["sh", "-c", unpack.command("a b")],
        input=unpack.stdin(zlib.compress(json.dumps(told).encode())),
        capture_output=True,
        check=True,
    )
    assert json.loads(done.stdout) == {"written": ["a b"], "same": [], "kept": []}
    assert (home / "a b").read_text() == "x"


@pytest.mark.parametrize("name", ["clusterctl.node.relay.relay", "clusterctl.node.jobs.jobs"])
def test_a_python_that_is_too_old_says_so(name):
    program = program_of(name)
    argv = program.argv("list", python=str(python_or_skip("3.7")))
    done = subprocess.run(argv, input=program.stdin({}), capture_output=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(b"python3 is 3.7")
    assert done.stderr.endswith(b", 3.8 is needed\n")
