"""What an attention backend has to know about a model."""

from dataclasses import dataclass

from trunkline.errors import ConfigError


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    """Shapes and options of a model's attention layers, validated once.

    `sliding_window` holds one entry per layer: the number of positions a query sees, itself included
    (transformers' meaning; FlashInfer's `window_left` is one less), or None where a layer sees everything.
    `scale` multiplies the logits before the softmax; `logits_soft_cap` c turns a logit x into c·tanh(x/c).

    Raises ConfigError for sizes below one, heads that are no multiple of the KV heads, or a `sliding_window`
    of another length than `num_layers`.
    """

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    page_size: int
    scale: float
    sliding_window: tuple[int | None, ...] | None = None
    logits_soft_cap: float | None = None

    def __post_init__(self) -> None:
        for name in ("num_layers", "num_heads", "num_kv_heads", "head_dim", "page_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"attention: {name} is {getattr(self, name)}; it must be at least 1")
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"attention: num_heads {self.num_heads} is no multiple of num_kv_heads {self.num_kv_heads}"
            )
        if not self.scale > 0:
            raise ConfigError(f"attention: scale is {self.scale}; it must be positive")
        if self.logits_soft_cap is not None and not self.logits_soft_cap > 0:
            raise ConfigError(f"attention: logits_soft_cap is {self.logits_soft_cap}; it must be positive")
        if self.sliding_window is None:
            return
        if len(self.sliding_window) != self.num_layers:
            raise ConfigError(
                f"attention: {len(self.sliding_window)} sliding_window entries for {self.num_layers} layers"
            )
        for layer, window in enumerate(self.sliding_window):
            if window is not None and window < 1:
                raise ConfigError(
                    f"attention: sliding_window of layer {layer} is {window}; it must be at least 1"
                )

    @property
    def group_size(self) -> int:
        """Query heads that share one KV head."""
        return self.num_heads // self.num_kv_heads

    def window(self, layer: int) -> int | None:
        """Positions a query of this layer sees, itself included; None: all."""
        return None if self.sliding_window is None else self.sliding_window[layer]

    @property
    def windows(self) -> frozenset[int | None]:
        """The distinct windows of the layers."""
        return frozenset({None} if self.sliding_window is None else self.sliding_window)
