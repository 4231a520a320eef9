"""``whimbrel campus node``: carry samples (short messages) of others, and serve the applications of this machine."""

from __future__ import annotations

from whimbrel.cli.campus.options import NodeOptions, RunOptions
from whimbrel.cli.options.groups import with_option_groups

__all__ = ["node"]


@with_option_groups()
def node(*, options: NodeOptions, run: RunOptions) -> None:
    """Run a node until it is stopped (Ctrl-C or SIGTERM): send Hello messages, carry samples, serve applications.

    Without --key there are no way-servers: the node uses its own clock and marks its samples as unsynchronised. Exits 2
    if a setting, a file or the interface cannot be used.

    Example: whimbrel campus node --interface wlan0
    """
    from whimbrel.carry.daemon.settings import NodeSettings, read_settings  # see above
    from whimbrel.cli.campus.running import become_node

    run.check()
    become_node(read_settings(NodeSettings, run.config, options.options_given()), run.log_format)
