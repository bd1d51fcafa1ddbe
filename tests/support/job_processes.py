"""Real processes of ``fairserve jobs``, each with its children in one process group."""

import contextlib
import os
import signal
import subprocess
import sys

QUICK = """
from fairserve.platform.background.jobs import jobs
from fairserve.platform.server import cli
jobs.PROFILES_INTERVAL_S = jobs.WEBHOOKS_INTERVAL_S = 0.5
raise SystemExit(cli.main())
"""
"""The command line, with jobs in short intervals."""


class JobProcess:
    """``fairserve jobs worker`` or ``beat`` over a database and a Redis."""

    def __init__(self, action, *flags, database_url, redis_url, folder, **settings):
        self.log_path = folder / f"{action}.log"
        names = {"DATABASE_URL": database_url, "REDIS_URL": redis_url, "DATA_DIR": folder / "data"}
        names |= {name.upper(): value for name, value in settings.items()}
        self.arguments = [
            sys.executable,
            "-c",
            QUICK,
            "jobs",
            action,
            *flags,
        ]
        self.env = {
            **os.environ,
            "FAIRSERVE_SECRET_KEY": "s" * 40,
            **{f"FAIRSERVE_{name}": str(value) for name, value in names.items()},
        }
        self.process = None

    def start(self):
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                self.arguments,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.env,
                start_new_session=True,
            )
        return self

    launch = start

    def runs(self):
        return self.process.poll() is None

    def kill(self):
        """Kill the process and its children immediately."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self):
        """Stop the process as an operator does; return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    @contextlib.contextmanager
    def paused(self):
        """Suspend the process inside the context."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def log(self):
        return self.log_path.read_text(errors="replace")[-5000:]
