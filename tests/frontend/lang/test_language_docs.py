"""docs/language.md does what it shows."""

import re
from pathlib import Path

import pytest

from tests.runtime.engines import make_engine, smollm2
from trunkline import set_default_backend

DOCS = Path(__file__).resolve().parents[3] / "docs/language.md"


@pytest.mark.slow
def test_every_block_of_the_docs_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 9
    names: dict[str, object] = {"__name__": "docs"}
    try:
        for block in blocks:
            source = block.replace("Engine(EngineConfig(kv_cache_tokens=8192))", "engine")
            names["engine"] = names.get("engine") or make_engine(smollm2(), tokens=8192)
            exec(compile(source, "docs/language.md", "exec"), names)
    finally:
        set_default_backend(None)
    shown = capsys.readouterr().out
    assert shown.startswith("Rome")
    assert "3 items (0 failed), 3 requests" in shown
    assert "docs/language.md:5 in hopeless: gen 'much': max_tokens 1000000000" in shown
