"""The local EC2 of `clusterctl lab`. Its API is on this machine, its instances are Linux hosts."""
