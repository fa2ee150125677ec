from clusterctl.entry import clusterctl

clusterctl()
