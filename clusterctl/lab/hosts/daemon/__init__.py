"""Programs inside the lab's namespaces. The system's Python runs them: standard library only."""
