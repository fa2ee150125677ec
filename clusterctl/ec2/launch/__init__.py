"""A launch: what is there already, what it asks for, whether it can work, and carrying it out.

Here: the plan as a value, its steps and requests, what is checked before, quotas, reservations and
the search for capacity. Not here: getting the nodes ready (operations/readiness.py).
"""
