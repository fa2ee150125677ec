"""Networks: existing VPCs, subnets, security groups and addresses, and clusterctl's own networks.

Contains the calls that find them, and the CloudFormation stack of a network with its plan. Not
here: whether a launch can use a network (launch/preflight.py) and the removal of unused networks
(gc/).
"""
