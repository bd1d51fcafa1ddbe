"""Test the workers of each model: context, tokenizer, and workers that join, drain and leave."""

import threading
from dataclasses import replace

import numpy as np
import pytest
from until import settle, until

from fairserve.engine.wire.base import WorkerFacts
from fairserve.platform.base.errors import InvalidRequestError, NotFoundError, UnavailableError
from fairserve.platform.fleet.fleet import Desired, FleetPart, merge
from fairserve.platform.fleet.model_pools import MISSING_S, ModelPools
from fairserve.platform.fleet.models import Models
from fairserve.platform.fleet.prompts.reader import BytesCounter
from fairserve.platform.fleet.prompts.tokenizer_files import NoTokenizerError
from fairserve.platform.fleet.worker_spec import WorkerSpec


class Tokenizers:
    """Loads tokenizers when the test releases them."""

    def __init__(self):
        self.loaded = []
        self.slow = {}
        self.at_hub = set()
        """Names that have to be fetched."""

    def load(self, name, *, fetch):
        self.loaded.append((name, "fetched") if fetch else name)
        if name in self.slow and fetch == (name in self.at_hub):
            assert self.slow[name].wait(30)
        if name == "broken" or (name in self.at_hub and not fetch):
            raise NoTokenizerError("no such tokenizer")
        return Exact(name)


class Exact:
    def __init__(self, name):
        self.name = name


class World:
    def __init__(self, **options):
        self.up = set()
        self.ready = []
        self.tokenizers = Tokenizers()
        self.models = Models(lambda worker_id: worker_id in self.up)
        self.pools = ModelPools(
            self.models,
            on_ready=lambda: self.ready.append(len(self.models)),
            load=self.tokenizers.load,
            tokenize=self.tokenize,
            clock=lambda: self.now_s,
            **options,
        )
        self.now_s = 0.0
        self.asked = []

    async def tokenize(self, workers, body):
        self.asked.append((set(workers), dict(body)))
        return np.arange(3, dtype=np.uint32)

    def join(
        self,
        worker_id,
        *models,
        context=None,
        kv=None,
        root="",
        tokenizes=False,
        tasks=(),
        adapters=(),
        **spec,
    ):
        facts = WorkerFacts(models or ("m",), context, kv, root=root, tokenizes=tokenizes)
        facts = replace(facts, adapters=frozenset(adapters))
        if tasks:
            facts = replace(facts, tasks=frozenset(tasks))
        self.pools.worker_joins(WorkerSpec(worker_id, f"http://{worker_id}", **spec), facts)
        self.up.add(worker_id)

    async def served(self, name):
        """Return the model once it is served."""
        await until(lambda: name in self.models.names())
        return self.models.resolve(name, "").model


@pytest.fixture
async def world():
    world = World()
    world.pools.set_fleet(Desired())
    yield world
    await world.pools.close()


def fleet(**part):
    return merge({"file": FleetPart(**part)})


async def test_the_smallest_worker_sets_the_context(world):
    world.join("a", context=4096, kv=100_000)
    assert (await world.served("m")).context_tokens == 4096
    world.join("b", context=4096, kv=2048)
    assert (await world.served("m")).context_tokens == 2048
    world.join("c", kv_tokens=1024)
    assert (await world.served("m")).context_tokens == 1024
    world.pools.worker_left("c")
    assert (await world.served("m")).context_tokens == 2048
    await settle()
    assert world.ready == [1]


async def test_a_model_has_the_tasks_that_all_its_workers_serve(world):
    world.pools._load = lambda name, *, fetch, chat: Exact(name)
    world.join("a", tasks=("embed", "rerank"), kv_tokens=99, context=512)
    model = await world.served("m")
    assert (model.tasks, model.context_tokens) == ({"embed", "rerank"}, 512), "there is no cache"
    world.join("b", tasks=("embed",))
    model = await world.served("m")
    assert model.tasks == {"embed"}
    model.check_task("embed")
    with pytest.raises(InvalidRequestError, match=r"'m' does not rerank; its workers \(a, b"):
        model.check_task("rerank")
    world.pools.worker_left("b")
    assert (await world.served("m")).tasks == {"embed", "rerank"}


