"""The guard, a program that switches nodes off at their limits. `clusterctl.bootstrap.guard`
installs it on every node."""
