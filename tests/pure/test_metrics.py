"""Figures for Prometheus: a parser of its own reads them, and the dashboard and the alerts ask for what there is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from penstock.metrics import exposition
from penstock.metrics.text import Family, labels, write
from penstock.spark import ProgressListener
from penstock.survey import Survey
from penstock.survey.ears import Heard
from penstock.survey.pipelines import PipelineLook
from tests.pure.surveyed import BEGUN, Seen
from tests.pure.test_house import ROOT
from tests.pure.test_survey import flow, pipeline

HOSTILE = 'a"b\\c\n{d}'
DEPLOY = ROOT / "deploy"


async def nobody() -> Any:
    raise AssertionError("nobody asks")


def full_survey() -> Survey:
    """A survey that has seen one of everything."""
    seen = Seen()
    cluster = {"name": "C", "leader": "n1", "replicas": [{"name": "n2", "current": False, "lag": 3}]}
    seen.stream("ORDERS", 0, messages=10, markers=2, cluster=cluster)
    seen.stream("COPY", 0, config={"mirror": {"name": "ORDERS"}}, mirror={"name": "ORDERS", "lag": 4, "active": 5})
    seen.stream("SUM", 0, sources=[{"name": "ORDERS", "lag": 1}])
    seen.stream("ORDERS-DEAD", 0, messages=1, config={"subjects": ["PENSTOCK.DEAD.ORDERS.>"]})
    seen.stream("t:x", 0, config={"metadata": {"penstock.cluster": "t", "penstock.channel": "x"}})
    seen.consumer("ORDERS", HOSTILE, 100, num_pending=5, age=60.0)
    seen.known.take_account({"storage": 5, "memory": 0, "limits": {"max_storage": 5}, "api": {"total": 9}}, BEGUN)
    flows = (flow(rows=5, rows_out=4, rate=1.5, batch_seconds=0.25, streams={"ORDERS": 3}, status="failed"),)
    seen.known.take_pipelines([PipelineLook(pipeline(told=BEGUN, state="troubled", flows=flows), {}, {})], BEGUN)
    seen.known.rounds = 1
    survey = Survey(nobody)
    survey.snapshot = seen.known.snapshot(1, BEGUN, problem=None, jetstream=True)
    heard = survey.ears.heard["ORDERS", HOSTILE] = Heard(acks=2, deliveries=3, seconds=1.0)
    heard.buckets[0], heard.buckets[-1] = 1, 1
    heard.told.update(["max_deliver", "nak", "terminated", "nak", "something_new"])
    survey.ears.heard["ORDERS", ""] = Heard()
    survey.ears.heard["ORDERS", ""].told.update(["stream_leader_elected"])
    return survey


def read(survey: Survey) -> dict[str, list[Any]]:
    """Give the samples of what a survey tells, by name, as Prometheus' own parser reads them."""
    found: dict[str, list[Any]] = {}
    for family in text_string_to_metric_families(exposition(survey).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample)
    return found


async def test_a_prometheus_parser_accepts_everything():
    """Streams, consumers, acks, advisories, channels, pipelines and troubles are there, and names come back whole."""
    found = read(full_survey())
    (pending,) = found["jetstream_consumer_num_pending"]
    assert (pending.value, pending.labels["stream_name"], pending.labels["consumer_name"]) == (5, "ORDERS", HOSTILE)
    assert pending.labels["stream_leader"] == "n1"
    (lag,) = found["penstock_consumer_lag_seconds"]
    assert lag.value == 60
    messages = {item.labels["stream_name"]: item.value for item in found["jetstream_stream_total_messages"]}
    assert messages["ORDERS"] == 10, "all messages, as the exporter counts"
    assert [item.value for item in found["penstock_stream_markers"]] == [2]
    buckets = [item.value for item in found["nats_jetstream_acknowledgement_duration_bucket"]]
    assert buckets == sorted(buckets)
    assert buckets[-1] == found["nats_jetstream_acknowledgement_duration_count"][0].value == 2
    assert [item.value for item in found["nats_jetstream_consumer_nak_total"]] == [2]
    assert found["penstock_channel_messages"][0].labels == {"cluster_id": "t", "channel": "x"}
    states = {item.labels["state"]: item.value for item in found["penstock_pipeline_state"]}
    assert [state for state, value in states.items() if value] == ["troubled"]
    assert [item.value for item in found["penstock_flow_failed"]] == [1]
    troubles = {(item.labels["kind"], item.labels["about"]) for item in found["penstock_trouble"]}
    assert {("stuck", "consumer"), ("failed", "pipeline"), ("replica", "stream"), ("full", "account")} <= troubles
    assert found["penstock_up"][0].value == 1