async def test_an_adapter_is_served_where_it_is_listed(world):
    world.join("a", context=4096, adapters=("sql", "law"))
    model, sql = await world.served("m"), await world.served("sql")
    assert (sql.base, sql.reader) == ("m", model.reader)
    assert sql.listing()["parent"] == "m"
    world.join("b", context=2048, adapters=("law",))
    law = await world.served("law")
    assert (law.workers, law.context_tokens) == ({"a", "b"}, 2048)
    sql = await world.served("sql")
    assert (sql.workers, sql.context_tokens) == ({"a"}, 4096)
    assert sql.among(frozenset()) == sql.among(frozenset("ab")) == {"a"}
    assert model.among(frozenset()) == frozenset()
    with pytest.raises(UnavailableError, match="'sql'"):
        sql.among(frozenset("b"))
    world.pools.worker_drains("a")
    sql = await world.served("sql")
    assert (sql.workers, sql.drained) == (frozenset(), {"a"})
    assert sql.among(frozenset()) == {"a"}, "its calls wait: no other worker has the adapter"
    assert world.pools.workers() == {"m": ("a", "b")}, "they have one pool"
    world.join("a", adapters=("law",))
    assert world.models.names() == {"m", "law"}
    world.pools.worker_left("a")
    world.pools.worker_left("b")
    assert world.models.names() == set()


async def test_adapters_outlast_a_worker_that_is_awaited(world):
    world.pools.set_fleet(fleet(workers=(WorkerSpec("a", "http://a", model="m"),)))
    world.join("a", model="m", adapters=("sql",))
    await world.served("sql")
    world.pools.worker_left("a")
    assert (await world.served("sql")).workers == frozenset()


async def test_an_adapter_does_not_take_the_name_of_another_model(world, caplog):
    world.pools.set_fleet(fleet(aliases={"chat": {"m": 1}}))
    world.join("a", adapters=("sql", "chat", "n"))
    world.join("b", "n", adapters=("sql", "math"))
    for name, base in (("sql", "m"), ("n", ""), ("math", "n")):
        assert (await world.served(name)).base == base
    assert world.models.resolve("chat", "").model.worker_name == "m"
    world.join("c", adapters=("sql", "chat"))
    clashes = [each.getMessage() for each in caplog.records if "not served" in each.getMessage()]
    assert [each.split()[2] for each in clashes] == ["m", "n"], "each is logged once"
    assert clashes[0].endswith(": chat, n")
    assert clashes[1].endswith(": sql")


async def test_each_model_has_its_own_tokenizer(world):
    named = WorkerSpec("a", "http://a"), WorkerSpec("b", "http://b")
    world.pools.set_fleet(fleet(workers=named, tokenizers={"m": "/of/m"}))
    world.join("a", "m")
    world.join("b", "n")
    assert (await world.served("m")).reader._counter.name == "/of/m"
    assert (await world.served("n")).reader._counter.name == "n"
    assert (await world.served("m")).workers == {"a"}
    assert world.pools.workers() == {"m": ("a",), "n": ("b",)}


async def test_a_slow_tokenizer_delays_only_its_own_model(world):
    world.tokenizers.slow["m"] = threading.Event()
    world.join("a", "m")
    world.join("b", "n")
    await world.served("n")
    with pytest.raises(UnavailableError):
        world.models.resolve("m", "")
    world.tokenizers.slow["m"].set()
    await world.served("m")


async def test_without_a_tokenizer_tokens_are_estimated(world, caplog):
    world.pools.set_fleet(fleet(tokenizers={"m": "broken"}))
    world.join("a")
    reader = (await world.served("m")).reader
    assert isinstance(reader._counter, BytesCounter)
    assert not reader.exact
    assert "token counts are estimates" in caplog.text


