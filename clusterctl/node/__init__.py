"""Programs that run on nodes: standard library only, Python 3.8 or newer. `packer` packs a program
and the modules that it imports. The code that starts these programs and reads their output is in
other packages (`copy`, `jobs`, `bootstrap`).
"""
