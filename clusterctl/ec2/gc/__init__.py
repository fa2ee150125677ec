"""What was left behind: everything with our tags, which of it nobody uses, and its removal.

Here: the sweep over a region, the verdicts and the calls that delete. Not here: the end of a
cluster that is wanted no more (teardown.py), and when to look (operations/gc.py).
"""
