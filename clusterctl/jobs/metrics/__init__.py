"""Readers of training logs. `logs` parses lines, `runs` joins the parts of a run, `reference` has
the tutorial's runs. operations/results*.py finds the logs and writes results as JSON, CSV or plots.
"""
