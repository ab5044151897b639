"""The order of `dfs-weight`, computed the slow and obvious way: from the bare definition, anew at each question."""

from collections.abc import Mapping, Sequence

Path = tuple[int, ...]
Waiter = tuple[int, Path, int]


def depth_first(waiting: Sequence[Waiter], cursor: Path, ties: Mapping[int, int]) -> list[int]:
    """Serial numbers in order. `waiting`: (serial, page hashes, cached pages); `cursor`: where the last was served.

    From the cursor outwards: all below it, then all below its parent that are not done yet, and so on. Among
    children: cached before uncached, then the one with most waiting below; of equals the one with the lowest `ties`.
    """
    order: list[int] = []
    for depth in range(len(cursor), -1, -1):
        inside = [w for w in waiting if w[1][:depth] == cursor[:depth] and w[0] not in order]
        order.extend(_below(inside, depth, ties))
    return order


def surviving(cursor: Path, waiting: Sequence[Waiter]) -> Path:
    """The longest beginning of `cursor` below which somebody waits."""
    while cursor and not any(path[: len(cursor)] == cursor for _, path, _ in waiting):
        cursor = cursor[:-1]
    return cursor


def _below(waiting: Sequence[Waiter], depth: int, ties: Mapping[int, int]) -> list[int]:
    order = [serial for serial, path, _ in waiting if len(path) == depth]
    groups: dict[int, list[Waiter]] = {}
    for waiter in waiting:
        if len(waiter[1]) > depth:
            groups.setdefault(waiter[1][depth], []).append(waiter)

    def rank(group: list[Waiter]) -> tuple[bool, int, int]:
        is_cached = any(cached > depth for _, _, cached in group)
        return (not is_cached, -len(group), min(ties[serial] for serial, _, _ in group))

    for group in sorted(groups.values(), key=rank):
        order.extend(_below(group, depth + 1, ties))
    return order
