"""Programs that run on nodes: standard library only, Python 3.8 or newer. `packer` makes a text or
a file of a program's modules. What speaks to these programs from here is in the package that uses
them (`copy`, `jobs`, `bootstrap`).
"""
