"""Profiles of training steps, switched on by flags, in directories that `collective-ops analyze`, the Ascend
tools and Perfetto open.

    from collective_ops.profiler import add_profile_args, profile

    add_profile_args(parser)                 # --profile, --profile-step-start, --profile-ranks ...
    args = parser.parse_args()               # before init_hccl or init_process_group: see docs/profiling.md
    with profile(args) as profiler:
        for batch in loader:
            train(batch)
            profiler.step()

Nothing here imports PyTorch before a rank records. docs/profiling.md says what is measured and written.
"""

from .arguments import ProfileConfig, add_profile_args, parse_ranks
from .recording import Profiler, profile

__all__ = ["ProfileConfig", "Profiler", "add_profile_args", "parse_ranks", "profile"]
