"""The service of the administrative server: from censuses and the broker's plan to control data, and the time.

Rule: versions and ids are on the disk before control data with them is published.
Rule: the server is only a client of the broker; nodes and way-servers continue without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

import structlog

from whimbrel.carry.backbone.admin import Admin, AdminState
from whimbrel.carry.backbone.bridge import Bridge, id_for_message, id_of, read_id, topic_of
from whimbrel.carry.backbone.census import read_census
from whimbrel.carry.backbone.link import BrokerLink, Subscribed
from whimbrel.carry.backbone.messages import CENSUS, CONTROL, DOWN, SAMPLE_PROPERTY, TIME, UP, control_body, time_body
from whimbrel.carry.backbone.settings import AdminSettings
from whimbrel.carry.control.segments import ControlData
from whimbrel.carry.control.topics import read_topics
from whimbrel.carry.daemon.journal import SUBJECT, sample_name, subject_of
from whimbrel.carry.daemon.metrics import MetricsServer
from whimbrel.carry.daemon.request_socket import RequestSocket
from whimbrel.carry.daemon.service import check_folder, own_clock
from whimbrel.carry.hello import MAX_BODY_BYTES
from whimbrel.client import Message
from whimbrel.errors import InvalidInputError, InvalidValueError, Phrase, description_of
from whimbrel.log.errors import LogError
from whimbrel.log.files import locked, put
from whimbrel.model.clock import US_PER_S

__all__ = ["AdminService", "DamagedStateError"]

_log = structlog.get_logger("whimbrel")
_REPLICAS = "$SYS/broker/replicas"
_TIME_EVERY_S = 10.0
_TURN_S = 1.0
_SETTLE_US = 2 * US_PER_S
"""Time without another part of the broker's plan after which the plan counts as complete."""


