"""The program that `clusterctl.bootstrap.guard` puts on every node."""
