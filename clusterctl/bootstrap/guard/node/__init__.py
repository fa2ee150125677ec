"""The program that `install` puts on every node: Python 3.8, the standard library only."""
