"""Module names are the standard terms, and each class name is used once."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
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


# Words with a plain term, which names and messages do not have; where they stay, and why.
PRIVATE_WORDS = {
    *("said", "says", "told", "tell", "tells", "asked", "asks", "wish", "wished", "look", "looks"),
    *("looked", "anew", "mend", "mended", "mends", "beside", "nobody", "somebody", "settle"),
    *("settled", "settles", "unsettled", "judge", "judged", "lent", "seen", "unseen", "twins"),
    *("pinned", "patience", "patient", "knob", "knobs", "news", "deed", "deeds", "slain", "hasten"),
    *("bring", "brings", "brought", "obey", "keeper", "orphan", "condemned", "alone", "away"),
    *("dismissed", "agree", "heard", "hears", "begun", "unended", "vain", "befall"),
}
# Packages of which only the messages are read, not the names.
UNREAD_NAMES = {"lab", "diagnosis", "explain"}
ALLOWED_WORDS = {
    "activity.py": {"alone"},  # "rank 5 is alone computing": no other word is as short
    "page.py": {"away"},  # a class of CSS
    "failing.py": {"anew"},  # a word of programs' logs
    "orphans.py": {"orphan"},  # what AWS's documents call what no instance uses
    "json_types.py": {"seen"},  # a key of `diagnose --json`
}


def private_words(path: Path) -> Iterator[str]:
    """Yield each private word in the names and messages of a module, with its line."""
    tree = ast.parse(path.read_text())
    expressions = (one for one in ast.walk(tree) if isinstance(one, ast.Expr))
    documentation = {id(one.value) for one in expressions}
    reads_names = not UNREAD_NAMES.intersection(path.parts)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            # Programs in other languages, and pages, have comments and class names.
            is_message = " " in node.value and "\n" not in node.value
            text = node.value.lower() if is_message and id(node) not in documentation else ""
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            text = node.name
        elif isinstance(getattr(node, "ctx", None), ast.Store):
            text = getattr(node, "id", "") or getattr(node, "attr", "")
        else:
            text = node.arg if isinstance(node, ast.arg) else ""
        if not (reads_names or isinstance(node, ast.Constant)):
            continue
        words = {one.lower() for one in re.findall("[A-Z]?[a-z]+|[A-Z]+(?![a-z])", text)}
        for word in words & PRIVATE_WORDS - ALLOWED_WORDS.get(path.name, set()):
            yield f"{path.relative_to(PACKAGE)}:{node.lineno}: {word}"


def test_names_and_messages_have_the_fields_words():
    assert not [found for path in PACKAGE.rglob("*.py") for found in private_words(path)]
    codes = (PACKAGE / "ec2" / "codes.toml").read_text().lower()
    assert not PRIVATE_WORDS.intersection(re.findall("[a-z]+", codes))


def test_a_class_name_stands_for_one_thing():
    counted = classes()
    assert not counted.keys() & set(GONE_CLASSES)
    public = {name for name, times in counted.items() if times > 1 and not name.startswith("_")}
    assert not public


# Where values that belong together are one object; a command's function gets each option by itself.
FEW_PARAMETERS = ("operations", "jobs", "copy", "bench", "bootstrap", "ec2", "node")


def test_no_function_has_more_than_six_parameters():
    found = []
    for path in (path for name in FEW_PARAMETERS for path in (PACKAGE / name).rglob("*.py")):
        for one in ast.walk(ast.parse(path.read_text())):
            if isinstance(one, ast.FunctionDef):
                given = [*one.args.posonlyargs, *one.args.args, *one.args.kwonlyargs]
                if sum(each.arg not in ("self", "cls") for each in given) > 6:
                    found.append(f"{path.relative_to(PACKAGE)}:{one.lineno}: {one.name}")
    assert not found
