"""The report: one page that works without a network, JSON that is the same each time, frames and figures."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

import trunkline.frontend.analyze.extras as extras
from tests.frontend.analyze.traces import block_trace, random_paths, text_trace
from trunkline.frontend.analyze import analyze
from trunkline.frontend.analyze.analysis import Analysis, analyse
from trunkline.frontend.analyze.errors import MissingExtra

ARXIV = Path(__file__).resolve().parents[2] / "data" / "mooncake_arxiv_first1000.jsonl.gz"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SECTIONS = [
    "What would help",
    "Hits at every cache size",
    "Why tokens were cached or not",
    "Along the time",
    "The tree of prefixes",
    "How far prompts go along with earlier ones",
    "By part of the traffic",
    "Shared prefixes",
]


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    prompts = [
        f"Hello <script>alert({n % 3})</script> & more words here, number {n % 7}: {n}" for n in range(60)
    ]
    return analyse(text_trace(prompts, page_size=4, namespaces=[f"tenant {n % 2}" for n in range(60)]))


class Addresses(HTMLParser):
    """Collects what a page would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action")]


def test_page_fetches_nothing_and_text_cannot_break_out_of_its_data(analysis: Analysis) -> None:
    page = analysis.html()
    parser = Addresses()
    parser.feed(page)
    assert parser.found == ["data:,"]
    assert len(re.findall("<script", page)) == 2
    assert not re.findall(r"(?:fetch|XMLHttpRequest|import)\(|https?://(?!www\.w3\.org)", page)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: apt-get install chromium")
def test_page_draws_every_section_in_chromium_without_network_or_console_errors(
    analysis: Analysis, tmp_path: Path
) -> None:
    page = tmp_path / "report.html"
    page.write_text(analysis.html(), encoding="utf-8")
    run = subprocess.run(
        [
            *(str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
            *("--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr", "--log-level=0"),
            *(
                f"--user-data-dir={tmp_path / 'profile'}",
                "--virtual-time-budget=5000",
                "--dump-dom",
                page.as_uri(),
            ),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert [line for line in run.stderr.splitlines() if "CONSOLE" in line] == []
    assert 'data-ready="yes"' in run.stdout
    assert re.findall("<h2>([^<]*)</h2>", run.stdout) == SECTIONS
    assert run.stdout.count("<svg") == 5
    assert "alert(0)&lt;/script&gt;" in run.stdout


def test_document_is_the_same_each_time_and_its_parts_add_up() -> None:
    first, second = (json.dumps(analyze(ARXIV).to_dict(), allow_nan=False) for _ in range(2))
    assert first == second
    document = json.loads(first)
    assert document["totals"]["infinite_hit_tokens"] == 3_826_202
    assert sum(document["reasons"]["tokens"].values()) == document["totals"]["prompt_tokens"]
    assert sum(slot["prompt_tokens"] for slot in document["time"]) == document["totals"]["prompt_tokens"]
    assert sum(part["requests"] for part in document["divergence"]) == document["totals"]["requests"]
    assert document["knee"]["size_tokens"] == document["knee"]["size_blocks"] * 512


def test_breakdown_and_sharing_add_up_to_the_whole() -> None:
    paths = random_paths(8)
    trace = block_trace(paths, namespaces=[f"n{number % 3}" for number in range(len(paths))])
    document = analyse(trace).to_dict()
    rows = document["breakdown"]["namespace"]
    assert sum(row["prompt_tokens"] for row in rows) == trace.total_tokens
    assert sum(sum(row["tokens"].values()) for row in rows) == trace.total_tokens


def test_every_stretch_of_the_tree_is_counted_once() -> None:
    analysis = analyse(block_trace(random_paths(9)))
    tree = analysis.tree
    assert tree.length.sum() == analysis.trace.num_distinct_blocks
    assert (tree.visits * tree.length).sum() == len(analysis.trace.blocks)
    inner = tree.parent >= 0
    above = tree.parent[inner]
    assert (tree.depth[inner] == tree.depth[above] + tree.length[above]).all()


def test_frames_hold_what_the_document_holds(analysis: Analysis) -> None:
    pytest.importorskip("pandas")
    frames = analysis.frames
    assert len(frames.requests) == len(analysis.trace)
    assert (
        frames.requests["prompt_tokens"].sum()
        == frames.reasons["tokens"].sum()
        == analysis.trace.total_tokens
    )
    assert set(frames.curves["policy"]) == set(analysis.curves)
    assert frames.lru["hit_blocks"].iloc[-1] == analysis.infinite[0]
    assert frames.by("namespace")["requests"].tolist() == [30, 30]
    assert len(frames.by("model")) == 0
    assert frames.time["prompt_tokens"].sum() == analysis.trace.total_tokens
    assert {"kind", "gain_tokens"} <= set(frames.advice.columns)
    assert len(frames.prefixes) > 0


def test_figures_draw_the_same(analysis: Analysis) -> None:
    pytest.importorskip("plotly")
    figures = analysis.figures
    assert [line.name for line in figures.curves().data] == list(analysis.curves)
    for figure in (figures.reasons(), figures.time(), figures.divergence(), figures.tree()):
        assert len(figure.data) > 0


def test_a_missing_package_is_named_in_one_line(monkeypatch: pytest.MonkeyPatch, analysis: Analysis) -> None:
    def no_module(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(extras, "import_module", no_module)
    with pytest.raises(
        MissingExtra, match=r"pandas is not installed; run: pip install 'trunkline\[analyze\]'"
    ):
        _ = analysis.frames
