"""Logs of public trackers whose causes were confirmed there: `explain` claims no other cause."""

from __future__ import annotations

import importlib.util
import sys

from clusterctl.domain.findings import Severity
from clusterctl.explain import table
from clusterctl.explain.catalogue import catalogue, wordings
from clusterctl.explain.engine import explain
from clusterctl.explain.signature import Role
from tests.changes import CHECKOUT

spec = importlib.util.spec_from_file_location(
    "explain_corpus", CHECKOUT / "scripts" / "lib" / "explain_corpus.py"
)
assert spec and spec.loader
corpus = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = corpus
spec.loader.exec_module(corpus)

LOGS = [
    corpus.read_log(path)
    for folder in corpus.FOLDERS
    for path in sorted((corpus.CORPUS / folder).glob("*.log"))
]
# The longest excerpt of another project's log.
MOST_LINES = 60
# Signatures that know only how a message looks.
FORMS = ("mpi.message", "mpi.remark")
# Logs that the forms of failing lines alone do not find. This number only falls.
MOST_SILENT = 4


def test_each_log_is_a_short_excerpt_with_a_link_and_expects_what_exists():
    known = {one.id for one in (*catalogue(), *wordings())} | {corpus.UNKNOWN, corpus.HEALTHY}
    for log in LOGS:
        assert set(log.expected) <= known, log.path
        assert log.text.count("\n") <= MOST_LINES, log.path
        assert log.source.startswith("https://") or corpus.HEALTHY in log.expected, log.path


def test_no_thread_is_in_both_halves_of_the_corpus():
    """A log of `held` counts only as long as nobody has written a signature from its thread."""
    threads = {
        half: {log.source for log in LOGS if log.path.parent.name == half}
        for half in corpus.FOLDERS
    }
    both = {one for one in threads["develop"] & threads["held"] if one.startswith("https://")}
    assert both == set()


def test_the_logs_that_signatures_are_written_for_are_explained_rightly():
    """A log with `#: not-yet:` may be explained partly. None is silent or wrong."""
    for log in LOGS:
        if log.path.parent.name == "develop":
            found = explain([log.text])
            kind = corpus.verdict(log, found)
            allowed = ("right", "partly") if log.not_yet else ("right",)
            assert kind in allowed, (log.path.name, kind, corpus.answer_of(found))


def test_a_log_that_failed_is_not_called_healthy_even_if_no_signature_knows_it(monkeypatch):
    kept = tuple(one for one in catalogue() if one.role is Role.HARMLESS or one.id in FORMS)
    monkeypatch.setattr(table, "catalogue", lambda: kept)
    table.table.cache_clear()
    try:
        failed = [log for log in LOGS if corpus.HEALTHY not in log.expected]
        silent = [log.path.name for log in failed if explain([log.text]).severity is Severity.INFO]
    finally:
        table.table.cache_clear()
    assert len(silent) <= MOST_SILENT, silent
