"""A call applies its events one by one, and its close cancels running samples."""

from fairserve.engine.torch.events import Admitted, Failed, Generated
from fairserve.engine.torch.openai.response import EngineAnswerWriter
from fairserve.engine.torch.running_call import EngineCall


async def test_usage_grows_with_each_event():
    call = EngineCall(["a"], lambda call, running: None)
    writer = EngineAnswerWriter("chat", "id", 0, "m", 5, call.outputs)
    for event in (Admitted("a", 3), Generated("a", "x", 1, None), Generated("a", "y", 1, "stop")):
        call.put(event)
    seen = []
    for event in await call.arrivals():
        assert not call.is_over
        assert call.apply(event) == 0
        seen.append(writer.usage()["completion_tokens"])
    assert seen == [0, 1, 2]
    assert call.is_over
    assert writer.usage()["prompt_tokens_details"]["cached_tokens"] == 3
    assert writer.whole()["choices"][0]["message"]["content"] == "xy"


async def test_a_close_cancels_running_samples_once():
    cancelled = []
    call = EngineCall(["a", "b", "c"], lambda call, running: cancelled.append(running))
    call.put(Generated("b", "", 1, "length"))
    call.close()
    call.close()
    assert cancelled == [["a", "c"]]


async def test_one_failed_sample_ends_the_call():
    call = EngineCall(["a", "b"], lambda call, running: None)
    call.put(Failed("b", "broken"))
    for event in await call.arrivals():
        call.apply(event)
    assert call.is_over
    assert call.error == "broken"
