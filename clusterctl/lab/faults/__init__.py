"""Faults that can be set in the lab: their kinds, those that are set, and how API calls fail.

The daemon (`hosts.daemon`) carries out the faults of hosts.
"""
