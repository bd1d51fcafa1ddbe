"""A platform that stops closes each connection to its database."""

import asyncio
import threading

from sqlalchemy import event, text

from fairserve.platform.db.engine import connect, read_only
from fairserve.platform.server.database import prepare_database
from fairserve.platform.server.lifecycle import Platform
from fairserve.platform.server.settings import Settings

LONGER_S = 0.5


async def test_work_that_a_cancelled_task_left_in_a_thread_ends_before_the_database_is_closed(
    tmp_path, monkeypatch
):
    fleet = tmp_path / "fleet.json"
    fleet.write_text("{}")  # prevents embedded workers
    settings = Settings(data_dir=tmp_path, fleet_file=fleet)
    engine = connect(settings.db.effective_database_url)
    open_connections = set()
    event.listen(engine, "connect", lambda connection, _: open_connections.add(id(connection)))
    event.listen(engine, "close", lambda connection, _: open_connections.remove(id(connection)))
    prepare_database(settings.db, engine, None)
    platform = Platform(settings, engine=engine)
    await platform.start()
    begun, ending, disposed = threading.Event(), threading.Event(), threading.Event()
    dispose, close_files = engine.dispose, platform._close_files
    monkeypatch.setattr(platform, "_close_files", lambda: (close_files(), ending.set()))
    monkeypatch.setattr(engine, "dispose", lambda: (dispose(), disposed.set()))

    def work():
        with platform.sessions() as session:
            read_only(session).execute(text("SELECT 1"))
            begun.set()
            assert ending.wait(60)
            disposed.wait(LONGER_S)  # it ends after a stop that does not wait

    left = asyncio.create_task(asyncio.to_thread(work))
    assert await asyncio.to_thread(begun.wait, 60)
    left.cancel()
    await platform.stop()
    assert disposed.is_set()
    assert not open_connections
