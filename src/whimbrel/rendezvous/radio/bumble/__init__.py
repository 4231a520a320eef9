"""A real Bluetooth stack (BR/EDR): HCI to an adapter, L2CAP above it, both by Bumble (the extra ``radio``).

``framing`` is pure; ``adapter`` sends HCI commands with time limits; ``radio`` is the shell that the nodes know as
``Radio``; ``air`` is an air in software for tests and demonstrations.
"""
