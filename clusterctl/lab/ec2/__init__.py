"""EC2 and its neighbours as the lab's API has them: moto, completed, one module for each noun.

Nothing here starts a host (`hosts`) or makes a call fail on purpose (`faults`).
"""
