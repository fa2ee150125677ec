"""SSH to many hosts.

Importing paramiko takes most of the time that a command on one host takes. paramiko.config imports
all of invoke, only for `Match exec` lines of ssh_config; here it gets a stand-in module that
imports invoke at its first use.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from typing import Any


class _InvokeWhenUsed(types.ModuleType):
    """Stand-in for the module `invoke` that imports the real one at the first use of a name."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("invoke"), name)


@contextmanager
def _without_invoke() -> Iterator[None]:
    """Replace `invoke` by the stand-in while the block imports, unless invoke is loaded already."""
    if "invoke" in sys.modules:
        yield
        return
    sys.modules["invoke"] = _InvokeWhenUsed("invoke")
    try:
        yield
    finally:
        del sys.modules["invoke"]


class _Paramiko:
    """Import hook that loads paramiko without invoke. It is used once, by the first import."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != "paramiko":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:  # not installed: Python's own error says so
            return None
        execute = spec.loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            with _without_invoke():
                execute(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if "paramiko" not in sys.modules:
    sys.meta_path.insert(0, _Paramiko())
# paramiko's threads log errors that callers also get as exceptions. Without a handler, Python's
# handler of last resort would print their tracebacks on stderr.
logging.getLogger("paramiko").addHandler(logging.NullHandler())
