#!/usr/bin/env bash
# Profiles steps 10 to 14 of ranks 0 and 1 of the ResNet example, and says where their time went:
# profile_step_range.sh [RANKS] [DIRECTORY] [OPTIONS OF train_resnet.py]
set -euo pipefail
ranks="${1:-8}"
directory="${2:-./profiling_result/}"
collective-ops run --nproc_per_node "$ranks" "$(dirname "$0")/train_resnet.py" --epochs "$((15 * ranks / 44 + 2))" \
  --profile --profile-step-start 10 --profile-step-end 15 --profile-level level2 --profile-ranks 0,1 \
  --profile-with-cpu --profile-with-memory --profile-save-path "$directory" --profile-clean "${@:3}"
collective-ops profile list -d "$directory"
collective-ops analyze cluster -d "$directory" || [ $? -eq 3 ] # 3: ranks that were not profiled are named
