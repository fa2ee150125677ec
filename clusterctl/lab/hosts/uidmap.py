"""Which user ids the lab's hosts get outside: root's choice, /etc/subuid's, or only one."""

from __future__ import annotations

from dataclasses import dataclass

COUNT = 65536
FIRST = 100_000


@dataclass(frozen=True)
class SubIds:
    """A line of /etc/subuid or /etc/subgid."""

    owner: str
    first: int
    count: int


@dataclass(frozen=True)
class IdMap:
    """Ids in the lab to ids outside: lines of (inside, outside, count)."""

    uids: tuple[tuple[int, int, int], ...]
    gids: tuple[tuple[int, int, int], ...]


def parse_subids(text: str) -> list[SubIds]:
    """The lines that can be read; others are some other program's business."""
    found = []
    for line in text.splitlines():
        owner, _, numbers = line.strip().partition(":")
        first, _, count = numbers.partition(":")
        if owner and first.isdigit() and count.isdigit():
            found.append(SubIds(owner, int(first), int(count)))
    return found


def map_for_root(subuids: list[SubIds], subgids: list[SubIds]) -> IdMap:
    """65536 ids that nobody has been given, the same for users and groups."""
    first = FIRST
    while taken := [ids for ids in (*subuids, *subgids) if _overlaps(ids, first)]:
        first = max(ids.first + ids.count for ids in taken)
    return IdMap(((0, first, COUNT),), ((0, first, COUNT),))


def map_for_user(uid: int, name: str, subuids: list[SubIds], subgids: list[SubIds]) -> IdMap | None:
    """The user's subordinate ids, root's among them; None without any.

    The user is nobody on a host: root there must not be who the user's own files belong to.
    """
    users, groups = (_ids_of(ids, name, uid) for ids in (subuids, subgids))
    if users is None or groups is None:
        return None
    return IdMap(
        ((0, users.first, min(users.count, COUNT)),),
        ((0, groups.first, min(groups.count, COUNT)),),
    )


def single_map(uid: int, gid: int) -> IdMap:
    return IdMap(((0, uid, 1),), ((0, gid, 1),))


def _overlaps(ids: SubIds, first: int) -> bool:
    return ids.first < first + COUNT and first < ids.first + ids.count


def _ids_of(ids: list[SubIds], name: str, uid: int) -> SubIds | None:
    """The user's first range; a host needs ids up to nobody's, 65534."""
    own = [one for one in ids if one.owner in (name, str(uid)) and one.count >= COUNT - 1]
    return own[0] if own else None
