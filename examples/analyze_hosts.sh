#!/usr/bin/env bash
# Profiles that lie on many hosts: each host reads its own into a small file, and one puts these together.
#   analyze_hosts.sh DIR HOST...    # the same DIR on each host, by ssh; the shards come here
#   analyze_hosts.sh                # without hosts: two made-up ones in folders of this one
set -euo pipefail
python="${PYTHON:-python3}"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
if [ $# -gt 0 ]; then
  directory="$1"
  for host in "${@:2}"; do
    ssh "$host" collective-ops analyze shard -d "$directory" -o "/tmp/shard-$$.db"
    scp -q "$host:/tmp/shard-$$.db" "$work/$host.db"
    ssh "$host" rm "/tmp/shard-$$.db"
  done
else
  mkdir "$work/all" "$work/host0" "$work/host1"
  PYTHONPATH="$(dirname "$0")${PYTHONPATH:+:$PYTHONPATH}" "$python" -c \
    "from pathlib import Path; import slow_rank; slow_rank.make_up_profiles(Path('$work/all'))"
  mv "$work"/all/rank[0-3].json "$work/host0"
  mv "$work"/all/rank[4-7].json "$work/host1"
  for host in host0 host1; do
    "$python" -m collective_ops analyze shard -d "$work/$host" -o "$work/$host.db"
  done
fi
"$python" -m collective_ops analyze merge "$work"/*.db -o . # into ./cluster_analysis_output/
