"""The address of the server, and several runs at a time, for all programs.

The programs are unmodified: they know a base URL and a key. ``CLIENTS_ONE_LINE=1`` adds the one line
that names the run, a header of its own for each run.
"""

import asyncio
import os
import uuid

URL = os.environ["OPENAI_BASE_URL"]
KEY = os.environ["OPENAI_API_KEY"]
MODEL = os.environ["OPENAI_MODEL"]
RUNS = int(os.environ.get("CLIENTS_RUNS", "4"))


def ONE_LINE():
    """Return the headers of a new run, in the variant with one line; none as the program comes."""
    if os.environ.get("CLIENTS_ONE_LINE") != "1":
        return None
    return {"X-Interaction-Id": str(uuid.uuid4())}


def main(run):
    """Answer the questions, all at the same time."""

    async def answer_all():
        questions = (f"When is high tide? (question-{number})" for number in range(1, RUNS + 1))
        await asyncio.gather(*map(run, questions))

    asyncio.run(answer_all())
    print(f"{RUNS} runs ended")
