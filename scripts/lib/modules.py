"""Print docs/modules.md: every module of the package, by its docstring's first sentences."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

TOP = Path(__file__).parents[2]
HEAD = """\
# Where is what

Every module of `clusterctl/` in the words of its first line.
[How clusterctl is built](architecture.md) tells how they work together, and where to add what.

A text that a user sees is where its value is: a finding with its check, an error where it is
raised, the outcome of a command, or why it has none, in its module of `cli/`.

`python scripts/lib/modules.py` writes this page.
"""


def page() -> str:
    """Return the page."""
    package = TOP / "clusterctl"
    lines = [HEAD]
    for folder in sorted({one.parent for one in package.rglob("*.py")}):
        rows = [(one.stem, _first(one)) for one in sorted(folder.glob("*.py"))]
        rows = [row for row in rows if row[1] and row[0] != "__init__"]
        if rows:
            name = folder.relative_to(TOP).as_posix()
            lines.append(f"## {name}\n\n| module | content |\n|---|---|")
            lines += [f"| `{module}` | {text} |" for module, text in rows]
            lines.append("")
    return "\n".join(lines)


def _first(path: Path) -> str:
    """Return the first paragraph of a module's docstring as one line of a table."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return " ".join(text.partition("\n\n")[0].split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(page())
