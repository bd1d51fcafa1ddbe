"""The Helm chart renders to valid manifests in all of its modes, and rejects wrong values."""

import json
import re
import shutil
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml
from helm_chart import check, helm, rendered

from fairserve.platform.db.key_hash import key_hasher
from fairserve.platform.fleet.fleet_file import parse_fleet
from fairserve.platform.server.configuration.flags import environment_names
from fairserve.platform.server.configuration.sources import settings_from
from fairserve.platform.server.settings import FIELDS
from fairserve.platform.server.shared_order import SharedOrder

CHART = Path(__file__).resolve().parents[3] / "deploy/helm/fairserve"
WORKER = {"id": "vllm-1", "url": "http://10.0.0.5:8000", "model": "m"}
GATEWAY = {"existingSecret": "fairserve", "fleet": {"workers": [WORKER]}}
PICKER = {
    "mode": "picker",
    "existingSecret": "fairserve",
    "picker": {"pool": {"selector": {"app": "vllm"}}, "route": {"gateway": "edge"}},
}
FULL = {
    "image": {"repository": "registry.internal/fairserve", "tag": "1.2.3", "pullPolicy": "Always"},
    "imagePullSecrets": [{"name": "registry"}],
    "service": {"type": "LoadBalancer", "port": 443, "annotations": {"a": "b"}},
    "metrics": {"serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}}},
    "jobs": {"replicas": 3},
    "persistence": {"size": "1.5Gi", "storageClass": "fast"},
    "networkPolicy": {
        "clients": [{"namespaceSelector": {"matchLabels": {"team": "agents"}}}],
        "monitoring": [{"podSelector": {"matchLabels": {"app": "prometheus"}}}],
        "egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}],
    },
    "podAnnotations": {"a": "b"},
    "nodeSelector": {"disk": "fast"},
    "tolerations": [{"key": "cpu", "operator": "Exists"}],
    "affinity": {"podAntiAffinity": {}},
    "serviceAccount": {"annotations": {"a": "b"}},
}
BARE = {
    "metrics": {"enabled": False},
    "jobs": {"enabled": False},
    "podDisruptionBudget": {"enabled": False},
    "networkPolicy": {"enabled": False},
}
SEVERAL = {**GATEWAY, "scaling": {"enabled": True}}
CASES = {
    "several servers": SEVERAL,
    "several servers, full": {
        **SEVERAL,
        **FULL,
        "scaling": {"enabled": True, "api": {"autoscaling": {"minReplicas": 3, "maxReplicas": 30}}},
    },
    "several servers, bare": {
        **SEVERAL,
        **BARE,
        "jobs": {"enabled": True},
        "scaling": {"enabled": True, "api": {"replicas": 5, "autoscaling": {"enabled": False}}},
    },
    "gateway": GATEWAY,
    "gateway, full": {**GATEWAY, **FULL},
    "gateway, bare": {**GATEWAY, **BARE},
    "picker": PICKER,
    "picker, full": {
        **PICKER,
        **FULL,
        "picker": {
            "pool": {"selector": {"app": "vllm"}, "kvEventsPort": 5557, "kvReplayPort": 5558},
            "route": {"gateway": "edge", "gatewayNamespace": "edge", "hostnames": ["llm.internal"]},
            "app": "app_1",
            "tlsSecret": "picker-tls",
        },
    },
    "picker, bare": {
        **PICKER,
        **BARE,
        "picker": {"pool": {"create": False, "name": "llama"}, "route": {"create": False}},
    },
}


@pytest.fixture(params=CASES)
def manifests(request):
    return rendered(CHART, CASES[request.param])


def of(manifests, kind, name="demo-fairserve"):
    (found,) = [m for m in manifests if (m["kind"], m["metadata"]["name"]) == (kind, name)]
    return found


def check_all(manifests):
    for manifest in manifests:
        check(manifest)


def render_and_check(chart):
    for name in ("picker, full", "several servers, full"):
        check_all(rendered(chart, CASES[name]))


def kinds(manifests):
    return {manifest["kind"] for manifest in manifests}


def pods(manifests):
    return [m["spec"]["template"] for m in manifests if m["kind"] in ("StatefulSet", "Deployment")]


def containers(manifests):
    for pod in pods(manifests):
        yield from pod["spec"].get("initContainers", ())
        yield from pod["spec"]["containers"]


def environment(container):
    return {each["name"]: each["value"] for each in container["env"] if "value" in each}


def required_secrets(container):
    """Return the variables without which a pod does not start."""
    found = {}
    for each in container["env"]:
        if "valueFrom" in each:
            reference = each["valueFrom"]["secretKeyRef"]
            assert reference == {"name": "fairserve", "key": each["name"]}
            found[each["name"]] = "s" * 40
    return found


def roles(manifests):
    """Return the arguments of the servers by component, with the number of pods."""
    return {
        m["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/component"]: (
            m["spec"]["template"]["spec"]["containers"][0]["args"],
            m["spec"].get("replicas"),
        )
        for m in manifests
        if m["kind"] in ("StatefulSet", "Deployment") and "-jobs-" not in m["metadata"]["name"]
    }


def probes(container):
    """Return the HTTP requests of a container's probes."""
    names = ("startupProbe", "livenessProbe", "readinessProbe")
    return [container[name]["httpGet"] for name in names]


# --- manifests ----------------------------------------------------------------------------------


def test_every_manifest_is_valid(manifests):
    assert len(manifests) >= 4
    check_all(manifests)
    names = [(m["kind"], m["metadata"]["name"]) for m in manifests]
    assert len(set(names)) == len(names)


def test_pods_have_no_rights(manifests):
    for pod in pods(manifests):
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        assert pod["spec"]["enableServiceLinks"] is False
    for container in containers(manifests):
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"] is True
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["limits"]["memory"]


def test_every_reference_exists(manifests):
    """Selectors find pods, mounts have volumes, and named ports exist."""
    labels = [pod["metadata"]["labels"] for pod in pods(manifests)]
    for manifest in manifests:
        spec = manifest.get("spec", {})
        if manifest["kind"] == "Service":
            wanted = spec["selector"]
        elif manifest["kind"] in ("StatefulSet", "Deployment", "PodDisruptionBudget"):
            wanted = spec["selector"]["matchLabels"]
        elif manifest["kind"] == "NetworkPolicy":
            wanted = spec["podSelector"]["matchLabels"]
        else:
            continue
        assert any(wanted.items() <= each.items() for each in labels), manifest["metadata"]
    for manifest in manifests:
        if manifest["kind"] not in ("StatefulSet", "Deployment"):
            continue
        volumes = {each["name"] for each in manifest["spec"]["template"]["spec"]["volumes"]}
        volumes |= {
            each["metadata"]["name"] for each in manifest["spec"].get("volumeClaimTemplates", ())
        }
        for container in containers([manifest]):
            assert {each["name"] for each in container["volumeMounts"]} <= volumes
    ports = {port["name"] for c in containers(manifests) for port in c.get("ports", ())}
    for manifest in manifests:
        if manifest["kind"] == "Service":
            assert {port["targetPort"] for port in manifest["spec"]["ports"]} <= ports
        if manifest["kind"] in ("StatefulSet", "Deployment"):
            (server,) = manifest["spec"]["template"]["spec"]["containers"]
            if server["args"][0] in ("serve", "picker"):
                assert {probe["port"] for probe in probes(server)} <= ports
        if manifest["kind"] == "HorizontalPodAutoscaler":
            target = manifest["spec"]["scaleTargetRef"]
            scaled = of(manifests, target["kind"], target["name"])
            assert target["apiVersion"] == scaled["apiVersion"]
            (container,) = containers([scaled])
            assert container["resources"]["requests"]["cpu"], "use of the CPU is a share of it"
        if manifest["kind"] == "NetworkPolicy":
            for rule in manifest["spec"]["ingress"]:
                assert {port["port"] for port in rule["ports"]} <= ports


def test_settings_exist_and_no_secret_is_in_a_manifest(manifests):
    known = {name for field in FIELDS for name in environment_names(field)}
    for container in containers(manifests):
        assert set(environment(container)) <= known
        assert container["envFrom"] == [{"secretRef": {"name": "fairserve"}}]
        given = " ".join(name for name, value in environment(container).items() if value)
        assert not re.search("KEY$|SECRET|DATABASE_URL|REDIS_URL", given)
    assert "Secret" not in kinds(manifests)


# --- modes --------------------------------------------------------------------------------------


def test_the_gateway_serves_and_has_its_fleet():
    manifests = rendered(CHART, GATEWAY)
    assert not kinds(manifests) & {"InferencePool", "HTTPRoute", "Role", "ServiceMonitor"}
    server = of(manifests, "StatefulSet")["spec"]["template"]["spec"]
    (container,) = server["containers"]
    assert container["args"] == ["serve"]
    assert server["automountServiceAccountToken"] is False
    assert server["initContainers"][0]["args"] == ["db", "upgrade"]
    path = environment(container)["FAIRSERVE_FLEET_FILE"]
    folders = {each["mountPath"] for each in container["volumeMounts"]}
    assert str(Path(path).parent) in folders
    text = of(manifests, "ConfigMap")["data"][Path(path).name]
    assert [spec.worker_id for spec in parse_fleet(text.encode()).workers] == ["vllm-1"]


@pytest.mark.parametrize(
    ("values", "port"),
    [(GATEWAY, 80), ({**GATEWAY, "service": {"port": 8080}}, 8080), (PICKER, 80)],
    ids=["gateway", "another port", "picker"],
)
def test_the_service_and_the_probes_speak_http(values, port):
    manifests = rendered(CHART, values)
    (api,) = of(manifests, "Service")["spec"]["ports"]
    assert api == {"name": "http", "port": port, "targetPort": "http"}
    (container,) = of(manifests, "StatefulSet")["spec"]["template"]["spec"]["containers"]
    assert {each["port"] for each in probes(container)} == {"http"}
    assert not any("scheme" in each for each in probes(container))


def test_the_certificate_of_the_picker_is_a_folder_that_kubelet_renews():
    """A file that is mounted by ``subPath`` would keep its first content."""
    pod = of(rendered(CHART, CASES["picker, full"]), "StatefulSet")["spec"]["template"]["spec"]
    (volume,) = [each["secret"] for each in pod["volumes"] if each["name"] == "tls"]
    assert volume["secretName"] == "picker-tls"
    (container,) = pod["containers"]
    (mount,) = [each for each in container["volumeMounts"] if each["name"] == "tls"]
    assert mount == {"name": "tls", "mountPath": mount["mountPath"], "readOnly": True}
    assert environment(container)["FAIRSERVE_PICKER_TLS"] == mount["mountPath"]


def test_the_picker_is_the_extension_of_a_pool_behind_a_gateway():
    manifests = rendered(CHART, PICKER)
    pool, route = of(manifests, "InferencePool"), of(manifests, "HTTPRoute")
    picker = pool["spec"]["endpointPickerRef"]
    service = of(manifests, "Service", picker["name"])
    (port,) = service["spec"]["ports"]
    assert port["port"] == picker["port"]["number"]
    (container,) = of(manifests, "StatefulSet")["spec"]["template"]["spec"]["containers"]
    assert container["args"] == ["picker"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert str(ports[port["targetPort"]]) == environment(container)["FAIRSERVE_PICKER_PORT"]
    name = pool["metadata"]["name"]
    assert environment(container)["FAIRSERVE_POOL_NAME"] == f"models/{name}"
    (rule,) = route["spec"]["rules"]
    assert rule["backendRefs"][0]["name"] == pool["metadata"]["name"]
    resources = {r for rule in of(manifests, "Role")["rules"] for r in rule["resources"]}
    assert resources == {"pods", "inferencepools"}
    verbs = {v for rule in of(manifests, "Role")["rules"] for v in rule["verbs"]}
    assert verbs == {"get", "list", "watch"}


def test_settings_of_the_operator_win_over_those_of_the_chart():
    settings = {"port": 8000, "max_queued_calls": 3, "console": False, "max_queue_wait_s": 30}
    manifests = rendered(CHART, {**GATEWAY, "settings": settings})
    found = environment(of(manifests, "StatefulSet")["spec"]["template"]["spec"]["containers"][0])
    assert found["FAIRSERVE_MAX_QUEUED_CALLS"] == "3"
    assert found["FAIRSERVE_CONSOLE"] == "false"
    assert found["FAIRSERVE_MAX_QUEUE_WAIT_S"] == "30"
    assert found["FAIRSERVE_LOG_FORMAT"] == "json"


# --- several servers ----------------------------------------------------------------------------


def check_shared(manifests, monkeypatch):
    """Check that the servers share an order, with what the manifests and the Secret give them."""
    assert roles(manifests) == {
        "server": (["serve", "--role", "control"], 2),
        "api": (["serve", "--role", "api"], None),
    }
    for field in FIELDS:
        for name in environment_names(field):
            monkeypatch.delenv(name, raising=False)
    for container in containers(manifests):
        secrets = required_secrets(container) | {"DATABASE_URL": "postgresql://database/f"}
        secrets |= {"REDIS_URL": "redis://redis/0"} if "REDIS_URL" in secrets else {}
        with monkeypatch.context() as patch:
            for name, value in {**environment(container), **secrets}.items():
                patch.setenv(name, value)
            command, *flags = container["args"]
            if command == "serve":
                settings = settings_from({flags[0].removeprefix("--"): flags[1]})
                SharedOrder(settings, key_hasher(settings.db))


def test_several_servers_share_an_order(monkeypatch):
    check_shared(rendered(CHART, SEVERAL), monkeypatch)


@pytest.mark.parametrize(
    ("file", "text", "broken"),
    [
        ("api.yaml", '"--role" "api"', '"--role" "all"'),
        ("api.yaml", '"--role" "api"', '"--role" "control"'),
        ("server.yaml", '"--role" "control"', '"--role" "controller"'),
        ("server.yaml", "ternary 2 1", "ternary 1 1"),
        ("_helpers.tpl", ' "REDIS_URL" }}', " }}"),
        ("_helpers.tpl", ' "FAIRSERVE_SECRET_KEY"', ""),
    ],
)
def test_servers_that_share_nothing_are_found(tmp_path, monkeypatch, file, text, broken):
    copy = tmp_path / "chart"
    shutil.copytree(CHART, copy)
    path = copy / "templates" / file
    whole = path.read_text()
    assert text in whole
    path.write_text(whole.replace(text, broken))
    with pytest.raises((AssertionError, ValueError)):
        check_shared(rendered(copy, SEVERAL), monkeypatch)


def test_clients_reach_api_servers_which_scale_with_their_cpu():
    manifests = rendered(CHART, SEVERAL)
    component = "app.kubernetes.io/component"
    assert of(manifests, "Service")["spec"]["selector"][component] == "api"
    assert of(manifests, "Service", "demo-fairserve-metrics")["spec"]["selector"][component] == (
        "server"
    ), "each control server has the figures of all calls"
    scaler = of(manifests, "HorizontalPodAutoscaler", "demo-fairserve-api")["spec"]
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (2, 8)
    (metric,) = scaler["metrics"]
    assert metric["resource"]["name"] == "cpu"
    fixed = rendered(CHART, CASES["several servers, bare"])
    assert "HorizontalPodAutoscaler" not in kinds(fixed)
    assert roles(fixed)["api"][1] == 5


def test_each_control_server_has_a_volume_and_api_servers_keep_nothing():
    manifests = rendered(CHART, SEVERAL)
    (claim,) = of(manifests, "StatefulSet")["spec"]["volumeClaimTemplates"]
    assert claim["metadata"]["name"] == "data"
    pod = of(manifests, "Deployment", "demo-fairserve-api")["spec"]["template"]["spec"]
    assert {"name": "data", "emptyDir": {}} in pod["volumes"]


def test_a_standby_is_ready_and_only_one_server_of_a_kind_is_evicted():
    manifests = rendered(CHART, SEVERAL)
    for kind, name in (("StatefulSet", "demo-fairserve"), ("Deployment", "demo-fairserve-api")):
        pod = of(manifests, kind, name)["spec"]["template"]
        (server,) = pod["spec"]["containers"]
        assert server["readinessProbe"]["httpGet"]["path"] == "/health/readiness"
        budget = of(manifests, "PodDisruptionBudget", name)["spec"]
        assert budget["maxUnavailable"] == 1
        assert budget["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
        (spread,) = pod["spec"]["topologySpreadConstraints"]
        assert spread["labelSelector"] == budget["selector"]


@pytest.mark.parametrize("values", [GATEWAY, PICKER], ids=["gateway", "picker"])
def test_by_default_there_is_one_server(values):
    manifests = rendered(CHART, values)
    command = "serve" if values is GATEWAY else "picker"
    assert roles(manifests) == {"server": ([command], 1)}
    assert "HorizontalPodAutoscaler" not in kinds(manifests)
    assert [required_secrets(each) for each in containers(manifests)] == [{}] * 4
    selector = of(manifests, "Service")["spec"]["selector"]
    assert selector["app.kubernetes.io/component"] == "server"


# --- values -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "where"),
    [
        ({}, "existingSecret"),
        ({"existingSecret": "s"}, "/fleet/workers"),
        ({**GATEWAY, "dataPlane": "envoy"}, "dataPlane"),
        ({**GATEWAY, "replicas": 2}, "replicas"),
        ({**GATEWAY, "settings": {"role": "api"}}, "role"),
        ({**SEVERAL, "scaling": {"enabled": True, "control": 3}}, "control"),
        ({**PICKER, "scaling": {"enabled": True}}, "/mode"),
        ({**SEVERAL, "jobs": {"enabled": False}}, "/jobs/enabled"),
        (
            {**SEVERAL, "scaling": {"enabled": True, "api": {"replicas": 0}}},
            "/scaling/api/replicas",
        ),
        ({**GATEWAY, "envoy": {"tlsSecret": "s"}}, "envoy"),
        ({**GATEWAY, "settings": {"admin_key": "k"}}, "admin_key"),
        ({**GATEWAY, "podDisruptionBudget": {"maxUnavailable": 2}}, "/podDisruptionBudget"),
        ({**PICKER, "picker": {"route": {"gateway": "edge"}}}, "/picker/pool/selector"),
        ({**PICKER, "picker": {"pool": {"selector": {"app": "v"}}}}, "/picker/route/gateway"),
    ],
)
def test_wrong_values_are_rejected(values, where):
    with helm().Chart.load(CHART) as chart, pytest.raises(Exception, match=where):
        chart.validate_schema(chart.merge_values(values))


def test_helm_finds_nothing_wrong():
    found = helm().lint(str(CHART), GATEWAY, strict=True)
    assert found["errors"] == []
    assert {each["error"] for each in found["messages"]} <= {"icon is recommended"}


def test_every_value_is_in_the_schema():
    """The schema has no ``additionalProperties`` beside those of the file, and the file has all."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert set(values) == set(schema["properties"]) - {"global"}
    for name, value in values.items():
        within = schema["properties"][name]
        if isinstance(value, dict) and within.get("additionalProperties") is False:
            assert set(value) == set(within["properties"]), name


# --- the checks themselves ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "text", "broken"),
    [
        ("server.yaml", "{{ .Values.persistence.size }}", "{{ .Values.persistence.size"),
        ("server.yaml", "replicas:", "replica:"),
        ("api.yaml", "scaleTargetRef", "scaleTarget"),
        ("api.yaml", "averageUtilization", "averageUse"),
        ("_helpers.tpl", "secretKeyRef", "secretRef"),
        ("_helpers.tpl", "topologyKey:", "topologyKeys:"),
        ("service.yaml", "targetPort: picker", "targetPort: [picker]"),
        ("jobs.yaml", 'include "fairserve.pod" $root', 'include "fairserve.pot" $root'),
        ("poddisruptionbudget.yaml", "maxUnavailable:", "maxUnavailble:"),
        ("inference.yaml", "endpointPickerRef", "extensionRef"),
        ("inference.yaml", "number: {{ $pool.targetPort }}", "number: http"),
        ("servicemonitor.yaml", "endpoints:", "endpoint:"),
    ],
)
def test_a_broken_template_is_found(tmp_path, file, text, broken):
    copy = tmp_path / "chart"
    shutil.copytree(CHART, copy)
    path = copy / "templates" / file
    whole = path.read_text()
    assert text in whole
    path.write_text(whole.replace(text, broken))
    helm()
    from helm_python.errors import HelmError

    errors = (
        HelmError,
        yaml.YAMLError,
        jsonschema.ValidationError,
        kubernetes_validate.ValidationError,
    )
    with pytest.raises(errors):
        render_and_check(copy)
