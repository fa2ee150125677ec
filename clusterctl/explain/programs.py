"""Signatures of messages that Python and shells print for any program.

They are the last of the catalogue: a more specific signature for the same line comes first.
"""

from __future__ import annotations

from clusterctl.explain.signature import Role, Signature

SIGNATURES = (
    Signature(
        "python.no-torch",
        r"(?:ModuleNotFoundError|ImportError): No module named '?(?P<module>torch\w*)",
        "Python finds no {module}: the environment that runs this program has no PyTorch",
        "clusterctl train with --launcher torchrun takes an interpreter that has it; or with "
        "--env DIR an environment of yours, on every node",
        "docs/scripts.md",
    ),
    Signature(
        "python.no-module",
        r"(?:ModuleNotFoundError|ImportError): No module named '?(?P<module>[\w.]+)",
        "Python finds no {module}: another environment's Python, or it is not installed on that "
        "node",
        "install {module} into the environment on every node, or run in one that has it (--env "
        "DIR); a line of your own for mpirun names its Python by the whole path",
        "docs.python.org",
    ),
    Signature(
        "python.cannot-import",
        r"ImportError: cannot import name '?(?P<name>\w+)'? from '?(?P<module>[\w.]+)",
        "{module} has no {name} in the version that is installed (or a file of yours has its name)",
        "the version that the program wants; `python -c 'import {module}; "
        "print({module}.__file__)'` shows which is taken",
        "docs.python.org",
    ),
    Signature(
        "python.memory",
        r"^(?:\S+: )?MemoryError\b|numpy\.core\._exceptions\._ArrayMemoryError"
        r"|Unable to allocate (?P<size>[\d.]+ \w+) for an array|std::bad_alloc"
        r"|DefaultCPUAllocator: (?:can't|not enough)",
        "the host's memory does not suffice for what the program asks for",
        "smaller arrays, batches or buffers; fewer workers; a larger machine",
        "docs.python.org",
    ),
    Signature(
        "python.no-file",
        r"FileNotFoundError: \[Errno 2\] No such file or directory: '(?P<path>[^']+)'"
        r"|NotFoundError: (?P<path2>/\S+); No such file or directory"
        r"|python\d?[\d.]*: can't open file '(?P<path3>[^']+)'",
        "{path} is not on that host",
        "copy it to the same path on every node (`clusterctl copy`), and check the working "
        "directory",
        "docs.python.org",
    ),
    Signature(
        "python.permission",
        r"PermissionError: \[Errno 13\] Permission denied: '(?P<path>[^']+)'",
        "this user may not read or write {path}",
        "its owner and mode on that host (`ls -ld`): usually made by root",
        "docs.python.org",
    ),
    Signature(
        "clusterctl.stream",
        r"clusterctl: (?P<host>[\w.-]+): (?P<why>.+); the program (?:is killed|was not started)",
        "{host} could not be given all of a stream: {why}",
        "start the job again when the input is complete: an object that changes or is removed "
        "while a job reads it ends the job",
        "clusterctl: node/scripts/pipe.py",
        mistaken_for="a crash of the program, or too little memory",
    ),
    Signature(
        "python.interrupted",
        r"^KeyboardInterrupt\b|mpirun: Forwarding signal|Received signal 2|caught SIGINT",
        "somebody pressed Ctrl-C, or the job was cancelled",
        "nothing, if that was meant; where it hung before is what to look at",
        "docs.python.org",
        role=Role.CONSEQUENCE,
    ),
    Signature(
        "shell.not-found",
        r"(?:bash|sh|zsh): (?:line \d+: |\d+: )?(?P<command>[\w./+-]+): (?:command not found"
        r"|not found|No such file or directory)"
        r"|/usr/bin/env: [‘'\"]?(?P<command2>[\w.+-]+)['’\"]?: No such file",
        "the shell does not find {command} on that host",
        "its whole path: logins without a terminal have another PATH; or install it",
        "man bash, exit status 127",
    ),
    Signature(
        "python.address-in-use",
        r"Address already in use|EADDRINUSE|No address added out of total"
        r"|Could not start gRPC server",
        "a port is taken: usually by a job that was left over",
        "`ss -ltnp` on that host; `clusterctl kill NAME`; another port (--master_port)",
        "man 2 bind",
    ),
)
