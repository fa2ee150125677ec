"""Programs that run on the nodes (diagnostics/program): Python 3.8, the standard library only."""
