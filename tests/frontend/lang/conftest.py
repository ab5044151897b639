from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.frontend.server.serving import Server
from tests.frontend.server.tiny_folder import write_tiny_folder


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_folder(tmp_path_factory.mktemp("lang") / "tiny")


@pytest.fixture(scope="session")
def server(tiny_folder: Path) -> Iterator[Server]:
    server = Server(tiny_folder, "--kv-cache-tokens", "16384", "--dtype", "float32", key="sk-lang").started()
    yield server
    assert server.stop() == 0
