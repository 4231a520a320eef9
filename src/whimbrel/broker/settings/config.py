"""Configuration of a broker: every setting with its default, its allowed values, and the sentence that explains it.

Rule: a setting is defined once, in this folder; the file with all defaults and the reference page are made from it
(``config_files``).
Rule: every ``Config`` object is valid: each value, and the values together, are checked when it is built.
Rule: values keep the units of the configuration, such as seconds; the code that uses a value converts it.
Rule: a setting of which no operator can know a better value than the default becomes a constant. For one release a
configured value is still obeyed, and the broker logs a warning.
Rule: an empty path means that no file is used. Relative paths start at the directory where the broker was started.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from whimbrel.broker.settings import fields as setting
from whimbrel.broker.settings.fields import ConfigError, Section, nearest, setting_of, settings_of
from whimbrel.broker.settings.limits import MAX_CLIENT_ID_BYTES, LimitSettings
from whimbrel.broker.settings.listeners import ListenerSettings, ListenSettings, TlsSettings, check_listening
from whimbrel.broker.settings.log import LogSettings
from whimbrel.broker.settings.policies import PolicySettings
from whimbrel.model.bounds import INT32_MAX, INT64_MAX
from whimbrel.model.notification import NotificationId

__all__ = [
    "MAX_CLIENT_ID_BYTES",
    "SECTIONS",
    "AccessSettings",
    "Config",
    "HoldSettings",
    "LimitSettings",
    "ListenSettings",
    "ListenerSettings",
    "LogSettings",
    "MqttSettings",
    "NodeSettings",
    "ObserveSettings",
    "PipelineSettings",
    "PolicySettings",
    "SessionSettings",
    "TlsSettings",
    "constant_warnings",
    "unknown_setting",
    "with_values",
]

_UINT32_MAX = 2**32 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings(Section):
    """The node: its name and its data directory."""

    section: ClassVar[str] = "node"

    name: str = setting.checked_text(
        "node-1",
        "1 to 64 letters, digits, '.', '_' and '-', the first a letter or digit",
        lambda value: NotificationId(value, 0),
        "The node's name: it stands in the log and in every notification's id, so no two nodes may share one.",
    )
    data: str = setting.folder(
        "whimbrel-data",
        "The directory of the log and of the view of sessions; it is made if need be.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MqttSettings(Section):
    """MQTT features and limits that the broker offers its clients."""

    section: ClassVar[str] = "mqtt"

    keep_alive_s: int = setting.whole(
        60, 0, setting.UINT16_MAX, "The longest keep alive a client may ask for; 0 lets it have whatever it asks."
    )
    session_expiry_s: int = setting.whole(
        604_800,
        0,
        _UINT32_MAX,
        "The longest a session may outlive its connection.",
        note=f"{_UINT32_MAX}: for ever",
    )
    allow_zero_length_client_id: bool = setting.flag(
        "Whether a client may leave its identifier empty and be given one.", default=True
    )
    outbound_topic_aliases: int = setting.constant(
        setting.whole(
            32, 0, setting.UINT16_MAX, "How many topic aliases the broker sets for a client that allows as many."
        )
    )
    will_grace_s: int = setting.whole(
        30, 0, 86_400, "How long clients have to come back after a restart before wills without a delay are published."
    )
    maximum_qos: int = setting.whole(2, 0, 2, "The highest QoS that clients may publish with and be granted.")
    retain_available: bool = setting.flag(
        "Whether messages may be retained; if not, those that were are kept and sent to no client.", default=True
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldSettings(Section):
    """Offline message queues: how long and how many notifications are held for sessions whose device is away."""

    section: ClassVar[str] = "hold"

    ttl_s: int = setting.whole(
        604_800, 1, _UINT32_MAX, "How long a notification without an expiry is held for a session."
    )
    max: int = setting.whole(100_000, 1, INT32_MAX, "How many notifications are held for one subscription.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings(Section):
    """Named sessions, which several devices can share."""

    section: ClassVar[str] = "sessions"

    count: int = setting.whole(100_000, 0, INT32_MAX, "How many named sessions there may be.")
    devices: int = setting.whole(100, 1, 100_000, "How many devices may be members of one session.")
    joined: int = setting.constant(
        setting.whole(16, 1, 1_000, "How many sessions one device may be present in at once.")
    )
    device_expiry_s: int = setting.whole(
        2_592_000,
        0,
        _UINT32_MAX,
        "How long a device may be away from a session before it leaves it, as if it had asked to; "
        "the time in which the broker was down before its last start does not count.",
        note="0: for ever",
    )
    max: int = setting.whole(
        1_000, 1, INT32_MAX, "How many notifications are held for a subscription that does not say how many."
    )
    held: int = setting.whole(
        200_000, 1, INT64_MAX, "How many notifications all subscriptions of one session together may ask to be held."
    )
    username_is_session: bool = setting.flag(
        "Whether the user name of CONNECT is a session to join, and the password its password; not with a users file.",
        default=False,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSettings(Section):
    """Access control: the clients that may connect, and the topics that they may use.

    Without a users file any client may connect, and a user name proves nothing. With one, a client must give a name
    and password from it; clients that give no name may connect only if anonymous is true.
    """

    section: ClassVar[str] = "access"

    users: str = setting.path(
        "The users file, made with `whimbrel user add`; if not given, the file `users` in the data directory is used "
        "where there is one."
    )
    rights: str = setting.path(
        "The rights file, which says who may use which topics; without it every client may use all."
    )
    anonymous: bool = setting.flag(
        "Whether clients without a user name may connect although there is a users file.", default=False
    )
    check_retain_source: bool = setting.flag(
        "Whether a retained message is kept back from those who subscribe while the user whose client published it may "
        "not publish to its topic any more.",
        default=True,
    )
    insecure: bool = setting.flag(
        "Whether a broker without users may listen beyond loopback, so that any client that reaches it may connect.",
        default=False,
    )
    wrong_passwords_per_minute: int = setting.whole(
        10,
        0,
        1_000_000,
        "How many wrong passwords one address may give for one user or session, and a tenth of how many for all.",
        note="0: any number",
    )
    passwords_waiting: int = setting.constant(
        setting.whole(
            10_000, 1, 1_000_000, "How many clients may wait for their passwords to be verified; more are turned away."
        )
    )

    password_hash_mib: int = setting.power_of_two(
        128, 1, 128, "The memory that the hash of one password takes; half of it takes half the time, also to guess."
    )

    @property
    def admits_anonymous(self) -> bool:
        """Whether a client without a user name may connect."""
        return self.anonymous or not self.users


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserveSettings(Section):
    """Monitoring: the `$SYS` topics, and the log lines of the broker process."""

    section: ClassVar[str] = "observe"

    sys_interval_s: float = setting.real(10, 0, 86_400, "How often the $SYS topics are published; 0 is never.")
    log_format: str = setting.choice("text", ("text", "json"), "How lines about the broker's work are written.")
    log_level: str = setting.choice(
        "info", ("debug", "info", "warning", "error"), "The least important lines that are written."
    )
    log_lines_per_second: int = setting.whole(
        20,
        0,
        1_000_000,
        "How many lines of each kind (connections, refusals and so on) are written in a second; ten seconds' worth may "
        "come at once, and how many are left out is written.",
        note="0: any number",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSettings(Section):
    """Results that the broker reads from the pipeline's tables: the quality of devices' links, and the replica plan."""

    section: ClassVar[str] = "pipeline"

    tables: str = setting.path(
        "Where the pipeline keeps its tables (`whimbrel pipeline run --out`); without it nothing is read back.",
        what="directory",
    )
    interval_s: float = setting.real(10, 0.1, 86_400, "How often it is looked whether there is anything new.")
    max_rows: int = setting.constant(
        setting.whole(
            100_000,
            1,
            10_000_000,
            "How many devices are known, those who reported last, and subjects, those with most.",
        )
    )
    tells_links: bool = setting.flag(
        "Whether the links of connected devices are published under $SYS: all who may read that learn their names.",
        default=False,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All settings of a broker, by section."""

    node: NodeSettings = field(default_factory=NodeSettings)
    listen: ListenSettings = field(default_factory=ListenSettings)
    tls: TlsSettings = field(default_factory=TlsSettings)
    limits: LimitSettings = field(default_factory=LimitSettings)
    mqtt: MqttSettings = field(default_factory=MqttSettings)
    hold: HoldSettings = field(default_factory=HoldSettings)
    sessions: SessionSettings = field(default_factory=SessionSettings)
    access: AccessSettings = field(default_factory=AccessSettings)
    policies: PolicySettings = field(default_factory=PolicySettings)
    log: LogSettings = field(default_factory=LogSettings)
    observe: ObserveSettings = field(default_factory=ObserveSettings)
    pipeline: PipelineSettings = field(default_factory=PipelineSettings)
    listeners: tuple[ListenerSettings, ...] = ()
    """The ``[[listener]]`` tables: listeners in addition to those of ``listen``, with settings of their own."""
    configured_constants: tuple[str, ...] = field(default=(), compare=False)
    """Names (``section.key``) of the deprecated settings, which become constants, that were configured."""

    def __post_init__(self) -> None:
        check_listening(self.listen, self.tls, self.listeners)
        if self.sessions.username_is_session and self.has_users:
            sentence = "sessions.username_is_session is for brokers without a users file, and there is one"
            raise ConfigError("", "sessions.username_is_session", found=True, allowed="false", sentence=sentence)

    @property
    def has_users(self) -> bool:
        """Whether any listener has a users file, so that clients log in with passwords."""
        return bool(self.access.users) or any(each.users for each in self.listeners)

    @property
    def admits_anonymous(self) -> bool:
        """Whether a client without a user name may connect through at least one listener."""
        users = self.access.users
        return self.access.admits_anonymous or any(each.admits_anonymous(users) for each in self.listeners)

    def with_overrides(self, values: Mapping[str, object], *, source: str = "command line") -> Config:
        """Return this configuration with *values*, by ``section.key``; a value of None changes nothing.

        Raise ``ConfigError``, which names *source*, if a name is unknown or a value is not allowed.
        """
        tree: dict[str, dict[str, object]] = {}
        for where, value in values.items():
            section, _, key = where.partition(".")
            if section not in SECTIONS or key not in settings_of(SECTIONS[section]):
                raise unknown_setting(source, where)
            if value is not None:
                tree.setdefault(section, {})[key] = value
        return with_values(self, tree, source)


