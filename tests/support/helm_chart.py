"""Renders the Helm chart with Helm's own code, and checks manifests against schemas."""

import os

import jsonschema
import kubernetes_validate
import pytest
import yaml

KUBERNETES = "1.35"
"""Release whose schemas manifests must fulfil, without unknown fields."""

_PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
_TEXT = {"type": "string", "minLength": 1}
_LABELS = {"type": "object", "additionalProperties": {"type": "string"}}


def _object(required, **properties):
    return {
        "type": "object",
        "additionalProperties": False,
        "required": required.split(),
        "properties": properties,
    }


def _array(items, **more):
    return {"type": "array", "items": items, **more}


# The fields that the manifests may set of resources that Kubernetes does not define itself.
_POOL = _object(
    "selector targetPorts endpointPickerRef",
    selector=_object("matchLabels", matchLabels={**_LABELS, "minProperties": 1}),
    targetPorts=_array(_object("number", number=_PORT), minItems=1, maxItems=8),
    endpointPickerRef=_object(
        "name",
        group={"const": ""},
        kind={"const": "Service"},
        name=_TEXT,
        port=_object("number", number=_PORT),
        failureMode={"enum": ["FailOpen", "FailClose"]},
    ),
)
_ROUTE = _object(
    "parentRefs rules",
    parentRefs=_array(_object("name", name=_TEXT, namespace=_TEXT), minItems=1, maxItems=32),
    hostnames=_array(_TEXT, minItems=1, maxItems=16),
    rules=_array(
        _object(
            "backendRefs",
            matches=_array(
                _object(
                    "path",
                    method={"enum": ["GET", "POST"]},
                    path=_object("type value", type={"enum": ["Exact", "PathPrefix"]}, value=_TEXT),
                ),
                maxItems=64,
            ),
            backendRefs=_array(_object("name", group=_TEXT, kind=_TEXT, name=_TEXT), minItems=1),
            timeouts=_object(
                "request", request={"type": "string", "pattern": "^([0-9]{1,5}(h|m|s|ms)){1,4}$"}
            ),
        ),
        minItems=1,
        maxItems=16,
    ),
)
_MONITOR = _object(
    "selector endpoints",
    selector=_object("matchLabels", matchLabels=_LABELS),
    endpoints=_array(
        _object("port", port=_TEXT, path=_TEXT, interval={"pattern": "^[0-9]+(ms|s|m|h)$"}),
        minItems=1,
    ),
)
_SCALED = _object(
    "scaleTargetRef triggers",
    scaleTargetRef=_object("name", apiVersion=_TEXT, kind=_TEXT, name=_TEXT),
    minReplicaCount={"type": "integer", "minimum": 0},
    maxReplicaCount={"type": "integer", "minimum": 1},
    advanced=_object(
        "horizontalPodAutoscalerConfig",
        horizontalPodAutoscalerConfig=_object("behavior", behavior={"type": "object"}),
    ),
    triggers=_array(
        _object(
            "type metadata",
            type={"const": "prometheus"},
            metricType={"enum": ["AverageValue", "Value"]},
            metadata=_object(
                "serverAddress query threshold",
                serverAddress={"type": "string", "pattern": "^https?://"},
                query=_TEXT,
                threshold={"type": "string", "pattern": "^[0-9]+([.][0-9]+)?$"},
                ignoreNullValues={"enum": ["true", "false"]},
            ),
        ),
        minItems=1,
    ),
)
_METADATA = _object("name", name=_TEXT, labels=_LABELS)
OTHER_SCHEMAS = {
    ("inference.networking.k8s.io/v1", "InferencePool"): _POOL,
    ("gateway.networking.k8s.io/v1", "HTTPRoute"): _ROUTE,
    ("monitoring.coreos.com/v1", "ServiceMonitor"): _MONITOR,
    ("keda.sh/v1alpha1", "ScaledObject"): _SCALED,
}


def helm():
    """Return Helm's code. Skips where it is not installed, and fails under CI=true."""
    try:
        from helm_python import chart
    except ImportError:
        reason = "Helm is not installed: pip install helm-python-sdk"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return chart


def rendered(path, values, *, name="demo", namespace="models"):
    """Return the manifests of a chart, after the checks of its values. Helm's errors raise."""
    with helm().Chart.load(path) as chart:
        chart.validate_schema(chart.merge_values(values))
        texts = chart.render(values, name=name, namespace=namespace)
    return [
        manifest
        for file, text in sorted(texts.items())
        if file.endswith(".yaml")
        for manifest in yaml.load_all(text, Loader=_OneOfEachKey)
        if manifest is not None
    ]


def check(manifest):
    """Raise an error if a manifest does not fulfil its schema, or has a field that it does not know."""
    schema = OTHER_SCHEMAS.get((manifest["apiVersion"], manifest["kind"]))
    if schema is None:
        kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
        return
    whole = _object(
        "apiVersion kind metadata spec",
        apiVersion=_TEXT,
        kind=_TEXT,
        metadata=_METADATA,
        spec=schema,
    )
    jsonschema.validate(manifest, whole)


class _OneOfEachKey(yaml.SafeLoader):
    """A loader that rejects a key that occurs twice in a mapping, as the Kubernetes API does."""

    def construct_mapping(self, node, deep=False):
        keys = [key.value for key, _ in node.value]
        twice = {key for key in keys if keys.count(key) > 1}
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"twice: {twice}", node.start_mark)
        return super().construct_mapping(node, deep)
