"""FETCH_DLQ, REPLAY_DLQ and PURGE_DLQ: the dead letters of a topic.

A replay that cannot be is no ERROR but a reply that says false and why, as clients expect it.
"""

from penstock.broker.delivery.dead_letter_queue import DeadLetter
from penstock.broker.errors import BrokerError, Code
from penstock.log.engine import Pending
from penstock.sessions.flymq.conversation import Call, Conversation
from penstock.sessions.flymq.refusals import refusal
from penstock.wire.flymq import administration as a
from penstock.wire.flymq import messages as m

REPLAYED = ", replayed"
# Of one entry: a list of the most there can be still fits a frame.
MAX_REASON_BYTES = 1_000


def fetch(session: Conversation, call: Call, request: a.FetchDeadLetters) -> None:
    queue = session.port.dead_letter_queue
    listed = queue.page(session.principal, request.topic, request.max_messages)
    session.blocking = True

    def read(done: Pending[list[DeadLetter]]) -> None:
        session.blocking = False
        if done.error is not None:
            session.refuse_later(call, done.error)
            return
        found = done.result()
        session.counters.messages_out += len(found)
        session.reply_aside(call, lambda: a.DeadLetters([_shown(one) for one in found]))

    listed.on_done(session.guarded(read))


def _shown(letter: DeadLetter) -> a.DeadLetter:
    reason = shortened(letter.reason) + (REPLAYED if letter.replays else "")
    return a.DeadLetter(letter.id, letter.value or b"", reason, letter.deliveries)


def replay(session: Conversation, call: Call, request: a.ReplayById | a.ReplayByOffset) -> None:
    """An offset is one of partition 0, which is all that most of these topics have."""
    letter_id = f"0-{request.offset}" if isinstance(request, a.ReplayByOffset) else request.id
    try:
        change = session.port.dead_letter_queue.replay(session.principal, request.topic, letter_id)
    except BrokerError as error:
        if error.code is not Code.UNKNOWN_DEAD_LETTER:
            raise
        session.reply(call, m.Ok(False, error.code.text))
        return
    session.blocking = True

    def replayed(done: Pending[object]) -> None:
        session.blocking = False
        error = done.error
        if error is None:
            session.reply_later(call, m.Ok())
        elif isinstance(error, BrokerError) and error.code is Code.UNKNOWN_DEAD_LETTER:
            session.reply_later(call, m.Ok(False, error.code.text))
        else:  # such as: replayed already, or the schema of the topic refuses it
            words = refusal(call.opcode.name, call.request, error)[1]
            session.reply_later(call, m.Ok(False, shortened(words)))

    change.on_done(session.guarded(replayed))


def shortened(words: str) -> str:
    return words.encode()[:MAX_REASON_BYTES].decode(errors="ignore")


def purge(session: Conversation, call: Call, request: m.Topic) -> None:
    change = session.port.dead_letter_queue.purge(session.principal, request.topic)
    session.reply_when_durable(call, change, m.Ok())
