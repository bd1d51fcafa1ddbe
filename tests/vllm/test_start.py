"""Test the start of the plug-in with each scheduler, and its work beside vLLM's rarer features."""

import logging
from types import SimpleNamespace
from unittest.mock import MagicMock, patch

import pytest
import vllm_world  # imported first: without vLLM it skips this file
from vllm.pooling_params import PoolingParams
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheGroupSpec, SlidingWindowSpec
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm_world import (
    BLOCK,
    BOTH,
    DLPMAsyncScheduler,
    DLPMScheduler,
    Request,
    RequestStatus,
    World,
    make_scheduler,
    watch,
)

from fairserve.benchmarks.policies.registry import LOCAL_SCHEDULERS as COMPARED
from fairserve.scheduling.local.dlpm import Dlpm
from fairserve.scheduling.local.dlpm_options import DlpmOptions
from fairserve.scheduling.registry import LOCAL_SCHEDULERS


@BOTH
def test_dlpm_with_the_papers_quantum_is_the_default(kind):
    local = make_scheduler(kind).waiting.local
    assert isinstance(local, Dlpm)
    assert local.options == DlpmOptions()


def test_the_running_scheduler_is_logged(caplog):
    with caplog.at_level(logging.INFO, "vllm.fairserve"):
        logging.getLogger("vllm").propagate = True
        make_scheduler(DLPMScheduler, environment={"FAIRSERVE_SCHEDULER_OPTIONS": "quantum=7"})
    assert "order of dlpm ({'quantum': 7" in caplog.text


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"FAIRSERVE_LOCAL_SCHEDULER": "fifo"}, "unknown local scheduler 'fifo'; known: fcfs"),
        ({"FAIRSERVE_SCHEDULER_OPTIONS": "quant=5"}, "no option 'quant'; allowed: quantum"),
        ({"FAIRSERVE_SCHEDULER_OPTIONS": "quantum=0"}, "quantum is 0; allowed: over 0"),
        ({"FAIRSERVE_VICTIM": "last"}, "allowed: fair, latest"),
    ],
)
def test_invalid_settings_abort_the_start(environment, message):
    with pytest.raises(ValueError, match=message):
        make_scheduler(DLPMScheduler, environment=environment)


def test_priorities_of_vllm_are_rejected():
    with pytest.raises(ValueError, match=r"--scheduling-policy is 'priority'; allowed .* 'fcfs'"):
        make_scheduler(DLPMScheduler, policy="priority")


def test_asynchronous_servers_use_the_asynchronous_class(caplog):
    logging.getLogger("vllm").propagate = True
    for kind in (DLPMScheduler, DLPMAsyncScheduler):
        make_scheduler(kind)
    make_scheduler(DLPMAsyncScheduler, ahead=True)
    assert "is faster" not in caplog.text
    make_scheduler(DLPMScheduler, ahead=True)
    assert "DLPMAsyncScheduler is faster" in caplog.text
    with (
        patch.object(DLPMAsyncScheduler, "num_spec_tokens", 2, create=True),
        patch.object(DLPMAsyncScheduler, "__setattr__", _except("num_spec_tokens")),
        pytest.raises(ValueError, match="allowed then with speculative decoding: DLPMScheduler"),
    ):
        make_scheduler(DLPMAsyncScheduler)


def _except(ignored):
    def set_attribute(thing, name, value):
        if name != ignored:
            object.__setattr__(thing, name, value)

    return set_attribute


def test_a_vllm_without_a_required_name_is_rejected():
    with (
        patch("fairserve.engine.vllm.surface._BLOCK_POOL", ("store_block",)),
        pytest.raises(RuntimeError, match="the block pool lacks store_block"),
    ):
        make_scheduler(DLPMScheduler)


@BOTH
@pytest.mark.parametrize("name", [*LOCAL_SCHEDULERS.offered, *COMPARED])
def test_every_local_scheduler_serves(name, kind):
    world = World(kind, blocks=33, environment={"FAIRSERVE_LOCAL_SCHEDULER": name})
    ledger = watch(world)
    shared = list(range(900, 930))
    for number in range(30):
        prompt = shared + list(range(number)) if number % 3 else 20 + number
        world.add(f"r{number:02}", prompt, 12, client=f"c{number % 4}", weight=1.0 + number % 2)
    world.drain()
    for request_id in world.requests:
        assert ledger.tokens(request_id) == len(world.generated[request_id]) == 12
    assert ledger.of("requeue"), "the pool is small"


def test_prefix_caching_may_be_off():
    with patch.object(vllm_world, "CacheConfig", side_effect=_uncached):
        world = World(max_num_seqs=2)
    ledger = watch(world)
    for number in range(6):
        world.add(f"r{number}", range(40), client=f"c{number % 2}")
    world.drain()
    assert {event[2] for event in ledger.of("accept")} == {0}


def _uncached(**options):
    from vllm.config import CacheConfig

    return CacheConfig(**{**options, "enable_prefix_caching": False})


