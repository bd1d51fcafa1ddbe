"""Test the settings of the plug-in for vLLM, and the client of a request, without vLLM."""

import json
import logging
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairserve.engine.local_scheduler import make_local_scheduler
from fairserve.engine.vllm.callers import Caller, Callers
from fairserve.engine.vllm.settings import PluginSettings, read_settings
from fairserve.engine.vllm.surface import check_surface
from fairserve.scheduling.base import LocalCall
from fairserve.scheduling.local.dlpm import Dlpm
from fairserve.scheduling.local.dlpm_options import DlpmOptions
from fairserve.scheduling.registry import LOCAL_SCHEDULERS


def test_settings_have_defaults():
    settings = read_settings({})
    assert settings == PluginSettings("dlpm", {}, "fair")
    scheduler = make_local_scheduler(settings.local_scheduler, settings.options)
    assert isinstance(scheduler, Dlpm)
    assert scheduler.options == DlpmOptions()


def test_the_environment_sets_options():
    settings = read_settings(
        {
            "FAIRSERVE_LOCAL_SCHEDULER": "vtc",
            "FAIRSERVE_SCHEDULER_OPTIONS": "wq=3, cost=extend,lift-when-idle=false",
            "FAIRSERVE_VICTIM": "latest",
        }
    )
    options = {"wq": 3, "cost": "extend", "lift_when_idle": False}
    assert settings == PluginSettings("vtc", options, "latest")


@pytest.mark.parametrize("name", ["plugin.toml", "plugin.json"])
def test_the_environment_overrides_the_file(tmp_path, name):
    path = tmp_path / name
    values = {"local_scheduler": "dlpm", "victim": "latest", "options": {"quantum": 9, "wq": 1}}
    if name.endswith(".json"):
        path.write_text(json.dumps(values))
    else:
        path.write_text(
            'local_scheduler = "dlpm"\nvictim = "latest"\n[options]\nquantum = 9\nwq = 1\n'
        )
    environment = {"FAIRSERVE_SCHEDULER_CONFIG": str(path)}
    assert read_settings(environment) == PluginSettings("dlpm", values["options"], "latest")
    environment |= {"FAIRSERVE_SCHEDULER_OPTIONS": "wq=4", "FAIRSERVE_VICTIM": "fair"}
    assert read_settings(environment) == PluginSettings("dlpm", {"quantum": 9, "wq": 4}, "fair")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("quantum = ", "plugin.toml"),
        ("quantum = 5", "'quantum'; allowed: local_scheduler, options, victim"),
        ("options = 5", "allowed: names with values"),
        ("local_scheduler = 5", "allowed: a name"),
        ('victim = "me"', "'me'; allowed: fair, latest"),
        ("victim = [1]", "allowed: fair, latest"),
    ],
)
def test_invalid_files_are_rejected(tmp_path, text, message):
    path = tmp_path / "plugin.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_settings({"FAIRSERVE_SCHEDULER_CONFIG": str(path)})


def test_files_without_a_table_are_rejected(tmp_path):
    path = tmp_path / "plugin.json"
    path.write_text("[1]")
    with pytest.raises(ValueError, match="allowed: local_scheduler"):
        read_settings({"FAIRSERVE_SCHEDULER_CONFIG": str(path)})
    with pytest.raises(OSError, match="missing"):
        read_settings({"FAIRSERVE_SCHEDULER_CONFIG": str(tmp_path / "missing.json")})


def test_an_invalid_environment_is_rejected():
    with pytest.raises(
        ValueError, match=r"FAIRSERVE_SCHEDULER_OPTIONS: .*'quantum' is not key=value"
    ):
        read_settings({"FAIRSERVE_SCHEDULER_OPTIONS": "quantum"})
    with pytest.raises(ValueError, match="allowed: fair, latest"):
        read_settings({"FAIRSERVE_VICTIM": "nobody"})


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("dlmp", {}, "unknown local scheduler 'dlmp'; known: fcfs, vtc"),
        ("dlpm", {"quanta": 5}, "no option 'quanta'; allowed: quantum, we, wq, cached_weight"),
        ("fcfs", {"quantum": 5}, "no option 'quantum'; allowed: none"),
        ("dlpm", {"quantum": "5k"}, "quantum of local scheduler dlpm is '5k'; allowed: a number"),
        ("dlpm", {"quantum": True}, "allowed: a number"),
        ("dlpm", {"max_bypass": 1.5}, "allowed: a whole number"),
        ("dlpm", {"refill_when_stuck": 1}, "allowed: true, false"),
        ("dlpm", {"quantum": -1}, "allowed: over 0"),
        ("vtc", {"cost": "none"}, "allowed: 'linear'"),
    ],
)
def test_invalid_schedulers_are_rejected(name, options, message):
    with pytest.raises(ValueError, match=message):
        make_local_scheduler(name, options)


