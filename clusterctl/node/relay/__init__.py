"""What runs on the nodes while data moves, and to verify it. It is never installed."""
