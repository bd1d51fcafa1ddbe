"""Alerts and dashboard in ``deploy/`` use metrics that the server has; each alert has its runbook."""

import json
import re
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from promtool import promtool

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy/prometheus/alerts.yaml"
ALERTS = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
DASHBOARD = json.loads((ROOT / "deploy/grafana/fairserve.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
RUNBOOKS = (
    "{{ with $externalLabels.fairserve_runbooks }}{{ . }}{{ else }}docs/guide/operator.md{{ end }}"
)
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum"), "gauge": ("",)}


def anchors():
    """Return the anchors of the operators' guide, as GitHub makes them."""
    text = (ROOT / "docs/guide/operator.md").read_text()
    return {
        re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-")
        for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    }


@pytest.fixture
def names(management):
    """Return the names of all series that a server can have."""
    headers = {"Authorization": f"Bearer {management.admin_key}"}
    text = management.client.get("/metrics", headers=headers).text
    return {
        family.name + suffix
        for family in text_string_to_metric_families(text)
        for suffix in SUFFIXES[family.type]
    }


def used(expressions):
    """Return the names of metrics in PromQL expressions."""
    return set(re.findall(r"\b(?:fairserve|process)_\w+", " ".join(expressions)))


def test_every_metric_of_the_alerts_exists(names):
    assert used(rule["expr"] for rule in ALERTS) <= names


def test_every_metric_of_the_dashboard_exists(names):
    variables = [each.get("definition", "") for each in DASHBOARD["templating"]["list"]]
    expressions = [target["expr"] for panel in PANELS for target in panel["targets"]]
    assert used([*expressions, *variables]) <= names


def test_every_metric_is_in_the_guide_and_the_guide_has_no_other(names):
    text = (ROOT / "docs/guide/metrics.md").read_text()
    rows = [row.split("|")[1] for row in text.splitlines() if row.startswith("| `")]
    listed = {f"fairserve_{name}" for row in rows for name in re.findall(r"`(\w+)`", row)}
    ours = {re.sub("_(bucket|count|sum)$", "", name) for name in names if "fairserve_" in name}
    assert listed == ours


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_every_alert_has_severity_duration_and_runbook(rule):
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert re.fullmatch(r"\d+[sm]", rule["for"])
    assert rule["annotations"]["summary"]
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert page == RUNBOOKS
    assert anchor == rule["alert"].lower()
    assert anchor in anchors()


def test_the_dashboard_can_be_imported():
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    assert all(panel["title"] and panel["description"] for panel in PANELS)
    taken = {
        (panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y): panel["id"]
        for panel in DASHBOARD["panels"]
        for x in range(panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["h"])
    }
    area = sum(panel["gridPos"]["w"] * panel["gridPos"]["h"] for panel in DASHBOARD["panels"])
    assert len(taken) == area, "panels overlap"


def test_promtool_accepts_the_rules():
    promtool("check", "rules", str(RULES))


def test_alerts_fire_when_they_should():
    promtool("test", "rules", str(RULES.with_name("alerts.test.yaml")))
