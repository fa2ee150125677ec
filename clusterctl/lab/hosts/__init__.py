"""The hosts behind the lab's instances: supervisor, namespaces, metadata, and the files of a host.

`daemon` runs inside the lab's namespaces under the system's own Python, so it uses the standard
library only.
"""
