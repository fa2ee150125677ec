"""The rules of the diagnosis, a module for each kind; `diagnosis.verdict` has their order.

A rule is a function of a `Scene` (diagnosis/case.py) that yields causes. What several modules
need is in case.py. Not here: the choice of the verdict among the causes.
"""
