"""The section ``[log]`` of the configuration: fsync, retention and history of the log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from whimbrel.broker.settings import fields as setting
from whimbrel.broker.settings.fields import Section
from whimbrel.model.bounds import INT32_MAX, INT64_MAX

__all__ = ["LogSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings(Section):
    """The log on disk: when it is synced (fsync), how long it is retained, and how far back clients may read it."""

    section: ClassVar[str] = "log"

    sync_interval_ms: int = setting.whole(
        50, 0, 60_000, "How long traffic that no session must hold may wait for the disk; 0 is no time."
    )
    segment_bytes: int = setting.whole(
        67_108_864, 65_536, INT32_MAX, "The size at which a segment ends and the next begins."
    )
    view_interval_s: float = setting.constant(
        setting.real(
            5, 0.1, 3_600, "How often the view of sessions follows the log; after a crash the rest is replayed."
        )
    )
    unwanted: bool = setting.flag(
        "Whether publications of QoS 0 that no session wants are logged. Without them the log is smaller; they get no "
        "number, are counted, and are missing from history and from what the pipeline counts, such as popularity.",
        default=True,
    )
    retain_days: int = setting.whole(
        30,
        0,
        36_500,
        "Segments are cut once their last record is so old; 0 is never. What sessions hold is in the checkpoints, "
        "and nothing of it is lost by a cut.",
    )
    retain_bytes: int = setting.whole(
        8 << 30,
        0,
        INT64_MAX,
        "The oldest segments are cut while segments and checkpoints take more than this; 0 is no bound. "
        "The open segment, and what the older checkpoint does not cover, always stays.",
    )
    retain_free_bytes: int = setting.whole(
        512 << 20,
        0,
        INT64_MAX,
        "The oldest segments are cut while less than this is free on the disk, even if a reader still needs them; "
        "0 is no bound.",
    )
    retain_reader_bytes: int = setting.whole(
        2 << 30,
        0,
        INT64_MAX,
        "How many bytes of the log a registered reader (a stream, an export) may keep from being cut by age or size; "
        "one that is further behind loses its place, and is named in the broker's log.",
    )
    retain_reader_days: int = setting.whole(
        7, 0, 36_500, "How long a reader stays registered if it does not renew its registration; 0 is for ever."
    )
    history_s: int = setting.whole(
        2_592_000,
        0,
        3_153_600_000,
        "How far back a client may ask for what is in the log when it subscribes (`since`); 0 is not at all.",
    )
    history_count: int = setting.constant(
        setting.whole(
            256,
            1,
            INT32_MAX,
            "How many subscriptions may be sent what is in the log at one time, each some 64 KiB ahead.",
        )
    )
    export: str = setting.path(
        "Where segments are exported to Parquet before they are cut; without it, what is cut is gone.",
        what="directory",
    )
