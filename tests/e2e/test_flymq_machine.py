"""FlyMQ against a model, with random requests: on a server in this process that is stopped and started, and
on one that is a process and is killed."""

import pytest
from conformance.flymq.peer import FlyMQPeer
from e2e.flymq_machine import FlyMQMachine
from hypothesis import HealthCheck, settings
from hypothesis.stateful import rule, run_state_machine_as_test
from kit.live_server import LiveServer, ServerProcess

CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


class OnLiveServer(FlyMQMachine):
    server: LiveServer | None = None

    def start_server(self) -> None:
        self.server = LiveServer(self.directory / "data")
        self.server.__enter__()
        self.peer = FlyMQPeer(self.server.port())

    def stop_server(self) -> None:
        if self.server is not None:
            self.peer.socket.close()
            self.server.__exit__(None, None, None)
            self.server = None

    def http_port(self) -> int:
        assert self.server is not None
        return self.server.port("http")

    @rule()
    def restart(self) -> None:
        self.settle_soon()
        self.stop_server()
        self.start_server()
        self.restarted()


class OnProcess(FlyMQMachine):
    process: ServerProcess | None = None

    def start_server(self) -> None:
        self.process = ServerProcess(self.directory / "data")
        self.process.__enter__()
        self.peer = FlyMQPeer(self.process.ports["tcp"])

    def stop_server(self) -> None:
        if self.process is not None:
            self.peer.socket.close()
            self.process.__exit__(None, None, None)
            self.process = None

    def http_port(self) -> int:
        assert self.process is not None
        return self.process.ports["http"]

    @rule()
    def kill(self) -> None:
        """With delayed messages that are due now, some of them on their way to their topics."""
        self.stop_server()
        self.start_server()
        self.restarted()

    @rule()
    def stop_and_start(self) -> None:
        assert self.process is not None
        assert self.process.stop() == 0
        self.stop_server()
        self.start_server()
        self.restarted()


@pytest.mark.parametrize(
    ("machine", "examples", "steps"),
    [
        pytest.param(OnLiveServer, 8, 30, id="restarts"),
        pytest.param(OnProcess, 2, 20, id="kills"),
        pytest.param(OnLiveServer, 150, 60, id="many restarts", marks=pytest.mark.soak),
        pytest.param(OnProcess, 60, 40, id="many kills", marks=pytest.mark.soak),
    ],
)
def test_flymq(machine: type[FlyMQMachine], examples: int, steps: int) -> None:
    limits = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=CHECKS,
    )
    run_state_machine_as_test(machine, settings=limits)
