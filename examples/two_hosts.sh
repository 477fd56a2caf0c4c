#!/usr/bin/env bash
# Four ranks on two hosts, which here are two network namespaces of this machine with a cable between them (needs
# root). What is exported is what ranks on real hosts are given, by a launcher or by hand: docs/hosts.md.
#
#   sudo examples/two_hosts.sh [PROGRAM]     # default: allreduce_minimal.py, with .venv's Python
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
program=${1:-$here/allreduce_minimal.py}
python=${PYTHON:-$here/../.venv/bin/python}

unshare --net sleep 600 & first=$!
unshare --net sleep 600 & second=$!
trap 'kill $first $second' EXIT  # the namespaces, and all that is in them, end with these
for holder in $first $second; do
  until [[ $(readlink /proc/$holder/ns/net) != $(readlink /proc/self/ns/net) ]]; do sleep 0.01; done
done
on() { nsenter --net="/proc/$1/ns/net" "${@:2}"; }  # runs a command on a host
ip link add eth0 netns $first type veth peer name eth0 netns $second
on $first ip address add 10.77.0.1/24 dev eth0
on $second ip address add 10.77.0.2/24 dev eth0
for host in $first $second; do on $host ip link set lo up; on $host ip link set eth0 up; done

export WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 MASTER_ADDR=10.77.0.1 MASTER_PORT=29500
COLLECTIVE_OPS_SECRET=$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')  # the same on all hosts
export COLLECTIVE_OPS_SECRET
ranks=()
for rank in 0 1 2 3; do
  host=$([[ $rank -lt 2 ]] && echo $first || echo $second)
  RANK=$rank LOCAL_RANK=$((rank % 2)) on $host "$python" "$program" & ranks+=($!)
done
for rank in "${ranks[@]}"; do wait "$rank"; done
