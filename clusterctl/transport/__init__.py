"""SSH to many hosts.

paramiko.config imports all of invoke for the sake of `Match exec` lines: nearly half the time that
importing paramiko takes. It gets a stand-in that imports invoke when such a line is met.
"""

from __future__ import annotations

import importlib
import logging
import sys
import types
from typing import Any


class _InvokeWhenUsed(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("invoke"), name)


def _import_paramiko() -> None:
    if "invoke" in sys.modules or "paramiko" in sys.modules:
        return
    sys.modules["invoke"] = _InvokeWhenUsed("invoke")
    try:
        importlib.import_module("paramiko")
    finally:
        del sys.modules["invoke"]


_import_paramiko()
# What paramiko's threads log they also raise; without a handler Python would print the traceback.
logging.getLogger("paramiko").addHandler(logging.NullHandler())
