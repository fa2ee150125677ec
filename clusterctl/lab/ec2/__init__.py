"""EC2 and its neighbours as the lab's API has them: moto, completed, one module for each noun.

Nothing here starts a host (`hosts`) or makes a call fail on purpose (`faults`).
"""

import os

# Read by moto. The lab has its own images, and buckets of one account are closed to the others.
os.environ["MOTO_EC2_LOAD_DEFAULT_AMIS"] = "false"
os.environ["MOTO_S3_ALLOW_CROSSACCOUNT_ACCESS"] = "false"
