"""The examples that scale workers are valid, and ask Prometheus for what servers export."""

import re
from pathlib import Path

import jsonschema
import pytest
import yaml
from helm_chart import check
from promtool import promtool

from fairserve.platform.control.messages import ClusterView, ModelView, WorkerView
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


def worker(name, model, *, draining=False):
    return WorkerView(name, draining, 50, 0, 0, 0, model)


def samples(instance, *models, workers=()):
    """Return what a server exports of models with a demand and a capacity, for promtool."""
    view = ClusterView("s", False, False, 0, 0, 0, 0, 0, tuple(workers), tuple(models))
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
def test_a_query_returns_the_workers_that_the_model_needs(name, tmp_path):
    """The server that sees the most counts; workers that drain and those of other models do not."""
    other = ModelView("other", True, 900, 100, 3)
    workers = [worker("w0", MODEL), worker("w1", MODEL), worker("w2", MODEL, draining=True)]
    workers.append(worker("w3", "other"))
    series = [
        *samples("a", ModelView(MODEL, True, 350, 100, 3), other, workers=workers),
        *samples("b", ModelView(MODEL, True, 250, 100, 3), other, workers=workers),
        *samples("c", ModelView(MODEL, False, 500, 0, 0)),
    ]
    expected = {"labels": "{}" if name == "keda" else f'{{model="{MODEL}"}}', "value": 7}
    case = {"expr": QUERIES[name], "eval_time": "1m", "exp_samples": [expected]}
    path = tmp_path / "test.yaml"
    tests = [{"interval": "1m", "input_series": series, "promql_expr_test": [case]}]
    path.write_text(yaml.safe_dump({"evaluation_interval": "1m", "tests": tests}))
    promtool("test", "rules", str(path))


def needed(*models, workers=()):
    """Return the exported values of a view, by model."""
    found = samples("a", *models, workers=workers)
    pattern = 'fairserve_workers_needed{instance="a",model="(.*)"}'
    values = [(re.fullmatch(pattern, each["series"]), each["values"]) for each in found]
    return {match[1]: float(value.removesuffix("x2")) for match, value in values if match}


def test_a_model_without_workers_needs_one_for_its_calls():
    idle, calls = ModelView("idle", False, 0, 0, 0), ModelView("calls", False, 500, 0, 1)
    draining = [worker("w0", "calls", draining=True)]
    assert needed(idle, calls, workers=draining) == {"idle": 0, "calls": 1}


def test_both_examples_scale_alike():
    target = METRIC["external"]["target"]
    assert TRIGGER["metricType"] == target["type"] == "AverageValue"
    assert target["averageValue"] == f"{float(TRIGGER['metadata']['threshold']) * 1000:g}m"
    assert METRIC["external"]["metric"]["name"] == RULE["seriesQuery"]
    assert (KEDA["minReplicaCount"], KEDA["maxReplicaCount"]) == (
        HPA["minReplicas"],
        HPA["maxReplicas"],
    )
    assert KEDA["advanced"]["horizontalPodAutoscalerConfig"]["behavior"] == HPA["behavior"]
