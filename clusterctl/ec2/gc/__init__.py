"""Garbage collection: find everything with clusterctl's tags, decide what is unused, remove it.

Contains the sweep over a region, the verdicts and the calls that delete. Not here: the kinds of
resources and their listing (ec2/resources.py), the removal of one cluster (operations/down.py) and
the command itself (operations/gc.py).
"""
