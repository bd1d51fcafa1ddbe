"""A model name resolves to a model, an alias, a version of a split, or a helpful rejection."""

import pytest

from fairserve.platform.base.errors import NotFoundError, UnavailableError
from fairserve.platform.fleet.models import Models, ServedModel


@pytest.fixture
def up():
    return {"a", "b", "c"}


@pytest.fixture
def models(up):
    models = Models(lambda worker_id: worker_id in up)
    models.serve(served("llama", "a", context=8000, names=("llama", "/models/llama")))
    models.serve(served("v1", "b", context=4000))
    models.serve(served("v2", "c", context=2000))
    models.set_aliases({"gpt-4o": {"llama": 1}, "chat": {"v1": 9, "v2": 1}, "later": {"v3": 1}})
    return models


def served(name, *workers, context=1000, names=()):
    return ServedModel(names or (name,), name, context, None, frozenset(workers), created=1)


def resolved(models, name, runs=100):
    return [models.resolve(name, f"app/run-{n}").model.worker_name for n in range(runs)]


def test_names_and_aliases_are_resolved(models):
    for name in ("llama", "/models/llama", "gpt-4o"):
        assert models.resolve(name, "app/r").model.worker_name == "llama"
    assert models.resolve("/models/llama", "app/r").answer_name == "llama"
    assert models.resolve("gpt-4o", "app/r").answer_name == "gpt-4o"
    assert models.names() == {"llama", "/models/llama", "v1", "v2"}


def test_a_run_keeps_its_version(models, up):
    first = resolved(models, "chat")
    assert first == resolved(models, "chat")
    assert {"v1", "v2"} == set(first)
    assert first.count("v1") > 75


def test_other_versions_get_the_share_of_one_without_a_worker(models, up):
    usual = resolved(models, "chat")
    up.discard("b")
    assert set(resolved(models, "chat")) == {"v2"}
    up.discard("c")
    assert resolved(models, "chat") == usual, "nobody is there: each waits for its own"
    up.add("b")
    assert set(resolved(models, "chat")) == {"v1"}
    up.add("c")
    assert resolved(models, "chat") == usual
    models.serve(served("v2"))  # the worker drains
    assert set(resolved(models, "chat")) == {"v1"}
    models.drop("v1")
    assert set(resolved(models, "chat")) == {"v2"}, "a version that is not known any more"


def test_an_unknown_model_lists_the_allowed_ones(models):
    with pytest.raises(NotFoundError) as caught:
        models.resolve("gpt-5", "app/r")
    assert caught.value.message == (
        "the model 'gpt-5' is not served; allowed: llama, /models/llama, v1, v2, chat, gpt-4o"
    )
    assert (caught.value.param, caught.value.code) == ("model", "model_not_found")
    for number in range(100):
        models.serve(served(f"m{number}"))
    with pytest.raises(NotFoundError, match=r"m45 and 56 more$"):
        models.resolve("gpt-5", "app/r")


def test_a_model_that_is_not_served_yet_answers_503(models):
    models.set_expected({"soon"})
    for name in ("soon", "later"):
        with pytest.raises(UnavailableError) as caught:
            models.resolve(name, "app/r")
        assert (caught.value.code, caught.value.headers["Retry-After"]) == ("starting", "2")
    nothing = Models(lambda worker_id: True)
    with pytest.raises(UnavailableError):
        nothing.resolve("any", "app/r")
    with pytest.raises(UnavailableError):
        nothing.listings()


def test_the_list_has_models_and_resolvable_aliases(models):
    entries = {entry["id"]: entry["max_model_len"] for entry in models.listings()}
    assert entries == {"llama": 8000, "v1": 4000, "v2": 2000, "chat": 2000, "gpt-4o": 8000}
    assert models.listing("chat")["id"] == "chat"
    assert models.listing("/models/llama")["id"] == "llama"
    with pytest.raises(NotFoundError):
        models.listing("gpt-5")


def test_a_model_without_a_worker_is_known_but_not_ready(models, up):
    assert models.ready() == ["llama", "v1", "v2"]
    up.discard("a")
    assert models.ready() == ["v1", "v2"]
    assert models.workers_up("llama") == 0
    assert models.resolve("llama", "app/r").model.worker_name == "llama", "its calls wait"


def test_a_model_name_overrides_the_second_name_of_another(models):
    models.serve(served("x", "a", names=("x", "v1")))
    assert models.resolve("v1", "app/r").model.worker_name == "v1"
