"""Print one digest of all names and contents below a folder: bench_digest.py FOLDER NAME

scp and pdcp put the folder itself into an existing one, and a swarm names the folder after the data
set. So if FOLDER/NAME exists, the digest is of what is below it.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path


def main() -> None:
    folder, name = sys.argv[1:]
    inner = Path(folder, name)
    print(digest(str(inner if inner.is_dir() else folder)))


def digest(folder: str) -> str:
    total = hashlib.sha256()
    for path, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            whole = Path(path, name)
            total.update(f"{whole.relative_to(folder)}\0{content(whole)}\n".encode())
    return total.hexdigest()


def content(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            found.update(piece)
    return found.hexdigest()


if __name__ == "__main__":
    main()
