"""`clusterctl copy`, and the options and views that `copyclust` shares with it."""