async def test_a_tokenizer_named_later_replaces_the_estimates(world):
    world.join("a")
    first = await world.served("m")
    world.pools.set_fleet(fleet(tokenizers={"m": "/better"}))
    assert (await world.served("m")).reader is first.reader, "until the new one is there"
    await until(lambda: world.models.resolve("m", "").model.reader is not first.reader)
    assert (await world.served("m")).reader._counter.name == "/better"
    assert world.tokenizers.loaded == ["m", "/better"]


async def test_the_root_of_a_worker_overrides_the_model_name(world):
    world.join("a", root="/models/a")
    reader = (await world.served("m")).reader
    assert (reader.source, world.tokenizers.loaded) == ("/models/a", ["/models/a"])
    world.join("b", root="/elsewhere/a")
    await settle()
    assert world.tokenizers.loaded == ["/models/a"], "the first worker's root holds"


async def test_a_tokenising_worker_counts_without_another_tokenizer(world):
    world.tokenizers.at_hub = {"m", "root"}
    world.tokenizers.slow = {"root": threading.Event()}
    world.join("a", root="root", tokenizes=True)
    world.join("b", root="root")
    reader = (await world.served("m")).reader
    assert (reader.source, reader.exact) == ("worker", True)
    prompt = await reader.text("hello")
    assert prompt.token_ids.tolist() == [0, 1, 2]
    assert world.asked == [({"a"}, {"model": "m", "prompt": "hello"})]
    world.tokenizers.slow["root"].set()
    await until(lambda: world.models.resolve("m", "").model.reader is not reader)
    assert (await world.served("m")).reader.source == "root", "what was fetched takes over"


async def test_a_tokenising_worker_replaces_the_estimates(world):
    world.tokenizers.at_hub = {"m"}
    world.pools.set_fleet(fleet(tokenizers={"m": "broken"}))
    world.join("a")
    assert (await world.served("m")).reader.source == "estimate"
    world.join("b", tokenizes=True)
    assert (await world.served("m")).reader.source == "worker"


async def test_a_missing_tokenizer_is_not_looked_up_again_immediately(world):
    for wait_s, looked_up in ((0, 2), (MISSING_S - 1, 2), (1, 4)):
        world.now_s += wait_s
        world.join("a", "broken")
        await world.served("broken")
        world.pools.worker_left("a")
        assert len(world.tokenizers.loaded) == looked_up


async def test_the_missing_part_of_a_model_is_shown(world):
    world.tokenizers.slow["m"] = threading.Event()
    world.join("a", "m")
    assert world.pools.loading_of("a") == "the tokenizer of 'm' is being loaded from 'm'"
    world.tokenizers.slow["m"].set()
    await world.served("m")
    assert world.pools.loading_of("a") == world.pools.loading_of("unknown") == ""


async def test_a_worker_must_serve_its_configured_model(world):
    world.join("a", "m", "n", model="n")
    assert (await world.served("n")).workers == {"a"}
    with pytest.raises(ValueError, match=r"does not serve 'x'; it serves: m, n"):
        world.join("b", "m", "n", model="x")
    assert "does not serve 'x'" in world.pools.problem_of("b")
    with pytest.raises(ValueError, match="serves no model"):
        world.pools.worker_joins(WorkerSpec("c", "http://c"), WorkerFacts((), None, None))
    world.pools.set_fleet(fleet(aliases={"chat": {"n": 1}}))
    with pytest.raises(ValueError, match="'chat', which is the name of an alias"):
        world.join("b", "chat")
    world.join("b", "n")
    assert world.pools.problem_of("b") == ""


async def test_a_draining_worker_does_not_count_and_the_last_one_ends_the_model(world):
    world.join("a")
    world.join("b")
    await world.served("m")
    world.pools.worker_drains("a")
    assert (await world.served("m")).workers == {"b"}
    world.pools.worker_undrains("a")
    assert (await world.served("m")).workers == {"a", "b"}
    world.pools.worker_drains("a")
    world.pools.worker_drains("b")
    assert world.models.workers_up("m") == 0
    world.pools.worker_left("a")
    world.pools.worker_left("b")
    world.join("c", "n")
    await world.served("n")
    with pytest.raises(NotFoundError):
        world.models.resolve("m", "")
    world.join("a")
    assert (await world.served("m")).workers == {"a"}, "it has come again, and is not draining"


