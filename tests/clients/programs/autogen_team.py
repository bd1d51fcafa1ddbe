"""AutoGen: a team of a writer and a critic, who take turns."""

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_ext.models.openai import OpenAIChatCompletionClient
from program import KEY, MODEL, ONE_LINE, URL, main

KNOWN = {
    "vision": False,
    "function_calling": True,
    "json_output": False,
    "structured_output": False,
    "family": "unknown",
}


async def run(question):
    model = OpenAIChatCompletionClient(
        model=MODEL,
        base_url=URL,
        api_key=KEY,
        model_info=KNOWN,
        default_headers=ONE_LINE(),
    )
    writer = AssistantAgent("writer", model, system_message="Write.")
    critic = AssistantAgent("critic", model, system_message="Criticise.")
    team = RoundRobinGroupChat([writer, critic], termination_condition=MaxMessageTermination(5))
    await team.run(task=question)
    await model.close()


main(run)
