"""A Redis of its own, which a test kills, and starts again with the same data or without."""

import shutil
import signal
import subprocess

import redis
from processes import eventually, free_port


class RedisProcess:
    """A running server. It keeps nothing over its end, unless it is to."""

    def __init__(self, folder, *flags, keeps=False, prefix=(), host="127.0.0.1"):
        """Start it with a new folder; ``flags`` are further ones.

        ``prefix`` is a command that runs it, and ``host`` its address then.
        """
        self.folder, self.port, self._host = folder, free_port(), host
        self.url = f"redis://{host}:{self.port}/0"
        kept = ["--appendonly", "yes" if keeps else "no", "--appendfsync", "always", "--save", ""]
        where = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(folder)]
        self._command = [*prefix, "redis-server", *where, *kept, *flags]
        folder.mkdir(exist_ok=True)
        self.start()

    def start(self):
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        eventually(self._answers, "Redis does not start")

    def _answers(self):
        try:
            with redis.Redis(host=self._host, port=self.port) as client:
                return client.ping()
        except (redis.ConnectionError, redis.exceptions.BusyLoadingError):
            return False

    def kill(self):
        """Kill it, if it runs."""
        self._process.kill()
        self._process.wait()

    close = kill

    def suspend(self):
        """Have it answer nothing until :meth:`resume`; its connections stay."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self):
        self._process.send_signal(signal.SIGCONT)

    def empty(self):
        """Drop all data; it does not run."""
        shutil.rmtree(self.folder)
        self.folder.mkdir()

    @property
    def _file(self):
        [path] = self.folder.glob("appendonlydir/*.incr.aof")
        return path

    def written_bytes(self):
        """Return the size of the append-only file."""
        return self._file.stat().st_size

    def truncate(self, size_bytes):
        """Drop the end of the append-only file."""
        with self._file.open("r+b") as file:
            file.truncate(size_bytes)
