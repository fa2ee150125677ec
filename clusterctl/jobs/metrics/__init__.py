"""What a training's log says: its rows and runs, a framework's own metrics, reference runs.

Here: text in, values out. Not here: where the log lies and how it is fetched, as a table, JSON or
plot (operations/results*.py).
"""
