"""Mount points: whatever a client says, what it reaches stands below its mount point."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from whimbrel.match.topics import matches
from whimbrel.mqtt.codes import PacketType
from whimbrel.mqtt.errors import ProtocolError
from whimbrel.mqtt.mounts import is_mounted, mount_filter, unmount_properties
from whimbrel.mqtt.properties import Properties, Property, decode_properties, passed_on
from whimbrel.mqtt.topics import check_topic_filter, split_share

MOUNTS = st.sampled_from(["a/", "home/7/", "/"])
LEVELS = st.sampled_from(["a", "b", "home", "7", "+", "#", "$share", "$filter", "$SYS", "", "g"])
FILTERS = st.lists(LEVELS, min_size=1, max_size=6).map("/".join)
TOPICS = st.lists(st.sampled_from(["a", "b", "home", "7", "$SYS", ""]), min_size=1, max_size=5).map("/".join)


@given(FILTERS, MOUNTS, TOPICS)
def test_a_mounted_filter_admits_only_what_stands_below(topic_filter: str, mount: str, topic: str) -> None:
    """A filter that can be subscribed to at all admits no topic that another client did not mean for this one."""
    whole = mount_filter(topic_filter, mount)
    if topic_filter.startswith("$filter/"):
        whole = whole.removeprefix("$filter/").partition("/")[2]
    try:
        _, plain = split_share(whole)
        check_topic_filter(plain)
    except ProtocolError:
        return
    assert is_mounted(whole, mount)
    # "home/7/#" admits "home/7" too (MQTT 5, 4.7.1.2); it has no name below, and the sender leaves it out.
    assert not matches(plain, topic) or topic.startswith(mount) or topic == mount[:-1]


@given(TOPICS, MOUNTS)
def test_a_plain_filter_admits_the_mounted_topic(topic: str, mount: str) -> None:
    """What a client publishes and what it subscribes to meet at the same place."""
    if topic and not topic.startswith("$"):
        assert matches(mount_filter(topic, mount), mount + topic)


@given(st.none() | TOPICS.filter(bool), MOUNTS)
def test_properties_keep_everything_but_a_foreign_response_topic(topic: str | None, mount: str) -> None:
    """The rest of what a publisher said travels on."""
    values: dict[Property, object] = {Property.CONTENT_TYPE: "x"}
    if topic is not None:
        values[Property.RESPONSE_TOPIC] = topic
    data = passed_on(Properties(values, user=(("a", "b"),)))
    found = decode_properties(unmount_properties(data, mount), PacketType.PUBLISH)
    expected = None if topic is None or not topic.startswith(mount) else topic.removeprefix(mount) or None
    assert found.text(Property.RESPONSE_TOPIC) == expected
    assert (found.text(Property.CONTENT_TYPE), found.user) == ("x", (("a", "b"),))
