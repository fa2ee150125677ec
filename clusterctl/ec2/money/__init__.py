"""Money: prices, the cost of machines and disks, what a cluster has spent, and its limits.

Contains AWS's price list with a cache, and the sums. Not here: the guard on the nodes, which
enforces the limits (node/guard), and the costs of clusters that are gone (operations/costs.py).
"""
