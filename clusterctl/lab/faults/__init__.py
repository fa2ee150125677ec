"""What can be made to go wrong in the lab: its kinds, those that are set, and how calls fail.

What a fault does to a host is done by the daemon (`hosts`).
"""
