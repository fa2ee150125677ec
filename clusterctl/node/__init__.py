"""Programs that run on nodes: standard library only, Python 3.8 or newer. `packer` makes one text
of the modules of a program, which is sent over SSH and never stored. What speaks to these programs
from here is in the package that uses them (`copy`, `jobs`, `bootstrap`)."""
