"""What every door offers of schemas: list, show, validate, register, change, delete.

Each asks the table of rights, and changes are recorded in the audit trail. Binding a topic is a change of
its settings (Broker.change_topic).
"""

from typing import TYPE_CHECKING

from penstock.broker.access.access import Principal
from penstock.broker.access.rights import Operation
from penstock.broker.audit import events
from penstock.broker.schemas.registry import LATEST, Registry, Schema
from penstock.log.engine import Pending

if TYPE_CHECKING:
    from penstock.broker.broker import Broker


class SchemaOperations:
    """Called on the event loop. What compiles, compares or waits for the disk runs in a thread."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker

    @property
    def _registry(self) -> Registry:
        return self._broker.schemas.registry

    def schemas(self, principal: Principal, name: str = "") -> Pending[list[Schema]]:
        self._broker.require(principal, Operation.READ_SCHEMAS)
        registry = self._registry
        return self._broker.aside(lambda: registry.schemas(name))

    def schema(self, principal: Principal, name: str, version: int = LATEST) -> Schema:
        self._broker.require(principal, Operation.READ_SCHEMAS)
        return self._registry.get(name, version)

    def validate(
        self, principal: Principal, name: str, message: bytes, version: int = LATEST
    ) -> Pending[list[str]]:
        """Paths and rules that the message breaks."""
        self._broker.require(principal, Operation.VALIDATE_MESSAGE)
        registry = self._registry
        return self._broker.aside(lambda: registry.validator(name, version).errors(message))

    def making(self, name: str) -> Pending[object] | None:
        """What `errors` would have to wait for: a thread that compiles the schema. None: nothing."""
        registry = self._registry
        if registry.is_compiled(name):
            return None
        return self._broker.aside(lambda: registry.validator(name))

    def errors(self, name: str, message: bytes) -> list[str]:
        """At once, for one message that is published with the name of a schema: needs no right but that
        of the publish."""
        return self._registry.validator(name).errors(message)

    def register(
        self,
        principal: Principal,
        name: str,
        kind: str,
        definition: bytes,
        compatibility: str | None = None,
    ) -> Pending[Schema]:
        self._broker.require(principal, Operation.REGISTER_SCHEMA)
        registry, trail = self._registry, self._broker.audit

        def register() -> Schema:
            found = registry.register(name, kind, definition, compatibility)
            details = {"version": found.version, "type": kind, "compatibility": found.compatibility}
            trail.changed_aside(principal, events.SCHEMA_REGISTERED, name, details)
            return found

        return self._broker.aside(register)

    def set_compatibility(
        self, principal: Principal, name: str, compatibility: str
    ) -> Pending[Schema]:
        self._broker.require(principal, Operation.CHANGE_SCHEMA)
        registry, trail = self._registry, self._broker.audit

        def change() -> Schema:
            registry.set_compatibility(name, compatibility)
            details = {"compatibility": compatibility}
            trail.changed_aside(principal, events.SCHEMA_CHANGED, name, details)
            return registry.get(name)

        return self._broker.aside(change)

    def delete(self, principal: Principal, name: str, version: int = LATEST) -> Pending[None]:
        """One version, or all of them."""
        self._broker.require(principal, Operation.DELETE_SCHEMA)
        registry, check = self._registry, self._broker.schemas.check_unused
        trail = self._broker.audit

        def delete() -> None:
            registry.delete(name, version, check)
            details = {"version": version if version != LATEST else "all"}
            trail.changed_aside(principal, events.SCHEMA_DELETED, name, details)

        return self._broker.aside(delete)