class DamagedStateError(InvalidInputError):
    """A file is not the state of an administrative server. Reaction: restore it, or move it away."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"{self.path} is not the state of an administrative server: {self.reason}; without it ids may change"


class _StatusSocket(RequestSocket):
    """Answers ``whimbrel campus status``."""

    def __init__(self, folder: Path, status: Callable[[], Mapping[str, object]]) -> None:
        super().__init__(folder)
        self._status = status

    async def act(self, request: Mapping[str, object]) -> Mapping[str, object]:
        """Answer a request for the status; there are no others."""
        if request.get("do") != "status":
            raise InvalidValueError("do", request.get("do"), "status: this is the administrative server, not a node")
        return {"status": dict(self._status())}


class AdminService:
    """The administrative server of a campus."""

    def __init__(self, settings: AdminSettings, *, own: Callable[[], int] | None = None) -> None:
        self.settings, self._own = settings, own or own_clock()
        self._folder = Path(settings.data)
        self._stack = ExitStack()
        self._parts: dict[str, dict[str, int]] = {}
        self._parts_at: int | None = None
        self._last_message = "1s"
        """Position from which messages of the broker's users are bridged: the id of the last one, or a duration."""
        self._bridge = Bridge()
        self._waiting: dict[str, tuple[bytes, str]] = {}
        """Samples that are not published yet: body and id of the newest one, by topic on the broker."""
        self._control: ControlData | None = None
        self._census_said: dict[str, object] | None = None
        self._said_on = 0
        wanted = [
            Subscribed(topic_filter=f"{CENSUS}/#", take=self._take_census),
            Subscribed(topic_filter=f"{_REPLICAS}/#", take=self._take_part),
        ]
        if settings.bridge:
            wanted.append(Subscribed(topic_filter=f"{UP}/#", take=self._take_up))
            wanted.append(
                Subscribed(topic_filter=f"{SUBJECT}/#", take=self._take_sample, since=lambda: self._last_message)
            )
        self.link = BrokerLink(lambda reconnect: settings.client("campus-admin", reconnect), wanted)

    # -- opening and closing -----------------------------------------------------------------------------------------

    async def check(self) -> None:
        """Raise a ``WhimbrelError`` if the broker will never accept this server; it may be away."""
        await self.link.check()

    def open(self) -> None:
        """Read the topics file and the stored state."""
        settings = self.settings
        names = read_topics(Path(settings.topics)) if settings.topics else {}
        self._stack.enter_context(locked(check_folder(self._folder), "running the administrative server of a campus"))
        self.admin = Admin(
            names,
            state=self._read_state(),
            copies=settings.copies,
            target=settings.target,
            window_us=settings.window_us,
            every_us=settings.every_us,
        )

    def close(self) -> None:
        """Unlock the data folder."""
        self._stack.close()

    @property
    def _path(self) -> Path:
        return self._folder / "state.json"

    def _read_state(self) -> AdminState:
        try:
            text = self._path.read_bytes()
        except FileNotFoundError:
            return AdminState()
        try:
            said = json.loads(text)
            self._last_message = str(said["last_message"])
            ids = {str(name): int(topic) for name, topic in said["ids"].items()}
            released = {int(topic): int(at) for topic, at in said["released"].items()}
            for name, sample in said.get("bridged", {}).items():
                self._bridge.is_new(str(name), read_id(str(sample)))
            return AdminState(version=int(said["version"]), ids=ids, released=released)
        except (ValueError, LookupError, TypeError, AttributeError, InvalidInputError) as error:
            raise DamagedStateError(self._path, f"{type(error).__name__}: {error}") from None

    def _write_state(self) -> None:
        state = self.admin.state
        said = {
            "version": state.version,
            "ids": dict(state.ids),
            "released": dict(state.released),
            "last_message": self._last_message,
            "bridged": {name: sample_name(each) for name, each in self._bridge.newest.items()},
        }
        put(self._path, json.dumps(said, ensure_ascii=False).encode())

    # -- from the broker ---------------------------------------------------------------------------------------------

    def _take_census(self, message: Message) -> None:
        if message.topic == CENSUS or not message.payload:
            return  # the merged census, from before a restart; or a way-server was removed
        census = read_census(message.payload)
        if message.topic != f"{CENSUS}/{census.way_server}":
            raise InvalidValueError("census", census.way_server, f"that of {message.topic}")
        self.admin.take_census(census)

    def _take_part(self, message: Message) -> None:
        """Store a part of the broker's plan; a message without a body removes its part."""
        if message.topic != _REPLICAS and not message.topic.rpartition("/")[2].isdecimal():
            return
        try:
            said = json.loads(message.payload) if message.payload else {}
        except (ValueError, RecursionError):
            said = None
        if not isinstance(said, dict):
            raise InvalidValueError("plan", description_of(said), "an object of copies by subject")
        self._parts[message.topic] = {str(name): count for name, count in said.items() if type(count) is int}
        self._parts_at = self._own()

    def _take_sample(self, message: Message) -> None:
        """Give an id to a message of the broker's users, and queue it as a sample."""
        if message.id is None or id_of(message) is not None:
            return
        name, own = topic_of(message.topic), self._own()
        if name in self.settings.bridge:
            self._last_message = message.id
            self._check(message)
            named = id_for_message(message.id, at=own)
            self._bridge.is_new(name, named)  # a way-server that sends it up sends nothing new to the broker's users
            self._waiting[f"{DOWN}/{name}"] = message.payload, sample_name(named)

    def _take_up(self, message: Message) -> None:
        """Queue a sample of nodes that a way-server has sent up, unless another one has sent it before."""
        name = topic_of(message.topic)
        sample_id = id_of(message)
        if sample_id is None:
            raise InvalidValueError(SAMPLE_PROPERTY, None, "the id of a sample")
        self._check(message)
        if name in self.settings.bridge and self._bridge.is_new(name, sample_id):
            self._waiting[subject_of(name)] = message.payload, sample_name(sample_id)

    @staticmethod
    def _check(message: Message) -> None:
        if len(message.payload) > MAX_BODY_BYTES:
            found = Phrase(f"{len(message.payload)} bytes")
            raise InvalidValueError(f"sample on {message.topic}", found, f"at most {MAX_BODY_BYTES} bytes")

    # -- running -----------------------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until *stop* is set."""
        door, metrics = _StatusSocket(self._folder, self.status), MetricsServer(self.metrics)
        said: dict[str, object] = {"data": self.settings.data}
        if self.settings.metrics_port:
            said["metrics"] = await metrics.start("127.0.0.1", self.settings.metrics_port)
        await door.start()
        linked = asyncio.ensure_future(self.link.run())
        told_at = 0.0
        loop = asyncio.get_running_loop()
        _log.info("campus admin started", **said)
        try:
            while not stop.is_set():
                await self.turn()
                if loop.time() - told_at >= _TIME_EVERY_S and await self.link.publish(
                    TIME, time_body(self._own()), qos=0, retain=False
                ):
                    told_at = loop.time()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_TURN_S):
                        await stop.wait()
        finally:
            linked.cancel()
            door.close()
            metrics.close()
            with contextlib.suppress(asyncio.CancelledError):
                await linked
            self._write_state()
        _log.info("campus admin stopped")

    async def turn(self) -> None:
        """Publish the merged census and control data if they have changed, and the queued samples."""
        now = self._own()
        if self._parts_at is not None and now - self._parts_at >= _SETTLE_US:
            self._parts_at = None
            merged = {subject: copies for part in self._parts.values() for subject, copies in part.items()}
            self.admin.take_plan(merged, now=now)
        if not self.link.is_connected:
            return
        is_new_connection = self._said_on != self.link.connections
        data = self.admin.turn(now=now)
        if data is not None:
            try:
                self._write_state()
            except LogError as error:
                _log.warning("control data is not published, because the disk cannot be written to", reason=str(error))
                return
            self._control = data
        if self._control is not None and (data is not None or is_new_connection):
            if not await self.link.publish(CONTROL, control_body(self._control)):
                return
            _log.info("control data published", version=self._control.version, topics=len(self._control.topics))
        census = self.admin.census(now=now)
        if census != self._census_said or is_new_connection:
            body = json.dumps({"at": now, **census}, ensure_ascii=False, separators=(",", ":")).encode()
            if not await self.link.publish(CENSUS, body):
                return
            self._census_said = census
        self._said_on = self.link.connections
        for topic, (payload, named) in list(self._waiting.items()):
            if not await self.link.publish(topic, payload, user=[(SAMPLE_PROPERTY, named)]):
                return
            if self._waiting.get(topic) == (payload, named):
                del self._waiting[topic]
            self._note_bridged()

    def _note_bridged(self) -> None:
        """Store the ids of bridged samples, so that they are not bridged again after a restart."""
        try:
            self._write_state()
        except LogError as error:
            _log.warning("what was bridged is not written down", reason=str(error))

    def status(self) -> dict[str, object]:
        """Return the status: connection, users, plan, control data and way-servers, with their ages."""
        now = self._own()
        users, control = self.admin.users(now=now), self._control
        plan_at = self.admin.plan_at
        return {
            "role": "admin",
            "broker": "connected" if self.link.is_connected else "away",
            "broker_trouble": self.link.trouble,
            "users": len(users),
            "places": sum(each.places for each in users.values()),
            "plan": "the broker's" if self.admin.has_plan else "computed here",
            "plan_age_s": None if plan_at is None else round((now - plan_at) / US_PER_S, 1),
            "control_version": None if control is None else control.version,
            "control_age_s": None if control is None else round((now - control.version) / US_PER_S, 1),
            "topics": 0 if control is None else len(control.topics),
            "topics_left_out": self.admin.left_out,
            "way_servers": [
                {
                    "name": each.way_server,
                    "users": len(each.users),
                    "census_age_s": round((now - each.at) / US_PER_S, 1),
                }
                for each in self.admin.censuses.values()
            ],
            "refused": self.link.refused,
        }

    def metrics(self) -> dict[str, float]:
        """Return the metrics by name, for ``/metrics``; ages are in seconds."""
        now, control = self._own(), self._control
        users, censuses = self.admin.users(now=now), self.admin.censuses.values()
        found: dict[str, float] = {
            "users": len(users),
            "places": sum(each.places for each in users.values()),
            "way_servers": len(censuses),
            "topics": 0 if control is None else len(control.topics),
            "topics_left_out": self.admin.left_out,
            "plan_of_the_broker": float(self.admin.has_plan),
            "samples_waiting_for_broker": len(self._waiting),
            "broker_connected": float(self.link.is_connected),
            "broker_messages_refused_total": self.link.refused,
        }
        if censuses:
            found["census_age_seconds"] = (now - min(each.at for each in censuses)) / US_PER_S
        if self.admin.plan_at is not None:
            found["plan_age_seconds"] = (now - self.admin.plan_at) / US_PER_S
        if control is not None:
            found["control_age_seconds"] = (now - control.version) / US_PER_S
        return found
