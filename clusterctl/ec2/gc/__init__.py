"""Garbage collection: find everything with clusterctl's tags, decide what is unused, remove it.

Contains the sweep over a region, the verdicts and the calls that delete. Not here: the removal of
one cluster (operations/down.py, ec2/cluster_resources.py) and the command itself
(operations/gc.py).
"""
