"""The view of a broker: its state as rows, for a store that follows the log in small steps.

The rows of the hold, and beside them those of clients, held and retained messages and wills.
Rule: what a row has been written from restores it: both directions stand side by side here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import cbor2

from whimbrel.broker.memory import Memory
from whimbrel.broker.state.decisions import DECISION_KINDS, Decisions
from whimbrel.broker.state.places.retained_areas import RetainedAreas
from whimbrel.broker.state.retained import Retained
from whimbrel.broker.state.wills import Wills
from whimbrel.broker.wire.clients import LiveClient
from whimbrel.errors import InvalidValueError, description_of
from whimbrel.hold.sessions import Hold
from whimbrel.hold.touched_rows import ChangedRows, Key, TouchedRows
from whimbrel.log.records import BODY, row_from
from whimbrel.model.notification import Notification
from whimbrel.model.rows import fact_of
from whimbrel.node.memory import CLIENT_BYTES
from whimbrel.node.publication import KeptNotification
from whimbrel.shape.variables import LinkStates

__all__ = ["OWN_KINDS", "BrokerView"]

_MANY = 250
OWN_KINDS = DECISION_KINDS | {"notification", "retained", "source", "client", "will", "arrived", "link"}
"""The kinds of rows that are not the hold's."""


class BrokerView:
    """The rows that have changed since a store was last told, of everything that a restart has to know again."""

    def __init__(
        self,
        hold: Hold[KeptNotification],
        memory: Memory,
        clients: dict[str, LiveClient],
        retained: Retained,
        wills: Wills,
        decisions: Decisions,
        areas: RetainedAreas,
        links: LinkStates,
    ) -> None:
        self._areas = areas
        self._hold, self._memory, self._clients = hold, memory, clients
        self._retained, self._wills, self._decisions = retained, wills, decisions
        self._links = links
        self._touched = TouchedRows(
            {
                "client": self._client_row,
                "notification": lambda seq: _body(hold.kept(seq)),
                "retained": lambda subject: _body(retained.get(subject)),
                "source": lambda subject: _text(retained.sources.get(subject)),
                "will": wills.row,
                "arrived": areas.row,
                "link": links.row,
            },
            encode=bytes,  # each row is encoded already
        )
        self.touch: Callable[[Key], None] = self._touched.touch
        """Note that a row has changed that is not the hold's."""
        hold.changes()  # from now on it notes its own

    # -- writing -----------------------------------------------------------------------------------------------------

    @property
    def has_many_changes(self) -> bool:
        """Whether ``changes`` would take longer than clients like to wait."""
        return len(self._touched) + self._hold.changed > _MANY

    def some_changes(self) -> ChangedRows:
        """Return some of the rows that ``changes`` would; see ``TouchedRows.take_some``."""
        return _together(self._hold.some_changes(_MANY), self._touched.take_some(_MANY))

    def changes(self) -> ChangedRows:
        """Return the rows to put and those to drop since the last call."""
        return _together(_together(self._hold.changes(), self._touched.take()), self._decisions.changes())

    def touch_all(self) -> None:
        """Let ``changes`` return every row: the store has lost track of what changed."""
        self._hold.touch_all()
        self._decisions.touch_all()
        keys: list[Key] = [("client", name) for name in self._clients]
        keys += [("notification", seq) for seq, kept in self._hold.all_kept() if kept is not None]
        keys += [("retained", subject) for subject in self._retained.subjects()]
        keys += [("source", subject) for subject in self._retained.sources]
        keys += [("will", device) for device in self._wills.devices()]
        keys += [("arrived", session) for session in self._areas.sessions()]
        keys += [("link", device) for device in self._links.state]
        self._touched.touch_only(keys)

    def discard_changes(self) -> None:
        """Forget the changes: the store will be told everything, later."""
        self._hold.discard_changes()
        self._decisions.discard_changes()
        self._touched.clear()

    def _client_row(self, name: str) -> bytes | None:
        client = self._clients.get(name)
        if client is None:
            return None
        return cbor2.dumps(
            [
                client.session,
                client.expiry_us,
                client.disconnected_at,
                sorted(client.received),
                sorted(client.releasing),
                client.owner,
                client.is_unclaimed,
            ]
        )

    # -- reading -----------------------------------------------------------------------------------------------------

    def restore(self, node: str, rows: Iterable[tuple[Key, bytes]]) -> None:
        """Take in the rows of a store that are not the hold's."""
        links: dict[str, bytes] = {}
        for key, value in rows:
            if key[0] in DECISION_KINDS:
                self._decisions.restore_row(key, value)
                continue
            kind, whose = key
            if kind == "client":
                self._restore_client(str(whose), value)
            elif kind == "link":
                links[str(whose)] = value
            elif kind == "will":
                self._wills.restore(node, str(whose), value)
            elif kind == "arrived":
                self._areas.restore(str(whose), value)
            elif kind == "retained":
                message = _message(node, value)
                self._retained.put(message, self._retained.sources.get(message.subject))
            elif kind == "source":
                self._retained.sources[str(whose)] = value.decode()
            else:
                self._hold.keep_again(_message(node, value))
        self._links.restore(links)
        self._decisions.measure()
        self._touched.clear()

    def _restore_client(self, name: str, value: bytes) -> None:
        client = self._clients[name] = LiveClient(name, "", self._memory)
        self._memory.counted += CLIENT_BYTES
        client.session, client.expiry_us, client.disconnected_at, received, releasing, *more = cbor2.loads(value)
        client.received, client.releasing = set(received), set(releasing)
        client.owner, client.is_unclaimed = more or (None, True)  # older views have no owners
        client.recount()


def _together(rows: ChangedRows, more: ChangedRows) -> ChangedRows:
    """Return both, in the objects of *rows*."""
    put, drop = rows
    put.update(more[0])
    drop.update(more[1])
    return rows


def _body(message: KeptNotification | None) -> bytes | None:
    return None if message is None else message.record


def _text(source: str | None) -> bytes | None:
    return None if source is None else source.encode()


def _message(node: str, body: bytes) -> KeptNotification:
    seq, number = BODY.unpack_from(body)
    fact = fact_of(*row_from(node, seq, number, body[BODY.size :]))
    if not isinstance(fact, Notification):
        raise InvalidValueError("row of a view", description_of(fact), "a notification")
    return KeptNotification.of(fact, body)
