"""What a server assumes of its engine where nobody says otherwise."""

from pathlib import Path

import pytest

from trunkline.frontend.server.command import engine_config


@pytest.mark.parametrize(
    ("text", "target", "explains"),
    [
        (None, 300.0, True),
        ("max_model_len: 100", 300.0, True),
        ("scheduler: {target_itl_ms: 50}", 50.0, True),
        ("scheduler: {target_itl_ms: null}\nradix: {explain: false}", None, False),
    ],
)
def test_the_file_goes_before_what_a_server_assumes(
    tmp_path: Path, text: str | None, target: float | None, explains: bool
) -> None:
    file = tmp_path / "engine.yaml"
    if text is not None:
        file.write_text(text)
    typed = {"kv_cache_tokens": 4096, "kv_cache_dtype": "int8", "dtype": None}
    config = engine_config(None if text is None else file, typed)
    assert config.scheduler.target_itl_ms == target
    assert config.radix.explain is explains
    assert config.kv_cache_tokens == 4096
    assert (config.dtype, config.kv_cache_dtype) == ("auto", "int8")
