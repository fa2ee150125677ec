"""Programs that run on nodes to copy and verify data. They are never installed."""
