"""The examples that scale workers are valid, and ask Prometheus for what servers export."""

import re
from pathlib import Path

import jsonschema
import pytest
import yaml
from helm_chart import check
from promtool import promtool

from fairserve.platform.control.messages import ClusterView, ModelView
from fairserve.platform.server.metrics import families

FOLDER = Path(__file__).resolve().parents[3] / "deploy/autoscaling"
TEXTS = {name: (FOLDER / f"{name}.yaml").read_text() for name in ("keda", "hpa")}
KEDA, HPA = (yaml.safe_load(TEXTS[name])["spec"] for name in ("keda", "hpa"))
(TRIGGER,), (METRIC,) = KEDA["triggers"], HPA["metrics"]
MODEL = METRIC["external"]["metric"]["selector"]["matchLabels"]["model"]
RULES = yaml.safe_load("\n".join(re.findall(r"^# {3}(.*)$", TEXTS["hpa"], re.M)))
(RULE,) = RULES["rules"]["external"]
"""The rule of prometheus-adapter in the comment of the HPA."""
QUERIES = {
    "keda": TRIGGER["metadata"]["query"],
    "hpa": RULE["metricsQuery"].replace("<<.LabelMatchers>>", f'model="{MODEL}"'),
}


def samples(instance, *models):
    """Return what a server exports of models with a demand and a capacity, for promtool."""
    view = ClusterView("s", False, False, 0, 0, 0, 0, 0, (), tuple(models))
    for family in families.cluster(view):
        for sample in family.samples:
            labels = {"instance": instance, **sample.labels}
            text = ",".join(f'{name}="{value}"' for name, value in labels.items())
            yield {"series": f"{sample.name}{{{text}}}", "values": f"{sample.value}x2"}


@pytest.mark.parametrize("name", TEXTS)
def test_the_example_is_valid(name):
    check(yaml.safe_load(TEXTS[name]))


def test_an_unknown_field_is_found():
    with pytest.raises(jsonschema.ValidationError, match="thresold"):
        check(yaml.safe_load(TEXTS["keda"].replace("threshold:", "thresold:")))


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_returns_the_load_of_the_model_at_the_server_with_the_most(name, tmp_path):
    other = ModelView("other", True, 900, 100, 3)
    series = [
        *samples("a", ModelView(MODEL, True, 300, 100, 3), other),
        *samples("b", ModelView(MODEL, True, 250, 100, 3), other),
        *samples("c", ModelView(MODEL, False, 500, 0, 0)),
    ]
    expected = {"labels": "{}" if name == "keda" else f'{{model="{MODEL}"}}', "value": 3}
    case = {"expr": QUERIES[name], "eval_time": "1m", "exp_samples": [expected]}
    path = tmp_path / "test.yaml"
    tests = [{"interval": "1m", "input_series": series, "promql_expr_test": [case]}]
    path.write_text(yaml.safe_dump({"evaluation_interval": "1m", "tests": tests}))
    promtool("test", "rules", str(path))


def test_both_examples_scale_alike():
    assert TRIGGER["metricType"] == METRIC["external"]["target"]["type"] == "Value"
    assert (
        METRIC["external"]["target"]["value"]
        == f"{float(TRIGGER['metadata']['threshold']) * 1000:g}m"
    )
    assert METRIC["external"]["metric"]["name"] == RULE["name"]["as"]
    assert (KEDA["minReplicaCount"], KEDA["maxReplicaCount"]) == (
        HPA["minReplicas"],
        HPA["maxReplicas"],
    )
    assert KEDA["advanced"]["horizontalPodAutoscalerConfig"]["behavior"] == HPA["behavior"]
