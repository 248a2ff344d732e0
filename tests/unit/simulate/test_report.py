"""The report is one self-contained file that makes no requests, and no job name can break it."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
from html.parser import HTMLParser

import numpy as np
import polars as pl
import pytest

from berth.cluster.load import load_cluster
from berth.report.html import embedded, report_page
from berth.schedule.policies.registry import load_policy
from berth.simulate.metrics import summarise
from berth.simulate.policy_run import PolicyRun
from berth.simulate.run import Setting, simulate
from berth.simulate.timeline import TimerWatch
from berth.simulate.trace_source import TraceSource


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


def test_timers_are_drawn_where_they_were_learned(report):
    assert 'id="timers"' not in report
    pool = load_cluster("2x2x4")
    trace = TraceSource("generate:jobs=200,load=1.2,sizes=odd,durations=exponential:1h").trace(pool)
    watch = TimerWatch(20)
    run = simulate(
        trace, pool, load_policy("dally:mode=tuned"), Setting(congestion=5.0, log=True), watch=watch
    )
    page = report_page([PolicyRun(run, summarise(run), watch)], [])
    assert 'id="timers"' in page
    line = data_of(page)["runs"][0]["timers"][0]
    demand, tier = np.unravel_index(watch.samples[:, :2].argmax(), (len(watch.demands), 2))  # most samples
    assert line["label"] == f"{watch.demands[demand]} GPUs, {('machine', 'rack')[tier]}"
    learned = [timers[demand, tier] for timers in watch.timers]
    assert line["y"] == pytest.approx(learned, rel=1e-3)
    assert len(set(line["y"])) > 1


@pytest.mark.slow
def test_a_large_trace_does_not_make_a_large_page():
    pool = load_cluster("4x4x8")

    def page_of(jobs):
        trace = TraceSource(f"generate:jobs={jobs},load=0.9").trace(pool)
        run = simulate(trace, pool, load_policy("srtf"), Setting(network="off", log=True))
        return report_page([PolicyRun(run, summarise(run))], [])

    small, large = page_of(300), page_of(20_000)
    assert len(large) < 5 * len(small)  # 67 times the jobs
    assert len(large) < 200_000
