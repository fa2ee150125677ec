"""The diagnosis of stuck and slow jobs, and of differences between nodes.

`evidence` has the observations of nodes, ranks and logs as values. The other modules draw
conclusions from them, without I/O. operations/diagnose.py collects the evidence, with programs in
node/diagnosis. `explain` has the known log lines.
"""
