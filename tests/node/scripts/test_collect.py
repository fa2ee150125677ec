"""Merging the files of several nodes into one folder."""

from __future__ import annotations

import pytest

from clusterctl.node.scripts.collect import NotCollected, merge


def left(tmp_path, **nodes):
    """Return a job's folder with the files of its nodes, {node: {path: content}}."""
    for node, files in nodes.items():
        for name, content in files.items():
            path = tmp_path / "collecting" / node / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
    return tmp_path, tmp_path / "collecting", list(nodes)


@pytest.mark.parametrize(("first", "second"), [("model/x", "model/x/y"), ("model/x/y", "model/x")])
def test_a_file_here_and_a_folder_there(tmp_path, first, second):
    folder, *nodes = left(tmp_path, a={first: "of a"}, b={second: "of b"}, c={second: "of b"})
    manifest = merge(folder, *nodes)
    assert [(one["path"], one["host"]) for one in manifest["model"]] == [(first, "a")]
    assert [(one["path"], one["host"]) for one in manifest["conflicts"]] == [(second, "b")]
    assert (folder / first).read_text() == "of a"
    assert (folder / "conflicts" / "b" / second).read_text() == "of b"


def test_a_model_that_is_no_folder(tmp_path):
    with pytest.raises(NotCollected, match="model is a file on b"):
        merge(*left(tmp_path, a={"model/x": ""}, b={"model": ""}))
