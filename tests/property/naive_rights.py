"""A second reading of rights, as naive as can be: rules one after the other, topics level by level, nothing remembered.

It shares nothing with ``rights.py``, ``authorizer.py`` and ``client_ids.py`` of the broker but the rules themselves.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from whimbrel.broker.access.client_ids import ClientRule
from whimbrel.broker.access.topic_rights import Action, Rights, Rule

__all__ = ["NaiveRights", "admits"]


def admits(topic_filter: str, topic: str) -> bool:
    """Tell whether a topic filter admits a topic (MQTT 5, 4.7)."""
    if topic.startswith("$") and topic_filter[0] in "+#":
        return False
    return _admits(topic_filter.split("/"), topic.split("/"))


def _admits(wanted: list[str], levels: list[str]) -> bool:
    if wanted == ["#"]:
        return True
    if not wanted or not levels:
        return not wanted and not levels
    return wanted[0] in ("+", levels[0]) and (
        _admits(wanted[1:], levels[1:]) or (wanted[1:] == ["#"] and levels[1:] == [])
    )


class NaiveRights(NamedTuple):
    """The rules of a rights file."""

    rules: Sequence[Rule]
    allows_by_default: bool
    client_ids: Sequence[ClientRule]

    def real(self) -> Rights:
        """Return the rights that the broker is given."""
        return Rights(self.rules, allows_by_default=self.allows_by_default, client_ids=self.client_ids)

    def allow(self, action: Action, user: str | None, client_id: str, topic: str) -> bool:
        """Tell what the first rule says that is about this; groups do not occur here."""
        for rule in self.rules:
            is_about = (
                action in rule.actions
                and (rule.user in (None, "*") or rule.user == (user or ""))
                and rule.client in (None, "*", client_id)
                and rule.group is None
            )
            for pattern in rule.topics:
                if not is_about or ("{user}" in pattern and not user):
                    continue
                if admits(pattern.replace("{user}", user or "").replace("{client}", client_id), topic):
                    return rule.is_allowing
        return self.allows_by_default

    def allow_client(self, user: str | None, client_id: str) -> bool:
        """Tell whether a user may connect with a client identifier."""
        if not self.client_ids:
            return True
        for rule in self.client_ids:
            if rule.user in (None, "*") or rule.user == (user or ""):
                for pattern in rule.ids:
                    if "{user}" in pattern and not user:
                        continue
                    text = re.escape(pattern.replace("{user}", user or "")).replace(r"\*", ".*")
                    if re.fullmatch(text, client_id):
                        return True
        return False
