"""The world of control with monitoring, wired as in the server."""

from control_world import World

from fairserve.platform.monitoring.monitoring import Monitoring


class MonitoredWorld(World):
    """A world whose calls are sampled. ``members`` are the workers of the pool."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.members = []
        self.monitoring = Monitoring(
            self.control, lambda: self.members, clock=lambda: self.now_s, wall=self.wall
        )
