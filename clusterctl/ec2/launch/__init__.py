"""A launch: observe the existing cluster, plan, check and carry out the plan.

Contains the plan as a value, its steps and requests, the checks before a launch, quotas,
reservations and the search for capacity. Not here: getting the nodes ready
(operations/readiness.py).
"""
