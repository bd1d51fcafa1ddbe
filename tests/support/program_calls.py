"""Programs whose calls are scripted, over their own database."""

import asyncio

from data_folders import NAME, new_data_dir
from until import turn

from fairserve.platform.db.base import utc_now
from fairserve.platform.db.engine import connect, session_factory
from fairserve.platform.db.identity import App, Tenant, TokenProfile


def declare(*nodes):
    return {"model": "m", "nodes": list(nodes)}


def node(node_id, prompt="x", **more):
    return {"id": node_id, "prompt": prompt, **more}


class Calls:
    """Answers each attempt of a task with the next entry of ``script``, and finally with its prompt.

    ``hold`` answers when ``released`` is set, ``("hold", error)`` raises then.
    """

    def __init__(self, script):
        self.script = {task: list(answers) for task, answers in script.items()}
        self.made = []
        self.under_way = self.most = 0
        self.released = asyncio.Event()
        self.before = lambda task: None

    async def make(self, owner, task, parents):
        self.before(task)
        self.made.append((task.task_id, task.attempt, parents))
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            answers = self.script.get(task.task_id)
            answer = answers.pop(0) if answers else task.body()["prompt"]
            if answer == "hold" or isinstance(answer, tuple):
                await self.released.wait()
                answer = answer[-1] if isinstance(answer, tuple) else answer
            await turn()
            if isinstance(answer, Exception):
                raise answer
            return answer
        finally:
            self.under_way -= 1


def database(folder):
    """Return an engine and its sessions, on a database below ``folder`` that may exist."""
    data_dir = folder / "data"
    if not data_dir.exists():
        new_data_dir(data_dir)
    engine = connect(f"sqlite:///{data_dir / NAME}")
    return engine, session_factory(engine)


def add_apps(sessions, *names, tenant="t"):
    """Add a tenant with apps."""
    with sessions.begin() as session:
        session.add(Tenant(id=tenant, name=tenant, created_at=utc_now(), suspended_at=None))
        session.flush()
        for name in names:
            session.add(
                App(
                    id=name,
                    tenant_id=tenant,
                    name=name,
                    calls_per_interaction=1,
                    idle_timeout_s=1,
                    created_at=utc_now(),
                    stages=[
                        TokenProfile(stage=1, input_tokens=9, system_tokens=0, output_tokens=9)
                    ],
                )
            )
