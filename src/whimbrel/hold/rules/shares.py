"""Shared subscriptions: choose the next session for a notification that a policy withheld (rule 21)."""

from __future__ import annotations

from collections.abc import Iterator

from whimbrel.hold.commands import Identity
from whimbrel.hold.rules.keeping import QueueRules
from whimbrel.hold.shared_subscriptions import chosen_of
from whimbrel.hold.state import NO_SHARES, Copy, State
from whimbrel.hold.view import View

__all__ = ["next_to_serve"]


def next_to_serve(
    state: State, view: View, keeping: QueueRules, copy: Copy, seq: int, identities: tuple[Identity, ...]
) -> Iterator[tuple[str, tuple[Identity, ...]]]:
    """Yield, for each share among *identities*, the session that gets the notification next, with its subscriptions.

    The candidates are the sessions in ``copy.shares`` that still want the notification. The choice is that of rule 18,
    and counts as the session's turn.
    """
    for share in sorted({share for share, _ in identities if share is not None and share in copy.shares}):
        left = [
            (name, there)
            for name, found in copy.shares.get(share, ())
            if (session := state.sessions.get(name)) is not None
            and (there := tuple(identity for identity in found if keeping.is_wanted(session, identity, copy)))
        ]
        if not left:
            _leave_out(copy, share, None)
            continue
        chosen = chosen_of(state, share, [name for name, _ in left])
        _leave_out(copy, None, chosen)
        state.turns.setdefault(share, {})[chosen] = seq
        view.touch(("turn", share, chosen))
        yield next(match for match in left if match[0] == chosen)


def _leave_out(copy: Copy, gone: str | None, chosen: str | None) -> None:
    """Remove the share *gone* from ``copy.shares``, and the session *chosen* from the candidates of every share.

    None removes nothing. *gone* has no candidate left; *chosen* gets the notification now.
    """
    left = {
        share: [match for match in others if match[0] != chosen]
        for share, others in copy.shares.items()
        if share != gone
    }
    copy.shares = {share: others for share, others in left.items() if others} or NO_SHARES
