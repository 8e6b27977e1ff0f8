"""A login as one call, for tests of who may."""

from threading import Event

from kit.limits import HANG_S
from penstock.broker.access.access import Access, Principal


def authenticate(access: Access, key: str) -> Principal | None:
    """Whose key it is; None when it is nobody's or was revoked. Waits for slow hashes."""
    answered = Event()
    answers: list[Principal | None] = []

    def done(principal: Principal | None) -> None:
        answers.append(principal)
        answered.set()

    access.login(key, done)
    assert answered.wait(HANG_S), "the login was never answered"
    return answers[0]
