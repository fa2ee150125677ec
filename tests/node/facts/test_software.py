"""What Horovod was built with: it is loaded once, and again when a library has changed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from clusterctl.node.facts.software import versions

# A Horovod that writes a line into a file whenever it is loaded.
HOROVOD = """
#include <cstdio>
#include <cstdlib>
struct Loaded { Loaded() {
    FILE* file = fopen(getenv("LOADS"), "a");
    fputs("loaded\\n", file);
    fclose(file);
} } loaded;
extern "C" int tensorflow_symbol();
extern "C" {
int horovod_mpi_built() { return tensorflow_symbol(); }
int horovod_gloo_built() { return GLOO; }
int horovod_nccl_built() { return 0; }
int horovod_ccl_built() { return 0; }
}
"""


def build(library: Path, source: str, *options: str) -> None:
    """Build a library in place of the one that is there, as an installation does."""
    library.parent.mkdir(parents=True, exist_ok=True)
    made = library.with_name("made")
    argv = ["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(made), *options]
    subprocess.run(argv, input=source.encode(), check=True)
    made.replace(library)


@pytest.mark.slow
def test_horovod_is_loaded_again_only_when_a_library_has_changed(tmp_path, monkeypatch):
    home, packages, loads = tmp_path / "home", tmp_path / "packages", tmp_path / "loads"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("LOADS", str(loads))
    monkeypatch.setenv("PYTHONPATH", str(packages))
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    horovod = packages / "horovod/tensorflow/mpi_lib.so"
    tensorflow = packages / "tensorflow/libtensorflow_framework.so.2"
    build(tensorflow, 'extern "C" int tensorflow_symbol() { return 1; }')
    build(horovod, HOROVOD, "-DGLOO=0")
    for package in ("horovod", "tensorflow"):
        (packages / package / "__init__.py").touch()

    def found() -> tuple[str, str, int]:
        read = versions(sys.executable, "/usr/bin/mpirun")
        count = len(loads.read_text().splitlines()) if loads.exists() else 0
        loads.unlink(missing_ok=True)
        error = read.get("horovod_error", "").rpartition(": ")[2]
        return read.get("horovod_has", ""), error, count

    assert [found(), found(), found()] == [("mpi", "", 1), ("mpi", "", 0), ("mpi", "", 0)]
    build(horovod, HOROVOD, "-DGLOO=1")
    assert [found(), found()] == [("mpi gloo", "", 1), ("mpi gloo", "", 0)]
    # A library that is searched elsewhere may be another one.
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert [found(), found()] == [("mpi gloo", "", 1), ("mpi gloo", "", 0)]
    # Another TensorFlow lacks a symbol: that is never kept.
    build(tensorflow, 'extern "C" int another_symbol() { return 1; }')
    assert [found(), found()] == [("", "tensorflow_symbol", 0)] * 2
    build(tensorflow, 'extern "C" int tensorflow_symbol() { return 0; }')
    assert [found(), found()] == [("gloo", "", 1), ("gloo", "", 0)]
    kept = home / ".cache/clusterctl/horovod.json"
    kept.write_text("{")
    assert [found(), found()] == [("gloo", "", 1), ("gloo", "", 0)]
    assert list(kept.parent.iterdir()) == [kept]
