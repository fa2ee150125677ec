"""The guard: ends a cluster from inside, whether or not anybody watches. See `install`."""
