#!/usr/bin/env bash
# Which algorithm each collective takes, and what the others would cost: which_algorithm.sh [RANKS] [SIZE]
set -euo pipefail
for collective in all_reduce all_gather reduce_scatter broadcast reduce gather scatter all_to_all; do
  collective-ops tune explain "$collective" "${2:-1MiB}" --ranks "${1:-8}"
  echo
done
