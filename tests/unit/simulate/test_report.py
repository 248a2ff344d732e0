"""The report is one file that holds its data, asks nobody for anything, and can't be broken by a name."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
from html.parser import HTMLParser

import polars as pl
import pytest

from berth.report.html import embedded, report_page
from berth.simulate.metrics import summarise
from berth.simulate.policy_run import PolicyRun
from berth.simulate.timeline import TimerWatch


class Reader(HTMLParser):
    """Collects the text of every script and the attributes that could ask for something."""

    def __init__(self):
        super().__init__()
        self.scripts, self.asks, self.open, self.seen = [], [], None, []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.asks += [value for name, value in attrs if name in ("src", "href", "action", "srcset", "data")]
        self.open = (tag, dict(attrs))
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_data(self, data):
        if self.open and self.open[0] == "script":
            attributes, text = self.scripts[-1]
            self.scripts[-1] = (attributes, text + data)

    def handle_endtag(self, tag):
        self.open = None


@pytest.fixture
def report(busy_run):
    return report_page([PolicyRun(busy_run, summarise(busy_run))], ["a note <b>with</b> markup"])


def data_of(page):
    reader = Reader()
    reader.feed(page)
    return json.loads(next(text for attributes, text in reader.scripts if attributes.get("id") == "data"))


def test_the_data_is_in_the_page(report, busy_run):
    data = data_of(report)
    run = data["runs"][0]
    assert (data["devices"], data["tiers"], run["name"]) == (16, ["machine", "rack", "network"], "srtf")
    assert len(run["gantt"]["jobs"]) == 80
    assert len(run["map"]["rows"]) == 2
    assert max(run["jct"]) == pytest.approx(
        float((busy_run.records["end_s"] - busy_run.records["arrival_s"]).max()), rel=1e-3
    )


def test_nothing_is_asked_for_from_outside(report):
    reader = Reader()
    reader.feed(report)
    assert reader.asks == []
    assert set(re.findall(r"https?://[^\"' ]+", report)) <= {"http://www.w3.org/2000/svg"}
    assert "url(" not in report
    assert "default-src 'none'" in report


def test_the_security_policy_names_the_script_and_the_style_it_allows(report):
    reader = Reader()
    reader.feed(report)
    code = next(text for attributes, text in reader.scripts if not attributes)
    style = re.search(r"<style>(.*?)</style>", report, re.DOTALL)[1]
    for text in (code, style):
        assert base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() in report


def test_a_job_called_like_a_script_stays_a_name(busy_run):
    evil = '</script><script>alert("x")</script>'
    ids = [evil, *busy_run.trace.job_ids[1:]]
    trace = dataclasses.replace(
        busy_run.trace, frame=busy_run.trace.frame.with_columns(pl.Series("job_id", ids)), source=evil
    )
    page = report_page([PolicyRun(dataclasses.replace(busy_run, trace=trace), summarise(busy_run))], [evil])
    assert evil not in page
    assert data_of(page)["runs"][0]["gantt"]["jobs"][0][0] == evil


def test_embedded_data_holds_no_angle_bracket():
    assert json.loads(embedded({"a": "<&>"})) == {"a": "<&>"}
    assert "<" not in embedded({"a": "<!--<script>"})


def test_timers_are_drawn_where_they_were_learned(busy_run, report):
    assert 'id="timers"' not in report
    wait_stats, demands = busy_run.world.wait_stats, busy_run.world.demands["gpus"]
    samples = wait_stats["count"].copy()
    samples[0, 0] = 7
    watch = TimerWatch(
        1, [0.0, 10.0], [wait_stats["timer_s"].copy(), wait_stats["timer_s"] + 5.0], demands, samples
    )
    page = report_page([PolicyRun(busy_run, summarise(busy_run), watch)], [])
    assert 'id="timers"' in page
    (line,) = data_of(page)["runs"][0]["timers"]
    assert demands[0] == 1
    assert (line["label"], line["y"]) == ("1 GPU, machine", [0.0, 5.0])


def test_a_large_trace_does_not_make_a_large_page(report):
    assert len(report) < 120_000