def test_models_may_have_two_kinds_of_attention():
    """The order may be late there; nothing is lost, and charges equal vLLM's hits."""
    shape = {
        "block_size": BLOCK,
        "num_kv_heads": 1,
        "head_size": 8,
        "dtype": vllm_world.torch.float32,
    }
    groups = [
        KVCacheGroupSpec(["full"], FullAttentionSpec(**shape)),
        KVCacheGroupSpec(["window"], SlidingWindowSpec(sliding_window=12, **shape)),
    ]
    world = World(blocks=65, groups=groups, max_num_seqs=3)
    assert not world.queue._view.is_chain
    ledger = watch(world)
    shared = list(range(900, 940))
    for number in range(30):
        prompt = [*shared, number] if number % 2 else 20 + number
        world.add(f"r{number:02}", prompt, 10, client=f"c{number % 3}")
    world.drain()
    assert len({event[1] for event in ledger.of("accept")}) == 30
    assert max(event[2] for event in ledger.of("accept")) == 40, "shared"


def test_only_the_next_chunk_must_fit_if_configured():
    world = World(blocks=33, max_num_batched_tokens=16, scheduler_reserve_full_isl=False)
    ledger = watch(world)
    world.add("runs", 80, max_tokens=8)
    for _ in range(6):
        world.step()
    world.add("long", 100)
    entered = [world.step() for _ in range(2)]
    assert entered[0] == ["long"], "25 blocks, of which 4 are taken now"
    world.drain()
    assert ledger.tokens("long") == 4


def test_requests_may_lack_sampling_parameters():
    """Requests of pooling models have none."""
    world = World()
    ledger = watch(world)
    request = Request(
        "pool", list(range(10)), None, PoolingParams(task="embed"), block_hasher=world.hasher
    )
    world.requests["pool"] = request
    world.scheduler.add_request(request)
    world.add("other", 10, client="c")
    assert world.schedule() == ["pool", "other"]
    assert ledger.of("accept", "pool") == [("accept", "pool", 0)]
    world.abort("pool")
    world.update()
    world.drain()


def test_requests_with_invalid_arguments_are_served():
    world = World(max_num_seqs=2)
    ids = ["a", "a/b", "//", "%", "", 7, None, ["x"], "x" * 9999]
    for number, client in enumerate(ids):
        for weight in (0, -1, "much", None, 1e-300, float("nan"), 3):
            world.add(f"{number}{weight}", 10, 2, client_id=client, weight=weight)
    world.drain()
    assert len(world.admitted) == len(ids) * 7


def test_a_cache_may_be_fetched_from_elsewhere():
    """During the fetch vLLM's own queue holds the call; only the remainder is charged, once."""
    world = World()
    ledger = watch(world)
    scheduler = world.scheduler
    connector = scheduler.connector = MagicMock()
    connector.supports_divergent_local_hybrid_hits = False
    connector.get_num_new_matched_tokens.side_effect = lambda request, local: (
        (20 - local, True) if request.request_id == "far" and local < 20 else (0, False)
    )
    connector.get_loaded_kv_cache_group_ids.return_value = ()
    connector.request_finished.return_value = (False, None)
    connector.take_events.return_value = ()
    connector.get_kv_connector_stats.return_value = None
    connector.has_pending_push_work.return_value = False
    connector.has_pending_block_frees.return_value = False
    connector.get_external_cache_hit_sources.return_value = None
    scheduler.connector_prefix_cache_stats = None
    world.add("far", 30, max_tokens=3)
    world.add("near", 10, max_tokens=9)
    assert world.step() == ["near"]
    assert world.requests["far"].status == RequestStatus.WAITING_FOR_REMOTE_KVS
    assert ledger.of("accept") == [("accept", "far", 20), ("accept", "near", 0)]
    assert (len(world.queue), len(scheduler.kv_holding_waiting)) == (0, 1)
    world.step()
    output = scheduler.schedule()
    ids = list(output.num_scheduled_tokens)
    scheduler.update_from_output(
        output,
        ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={each: index for index, each in enumerate(ids)},
            sampled_token_ids=[[7]] * len(ids),
            kv_connector_output=KVConnectorOutput(finished_recving={"far"}),
        ),
    )
    assert world.step() == ["far"]
    world.drain()
    assert len(ledger.of("accept")) == 2
    assert ledger.tokens("far") == 3


def test_a_failed_fetch_is_computed_without_another_charge():
    """vLLM returns such a request to the queue, without blocks."""
    world = World()
    ledger = watch(world)
    world.add("a", 20, max_tokens=2)
    world.queue.begin_step()
    assert world.queue.pop_request().request_id == "a"
    world.requests["a"].status = RequestStatus.WAITING_FOR_REMOTE_KVS
    world.requests["a"].num_computed_tokens = 8
    world.queue.end_step()
    assert ledger.events == [("accept", "a", 8)]
    world.requests["a"].status = RequestStatus.WAITING
    world.requests["a"].num_computed_tokens = 0
    world.queue.prepend_requests([world.requests["a"]])
    world.drain()
    assert ledger.of("requeue") == [("requeue", "a")]
    assert ledger.left == {"default": 5000 - (20 - 8) - 2 * 2}


def test_the_queue_is_an_instance_of_vllms_type():
    from vllm.v1.core.sched.request_queue import RequestQueue

    queue = World().queue
    assert isinstance(queue, RequestQueue)
    other = SimpleNamespace(request_id="stranger")
    queue.remove_request(other)
    queue.remove_requests([other])
    with pytest.raises(IndexError, match="empty"):
        queue.pop_request()