async def test_figures_that_are_old_are_not_given_as_new():
    """If NATS does not answer, there is that, and no figure of a stream that may have changed since."""
    survey = full_survey()
    survey.snapshot = survey._known.snapshot(2, BEGUN, problem="It is gone.", jetstream=None)
    found = read(survey)
    assert found["penstock_up"][0].value == 0
    assert not [name for name in found if name.startswith(("jetstream_", "nats_"))]


@given(st.dictionaries(st.sampled_from(["a", "b_c"]), st.text()), st.floats(allow_nan=False))
def test_any_label_and_number_comes_back(given_labels: dict[str, str], value: float):
    """Whatever a name holds, a parser reads it back; only what cannot be written at all is replaced."""
    family = Family("penstock_x", "gauge", "A line\nand a \\ more")
    family.add(labels(given_labels), value)
    family.add(labels({"a": "nobody knows"}), None)
    (read_back,) = text_string_to_metric_families(write([family]).decode())
    (sample,) = read_back.samples
    expected = {name: text.encode("utf-8", "replace").decode() for name, text in given_labels.items() if text}
    assert (sample.labels, sample.value) == (expected, value)


# -- what is shipped for Grafana and Prometheus ------------------------------------------------------------------------

_WORD = re.compile(r"\b(?:jetstream|nats_jetstream|penstock)_[a-z_]+")


def asked_for(expressions: Iterator[str]) -> set[str]:
    return {name for text in expressions for name in _WORD.findall(text)}


def told(survey: Survey) -> set[str]:
    return {line.split("{")[0].split(" ")[0] for line in exposition(survey).decode().splitlines() if line[0] != "#"}


async def test_the_dashboard_asks_for_figures_that_there_are():
    """Grafana's dashboard is JSON, its panels do not overlap, and every figure in it is one that is served."""
    dashboard = json.loads((DEPLOY / "grafana" / "penstock.json").read_text())
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(taken)) == len(taken)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)
    asked = asked_for(target["expr"] for panel in panels for target in panel["targets"])
    asked |= asked_for(item.get("definition", "") for item in dashboard["templating"]["list"])
    assert asked <= told(full_survey())
    assert len(asked) > 15
    assert "links" not in dashboard, "nothing of ours leads elsewhere"


async def test_the_alerts_ask_for_figures_that_there_are():
    """Prometheus' rules are YAML, each has what an alert needs, and every figure in them is one that is served."""
    (group,) = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yaml").read_text())["groups"]
    rules = group["rules"]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert rule["expr"].count("(") == rule["expr"].count(")")
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert {"summary", "description"} == rule["annotations"].keys()
    assert asked_for(rule["expr"] for rule in rules) <= told(full_survey())
    scraping = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yaml").read_text())
    assert scraping["rule_files"] == ["alerts.yaml"]
    assert [item["job_name"] for item in scraping["scrape_configs"]] == ["penstock"]


PAGE = (ROOT / "docs" / "reference" / "metrics.md").read_text()
ROWS = re.findall(r"^\| `(\w+)` \| (\w+) \| (.*) \|$", PAGE, re.MULTILINE)


async def test_the_page_names_every_figure():
    """docs/reference/metrics.md has a row for every family of a survey that has seen one of everything."""
    families = text_string_to_metric_families(exposition(full_survey()).decode())
    served = {(family.name, family.type, f"{family.documentation}.") for family in families}
    assert len(served) > 40
    assert served - set(ROWS) == set()
    assert len({name for name, _, _ in ROWS}) == len(ROWS), "each once"


def test_the_page_names_every_figure_of_a_query():
    """What a listener of Spark's progress gives stands there as Prometheus sees it, and nothing else does."""
    listener = ProgressListener()
    mark = json.loads((ROOT / "tests" / "golden" / "spark_offset_v1.json").read_text())
    listener.update({"id": "1", "runId": "2", "name": "q", "batchId": 3, "sources": [{"endOffset": mark}]})
    registry = CollectorRegistry()
    registry.register(listener.collector())
    served = set()
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        (*_, sample) = family.samples
        assert set(sample.labels) <= {"query", "stream"}
        served.add((sample.name, family.type, family.documentation))
    assert len(served) == 8
    assert served == {row for row in ROWS if row[0].startswith("penstock_query_")}
