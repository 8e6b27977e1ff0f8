"""One connection of the Felix client: its control streams, its subscriptions, and its login.

Control streams are opened when they are needed, and log in each for itself. After a loss the subscriptions
are made again. Which connection is used for what is client.py's.
"""

import asyncio
from itertools import count
from typing import Final, Literal

from penstock.client.errors import (
    ClientClosed,
    ClientError,
    ConnectionLost,
    Refused,
    RequestTimedOut,
)
from penstock.client.felix.control import Answer, Control, refusal
from penstock.client.felix.subscription import Subscription
from penstock.client.quic.connection import QuicConnection
from penstock.client.quic.line import NotDialled, QuicLine
from penstock.client.quic.stream import QuicStream
from penstock.client.quic.trust import QuicTrust
from penstock.client.settings import ClientSettings
from penstock.wire.felix.frames import FelixProtocolError, frame_size
from penstock.wire.felix.messages import RequestId
from penstock.wire.felix.replies import Reply, read_hello
from penstock.wire.felix.requests import encode_auth, encode_subscribe, names_field

Dialect = Literal["native", "doc"]

# The control stream of publishes; those of the cache are numbered from 1.
PUBLISHES: Final = 0


class FelixConnection:
    """Made closed."""

    def __init__(
        self,
        server: str,
        token: str | None,
        dialect: Dialect,
        settings: ClientSettings,
        trust: QuicTrust,
    ) -> None:
        self.keeping = QuicConnection(server, settings, trust, None, self)
        self.keeping.gave_up = self._gave_up
        self.subscriptions: list[Subscription] = []
        self._token = token
        self._native = dialect == "native"
        self._numbers = count(1)
        self._controls: dict[int, Control] = {}
        self._making = asyncio.Lock()
        # One SUBSCRIBE at a time: the next event stream is its own, whatever id the server gives it.
        self._subscribing = asyncio.Lock()
        self._hello: tuple[RequestId, Subscription, asyncio.Future[QuicStream]] | None = None

    def new_id(self) -> int | str:
        """Of a request, as the message set has it."""
        number = next(self._numbers)
        return number if self._native else str(number)

    # ---- control streams ----

    async def control(self, number: int) -> Control:
        found = self._controls.get(number)
        if found is not None:
            return found
        async with self._making:
            found = self._controls.get(number)
            if found is None:
                line = self.keeping.live or await self.keeping.channel()
                found = await self._begin(line, number)
        return found

    async def _begin(self, line: QuicLine, number: int | None) -> Control:
        """A new one, logged in. `number`: None for one that is used once."""
        server = str(self.keeping.server)
        try:
            control = Control(await line.open(), server, self._control_gone)
        except NotDialled as error:
            raise ConnectionLost(server, str(error)) from None
        key = number if number is not None else -next(self._numbers)
        self._controls[key] = control
        if self._token is not None:
            try:
                reply = await self.answer(control.ask(encode_auth(self._token), None), "the login")
            except BaseException:
                self._controls.pop(key, None)
                control.stream.stop()
                control.stream.reset()
                raise
            if reply.failure is not None:
                self._controls.pop(key, None)
                raise refusal(reply.failure, "the login")
        return control

    def _control_gone(self, control: Control) -> None:
        self._controls = {key: one for key, one in self._controls.items() if one is not control}

    async def answer(self, answer: Answer, what: str) -> Reply:
        """Raises RequestTimedOut after the time limit; the connection is given up then."""
        timeout_s = self.keeping.settings.timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            if self.keeping.live is not None:
                self.keeping.live.abort(f"no answer to {what} within {timeout_s:g} s")
            raise RequestTimedOut(str(self.keeping.server), what, timeout_s) from None

    # ---- subscriptions ----

    async def subscribe(self, subscription: Subscription) -> None:
        """Returns when the server has it, and will send what is published from now on."""
        line = self.keeping.live or await self.keeping.channel()
        try:
            await self._subscribe(line, subscription)
        except BaseException:
            subscription.end()
            raise
        self.subscriptions.append(subscription)

    async def _subscribe(self, line: QuicLine, subscription: Subscription) -> None:
        what = f"subscribe {subscription.names}"
        async with self._subscribing:
            id = next(self._numbers) if self._native else None
            control = await self._begin(line, None)
            came: asyncio.Future[QuicStream] = asyncio.get_running_loop().create_future()
            self._hello = (id, subscription, came)
            try:
                frame = encode_subscribe(names_field(subscription.names), id)
                reply = await self.answer(control.ask(frame, None, fin=True), what)
                if reply.failure is not None:
                    raise refusal(reply.failure, what)
                async with asyncio.timeout(self.keeping.settings.timeout_s):
                    await came
            except TimeoutError:
                line.abort("no event stream came")
                raise RequestTimedOut(
                    str(self.keeping.server), what, self.keeping.settings.timeout_s
                ) from None
            finally:
                self._hello = None
                came.cancel()

    def forget(self, subscription: Subscription) -> None:
        if subscription in self.subscriptions:
            self.subscriptions.remove(subscription)

    def subscribe_again(self, subscription: Subscription) -> None:
        """The server has ended the event stream of one; the connection stands."""
        line = self.keeping.live
        if line is not None and subscription in self.subscriptions:
            task = asyncio.get_running_loop().create_task(self._again(line, subscription))
            subscription.comeback = task

    async def _again(self, line: QuicLine, subscription: Subscription) -> None:
        settings = self.keeping.settings
        wait_s = settings.backoff.delay_s(0, settings.surroundings.random)
        await settings.surroundings.sleep(wait_s)
        if line.closed:
            return  # it is made again with the next connection
        await self._restore(line, subscription)

    async def _restore(self, line: QuicLine, subscription: Subscription) -> None:
        try:
            await self._subscribe(line, subscription)
        except Refused as error:
            self.forget(subscription)
            subscription.fail(error)
        except ClientError:
            if not line.closed:
                raise

    # ---- what the connection calls ----

    async def greet(self, line: QuicLine) -> None:
        """The first control stream shows whether the login is good."""
        await self._begin(line, PUBLISHES)
        for subscription in tuple(self.subscriptions):
            await self._restore(line, subscription)

    def accepted(self, line: QuicLine, stream: QuicStream) -> None:
        stream.frame_size = frame_size
        stream.receive = lambda data: self._said_hello(stream, data)

    def _said_hello(self, stream: QuicStream, data: bytes) -> int:
        hello, consumed = read_hello(data, 0, len(data))
        if hello is None:
            return 0
        expected = self._hello
        if expected is None:
            stream.stop()  # of a subscription that was given up
            return len(data)
        id, subscription, came = expected
        named = hello.subscription_id
        if id is not None and isinstance(named, int) and named != id:
            if named < int(id):  # one that was given up just before
                stream.stop()
                return len(data)
            raise FelixProtocolError(f"a hello of subscription {hello.subscription_id}", 0)
        subscription.begins(stream)
        if not came.done():
            came.set_result(stream)
        return consumed + subscription.receive(data[consumed:])

    def lost(self, line: QuicLine, error: ClientError) -> None:
        controls, self._controls = self._controls, {}
        for control in controls.values():
            control.fail(error)
        if self._hello is not None and not self._hello[2].done():
            self._hello[2].set_exception(error)
            self._hello[2].exception()

    def _gave_up(self, error: ClientError) -> None:
        subscriptions, self.subscriptions = self.subscriptions, []
        for subscription in subscriptions:
            subscription.fail(error)

    async def close(self) -> None:
        for subscription in tuple(self.subscriptions):
            subscription.end()
        line = self.keeping.live
        await self.keeping.close()
        if line is not None:
            self.lost(line, ClientClosed())
