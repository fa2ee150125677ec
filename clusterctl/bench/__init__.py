"""Benchmarks: the plan of runs, the statistics of their results, the scaling model, the report.

All functions here are pure: no files, no hosts, no clock. operations/bench.py makes the runs.
"""
