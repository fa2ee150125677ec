"""A key of the cluster's own, made on this machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class NewKey:
    """An ed25519 key: the private half as OpenSSH keeps it, the public half as one line."""

    private: bytes
    public: str

    def __repr__(self) -> str:
        return f"NewKey({self.public!r})"


def new_key_pair(comment: str) -> NewKey:
    """A fresh key, without passphrase."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    return NewKey(private, f"{public.decode()} {comment}")
