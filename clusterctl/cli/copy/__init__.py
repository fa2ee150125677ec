"""`clusterctl copy` and what `copyclust` shares with it."""
