"""What runs on the nodes while data moves: Python 3.8, standard library only, never installed.

`clusterctl.node.packer` joins these modules into one self-contained program text.
"""
