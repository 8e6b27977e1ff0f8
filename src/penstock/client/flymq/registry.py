"""Schemas and dead letters over FlyMQ. A topic is bound to a schema by its settings, over HTTP."""

from typing import Literal

from penstock.client.flymq.operations import Operations
from penstock.wire.flymq import administration as a
from penstock.wire.flymq import messages as m


class RegistryOperations(Operations):
    async def register_schema(
        self, name: str, definition: bytes, type: Literal["json", "avro", "protobuf"] = "json"
    ) -> int:
        """Its version; the same definition again is the same one."""
        request = a.RegisterSchema(name, type, definition)
        return (await self._ask(0x10, request, a.SchemaRow, name)).version

    async def describe_schema(self, name: str, version: int = 0) -> a.Schema:
        """With its definition; 0: the latest."""
        return await self._ask(0x11, a.SchemaVersion(name, version), a.Schema, name)

    async def list_schemas(self, name: str = "") -> list[a.SchemaRow]:
        """All versions of all, or of one."""
        return (await self._ask(0x12, a.SchemaFilter(name), a.SchemaRows, name)).schemas

    async def validate(self, name: str, message: bytes) -> list[str]:
        """What is wrong with a message; nothing if it fits."""
        found = await self._ask(0x13, a.ValidateSchema(name, message), a.Validity, name)
        return [] if found.valid else (found.errors or ["not valid"])

    async def delete_schema(self, name: str, version: int = 0) -> None:
        """One version, or all of them."""
        await self._change(0x15, a.SchemaVersion(name, version), name)


class DeadLetterOperations(Operations):
    async def dead_letters(self, topic: str, max_messages: int = 100) -> list[a.DeadLetter]:
        """The first of them, each with its id and why it was given up."""
        request = a.FetchDeadLetters(topic, max_messages)
        return (await self._ask(0x20, request, a.DeadLetters, topic)).messages

    async def replay_dead_letter(self, topic: str, letter: str | int) -> None:
        """Publishes one to its topic again, by its id or by its offset. Refused the second time."""
        request: a.ReplayById | a.ReplayByOffset = (
            a.ReplayByOffset(topic, letter)
            if isinstance(letter, int)
            else a.ReplayById(topic, letter)
        )
        await self._change(0x21, request, topic)

    async def purge_dead_letters(self, topic: str) -> None:
        await self._change(0x22, m.Topic(topic), topic)
