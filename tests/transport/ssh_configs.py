"""Random ssh_config files, and what OpenSSH makes of them."""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.programs import completed

HOSTS = ("web1", "web2", "db.corp", "Web1", "10.0.0.7", "127.1", "gpu-12", "fe80::1")
PATTERNS = (*HOSTS, "*", "web*", "*.corp", "gpu-1?", "10.0.*", "w*b?", "!web2", "!*.corp", "WEB1")
USERS = ("ubuntu", "root", "ec2-user", "deploy")
ADDRESSES = ("10.1.0.9", "%h.internal", "bastion.corp", "Web1", "%%h", "127.2", "db.corp")


class SshConfigWriter:
    """Writes one random ssh_config with its Include files into a folder."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._random = random.Random(seed)
        self._files = 0

    def write(self) -> Path:
        return self._file("config", depth=0)

    def _file(self, name: str, depth: int) -> Path:
        path = self._folder / name
        lines = [self._line(depth) for _ in range(self._random.randrange(1, 14))]
        end = self._random.choice(["\n", "\n", "\r\n"])
        path.write_bytes("".join(line + end for line in lines).encode())
        return path

    def _line(self, depth: int) -> str:
        pick = self._random
        kind = pick.choices(
            ["setting", "host", "match", "include", "blank"], [12, 5, 4, 2 if depth < 3 else 0, 1]
        )[0]
        if kind == "setting":
            return self._written(*self._setting())
        if kind == "host":
            patterns = pick.choices(PATTERNS, k=pick.choice([1, 1, 2, 3]))
            return self._written("Host", " ".join(self._quoted(one) for one in patterns))
        if kind == "match":
            return self._written("Match", self._criteria())
        if kind == "include":
            return self._written("Include", " ".join(self._included(depth)))
        return pick.choice(["", "   ", "# Host *", "\t#User nobody"])

    def _written(self, keyword: str, value: str) -> str:
        """Return a line in one of the forms that the keyword and its arguments may have."""
        pick = self._random
        keyword = pick.choice([keyword, keyword, keyword.lower(), keyword.upper()])
        between = pick.choice([" ", " ", "  ", "\t", "=", " = "])
        comment = pick.choice(["", "", "", " # a comment"])
        if keyword.lower() in ("match", "proxycommand", "proxyjump"):
            comment = ""
        return (
            pick.choice(["", "", "  ", "\t"])
            + keyword
            + between
            + value
            + comment
            + (pick.choice(["", "", " ", "\t"]))
        )

    def _quoted(self, word: str) -> str:
        return self._random.choice([word, word, word, f'"{word}"', f"'{word}'"])

    def _setting(self) -> tuple[str, str]:
        pick = self._random
        number = pick.randrange(1, 5)
        commands = (
            f"nc -X {number} %h %p",
            f'sh -c "exec nc %h {number} # no comment"',
            "none",
            "ssh  -q -W [%h]:%p $BASTION 2>/dev/null",
            "'a b' c\\ d",
        )
        jumps = ("bastion", "me@bastion:2222", "one,two@b:23", "ssh://b:24", "none", "bastion # x")
        files = ("~/.ssh/known", "/known/a /known/b", '"/known/with space"', "none")
        return pick.choice(
            [
                ("User", self._quoted(pick.choice(USERS))),
                ("HostName", self._quoted(pick.choice(ADDRESSES))),
                ("Port", self._quoted(pick.choice(["22", "2222", "ssh", "65535"]))),
                ("IdentityFile", self._quoted(f"~/.ssh/key{number}")),
                (
                    "IdentityFile",
                    pick.choice(["/keys/%h", '"/keys/with space"', "/k/\\ x", "none"]),
                ),
                ("IdentitiesOnly", pick.choice(["yes", "no", "true", "False", "YES"])),
                ("IdentityAgent", pick.choice(["none", "SSH_AUTH_SOCK", "~/agent", "/a/${HOME}"])),
                ("ProxyCommand", pick.choice(commands)),
                ("ProxyJump", pick.choice(jumps)),
                ("ProxyUseFdpass", pick.choice(["yes", "no"])),
                ("HostKeyAlias", f"alias{number}"),
                ("UserKnownHostsFile", pick.choice(files)),
                ("GlobalKnownHostsFile", pick.choice(files)),
                ("ForwardAgent", "yes"),
            ]
        )

    def _criteria(self) -> str:
        pick = self._random
        if pick.random() < 0.15:
            return pick.choice(["all", "final all", "ALL"])
        found = []
        for _ in range(pick.choice([1, 1, 2, 3])):
            negated = pick.choice(["", "", "!"])
            names = ",".join(pick.sample(PATTERNS, pick.choice([1, 2])))
            users = ",".join(pick.sample([*USERS, "!root", "*"], 2))
            between = pick.choice([" ", " ", "="])
            found.append(
                negated
                + pick.choice(
                    [
                        f"host{between}{names}",
                        f"Host {names}",
                        f"originalhost{between}{names}",
                        f"user{between}{users}",
                        f"localuser {users}",
                        'exec "test %h = web1"',
                        'exec "test %n-%r-%p = web2-ubuntu-22"',
                        "exec true",
                    ]
                )
            )
        if pick.random() < 0.15:
            found.append("final")
        return " ".join(found)

    def _included(self, depth: int) -> list[str]:
        """Write some files, and return the arguments of an Include line that names them."""
        pick = self._random
        words = []
        for _ in range(pick.choice([1, 1, 2])):
            self._files += 1
            stem = f"inc{self._files}"
            for part in range(pick.choice([1, 1, 2])):
                self._file(f"{stem}-{part}.conf", depth + 1)
            words.append(str(self._folder / pick.choice([f"{stem}-0.conf", f"{stem}-*.conf"])))
        return [*words, *pick.choices([str(self._folder / "missing*")], k=pick.choice([0, 0, 1]))]


def openssh_view(config: Path, host: str, env: Mapping[str, str]) -> dict[str, list[str]] | None:
    """Return what `ssh -G` prints, by keyword; None if ssh refuses the file."""
    ssh = shutil.which("ssh")
    assert ssh
    done = completed([ssh, "-F", str(config), "-G", host], stdin=subprocess.DEVNULL, env={**env})
    if done.returncode:
        return None
    found: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        keyword, _, value = line.partition(" ")
        found.setdefault(keyword, []).append(value)
    return found
