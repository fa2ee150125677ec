"""Benchmarks as values: which runs, what they came to, the model of their scaling, the report.

Pure: no file, no host, no clock. operations/bench.py runs them.
"""
