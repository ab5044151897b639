"""The page, in a real browser."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.frontend.server.browser import EXECUTABLE, Browser
from tests.frontend.server.serving import Server

needs_browser = pytest.mark.skipif(EXECUTABLE is None, reason="needs Chromium")


@pytest.fixture
def browser(server: Server, tmp_path: Path) -> Iterator[Browser]:
    with Browser(tmp_path) as opened:
        yield opened


def open_with_key(browser: Browser, server: Server) -> None:
    """Opens the page, which asks for a key since the server wants one."""
    browser.open(server.url)
    browser.wait_for("document.getElementById('key')?.hidden === false")
    browser.evaluate(f"document.getElementById('key').value = {server.key!r}")
    browser.evaluate("document.getElementById('key').dispatchEvent(new Event('change'))")
    browser.wait_for(f"document.getElementById('model').textContent === {server.name!r}")


def say(browser: Browser, text: str) -> None:
    browser.wait_for("document.getElementById('send').textContent === 'Send'")
    browser.evaluate(f"document.getElementById('text').value = {text!r}")
    browser.evaluate("document.getElementById('ask').requestSubmit()")


def test_the_page_needs_nothing_from_elsewhere(server: Server) -> None:
    response = server.client.get("/")
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in response.headers["content-security-policy"]
    assert not re.findall(r"(?:src|href)=|@import|url\(", response.text)
    assert "http" not in response.text.replace("http://www.w3.org/2000/svg", "")


@needs_browser
def test_a_chat_streams_shows_its_reuse_and_grows_the_tree(server: Server, browser: Browser) -> None:
    open_with_key(browser, server)
    browser.evaluate("document.getElementById('limit').value = 12")
    for turn, text in enumerate(("Hello <b>there</b>", "And again"), 1):
        say(browser, text)
        browser.wait_for(f"document.querySelectorAll('.reuse').length === {turn}")
    reused = browser.evaluate("[...document.querySelectorAll('.reuse')].map((line) => line.innerText)")
    cached = [int(line.split()[0]) for line in reused]
    assert cached[1] > 30
    assert browser.evaluate("document.querySelectorAll('.bar span.cached').length") >= 1
    assert browser.evaluate("document.querySelector('.message.user b')") is None
    assert browser.evaluate("document.querySelector('.message.user').textContent") == "Hello <b>there</b>"
    browser.wait_for("document.querySelectorAll('#tree rect').length >= 2")
    browser.wait_for("document.querySelectorAll('#tree rect.reused').length >= 1")
    titles = browser.evaluate(
        "[...document.querySelectorAll('#tree title')].map((title) => title.textContent)"
    )
    assert any("Hello <b>there</b>" in title for title in titles)
    browser.evaluate("document.getElementById('colour').value = 'age', refresh()")
    assert not [problem for problem in browser.problems if "401" not in problem]


@needs_browser
def test_stop_ends_an_answer_and_frees_it(server: Server, browser: Browser) -> None:
    open_with_key(browser, server)
    browser.evaluate("document.getElementById('limit').value = 1500")
    say(browser, "Go on for ever")
    server.wait_for(lambda metrics: metrics["trunkline_requests_running"] >= 1)
    browser.evaluate("document.getElementById('ask').requestSubmit()")
    browser.wait_for("document.getElementById('send').textContent === 'Send'")
    assert server.wait_idle() < 2
