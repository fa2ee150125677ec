"""Networks: what there is of VPCs, subnets, security groups and addresses; networks of our own.

Here: looking at them, and the CloudFormation stack with its plan. Not here: whether a launch can
use a network (launch/preflight), and what becomes of networks that nobody uses (gc/).
"""
