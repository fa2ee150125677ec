"""Why is it stuck? `evidence` is what nodes, ranks and logs said, as values; `tree`, `verdict` and
what else is here draw conclusions from it, without I/O. What asks the nodes is
`operations/diagnose.py`, what answers there `node/diagnosis`. Known log lines live in `explain`."""