SECTIONS: dict[str, type[Section]] = {
    each.section: each
    for each in (
        NodeSettings,
        ListenSettings,
        TlsSettings,
        LimitSettings,
        MqttSettings,
        HoldSettings,
        SessionSettings,
        AccessSettings,
        PolicySettings,
        LogSettings,
        ObserveSettings,
        PipelineSettings,
    )
}


def with_values(
    config: Config,
    tree: Mapping[str, Mapping[str, object]],
    source: str,
    *,
    listeners: tuple[ListenerSettings, ...] | None = None,
) -> Config:
    """Return *config* with the values of *tree* (by section and key) and, if given, *listeners*.

    Raise ``ConfigError``, which names *source*, if a value is not allowed.
    """
    try:
        sections = {section: replace(getattr(config, section), **values) for section, values in tree.items()}
        return replace(
            config,
            **sections,
            listeners=config.listeners if listeners is None else listeners,
            configured_constants=(*config.configured_constants, *_constants_in(tree)),
        )
    except ConfigError as error:
        sentence = error.sentence
        raise ConfigError(source, error.where, error.found, error.allowed, error.advice, sentence=sentence) from None


def _constants_in(tree: Mapping[str, Mapping[str, object]]) -> Iterator[str]:
    for section, values in tree.items():
        known = settings_of(SECTIONS[section])
        yield from (f"{section}.{key}" for key in values if setting_of(known[key]).is_constant)


