"""The root of every exception Trunkline raises on purpose."""


class TrunklineError(Exception):
    """Base of all Trunkline errors; each room derives its own tree from it."""


class ConfigError(TrunklineError, ValueError):
    """Settings that are out of range or contradict each other; names the setting and its value."""
