"""The template: a layer of files between the machine's folders and a host's own changes.

It is the same for all hosts.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from clusterctl.lab.hosts.daemon import mounts

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
TOOLS = "usr/lib/clusterctl-lab"
POWER_COMMANDS = ("reboot", "poweroff", "halt", "shutdown")

# Folders to which root on a host must be able to add files -> to which depth. The machine's own
# folders belong to a uid that does not exist on hosts.
WRITABLE = {"etc": 2, "opt": 2, "usr/local": 3, "usr/bin": 0, "usr/sbin": 0, "usr/lib": 0}
WRITABLE[mounts.PACKAGES] = 1
VAR = ("cache", "lib", "local", "log", "mail", "opt", "spool", "tmp")

# Copied, because the machine's own files belong to its root, who is `nobody` on hosts.
SUDO = ("usr/bin/sudo", "usr/bin/su", "usr/libexec/sudo", "usr/lib/sudo", "etc/sudo.conf")

# Files of the machine that hosts must not see or cannot use: for its GPUs and its accounts.
HIDDEN = (
    *("/usr/bin/nvidia-smi", "/etc/.pwd.lock", "/etc/gshadow", "/etc/subuid", "/etc/subgid"),
    *(f"/etc/{name}-" for name in ("passwd", "group", "shadow", "gshadow", "subuid", "subgid")),
)

LIBRARIES = ("cloud-config", "cloud-init.py", "nvidia-smi.py", "nvidia-smi-gpu.xml")
PAM_MODULE = "*/security/pam_loginuid.so"


@dataclass(frozen=True)
class File:
    """One file of the layer; `path` is relative to it."""

    path: str
    content: bytes
    mode: int = 0o644


def layer_files(
    host: Mapping[str, bytes], single_uid: bool, environment: Mapping[str, str]
) -> list[File]:
    """Return the files of the layer. `host` holds those of `clusterctl/lab/hosts/files` by name.

    `environment` are the variables of all commands on hosts, besides PATH.
    """
    everywhere = {"PATH": PATH, **environment}
    # One line, because sshd uses only the first SetEnv.
    set_env = "SetEnv " + " ".join(f"{name}={value}" for name, value in everywhere.items())
    # If there is a group tty, sshd gives terminals to it. That is not possible with a single id.
    tty = "" if single_uid else "tty:x:5:\n"
    groups = f"root:x:0:\n{tty}sudo:x:27:ubuntu\nubuntu:x:1000:\nnogroup:x:65534:\n"
    texts = {
        "etc/group": groups,
        "etc/nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\n",
        "etc/environment": "".join(f'{name}="{text}"\n' for name, text in everywhere.items()),
    }
    # Without root, sessions cannot be opened for PAM.
    pam = "no" if single_uid or not list(Path("/usr/lib").glob(PAM_MODULE)) else "yes"
    sshd_config = f"{host['sshd_config'].decode()}UsePAM {pam}\n{set_env}\n"
    locked = "".join(f"{user}:*:19000:0:99999:7:::\n" for user in ("root", "sshd", "ubuntu"))
    sudoers = (
        f'Defaults env_reset\nDefaults secure_path="{PATH}"\n'
        f'Defaults env_keep += "{" ".join(environment)}"\n'
        "root ALL=(ALL:ALL) ALL\nubuntu ALL=(ALL) NOPASSWD:ALL\n"
    )
    return [
        *(File(path, text.encode()) for path, text in texts.items()),
        File("etc/shadow", locked.encode(), 0o640),
        File("etc/sudoers", sudoers.encode(), 0o440),
        File("etc/ssh/sshd_config", sshd_config.encode()),
        File("etc/pam.d/sshd", host["pam-sshd"]),
        *(File(f"etc/{path}", host[Path(path).name]) for path in ("passwd", "ssh/ssh_config")),
        *(File(f"usr/bin/{name}", host[name], 0o755) for name in ("cloud-init", "dmesg")),
        File(f"{TOOLS}/init", host["init"], 0o755),
        File(f"{TOOLS}/final-stage", host["final-stage"], 0o755),
        File(f"{TOOLS}/nvidia-smi", host["nvidia-smi"], 0o755),
        *(File(f"{TOOLS}/{name}", host[name]) for name in LIBRARIES),
        *(File(f"usr/sbin/{name}", host["power"], 0o755) for name in POWER_COMMANDS),
        *([File("usr/bin/sudo", host["sudo-single"], 0o755)] if single_uid else []),
    ]


def build(layer: Path, files: Sequence[File], single_uid: bool, alone: Collection[str]) -> None:
    """Write the layer. `alone` are the folders of which hosts see this layer's content only.

    Raise OSError (EBUSY) if /usr or /opt is one of them: they are too large to be copied.
    """
    if too_large := [name for name in ("usr", "opt") if name in alone]:
        names = " and ".join(f"/{name}" for name in too_large)
        raise OSError(
            errno.EBUSY, f"a file system is mounted below {names}: only root can start it"
        )
    if "etc" in alone:
        _copy_readable(Path("/etc"), layer / "etc")
    for name in VAR:
        (layer / "var" / name).mkdir(parents=True)
    for name, target in (("run", "/run"), ("lock", "/run/lock")):
        (layer / "var" / name).symlink_to(target)
    for top, depth in WRITABLE.items():
        _repeat_folders(Path("/", top), layer / top, depth)
    if not single_uid:
        _copy_sudo(layer)
    for file in files:
        write(layer / file.path, file.content, file.mode)
    hidden = [Path(path) for path in HIDDEN if Path(path).exists()]
    for path in (*hidden, *Path("/etc/ssh").glob("ssh_host_*")):
        # overlayfs's mark of a file of the lower layer that is hidden: a character device 0/0
        mark = layer / path.relative_to("/")
        mark.unlink(missing_ok=True)
        os.mknod(mark, stat.S_IFCHR)


def write(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Write a new file, with its folders, in place of an existing one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_bytes(content)
    path.chmod(mode)


def _repeat_folders(source: Path, target: Path, depth: int) -> None:
    """Make the same folders, empty, owned by the hosts' root.

    In an overlay a folder has the owner that it has in the topmost layer.
    """
    target.mkdir(parents=True, exist_ok=True)
    target.chmod(stat.S_IMODE(source.stat().st_mode) if source.exists() else 0o755)
    if depth == 0 or not os.access(source, os.R_OK | os.X_OK):
        return
    for entry in os.scandir(source):
        if entry.is_dir(follow_symlinks=False):
            _repeat_folders(Path(entry.path), target / entry.name, depth - 1)


def _copy_readable(source: Path, target: Path) -> None:
    """Copy the part of a folder that this user may read."""
    target.mkdir(parents=True, exist_ok=True)
    for entry in os.scandir(source):
        path, copy = Path(entry.path), target / entry.name
        if entry.is_symlink():
            copy.symlink_to(path.readlink())
        elif entry.is_dir() and os.access(path, os.R_OK | os.X_OK):
            _copy_readable(path, copy)
        elif entry.is_file() and os.access(path, os.R_OK):
            shutil.copy(path, copy)


def _copy_sudo(layer: Path) -> None:
    for path in SUDO:
        source, target = Path("/", path), layer / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
        elif source.is_file():
            shutil.copyfile(source, target)
            target.chmod(0o4755 if path.startswith("usr/bin/") else 0o644)  # setuid for programs
