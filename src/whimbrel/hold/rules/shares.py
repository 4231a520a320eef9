"""Shares whose notification a policy withheld: who is given it next (rule 21)."""

from __future__ import annotations

from collections.abc import Iterator

from whimbrel.hold.commands import Identity
from whimbrel.hold.counting import chosen_of
from whimbrel.hold.rules.keeping import Keeping
from whimbrel.hold.state import NO_SHARES, Copy, State
from whimbrel.hold.view import View

__all__ = ["next_to_serve"]


def next_to_serve(
    state: State, view: View, keeping: Keeping, copy: Copy, seq: int, identities: tuple[Identity, ...]
) -> Iterator[tuple[str, tuple[Identity, ...]]]:
    """Yield the session that is to serve each share among *identities* now, with its subscriptions to it.

    It is chosen as the first was (rule 18), of those that were left and still want it, and has its turn by it.
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
    """Forget a share without members, or a session in all shares: it has been given the notification."""
    left = {
        share: [match for match in others if match[0] != chosen]
        for share, others in copy.shares.items()
        if share != gone
    }
    copy.shares = {share: others for share, others in left.items() if others} or NO_SHARES