def test_nan_is_rejected():
    options = read_settings({"FAIRSERVE_SCHEDULER_OPTIONS": "we=NaN"}).options
    with pytest.raises(ValueError, match="allowed: a number"):
        make_local_scheduler("dlpm", options)


@pytest.mark.parametrize("name", LOCAL_SCHEDULERS)
def test_every_scheduler_is_created_by_name(name):
    assert len(make_local_scheduler(name, {})) == 0


def request(arguments):
    return SimpleNamespace(sampling_params=SimpleNamespace(extra_args=arguments))


def test_the_client_is_read_from_the_request():
    callers = Callers()
    assert callers.of(request({"client_id": "t/u", "weight": 2})) == Caller("t/u", 2.0)
    assert callers.of(request({"client_id": "", "call_id": "x"})) == Caller("default", 1.0)
    assert callers.of(request(None)) == Caller("default", 1.0)
    assert callers.of(SimpleNamespace(sampling_params=None)) == Caller("default", 1.0), "pooling"


@pytest.mark.parametrize(
    "weight", [0, -1, float("nan"), float("inf"), 1e300, 1e-300, "2", True, []]
)
def test_an_invalid_weight_is_ignored(weight, caplog):
    callers = Callers()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert callers.of(request({"client_id": "c", "weight": weight})) == Caller("c", 1.0)
    assert len(caplog.records) == 1, "logged once"
    assert "allowed" in caplog.text


@pytest.mark.parametrize("expected", [-1, 1.5, float("nan"), "2", True, []])
def test_an_invalid_expectation_is_ignored(expected, caplog):
    callers = Callers()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            given = {"client_id": "c", "expected_output_tokens": expected}
            assert callers.of(request(given)) == Caller("c", 1.0, 0)
    assert len(caplog.records) == 1, "logged once"
    assert callers.of(request({"expected_output_tokens": 7})).expected_output_tokens == 7


@pytest.mark.parametrize("client_id", [5, 1.5, ["a"], {}, "x" * 2000, "/".join("abcdefghij")])
def test_an_invalid_client_becomes_the_default_one(client_id, caplog):
    callers = Callers()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert callers.of(request({"client_id": client_id})) == Caller("default", 1.0)
    assert len(caplog.records) == 1


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda each: st.lists(each) | st.dictionaries(st.text(), each),
)
WORDS = ["client_id", "weight", "call_id", "expected_output_tokens", "more"]
IDS = ["a", "a/b", "a/b/c", "", "/", "//", "a/", "/a", "%2F", "a%2Fb", "%", "%zz", "\x00", "\ud800"]


@given(
    st.lists(
        st.dictionaries(st.sampled_from(WORDS), anything)
        | st.fixed_dictionaries({"client_id": st.sampled_from(IDS), "weight": st.floats(1e-6, 1e6)})
        | anything,
        max_size=12,
    ),
    st.sampled_from(sorted(LOCAL_SCHEDULERS)),
)
def test_no_caller_input_breaks_a_scheduler(written, name):
    class Cache:
        def match(self, call):
            return 0, None, None

        def follow(self, listener):
            pass

    callers, scheduler = Callers(), LOCAL_SCHEDULERS[name]()
    for number, arguments in enumerate(written):
        caller = callers.of(request(arguments))
        scheduler.add(
            LocalCall(
                str(number),
                caller.client_id,
                10,
                5,
                weight=caller.weight,
                expected_output_tokens=caller.expected_output_tokens,
            )
        )
    running, cache = [], Cache()
    while len(running) < len(written):
        scheduler.start_pass(cache)
        call = scheduler.peek()
        assert call is not None, "a client whose id is another's outer level, too, is served"
        scheduler.accept(0)
        running.append(call.call_id)
        scheduler.decoded(call.call_id, 3)
        assert isinstance(scheduler.surplus(call.call_id), tuple)
    for call_id in running:
        scheduler.finish(call_id)


def test_an_unknown_vllm_version_is_recognised():
    with pytest.raises(RuntimeError, match=r"0\.32, 0\.33.*lacks _free_request"):
        check_surface(SimpleNamespace(kv_cache_manager=None))
