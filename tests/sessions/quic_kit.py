"""A QUIC connection without sockets: streams that remember what was done to them."""

from collections.abc import Callable

from sessions.kit import Recorder

from penstock.sessions.streams import AnySession, ConnectionSession, QuicStream, StreamSession


class StreamRecorder(Recorder):
    """A stream that keeps what its session does. Codes are None until the session uses them."""

    def __init__(self, number: int, room: int | None = None) -> None:
        super().__init__(room)
        self.number = number
        self.finished = False
        self.reset_code: int | None = None
        self.stop_code: int | None = None

    @property
    def unidirectional(self) -> bool:
        return bool(self.number & 2)

    def write(self, data: bytes) -> None:
        assert not self.finished, "written after the finish"
        super().write(data)

    def close(self) -> None:
        self.finished = True
        super().close()

    def finish(self) -> None:
        self.finished = True

    def reset(self, code: int) -> None:
        self.reset_code = code

    def stop_sending(self, code: int) -> None:
        self.stop_code = code


class ConnectionRecorder:
    """A connection whose peer is the test. `allowed`: how many streams the peer lets us open."""

    peer = "127.0.0.1:1"
    local = "127.0.0.1:2"

    def __init__(self, application: str | None = None, allowed: int = 100) -> None:
        self.application = application
        self.allowed = allowed
        self.closed_with: tuple[int, str] | None = None
        self.failures = 0
        self.failed_logins = 0
        self.logins = 0
        self.opened: list[tuple[StreamRecorder, StreamSession]] = []
        self._next = {False: 1, True: 3}
        self._peer_next = {False: 0, True: 2}

    # --- what the protocol calls ------------------------------------------------------------------

    def open_stream(
        self, make: Callable[[QuicStream], AnySession], *, unidirectional: bool
    ) -> AnySession | None:
        if self.allowed == 0:
            return None
        self.allowed -= 1
        stream = StreamRecorder(self._next[unidirectional])
        self._next[unidirectional] += 4
        session = make(stream)
        self.opened.append((stream, session))
        return session

    def close(self, code: int, reason: str) -> None:
        self.closed_with = self.closed_with or (code, reason)

    def fail(self) -> None:
        self.failures += 1

    def login_failed(self) -> int:
        self.failed_logins += 1
        return self.failed_logins

    def logged_in(self) -> None:
        self.logins += 1

    # --- what the test calls ----------------------------------------------------------------------

    def peer_opens(
        self, session: ConnectionSession, *, unidirectional: bool = False, room: int | None = None
    ) -> tuple[StreamRecorder, StreamSession | None]:
        stream = StreamRecorder(self._peer_next[unidirectional], room)
        self._peer_next[unidirectional] += 4
        return stream, session.accept(stream)
