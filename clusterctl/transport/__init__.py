"""SSH to many hosts.

What paramiko imports is taken apart: that is most of the time that one host takes. paramiko.config
imports all of invoke for the sake of `Match exec` lines, and gets a stand-in that imports it when
such a line is met. And it can be had alone, so that connections are under way before the rest of
paramiko is imported.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any


class _InvokeWhenUsed(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("invoke"), name)


@contextmanager
def _without_invoke() -> Iterator[None]:
    if "invoke" in sys.modules:
        yield
        return
    sys.modules["invoke"] = _InvokeWhenUsed("invoke")
    try:
        yield
    finally:
        del sys.modules["invoke"]


class _Paramiko:
    """Finds paramiko for whoever imports it first."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != "paramiko":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec and spec.loader
        execute = spec.loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            with _without_invoke():
                execute(module)
            # What was imported before it is not in its namespace yet.
            for part in ("config", "ssh_exception"):
                setattr(module, part, sys.modules[f"{name}.{part}"])

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def config_module() -> Any:
    """paramiko.config, without the rest of paramiko if that is not there yet."""
    found = None if "paramiko" in sys.modules else PathFinder.find_spec("paramiko")
    if found is None:
        return importlib.import_module("paramiko.config")
    package = types.ModuleType("paramiko")
    package.__path__ = found.submodule_search_locations or []
    sys.modules["paramiko"] = package
    try:
        with _without_invoke():
            return importlib.import_module("paramiko.config")
    finally:
        del sys.modules["paramiko"]


if "paramiko" not in sys.modules:
    sys.meta_path.insert(0, _Paramiko())
# What paramiko's threads log they also raise; without a handler Python would print the traceback.
logging.getLogger("paramiko").addHandler(logging.NullHandler())
