"""Programs that inspect a node and its processes, for `diagnose`, `doctor` and others."""
