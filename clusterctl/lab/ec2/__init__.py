"""EC2 and its neighbours as AWS has them: moto, completed, one module for each noun.

Nothing here knows of clusterctl, its hosts or its faults: `lab/complete.py` ties those to it.
"""
