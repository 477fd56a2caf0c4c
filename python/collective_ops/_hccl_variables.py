"""The environment variables of HCCL and torch_npu: what each takes, and its default.

Collective-ops itself reads HCCL_CONNECT_TIMEOUT, HCCL_EXEC_TIMEOUT, HCCL_ALGO and HCCL_DETERMINISTIC; on
Ascend devices HCCL reads all.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_ALGORITHM = r"level0:NA;level1:[\w-]+(;level2:[\w-]+)?"
_OPERATORS = "allgather|reducescatter|allreduce|broadcast|reduce|scatter|alltoall"
_ON_OFF = "0|1"
_BOOLEAN = "TRUE|FALSE"


@dataclass(frozen=True)
class HcclVariable:
    default: str
    low: int | None = None  # a whole number from low to high, or
    high: int | None = None
    pattern: str = ".+"  # what the whole value matches, in any case
    unit: str = ""

    def problem(self, value: str) -> str:
        """What is expected instead of `value`; "" where it can be used."""
        if self.low is None or self.high is None:
            return "" if re.fullmatch(self.pattern, value, re.IGNORECASE) else f"expected {self.pattern}"
        fits = re.fullmatch(r"\d+", value, re.ASCII) and self.low <= int(value) <= self.high
        unit = f" {self.unit}" if self.unit else ""
        return "" if fits else f"expected a whole number from {self.low} to {self.high}{unit}"


HCCL_VARIABLES = {
    "HCCL_CONNECT_TIMEOUT": HcclVariable("120", 120, 7200, unit="s"),
    "HCCL_EXEC_TIMEOUT": HcclVariable("1836", 0, 2147483647, unit="s"),
    "HCCL_ALGO": HcclVariable(
        "by HCCL", pattern=rf"{_ALGORITHM}|({_OPERATORS})={_ALGORITHM}(/({_OPERATORS})={_ALGORITHM})*"
    ),
    "HCCL_BUFFSIZE": HcclVariable("200", 1, 2**31 - 1, unit="MB"),
    "HCCL_INTRA_PCIE_ENABLE": HcclVariable("1", pattern=_ON_OFF),
    "HCCL_INTRA_ROCE_ENABLE": HcclVariable("0", pattern=_ON_OFF),
    "HCCL_INTER_HCCS_DISABLE": HcclVariable("FALSE", pattern=_BOOLEAN),
    "HCCL_OP_EXPANSION_MODE": HcclVariable(
        "by device", pattern="AI_CPU|AICPU_TS|AICPU_CacheDisable|AIV|CCU_MS|CCU_SCHED|HOST|HOST_TS"
    ),
    "HCCL_DETERMINISTIC": HcclVariable("false", pattern="false|true|strict"),
    "HCCL_LOGIC_SUPERPOD_ID": HcclVariable("", pattern=".{0,127}"),
    "HCCL_RDMA_PCIE_DIRECT_POST_NOSTRICT": HcclVariable("FALSE", pattern=_BOOLEAN),
    "HCCL_RDMA_QPS_PER_CONNECTION": HcclVariable("1", 1, 32),
    "HCCL_RDMA_QP_PORT_CONFIG_PATH": HcclVariable(""),
    "HCCL_MULTI_QP_THRESHOLD": HcclVariable("512", 1, 8192, unit="KB"),
    "HCCL_ALG_MULTIPLE_DIMENSION_SPLIT_RATIO": HcclVariable("0.5", pattern=r"0(\.\d+)?|1(\.0+)?"),
    "HCCL_IF_IP": HcclVariable("", pattern=r"[0-9a-f.:]+"),
    "HCCL_SOCKET_IFNAME": HcclVariable("by name"),
    "HCCL_SOCKET_FAMILY": HcclVariable("AF_INET", pattern="AF_INET6?"),
    "HCCL_IF_BASE_PORT": HcclVariable("60000", 1024, 65520),
    "HCCL_HOST_SOCKET_PORT_RANGE": HcclVariable("", pattern=r"auto|\d+(-\d+)?(,\d+(-\d+)?)*"),
    "HCCL_NPU_SOCKET_PORT_RANGE": HcclVariable("16666", pattern=r"auto|\d+(-\d+)?(,\d+(-\d+)?)*"),
    "HCCL_RDMA_TC": HcclVariable("132", 0, 255),
    "HCCL_RDMA_SL": HcclVariable("4", 0, 7),
    "HCCL_RDMA_TIMEOUT": HcclVariable("20", 0, 31),
    "HCCL_RDMA_RETRY_CNT": HcclVariable("7", 1, 7),
    "HCCL_DIAGNOSE_ENABLE": HcclVariable("0", pattern=_ON_OFF),
    "HCCL_ENTRY_LOG_ENABLE": HcclVariable("0", pattern=_ON_OFF),
    "HCCL_DEBUG_CONFIG": HcclVariable("", pattern=r"\^?(ALG|TASK|RESOURCE)(,(ALG|TASK|RESOURCE))*"),
    "HCOMM_DEBUG_CONFIG": HcclVariable("", pattern=r"\^?(TASK|DATA_OP)(,(TASK|DATA_OP))*"),
    "HCCL_DFS_CONFIG": HcclVariable("", pattern=r"[\w:,\- ]+"),
    "HCCL_OP_RETRY_ENABLE": HcclVariable("L1:0,L2:0", pattern=r"L[12]:[01](, ?L[12]:[01])*"),
    "HCCL_OP_RETRY_PARAMS": HcclVariable(
        "MaxCnt:1,HoldTime:5000,IntervalTime:1000", pattern=r"(MaxCnt|HoldTime|IntervalTime):\d+(,\w+:\d+)*"
    ),
    "HCCL_WHITELIST_DISABLE": HcclVariable("1", pattern=_ON_OFF),
    "HCCL_WHITELIST_FILE": HcclVariable(""),
    "HCOMM_TA_CTP_UB_TIMEOUT": HcclVariable("8", 0, 31),
    "HCOMM_TA_RTP_UB_TIMEOUT": HcclVariable("16", 0, 31),
    "HCOMM_TA_RTP_UBOE_TIMEOUT": HcclVariable("16", 0, 31),
    # torch_npu's own
    "HCCL_ASYNC_ERROR_HANDLING": HcclVariable("1", pattern=r"[0-3]"),
    "HCCL_DESYNC_DEBUG": HcclVariable("0", pattern=_ON_OFF),
    "HCCL_EVENT_TIMEOUT": HcclVariable("", 0, 2147483647, unit="s"),
    "HCCL_BLOCKING_WAIT": HcclVariable("0", pattern=_ON_OFF),
    "P2P_HCCL_BUFFSIZE": HcclVariable("", 0, 2**31 - 1, unit="MB"),
}
