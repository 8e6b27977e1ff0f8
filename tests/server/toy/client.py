"""A client of the toy protocol. Stands on its wire module alone."""

import socket
from typing import Self

from server.toy import wire


class ToyClient:
    def __init__(self, port: int, timeout_s: float) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=timeout_s)
        self._received = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.close()

    def put(self, topic: str, *records: bytes) -> list[int]:
        """All of them before the first answer is read; their offsets."""
        self._socket.sendall(b"".join(wire.encode(wire.PUT, topic, one) for one in records))
        return [wire.unpack_offset(self._answer(wire.DONE)) for _ in records]

    def get(self, topic: str, offset: int) -> bytes:
        self._socket.sendall(wire.encode(wire.GET, topic, wire.pack_offset(offset)))
        return self._answer(wire.RECORD)

    def _answer(self, expected: int) -> bytes:
        while True:
            frames, position, error = wire.split(self._received, 0)
            assert error is None
            if frames:
                self._received = self._received[wire.frame_size(self._received, 0, position) :]
                assert frames[0].kind == expected, frames[0]
                return frames[0].payload
            piece = self._socket.recv(65_536)
            assert piece, "the server closed the connection"
            self._received += piece
