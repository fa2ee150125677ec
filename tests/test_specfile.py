from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.config import problems_message
from clusterctl.configuration.specfile import parse_spec_file
from clusterctl.configuration.yaml_tree import MAX_BYTES, MAX_DEPTH
from tests.broken_configs import BROKEN

FILE = Path("clusterctl.yaml")


def problems(text: str | bytes) -> list[str]:
    data = text if isinstance(text, bytes) else text.encode()
    return [problem.at(str(FILE)) for problem in parse_spec_file(data, FILE)[1]]


def read(text: str):
    file, wrong = parse_spec_file(text.encode(), FILE)
    assert wrong == ()
    return file


@pytest.mark.parametrize(("text", "said"), BROKEN)
def test_every_problem_is_said_with_its_line_and_key(text, said):
    assert problems(text) == [f"clusterctl.yaml:{one}" for one in said]


def test_a_bom_windows_lines_and_documents_markers_are_fine():
    text = "\ufeff---\r\ndefaults:\r\n  nodes: 4\r\n...\r\n"
    assert read(text).values(None)["nodes"] == 4


# Hostile files


def billion_laughs() -> str:
    lines = ["defaults: {tag: &a0 {k: v}}", "clusters:"]
    for index in range(1, 40):
        aliases = ", ".join([f"*a{index - 1}"] * 9)
        lines.append(f"  c{index}: {{tag: &a{index} [{aliases}]}}")
    return "\n".join(lines)


def merge_bomb() -> str:
    lines = ["clusters:", "  c0: &a0 {nodes: 1}"]
    for index in range(1, 12):
        aliases = ", ".join([f"*a{index - 1}"] * 9)
        lines.append(f"  c{index}: &a{index} {{<<: [{aliases}], spot: true}}")
    return "\n".join(lines)


def endless_merges() -> str:
    lines = ["clusters:", "  c0: &a0 {nodes: 1}"]
    lines += [f"  c{index}: &a{index} {{<<: *a{index - 1}}}" for index in range(1, 2000)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 200_000, f"more than {MAX_DEPTH} levels deep"),
        ("a: {" * 50_000, f"more than {MAX_DEPTH} levels deep"),
        ("\n".join(" " * depth + "a:" for depth in range(400)), "levels deep"),
        ("#" * (MAX_BYTES + 1), "more than 256 KiB, which no such file needs"),
        (billion_laughs(), "clusters.c39.tag: not a mapping of keys to values"),
        ("defaults: &a\n  tag: *a\n", "defaults.tag.tag: not text: a mapping"),
        ("defaults: &a\n  <<: *a\n", "`<<` leads on more than"),
        (endless_merges(), "`<<` leads on more than"),
        ("defaults:\n  user: " + "x" * 100_000, "not what user takes"),
        ("defaults:\n  " + "k" * 900 + ": 1", "no such key"),
        ("clusters:\n  " + "c" * 900 + ": {}", "not a cluster name"),
    ],
    ids=lambda value: value[:20],
)
def test_a_hostile_file_is_refused_at_once(text, said):
    assert said in "\n".join(problems(text))


def test_merging_again_and_again_costs_nothing():
    assert read(merge_bomb()).values("c11")["nodes"] == 1


def test_a_thousand_problems_are_not_a_thousand_lines():
    text = "defaults:\n" + "".join(f"  key{number}: 1\n" for number in range(1000))
    lines = problems_message(FILE, parse_spec_file(text.encode(), FILE)[1]).splitlines()
    assert lines[0] == "clusterctl.yaml has 1000 problems:"
    assert lines[-1] == "  and 960 more"
