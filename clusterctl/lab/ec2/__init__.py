"""EC2 and related services as on AWS: what moto lacks or does differently, a module per subject.

Nothing here depends on clusterctl, or on the lab's hosts and faults. `lab/complete.py` connects
them.
"""
