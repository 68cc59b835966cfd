"""The record of a run."""

from contextlib import suppress
from pathlib import Path

import pytest

from slime.observability.run_log import TIMELINE_FILE, RunLog
from slime.observability.timeline import Span, read_timeline


def test_phases_and_what_was_measured_elsewhere_are_on_the_timeline_in_seconds_since_the_run_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("slime.observability.run_log.time.time", lambda: now[0])
    with RunLog(tmp_path, {}, 1, 1) as log:
        now[0] = 1002.0
        with suppress(KeyError), log.phase("generate"):
            now[0] = 1005.0
            raise KeyError
        log.add_span("critic_update", 1001.0, 1004.0)
    assert read_timeline(tmp_path / TIMELINE_FILE) == [Span("generate", 2.0, 5.0), Span("critic_update", 1.0, 4.0)]
