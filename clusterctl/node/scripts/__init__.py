"""What runs on nodes around a script-mode program: its variables and arguments, its streams, what
is collected of it (docs/script-mode.md)."""
