"""Users, rules of topics, and the audit trail over FlyMQ. Nearly all of it needs an administrator."""

from collections.abc import Sequence

from penstock.client.flymq.operations import Operations
from penstock.wire.flymq import administration as a
from penstock.wire.flymq import messages as m


class AccountOperations(Operations):
    async def create_user(self, user: str, password: str, roles: Sequence[str] = ()) -> None:
        """Roles: admin, producer, consumer, guest."""
        request = a.UserRequest(user, password, "", list(roles), True)
        await self._ask(0x73, request, a.User, user)

    async def update_user(
        self, user: str, roles: Sequence[str] = (), *, enabled: bool = True
    ) -> None:
        """Replaces the roles and the state."""
        await self._change(0x75, a.UserRequest(user, "", "", list(roles), enabled), user)

    async def delete_user(self, user: str) -> None:
        await self._change(0x74, a.UserName(user), user)

    async def change_password(self, user: str, password: str, current: str = "") -> None:
        """`current`: for the own account, which every user may change."""
        await self._change(0x7C, a.UserRequest(user, password, current, []), user)
        self._asking.password_changed(user, password)

    async def list_users(self) -> list[a.User]:
        return (await self._ask(0x76, m.Nothing(), a.Users)).users

    async def describe_user(self, user: str) -> a.User:
        return await self._ask(0x77, a.UserName(user), a.User, user)

    async def set_rule(
        self,
        topic: str,
        *,
        public: bool = False,
        users: Sequence[str] = (),
        roles: Sequence[str] = (),
    ) -> None:
        """Replaces the rule of a topic, or of all that fit a pattern."""
        await self._change(0x78, a.SetRule(topic, public, list(users), list(roles)), topic)

    async def delete_rule(self, topic: str) -> None:
        """One that is not there is deleted already."""
        await self._change(0x7A, m.Topic(topic), topic)

    async def describe_rule(self, topic: str) -> a.Rule:
        """Also where there is none: `exists` tells."""
        return await self._ask(0x79, m.Topic(topic), a.Rule, topic)

    async def list_rules(self) -> list[a.RuleRow]:
        return (await self._ask(0x7B, m.Nothing(), a.Rules)).rules

    async def list_roles(self) -> list[a.Role]:
        return (await self._ask(0x7D, m.Nothing(), a.Roles)).roles

    # ---- the audit trail ----

    async def query_audit(
        self,
        *,
        start_s: int = 0,
        end_s: int = 0,
        types: Sequence[str] = (),
        user: str = "",
        resource: str = "",
        result: str = "",
        search: str = "",
        limit: int = 100,
        offset: int = 0,
    ) -> a.AuditEvents:
        """Events that fit all that is given; times are Unix seconds, 0 is open."""
        query = a.AuditQuery(
            start_s, end_s, list(types), user, resource, result, search, limit, offset
        )
        return await self._ask(0x80, query, a.AuditEvents)

    async def export_audit(self, query: a.AuditQuery, format: str = "json") -> bytes:
        """The same as a file: json or csv."""
        found = await self._ask(0x81, a.AuditExport(query, format), a.AuditExported)
        return found.data