async def test_a_worker_may_return_with_another_model(world):
    world.join("a", "m")
    await world.served("m")
    world.join("a", "n")
    assert (await world.served("n")).workers == {"a"}
    assert world.models.names() == {"n"}


async def test_a_model_stays_while_its_only_worker_moves(world):
    """Its calls wait, as they do for a worker that was lost."""
    world.pools.set_fleet(fleet(workers=(WorkerSpec("a", "http://a"),)))
    world.join("a", context=512)
    first = await world.served("m")
    world.pools.set_fleet(fleet(workers=(WorkerSpec("a", "http://elsewhere"),)))
    world.pools.worker_drains("a")
    world.pools.worker_left("a")
    between = world.models.resolve("m", "").model
    assert (between.workers, between.context_tokens) == (set(), 512)
    assert between.reader is first.reader
    world.join("a", context=256)
    assert world.models.resolve("m", "").model.context_tokens == 256
    world.pools.set_fleet(Desired())
    assert (await world.served("m")).workers == {"a"}
    world.pools.worker_left("a")
    assert world.models.names() == set()


async def test_a_model_is_not_awaited_after_its_worker_changed_models(world):
    world.pools.set_fleet(fleet(workers=(WorkerSpec("a", "http://a"),)))
    world.join("a", "m")
    await world.served("m")
    world.pools.worker_left("a")
    assert world.models.names() == {"m"}
    world.join("a", "n")
    await world.served("n")
    assert world.models.names() == {"n"}


async def test_a_model_waits_for_its_configured_worker(world):
    old, new = WorkerSpec("a", "http://a"), WorkerSpec("b", "http://b", model="m")
    world.pools.set_fleet(fleet(workers=(old, new)))
    world.join("a")
    await world.served("m")
    world.pools.set_fleet(fleet(workers=(new,)))
    world.pools.worker_left("a")
    assert world.models.names() == {"m"}
    world.pools.set_fleet(Desired())
    assert world.models.names() == set(), "nobody is to come any more"


async def test_a_declared_model_is_expected(world):
    world.pools.set_fleet(fleet(workers=(WorkerSpec("a", "http://a", model="soon"),)))
    world.join("b", "m")
    await world.served("m")
    with pytest.raises(UnavailableError):
        world.models.resolve("soon", "")
    with pytest.raises(NotFoundError):
        world.models.resolve("never", "")


async def test_the_model_setting_applies_to_local_workers():
    world = World(local_model="/models/mine")
    static, named = WorkerSpec("a", "http://a"), WorkerSpec("b", "http://b")
    world.pools.set_fleet(
        merge({"settings": FleetPart(workers=(static,)), "file": FleetPart(workers=(named,))})
    )
    world.pools.prefetch()
    world.join("a", "m")
    world.join("b", "n")
    assert (await world.served("m")).names == ("m", "/models/mine")
    assert (await world.served("m")).reader._counter.name == "/models/mine"
    assert (await world.served("n")).names == ("n",)
    assert sorted(world.tokenizers.loaded) == ["/models/mine", "n"], "loaded once, ahead"
    await world.pools.close()


async def test_a_model_knows_whether_others_can_replace_a_drained_worker(world):
    world.join("a")
    world.join("b")
    world.join("c", "n")
    await world.served("m")
    await world.served("n")
    models = world.models
    assert (models.models_without("a"), models.models_without("c")) == ([], ["n"])
    assert models.models_without("unknown") == []
    world.pools.worker_drains("b")
    served = await world.served("m")
    assert (served.workers, served.drained) == ({"a"}, {"b"})
    assert (models.models_without("a"), models.models_without("b")) == (["m"], [])
    world.pools.worker_drains("a")
    assert models.models_without("b") == ["m"], "it is drained, and so is the other"
    world.join("b")
    assert models.models_without("a") == []
    world.up.discard("b")
    assert models.models_without("a") == ["m"], "the other is not up"
