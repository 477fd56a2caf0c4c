#!/usr/bin/env bash
# How fast each collective is on this host: perf_sweep.sh [RANKS] [LARGEST SIZE]
set -euo pipefail
for collective in all_reduce all_gather reduce_scatter broadcast reduce gather scatter alltoall; do
  echo "# $collective"
  collective-ops perf "$collective" -p "${1:-8}" -b 1K -e "${2:-16M}" -f 16 --format nccl-tests
done