def constant_warnings(config: Config) -> Iterator[str]:
    """Yield a warning for each configured setting that is deprecated and becomes a constant."""
    for name in config.configured_constants:
        section, _, key = name.partition(".")
        default = settings_of(SECTIONS[section])[key].default
        yield f"{name} becomes a constant, {default}: remove it from the configuration; the next release refuses it"


def unknown_setting(source: str, where: str) -> ConfigError:
    """Return the error for a section or setting that does not exist, with the name that was probably meant."""
    section, _, key = where.partition(".")
    names = [f"{name}.{each}" for name, kind in SECTIONS.items() for each in settings_of(kind)]
    meant: str | None = None
    if not key:
        meant = nearest(section, SECTIONS)
    elif section in SECTIONS:
        meant = nearest(key, settings_of(SECTIONS[section]))
        meant = f"{section}.{meant}" if meant else None
    # First look for the same key in another section, then for similar names.
    meant = meant or next((name for name in names if name.partition(".")[2] == (key or section)), None)
    meant = meant or nearest(where, names)
    allowed = f"a setting of [{section}]" if key and section in SECTIONS else "a section of the configuration"
    if not key and meant in names:
        allowed += ", and settings inside one"
    if key and section in SECTIONS:
        there, own = f"[{section}] has no setting {key}", f"{section}."
        shown = meant.removeprefix(own) if meant else ""
    else:
        is_section = bool(key) or meant in SECTIONS or not meant
        there, shown = f"there is no section [{section}]" if is_section else f"there is no {section}", meant or ""
        shown = f"[{shown}]" if shown in SECTIONS else shown
    sentence = f"{there}; did you mean {shown}?" if shown else f"{there}; see whimbrel serve --print-config"
    return ConfigError(source, where, "an unknown name", allowed, sentence=sentence)
