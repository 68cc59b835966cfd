"""The file of spans."""

from pathlib import Path

import pytest

from slime.observability import names
from slime.observability.timeline import LANES, Span, TimelineWriter, last_rollouts, read_timeline

SPANS = [Span("generate", 0.0, 1.5), Span("critic_update", 1.5, 2.25)]


def write(file: Path, spans: list[Span]) -> None:
    writer = TimelineWriter(file)
    for span in spans:
        writer.write(span)
    writer.close()


def test_spans_come_back_in_the_order_they_ended(tmp_path: Path) -> None:
    file = tmp_path / "timeline.jsonl"
    file.write_text("left by an earlier start")
    write(file, SPANS)
    assert read_timeline(file) == SPANS


def test_a_span_can_be_read_while_the_run_goes_on(tmp_path: Path) -> None:
    writer = TimelineWriter(tmp_path / "timeline.jsonl")
    writer.write(SPANS[0])
    assert read_timeline(tmp_path / "timeline.jsonl") == SPANS[:1]
    writer.close()


def test_a_run_without_a_timeline_has_no_spans(tmp_path: Path) -> None:
    assert read_timeline(tmp_path / "missing.jsonl") == []


def test_a_last_line_that_is_not_whole_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "timeline.jsonl"
    write(file, SPANS)
    file.write_text(file.read_text()[:-1])
    assert read_timeline(file) == SPANS[:1]


@pytest.mark.parametrize("line", ["{", "[1]", '{"phase": "generate"}'])
def test_another_line_that_is_broken_names_the_file(tmp_path: Path, line: str) -> None:
    file = tmp_path / "timeline.jsonl"
    write(file, SPANS)
    file.write_text(line + "\n" + file.read_text())
    with pytest.raises(ValueError, match=f"^{file}: "):
        read_timeline(file)


def test_a_phase_that_is_not_declared_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="time/lunch"):
        write(tmp_path / "timeline.jsonl", [Span("lunch", 0.0, 1.0)])


def test_every_phase_of_work_has_one_lane() -> None:
    phases = [phase for lane in LANES.values() for phase in lane]
    assert sorted(phases) == sorted(set(names.PHASES) - {names.WHOLE_PHASE, "critic_wait", "generate_wait"})


GENERATIONS = [Span("generate", 0, 1), Span("generate", 3, 4), Span("generate", 6, 7)]
OF_THE_CRITIC = [Span("critic_update", 1, 2), Span("critic_update", 4, 6.5), Span("critic_update", 8, 9)]


def test_the_last_rollouts_begin_with_their_generation_and_cut_what_runs_into_it() -> None:
    spans = [*OF_THE_CRITIC, *GENERATIONS]
    cut = Span("critic_update", 6, 6.5)
    assert last_rollouts(spans, 1) == [cut, Span("generate", 6, 7), Span("critic_update", 8, 9)]
    assert last_rollouts(spans, 2) == sorted([*OF_THE_CRITIC[1:], *GENERATIONS[1:]], key=lambda span: span.started)


def test_a_run_with_fewer_rollouts_is_shown_whole_from_its_first_generation() -> None:
    spans = sorted([*OF_THE_CRITIC, *GENERATIONS], key=lambda span: span.started)
    assert last_rollouts(spans, 9) == spans
    assert last_rollouts([Span("evaluate", -2, -1), *spans], 9) == spans
    assert last_rollouts([Span("evaluate", 0, 1)], 2) == []
