"""LlamaIndex: a workflow of two steps with a prompt of its own each."""

from llama_index.core.workflow import Event, StartEvent, StopEvent, Workflow, step
from llama_index.llms.openai_like import OpenAILike
from program import KEY, MODEL, ONE_LINE, URL, main


class Draft(Event):
    text: str


class Report(Workflow):
    def __init__(self, model):
        super().__init__(timeout=60)
        self.model = model

    @step
    async def draft(self, event: StartEvent) -> Draft:
        answer = await self.model.acomplete(f"Draft a report: {event.question}")
        return Draft(text=str(answer))

    @step
    async def review(self, event: Draft) -> StopEvent:
        answer = await self.model.acomplete(f"Review this report: {event.text}")
        return StopEvent(result=str(answer))


async def run(question):
    model = OpenAILike(
        model=MODEL,
        api_base=URL,
        api_key=KEY,
        is_chat_model=True,
        default_headers=ONE_LINE(),
    )
    await Report(model).run(question=question)


main(run)
