"""Looks at a node and its processes, for `diagnose` and `doctor`."""
