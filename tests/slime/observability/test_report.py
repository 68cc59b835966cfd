"""The report page."""

import base64
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from slime.observability.report import write_report
from tests.slime.observability.run_data import Row, full_row, write_run

TITLES = [
    "Reward",
    "Explained variance",
    "Value loss",
    "Response length",
    "Truncated responses",
    "KL divergence",
    "Entropy",
    "Clipped tokens",
    "Gradient norms",
    "Learning rates",
    "Log-prob difference",
    "Throughput",
    "Time by phase",
]


def report_of(tmp_path: Path, rows: list[Row], config: str = "critic_passes: 2\n") -> str:
    run_dir = tmp_path / "my-run"
    write_run(run_dir, rows, config)
    return write_report(run_dir).read_text(encoding="utf-8")


def titles(page: str) -> list[str]:
    return re.findall(r"<h2>([^<]*)<", page)


def images(page: str) -> list[bytes]:
    return [base64.b64decode(data) for data in re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', page)]


class OpenTags(HTMLParser):
    """Fails on a tag that closes another one."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_full_run_has_every_panel_and_each_is_a_drawing(tmp_path: Path) -> None:
    page = report_of(tmp_path, [full_row(rollout) for rollout in range(5)])
    assert titles(page) == TITLES
    assert len(images(page)) == len(TITLES)
    for image in images(page):
        assert ElementTree.fromstring(image).tag.endswith("svg")


def test_every_tag_is_closed(tmp_path: Path) -> None:
    parser = OpenTags()
    parser.feed(report_of(tmp_path, [full_row(0)]))
    assert parser.open == []


def test_a_supervised_run_has_its_loss_and_no_panel_without_data(tmp_path: Path) -> None:
    rows: list[Row] = [{"rollout": i, "train/sft_loss": 2.0 - i, "train/lr": 1e-5} for i in range(2)]
    assert titles(report_of(tmp_path, rows)) == ["Supervised loss", "Learning rates"]


def test_the_page_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    page = report_of(tmp_path, [full_row(0), full_row(1)])
    assert not re.search(r"<script|<link|@import|url\(|https?:", page)


def test_every_image_has_an_alt_text_with_its_numbers(tmp_path: Path) -> None:
    page = report_of(tmp_path, [full_row(0), full_row(4)])
    alts = re.findall(r'<img alt="([^"]+)"', page)
    assert len(alts) == len(TITLES)
    assert "eval gsm8k from 0.2 to 0.6" in alts[0]


def test_a_single_rollout_is_enough(tmp_path: Path) -> None:
    assert titles(report_of(tmp_path, [full_row(0)])) == TITLES


def test_a_run_without_any_drawn_metric_still_has_its_key_numbers(tmp_path: Path) -> None:
    page = report_of(tmp_path, [{"rollout": 0, "train/skipped_steps": 0}])
    assert titles(page) == []
    assert "Skipped steps" in page


def test_nan_is_a_gap_and_a_panel_of_nothing_but_nan_is_left_out(tmp_path: Path) -> None:
    rows = [full_row(rollout) for rollout in range(3)]
    for row in rows:
        row["train/entropy"] = None
    for name in ("rollout/reward", "train/grad_norm", "time/generate", "train/critic-pass_1/value_loss"):
        rows[1][name] = None
    page = report_of(tmp_path, rows)
    assert titles(page) == [title for title in TITLES if title != "Entropy"]
    assert ">nan<" not in page


def test_names_and_configuration_are_escaped_wherever_they_stand(tmp_path: Path) -> None:
    run_dir = tmp_path / "a<i>&b"
    rows: list[Row] = [{"rollout": 0, 'eval/<b>"x"&/reward': 0.5}]
    write_run(run_dir, rows, "prompt: <script>alert('&')</script>\n")
    page = write_report(run_dir).read_text(encoding="utf-8")
    assert "<script>" not in page
    assert "&lt;script&gt;alert(&#x27;&amp;&#x27;)&lt;/script&gt;" in page
    assert '<b>"x"' not in page
    # A key number, a legend and an alt text.
    assert page.count("&lt;b&gt;&quot;x&quot;&amp;") == 3
    # The title and the heading.
    assert page.count("a&lt;i&gt;&amp;b") == 2


def test_the_configuration_is_folded_away(tmp_path: Path) -> None:
    page = report_of(tmp_path, [full_row(0)], "seed: 42\n")
    assert re.search(r"<details>.*seed: 42.*</details>", page, re.DOTALL)


def test_a_run_without_a_configuration_has_a_report(tmp_path: Path) -> None:
    write_run(tmp_path, [full_row(0)])
    (tmp_path / "config.yaml").unlink()
    assert "<details>" not in write_report(tmp_path).read_text(encoding="utf-8")


def test_skipped_steps_are_red_only_when_there_are_any(tmp_path: Path) -> None:
    assert 'class="card bad"' not in report_of(tmp_path, [full_row(0)])
    assert 'class="card bad"' in report_of(tmp_path, [full_row(0), full_row(1) | {"train/skipped_steps": 1}])


def test_a_rollout_done_again_after_a_resume_counts_once(tmp_path: Path) -> None:
    rows: list[Row] = [{"rollout": i, "rollout/reward": reward} for i, reward in ((0, 0.1), (1, 0.9), (1, 0.3))]
    page = report_of(tmp_path, rows)
    assert "0.10 → 0.30" in page
    assert "<dd>2<small>numbers 0 to 1</small>" in page


def test_the_same_run_gives_the_same_page(tmp_path: Path) -> None:
    rows = [full_row(rollout) for rollout in range(3)]
    assert report_of(tmp_path, rows) == report_of(tmp_path, rows)


def test_nothing_but_the_report_is_added_to_the_run(tmp_path: Path) -> None:
    write_run(tmp_path, [full_row(0)])
    report = write_report(tmp_path)
    assert report == tmp_path / "report.html"
    assert {path.name for path in tmp_path.iterdir()} == {"config.yaml", "metrics.jsonl", "report.html"}


def test_an_older_report_stays_whole_when_a_new_one_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path, [full_row(0)])
    report = write_report(tmp_path)
    before = report.read_text(encoding="utf-8")

    def half_written(path: Path, text: str, encoding: str) -> int:
        path.write_bytes(text[:100].encode())
        raise OSError("disk full")

    monkeypatch.setattr(Path, "write_text", half_written)
    with pytest.raises(OSError, match="disk full"):
        write_report(tmp_path)
    assert report.read_text(encoding="utf-8") == before
    assert not list(tmp_path.glob(".report*"))


@pytest.mark.parametrize("content", [None, "", "\n"])
def test_a_run_without_metrics_is_refused_in_one_line(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "metrics.jsonl").write_text(content)
    with pytest.raises(ValueError, match="no metrics yet") as caught:
        write_report(tmp_path)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "report.html").exists()
