"""The server's own description of itself, and random requests made from it."""

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode

from tests.frontend.server.fake_engine import FakeEngine
from tests.frontend.server.serving import Server
from tests.runtime.engines import embedded_tokenizer
from trunkline.frontend.server.app import create_app
from trunkline.frontend.server.settings import ServerSettings

RANDOM_REQUESTS = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def document() -> dict:
    app = create_app(FakeEngine([]), embedded_tokenizer(), ServerSettings(api_keys=("k",)))
    described: dict = app.openapi()
    return described


def references(value: object) -> set[str]:
    found: set[str] = set()
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            found |= {item["$ref"]} if isinstance(item.get("$ref"), str) else set()
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)
    return found


def test_every_route_and_every_schema_is_described() -> None:
    described = document()
    assert set(described["paths"]) >= {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/models",
        "/tokenize",
        "/ready",
    }
    names = {reference.removeprefix("#/components/schemas/") for reference in references(described)}
    assert names <= set(described["components"]["schemas"])
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            assert "422" not in operation["responses"], (path, method)
            assert operation["description"], (path, method)


def test_ranges_are_part_of_the_description() -> None:
    fields = document()["components"]["schemas"]["ChatRequest"]["properties"]
    assert fields["n"]["anyOf"][0] == {"type": "integer", "minimum": 1, "maximum": 128}
    assert fields["temperature"]["anyOf"][0] == {"type": "number", "minimum": 0, "maximum": 2}
    assert fields["messages"]["minItems"] == 1


def quickened(body: Any, model: str) -> Any:
    """A body that asks the right model for little, whatever else is in it."""
    if not isinstance(body, dict) or "model" not in body:
        return body
    small = {"max_tokens": 2, "max_completion_tokens": 2, "n": 2, "min_tokens": 0}
    limits = {name: min(body[name], most) for name, most in small.items() if type(body.get(name)) is int}
    return {**body, "max_tokens": 1, **limits, "model": model}


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_no_random_request_is_the_servers_fault(server: Server, mode: GenerationMode) -> None:
    key = {"Authorization": f"Bearer {server.key}"}
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json", headers=key)
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) >= 14
    for operation in operations:
        if mode is GenerationMode.NEGATIVE and not operation.body:
            continue

        @RANDOM_REQUESTS
        @given(case=operation.as_strategy(generation_mode=mode))
        def attempt(case: Any) -> None:
            case.body = quickened(case.body, server.name)
            response = case.call(base_url=server.url, headers=key)
            assert response.status_code < 500, response.text

        attempt()
