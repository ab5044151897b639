"""Settings of the radix room."""

from dataclasses import dataclass

from trunkline.errors import ConfigError

from .eviction import POLICIES


@dataclass(frozen=True, slots=True)
class RadixConfig:
    """How the prefix cache behaves; checked once, raises ConfigError with the setting and its value.

    page_size: tokens in a page, 1..256.
    eviction_policy: lru, lfu, slru, fifo, priority or gdsf.
    """

    page_size: int = 16
    eviction_policy: str = "lru"

    def __post_init__(self) -> None:
        if not 1 <= self.page_size <= 256:
            raise ConfigError(f"page_size must be 1..256, got {self.page_size}")
        if self.eviction_policy not in POLICIES:
            raise ConfigError(f"eviction_policy {self.eviction_policy!r} is not one of {', '.join(POLICIES)}")
