"""Bodies and transport: whatever arrives, the answer has OpenAI's shape, and the next good request works."""

import json
import socket

import httpx
import pytest

from tests.frontend.server.serving import Server, read_all, request_bytes

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"


def error_of(response: httpx.Response, status: int) -> dict[str, str | None]:
    """The error of an answer, whose shape is checked."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert list(response.json()) == ["error"]
    error: dict[str, str | None] = response.json()["error"]
    assert list(error) == ["message", "type", "param", "code"]
    assert error["message"]
    assert error["type"]
    for secret in ("Traceback", ".py", "/work", "site-packages", "object at 0x", "<class"):
        assert secret not in error["message"]
    return error


def post_bytes(server: Server, body: bytes, content_type: str | None = "application/json") -> httpx.Response:
    headers = {} if content_type is None else {"Content-Type": content_type}
    return server.client.post(COMPLETIONS, content=body, headers=headers)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"model": "m", x}', "invalid_json"),
        (b"", "invalid_json"),
        (b"NaN", "invalid_json"),
        (b'{"temperature": NaN}', "invalid_json"),
        (b'{"temperature": 1e999}', "invalid_json"),
        (b'{"seed": ' + b"1" * 5000 + b"}", "invalid_json"),
        (b'{"model": "m"} x', "invalid_json"),
        (b'{"model": "\xff"}', "invalid_utf8"),
        (b"[" * 10_000 + b"]" * 10_000, "invalid_json"),
        (b'{"a": ' * 70 + b"1" + b"}" * 70, "invalid_json"),
    ],
)
def test_what_is_no_json_is_refused_with_its_place(server: Server, body: bytes, code: str) -> None:
    assert error_of(post_bytes(server, body), 400)["code"] == code


def test_a_syntax_error_and_a_bad_byte_are_named_by_their_offset(server: Server) -> None:
    assert "byte 15" in str(error_of(post_bytes(server, b'{"model": "m", x}'), 400)["message"])
    assert "offset 14" in str(error_of(post_bytes(server, b'{"model": "abc\xff"}'), 400)["message"])


@pytest.mark.parametrize("body", [b"[]", b'"x"', b"null", b"7"])
def test_json_that_is_no_object_is_refused(server: Server, body: bytes) -> None:
    error_of(post_bytes(server, body), 400)


@pytest.mark.parametrize(
    "content_type", [None, "text/plain", "application/xml", "application/json; charset=latin-1", "x"]
)
def test_a_body_that_does_not_call_itself_json_is_415(server: Server, content_type: str | None) -> None:
    assert error_of(post_bytes(server, b"{}", content_type), 415)["code"] == "unsupported_media_type"


@pytest.mark.parametrize(
    "content_type",
    ["application/json; charset=utf-8", "Application/JSON", 'application/json;charset="UTF-8"'],
)
def test_json_with_a_charset_is_taken(server: Server, content_type: str) -> None:
    body = json.dumps({"model": server.name, "prompt": "Hello", "max_tokens": 1}).encode()
    assert post_bytes(server, body, content_type).status_code == 200


def test_a_body_over_the_limit_is_413_before_it_is_read(server: Server) -> None:
    head = request_bytes(server, COMPLETIONS, b"").replace(
        b"Content-Length: 0", b"Content-Length: 99999999999"
    )
    assert server.raw(head).startswith(b"HTTP/1.1 413")


def test_a_large_body_of_unstated_length_is_413_as_soon_as_it_is_too_large(server: Server) -> None:
    chunks = (b'{"prompt": "' + b"x" * 65536 for _ in range(64))
    response = server.client.post(COMPLETIONS, content=chunks, headers={"Content-Type": "application/json"})
    assert error_of(response, 413)["code"] == "body_too_large"


def test_a_body_shorter_than_it_says_is_given_up_after_the_limit(server: Server) -> None:
    whole = request_bytes(server, COMPLETIONS, b'{"model": ' + b" " * 100)
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(whole[:-50])
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 408")
    assert b'"code":"request_timeout"' in answer


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ('{"messages": [{"role": "user", "content": "ab\\ud83d"}]}', "messages[0].content"),
        ('{"messages": [{"role": "us\\udc00er", "content": "x"}]}', "messages[0].role"),
        ('{"stop": ["ok", "no\\ud800"]}', "stop[1]"),
        ('{"stop": "no\\ud800"}', "stop"),
        ('{"prompt": ["a", "\\udfff"]}', "prompt[1]"),
        ('{"unknown": {"deep": ["\\ud83d\\u0041"]}}', "unknown.deep[0]"),
    ],
)
def test_half_a_surrogate_pair_is_refused_with_field_and_position(
    server: Server, body: str, param: str
) -> None:
    error = error_of(post_bytes(server, body.encode()), 400)
    assert (error["param"], error["code"]) == (param, "invalid_unicode")
    assert "character" in str(error["message"])


@pytest.mark.parametrize(
    "text", ["a\0b", "\ufeffBOM", "left\u202eright", "a" + "\u0301" * 10_000, "one\r\ntwo", "👩‍👩‍👧"]
)
def test_odd_but_valid_text_is_kept_as_it_is(server: Server, text: str) -> None:
    answer = server.complete(text, max_tokens=0, echo=True) if len(text) < 100 else None
    if answer is not None:
        assert answer["choices"][0]["text"] == text
    tokens = server.post("/tokenize", {"prompt": text}).json()["tokens"]
    assert server.post("/detokenize", {"tokens": tokens}).json()["prompt"] == text


def test_control_characters_of_a_request_reach_no_log_line(server: Server) -> None:
    server.post(COMPLETIONS, {"model": server.name, "prompt": "x", "max_tokens": 1, "evil\n\x1b[31mfield": 1})
    line = server.wait_log("ignored unknown fields: evil")
    assert "evil\\u000a\\u001b[31mfield" in line


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("POST", "/v1/nothing", 404),
        ("GET", "/v1/chat/completions/", 404),
        ("GET", CHAT, 405),
        ("GET", COMPLETIONS, 405),
        ("DELETE", "/v1/models", 405),
        ("OPTIONS", COMPLETIONS, 405),
        ("PUT", "/tokenize", 405),
        ("GET", "/v1/../etc/passwd", 404),
    ],
)
def test_wrong_paths_and_methods_answer_in_our_shape(
    server: Server, method: str, path: str, status: int
) -> None:
    response = server.client.request(method, path)
    error_of(response, status)
    assert ("allow" in response.headers) == (status == 405)


def test_head_has_no_body(server: Server) -> None:
    assert server.client.head("/health").status_code == 200
    refused = server.client.head(COMPLETIONS)
    assert (refused.status_code, refused.content) == (405, b"")


def test_the_last_of_equal_keys_wins(server: Server) -> None:
    body = f'{{"model": "no", "prompt": "x", "max_tokens": 1, "model": "{server.name}"}}'
    assert post_bytes(server, body.encode()).status_code == 200


def test_unknown_fields_are_ignored_and_named_once_in_the_log(server: Server) -> None:
    for _ in range(2):
        server.complete("x", surprise=1, another_surprise=2)
    server.wait_log("ignored unknown fields: surprise, another_surprise")
    server.complete("x", last_surprise=1)
    server.wait_log("last_surprise")
    assert sum("surprise, another" in line for line in server.log) == 1


def test_a_header_of_100_000_characters_is_answered(server: Server) -> None:
    response = server.client.get("/v1/models", headers={"X-Request-Id": "x" * 100_000})
    assert response.status_code == 200
    assert response.headers["x-request-id"] == "x" * 128


def test_a_request_id_is_echoed_and_a_missing_one_made(server: Server) -> None:
    assert (
        server.client.get("/health", headers={"X-Request-Id": "mine-1"}).headers["x-request-id"] == "mine-1"
    )
    one, other = (server.client.get("/health").headers["x-request-id"] for _ in range(2))
    assert one != other


def test_cors_is_off(server: Server) -> None:
    response = server.client.get("/v1/models", headers={"Origin": "http://evil.example"})
    assert not [name for name in response.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    "header",
    [
        None,
        "Bearer wrong",
        "Bearer sk-share",
        "Bearer",
        "Basic sk-shared",
        "Bearer sk-shared-",
        "Bearer \xff",
    ],
)
def test_without_the_right_key_everything_but_probes_is_401(server: Server, header: str | None) -> None:
    headers = {} if header is None else {"Authorization": header.encode("latin-1")}
    with httpx.Client(base_url=server.url, headers=headers) as stranger:
        for path in ("/v1/models", "/metrics", "/v1/cache/tree", "/openapi.json", "/nothing"):
            error = error_of(stranger.get(path), 401)
            assert error["code"] == "invalid_api_key"
        assert stranger.get("/health").status_code == 200
        assert stranger.get("/ready").status_code == 200
