"""Each refusal in the code is one of the table, with as many values as its text takes."""

from __future__ import annotations

import ast
import string
from pathlib import Path

import clusterctl.lab


def calls():
    """Yield the name and the values of each call of `refuse` in the lab."""
    for path in Path(clusterctl.lab.__path__[0]).rglob("*.py"):
        for one in ast.walk(ast.parse(path.read_text())):
            if isinstance(one, ast.Call) and ast.unparse(one.func) == "refuse":
                yield ast.literal_eval(one.args[0]), one.args[1:]


def test_refusals_and_their_table_agree():
    from clusterctl.lab.ec2.launch import REFUSALS

    used = list(calls())
    assert {name for name, _ in used} == set(REFUSALS)
    for name, values in used:
        taken = [field for _, field, _, _ in string.Formatter().parse(REFUSALS[name][1])]
        places = len([field for field in taken if field is not None])
        spread = any(isinstance(value, ast.Starred) for value in values)
        assert spread or len(values) == places, name
