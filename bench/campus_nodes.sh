#!/bin/sh
# Runs bench/campus_nodes.py on a virtual cable: unshare -Urn sh bench/campus_nodes.sh quiet 120
ip link add desk type veth peer name plug
ip link set desk up
ip link set plug up
ip link set lo up
sleep 2
exec "${PYTHON:-python}" "$(dirname "$0")/campus_nodes.py" "$@"
