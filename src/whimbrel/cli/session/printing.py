"""Printing for ``whimbrel session``: text for people, or JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:  # other commands need not load asyncio and MQTT
    from whimbrel.client import SessionChange, SessionChanges, SessionSubscription

__all__ = ["change_line", "counts_text", "print_changes", "print_done", "tree_of", "words_of"]


def print_done(name: str, what: str, *, as_json: bool) -> None:
    """Print that a command has changed the session *name*: created, released, and so on (*what*)."""
    typer.echo(json.dumps({"session": name, "done": what}, ensure_ascii=False) if as_json else f"{name}: {what}")


async def print_changes(changes: SessionChanges, name: str, *, as_json: bool) -> None:
    """Print the changes that others make to a session, until this device is put out of it."""
    async for change in changes:
        if change.session == name:
            typer.echo(change_line(change, as_json=as_json), err=True)
            if change.subscription is None:
                return


def change_line(change: SessionChange, *, as_json: bool) -> str:
    """Return a change of a session as one line."""
    subscription, who = change.subscription, change.device or "a device"
    if as_json:
        tree = None if subscription is None else tree_of(subscription)
        told = {"session": change.session, "change": change.change, "subscription": tree, "device": change.device}
        return json.dumps(told, ensure_ascii=False)
    if subscription is not None:
        return f"{change.session}: {who} {change.change} {words_of(subscription)}"
    if change.change == "deleted":
        return f"{change.session}: deleted by {who}"
    return f"{change.session}: put out by {who}"


def counts_text(devices: int, subscriptions: int, held: int) -> str:
    """Return the numbers of a session's devices, subscriptions and held notifications, in words."""
    plural = ("" if devices == 1 else "s", "" if subscriptions == 1 else "s")
    return f"{devices} device{plural[0]}, {subscriptions} subscription{plural[1]}, {held} held"


def words_of(subscription: SessionSubscription) -> str:
    """Return a subscription as one line."""
    said = {
        "name": subscription.name or None,
        "filter": subscription.filter,
        "qos": subscription.qos,
        "ttl": subscription.ttl_s,
        "max": subscription.max,
        "near": subscription.near,
        "stale": None if subscription.near is None else subscription.stale_s,
        "keys": len(subscription.keys) or None,
        "insecure": ("yes" if subscription.insecure else "no") if subscription.keys else None,
    }
    options = [f"{name}={value}" for name, value in said.items() if value is not None]
    return "  ".join([subscription.topic_filter, *options])


def tree_of(subscription: SessionSubscription) -> dict[str, object]:
    """Return a subscription in the form that it has on the wire."""
    tree = asdict(subscription)
    tree["topic"], tree["ttl"] = tree.pop("topic_filter"), tree.pop("ttl_s")
    tree["stale"] = tree.pop("stale_s")
    return tree
