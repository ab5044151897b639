"""A prefix cache that anyone can check by reading: a dict from token sequences to pages."""

from dataclasses import dataclass, replace

Key = tuple[tuple[str, str], tuple[int, ...]]  # namespace, all tokens up to the end of the page


@dataclass
class Entry:
    """One page that the cache has."""

    page: int
    last_access: int = 0
    created: int = 0
    hits: int = 0
    priority: int = 0
    age: float = 0.0
    retired: bool = False


class PlainCache:
    """What the radix cache must do, at the price of looking at everything every time."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.entries: dict[Key, Entry] = {}

    @property
    def num_tokens(self) -> int:
        return sum((len(tokens) - 1) % self.page_size + 1 for _, tokens in self.entries)

    def match(self, namespace: tuple[str, str], tokens: tuple[int, ...]) -> int:
        """Longest common beginning with anything stored."""
        best = 0
        for space, sequence in self.entries:
            if space == namespace:
                common = 0
                for left, right in zip(sequence, tokens, strict=False):
                    if left != right:
                        break
                    common += 1
                best = max(best, common)
        return best

    def commit(
        self, namespace: tuple[str, str], tokens: tuple[int, ...], pages: list[int], new: Entry
    ) -> int:
        """Store a sequence that lies in `pages`, as entries like `new`; returns the growth in tokens."""
        before = self.num_tokens
        for start in range(0, len(tokens), self.page_size):
            end = min(start + self.page_size, len(tokens))
            key = (namespace, tokens[:end])
            same_place = [
                other
                for other in self.entries
                if other[0] == namespace and start < len(other[1]) <= start + self.page_size
            ]
            if any(other[1][:end] == key[1] for other in same_place):
                continue
            entry = replace(new, page=pages[start // self.page_size])
            for other in same_place:
                if other[1] == key[1][: len(other[1])]:
                    old = self.entries.pop(other)
                    entry.hits, entry.created = old.hits, old.created
                    entry.priority = max(old.priority, new.priority)
            self.entries[key] = entry
        return self.num_tokens - before

    def keys_along(self, namespace: tuple[str, str], tokens: tuple[int, ...]) -> list[Key]:
        """The whole pages stored along a sequence."""
        ends = range(self.page_size, len(tokens) + 1, self.page_size)
        return [(namespace, tokens[:end]) for end in ends if (namespace, tokens[:end]) in self.entries]

    def all_along(self, namespace: tuple[str, str], tokens: tuple[int, ...]) -> list[Key]:
        """Every page stored along a sequence, one that ends inside a page too."""
        return [
            (space, sequence)
            for space, sequence in self.entries
            if space == namespace and tokens[: len(sequence)] == sequence
        ]

    def leaves(self) -> list[Key]:
        """Pages behind which nothing is stored."""
        whole = self.page_size
        parents = {(space, tokens[: (len(tokens) - 1) // whole * whole]) for space, tokens in self.entries}
        return [key for key in self.entries if key not in parents]
