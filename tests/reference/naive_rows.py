"""The rows of a view, by what the naive node knows: spelled out here, not written by the code that reads them."""

from __future__ import annotations

from typing import Any

import cbor2
from naive_node import NaiveNode

from whimbrel.hold.touched_rows import Key
from whimbrel.log.records import BODY, row_from
from whimbrel.model.facts import Fact
from whimbrel.model.rows import fact_of
from whimbrel.model.typed import to_typed

__all__ = ["KINDS", "decoded", "expected_rows"]

KINDS = frozenset("client notification retained source will link decision policy device variables failures".split())


def expected_rows(naive: NaiveNode) -> dict[Key, Any]:
    """Return the rows of a view, by what the naive node knows; a record is the fact that it is of."""
    rows: dict[Key, Any] = {}
    for name, client in naive.clients.items():
        received, releasing = sorted(client.received), sorted(client.releasing)
        whose = [client.owner, client.is_unclaimed]
        rows["client", name] = [
            client.session,
            client.expiry_us,
            client.disconnected_at,
            received,
            releasing,
            *whose,
        ]
    for seq in naive.hold.stored:
        rows["notification", seq] = naive.hold.notifications[seq]
    for subject, notification in naive.retained.items():
        rows["retained", subject] = notification
    for subject, user in naive.sources.items():
        rows["source", subject] = user.encode()
    for device, will in naive.wills.items():
        is_gone = will.gone_at is not None
        gone = [will.gone_at, will.expiry_us, will.ended_with_the_broker] if is_gone else [None]
        rows["will", device] = [will.fact, will.owner, *gone]
    for device, link in naive.links.items():
        rows["link", device] = list(link)
    for (seq, device), decisions in naive.kept.items():
        rows["decision", seq, device] = decisions
    return rows | _rows_of_policies(naive)


def _rows_of_policies(naive: NaiveNode) -> dict[Key, Any]:
    rows: dict[Key, Any] = {}
    for name, version in naive.policies.items():
        rows["policy", name] = [version.seq, version.owner, version.text, 0]
    for device in naive.devices.keys() | naive.chosen.keys():
        rows["device", device] = [naive.chosen.get(device)]
        if device in naive.devices:
            found = naive.devices[device]
            members = [[root, to_typed(values)] for root, values in found.members.items()]
            rows["device", device] += [found.reported_at, to_typed(found.own), members]
    for (device, policy), values in naive.variables.items():
        rows["variables", device, policy] = to_typed(values)
    for device, policy, publisher, count in naive.failures:
        rows.setdefault(("failures", device, policy), []).append([publisher, count])
    return rows


def decoded(node: str, key: Key, value: bytes) -> Any:
    """Return a row that a store was told, as ``expected_rows`` has it."""
    if key[0] == "source":
        return value
    if key[0] in {"notification", "retained"}:
        return _fact(node, value)
    row = cbor2.loads(value)
    if key[0] == "decision":
        return [_fact(node, record) for record in row]
    if key[0] == "will":
        record, owner, *gone = row
        return [
            _fact(node, record),
            owner,
            *(gone if gone[0] is not None else [None]),
        ]  # the rest counts once it is gone
    return row


def _fact(node: str, record: bytes) -> Fact:
    seq, number = BODY.unpack_from(record)
    return fact_of(*row_from(node, seq, number, record[BODY.size :]))
