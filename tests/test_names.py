"""Module names are the standard terms, and each class name is used once."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import clusterctl

PACKAGE = Path(clusterctl.__file__).parent
TESTS = Path(__file__).parent
# Module names that are not the standard terms: app context, local state, known hosts, cost history
GONE_MODULES = (
    *("wiring", "looks", "likeness", "settle", "keep", "pins", "ledger", "meet", "shipping"),
    *("work", "judge", "verdicts", "relinks", "hearing", "asking", "conversation", "looking"),
    *("doorway", "deeds", "slain"),
)
GONE_CLASSES = ("Wiring", "Member", "Victim", "Way", "Patience", "Case")


def classes() -> Counter[str]:
    """Count the definitions of each public class name of the package."""
    trees = (ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py"))
    return Counter(one.name for tree in trees for one in tree.body if isinstance(one, ast.ClassDef))


def test_modules_have_the_fields_words():
    found = [*PACKAGE.rglob("*.py"), *TESTS.rglob("*.py")]
    names = {path.stem.removeprefix("test_") for path in found}
    assert names.isdisjoint(GONE_MODULES)


def test_a_class_name_stands_for_one_thing():
    counted = classes()
    assert not counted.keys() & set(GONE_CLASSES)
    public = {name for name, times in counted.items() if times > 1 and not name.startswith("_")}
    assert not public
