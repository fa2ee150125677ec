"""Money: prices, what machines and disks cost, what a cluster has spent, and its limits.

Here: AWS's price list with its cache, and the sums. Not here: who keeps the limits (the guard on
the nodes), and the costs of clusters that are gone (operations/costs.py).
"""
