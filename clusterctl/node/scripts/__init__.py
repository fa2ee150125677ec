"""What runs on nodes around a script-mode program: its variables and arguments, its streams, the
parameter servers beside it, what is collected of it (docs/script-mode.md)."""
