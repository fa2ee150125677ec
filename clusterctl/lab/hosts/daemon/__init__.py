"""What runs inside the lab's namespaces, under the system's own Python: standard library only."""
