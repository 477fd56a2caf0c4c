"""Arguments of the wrong kind: one error of this library each, before any traffic."""

from __future__ import annotations

from typing import Any

import collective_ops
import pytest
from collective_ops import InvalidArgumentError, batch_isend_irecv, init_hccl, new_group, premul_sum


@pytest.fixture(autouse=True)
def one_rank() -> Any:
    init_hccl(rank=0, world_size=1)
    yield
    collective_ops.finalize()


@pytest.mark.parametrize("factor", [None, "x", 1j, [1.0]])
def test_a_factor_is_a_real_number(factor: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="premul_sum: factor="):
        premul_sum(factor)


@pytest.mark.parametrize("operations", [None, 3, [3], {}])
def test_a_batch_is_a_list_of_operations(operations: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"give a list of collective_ops\.P2POp"):
        batch_isend_irecv(operations)


@pytest.mark.parametrize("name", ["a\ud800", "two\nlines", "\x1b[31mred"])
def test_a_name_of_a_group_can_be_printed(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="can be printed"):
        new_group([0], name=name)


def test_members_need_some_time_to_come() -> None:
    with pytest.raises(InvalidArgumentError, match="connect_timeout=0"):
        new_group([0], connect_timeout=0)
