from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.frontend.server.serving import Server
from tests.frontend.server.tiny_folder import write_tiny_folder

QUEUE_LIMIT = 100
KV_TOKENS = 16384
GOOD_ANSWERS: dict[str, list[object]] = {}


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_folder(tmp_path_factory.mktemp("tiny") / "tiny")


@pytest.fixture(scope="session")
def shared_server(tiny_folder: Path) -> Iterator[Server]:
    server = Server(
        tiny_folder,
        *("--kv-cache-tokens", str(KV_TOKENS)),
        *("--max-queue", str(QUEUE_LIMIT)),
        *("--max-body-bytes", str(2 * 2**20)),
        *("--body-timeout", "3"),
        key="sk-shared",
    ).started()
    yield server
    assert server.stop() == 0


@pytest.fixture
def server(shared_server: Server) -> Iterator[Server]:
    """The server that all tests share; after each it is idle, sound, and answers a good request as before."""
    logged = len(shared_server.log)
    yield shared_server
    answer = shared_server.complete("The good request")["choices"]
    assert answer == GOOD_ANSWERS.setdefault(shared_server.url, answer)
    shared_server.wait_idle()
    pages = {name: value for name, value in shared_server.metrics().items() if "trunkline_pages" in name}
    assert sum(pages.values()) == KV_TOKENS // 16, pages
    checked = shared_server.post("/v1/cache/check")
    assert checked.status_code == 200, checked.text
    assert not [line for line in shared_server.log[logged:] if line.startswith("Traceback")]
