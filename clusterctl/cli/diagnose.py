"""`clusterctl diagnose [NAME] [JOB]`: why a job is stuck, on one screen."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import click

from clusterctl.cli import output
from clusterctl.cli.app_context import AppContext, cluster_command
from clusterctl.cli.host_options import (
    SOURCES,
    check_launcher,
    host_options,
    launcher_option,
    one_of,
)
from clusterctl.cli.params import (
    JobId,
    LocalPath,
    OutputFile,
    json_option,
    refuse_overwriting,
)
from clusterctl.domain.errors import ClusterctlError

if TYPE_CHECKING:
    from clusterctl.diagnosis.case import Cause
    from clusterctl.diagnosis.evidence import Evidence, ProcessEvidence
    from clusterctl.diagnosis.verdict import Diagnosis
    from clusterctl.operations.hosts_access import HostSource

# Columns of the text.
WIDTH = 98
# Findings that are printed.
SHOWN = 12


@cluster_command(required=False, instead=("bundle", *SOURCES))
@click.argument("job_id", required=False, type=JobId(by_hand=True), metavar="[JOB]")
@click.option("--tree", "as_tree", is_flag=True, help="Show the stacks of all ranks as one tree.")
@click.option(
    "--html",
    "page",
    type=OutputFile(),
    metavar="FILE",
    help="Write a page with the verdict, hosts and ranks as a grid, the tree and the evidence.",
)
@json_option("Diagnosed")
@click.option(
    "--save",
    type=OutputFile(),
    metavar="FILE",
    help="Pack all observations, without secrets, for a colleague or a report.",
)
@click.option(
    "--from",
    "bundle",
    type=LocalPath(exists=True, dir_okay=False),
    metavar="FILE",
    help="Read what --save has packed, and no cluster.",
)
@host_options()
@launcher_option
def diagnose(
    app: AppContext,
    name: str | None,
    job_id: str | None,
    as_tree: bool,
    page: Path | None,
    as_json: bool,
    save: Path | None,
    bundle: Path | None,
    source: HostSource | None,
    launcher: str | None,
) -> int:
    """Say why the job of cluster NAME is stuck or slow, or what shows that it is not.

    \b
    clusterctl diagnose demo
    clusterctl diagnose demo --tree
    clusterctl diagnose --hosts hosts
    clusterctl diagnose -w 'node[1-9]'
    clusterctl diagnose demo --save stuck.json.gz
    clusterctl diagnose --from stuck.json.gz --html stuck.html

    All nodes are sampled, three times within seconds; nothing is changed. A few ranks in C may be
    held for a moment, to read their calls. Without JOB it is the job that runs, else the latest;
    one that was started by hand is named by the process ID of its mpirun.
    Hosts of no cluster are named by --hosts, -w or --local; nothing is left there. The exit status
    is 0 if progress was seen, 1 for a warning, 2 if something is broken, and 3 if neither is known.
    """
    from clusterctl.diagnosis import bundle as bundles
    from clusterctl.diagnosis.verdict import diagnose as conclude

    refuse_overwriting([path for path in (save, page) if path], [bundle] if bundle else [])
    one_of(name, source, *[f"--from {bundle}"] * bool(bundle))
    hint = "name them with --hosts, -w, --slurm or --local; of a cluster, give JOB"
    check_launcher(launcher, source, hint)
    if bundle:
        evidence = bundles.load(bundle)
    elif source:
        from clusterctl.config import home_folder
        from clusterctl.operations.diagnose_hosts import collect_from

        evidence = collect_from(source, launcher or None, home_folder())
    else:
        from clusterctl.operations.diagnose import collect

        with app.open(name or "") as access:
            evidence = collect(access, job_id)
    found = conclude(evidence)
    if as_json:
        from clusterctl.diagnosis.tree import merge

        ranks = _ranks_of(evidence)
        output.data(
            {
                "cluster": evidence.cluster or None,
                "hosts": evidence.source or None,
                "job_id": evidence.job.job_id if evidence.job else None,
                "taken_at": evidence.taken_at,
                "duration_s": evidence.took_s,
                **found.as_data(),
                "tree": merge(ranks).as_data(),
            }
        )
    else:
        for line in screen(evidence, found):
            output.line(line)
        for line in tree_of(evidence, found) if as_tree else ():
            output.line(line)
    # Written after the verdict is printed: a full disk must not hide it.
    if save:
        bundles.save(evidence, save)
        output.note(f"all observations are in {save}: clusterctl diagnose --from {save} shows it")
    # A page may be passed on: like the file of --save it has no secrets.
    if page:
        shown = bundles.without_secrets(evidence)
        write_page(shown, conclude(shown), page)
    return found.exit_status


def write_page(evidence: Evidence, found: Diagnosis, path: Path) -> None:
    """Write the HTML page. Raises ClusterctlError if the file cannot be written."""
    from clusterctl.diagnosis.page import page

    try:
        path.write_text(page(evidence, found), "utf-8", "backslashreplace")
    except OSError as error:
        raise ClusterctlError(f"cannot write {path}: {error.strerror}") from None
    output.note(f"the page is {path}")


def screen(evidence: Evidence, found: Diagnosis) -> list[str]:
    """Return the lines to print: verdict, findings, what was clean, what was not observed."""
    lines = [*_wrapped(found.verdict), ""]
    shown = [one for one in found.findings if one.message != found.verdict]
    lead = [one for one in found.findings if one.message == found.verdict]
    for one in lead:
        lines += [*_details(one), ""]
    for one in shown[:SHOWN]:
        head = f"{one.severity.value}: {one.message} [{one.check}]"
        lines += [*_wrapped(head, "  "), *_details(one)]
    if len(shown) > SHOWN:
        lines.append(f"and {len(shown) - SHOWN} more findings (--json has all)")
    if shown:
        lines.append("")
    if found.clean:
        lines += _wrapped(f"clean: {'; '.join(found.clean)}", "  ")
    if found.next_step:
        lines += [f"  to find out: {output.suggested(found.next_step)}"]
    of_hosts = sorted({f"{host.host}: {text}" for host in evidence.hosts for text in host.unseen})
    problems = [*dict.fromkeys([*found.unseen, *evidence.problems, *of_hosts])]
    for text in problems[:4]:
        lines += _wrapped(f"not observed: {text}", "  ")
    if len(problems) > 4:
        lines.append(f"and {len(problems) - 4} more not observed (--json)")
    if evidence.job and evidence.job.log_name:
        lines.append(f"  its log: {evidence.job.log_name}")
    if evidence.source and evidence.job and evidence.job.others:
        others = ", ".join(evidence.job.others[:6])
        lines.append(f"  other jobs here: {others} (--launcher selects one)")
    lines.append(f"observed for {evidence.took_s:.1f} s, {evidence.taken_at}")
    return lines


def _details(one: Cause) -> list[str]:
    shown = [line for text in one.evidence[:6] for line in _wrapped(text[:400], "      ", "    | ")]
    # Not wrapped: users copy the commands in it.
    hint = output.suggested(one.hint).replace("\n", "\n        ")
    return [*shown, f"  hint: {hint}"] if hint else shown


def _wrapped(text: str, further: str = "", first: str = "") -> list[str]:
    """Return the text in lines of WIDTH columns. Words are not cut: they may be paths."""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=further,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [""]


def _ranks_of(evidence: Evidence) -> list[ProcessEvidence]:
    """Return the ranks of the job; of all jobs if none was looked at."""
    job = evidence.job
    every = (one for host in evidence.hosts for one in host.ranks)
    return [one for one in every if job is None or (one.job_id or "") == job.job_id]


def tree_of(evidence: Evidence, found: Diagnosis) -> list[str]:
    """Return the merged stacks of all ranks as lines; ranks that have findings are marked."""
    from clusterctl.diagnosis.tree import merge, tree_lines

    ranks = _ranks_of(evidence)
    if not ranks:
        return ["", "no rank found: no tree"]
    odd = frozenset(rank for one in found.findings if one.ranks for rank in one.ranks)
    return ["", *tree_lines(merge(ranks), odd)]
