"""EC2 and related services as on AWS: what moto lacks or does differently, a module per subject.

Nothing here depends on clusterctl, or on the lab's hosts and faults. `lab/complete.py` connects
them.
"""

import functools

import botocore.session

# moto makes several sessions when it is imported, and each would read all of AWS's endpoints.
botocore.session.create_loader = functools.cache(botocore.session.create_loader)
