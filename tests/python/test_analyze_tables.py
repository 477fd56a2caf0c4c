"""Tables of operators, communication and messages, against sums made by hand; tables for other programs."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from collective_ops import analysis_tables, analyze, cli
from made_up_profiles import analyzed, ascend_rank, event, kineto, rows_of, training_job, write

MB = 1 << 20


def call(name: str, start: float, took: float, elements: int, **other: Any) -> dict[str, Any]:
    arguments = {"In msg nelems": elements, "Out msg nelems": elements, "dtype": "Float", "Group size": 4}
    arguments |= {"Collective name": name, "Process Group Name": "0", **other}
    return event(f"ncclDevKernel_{name}", "kernel", start, took, pid=0, tid=20, **arguments)


def job(folder: Path) -> None:
    """Four ranks; rank 3 comes 100 us late to all; calls move for 400 us from then on."""
    config = [{"pg_name": "0", "pg_desc": "tp", "ranks": [0, 1, 2, 3]}]
    for rank in range(4):
        events = []
        for k in range(5):
            late = 100 if rank == 3 else 0
            begin = 10_000.0 * k
            events.append(event("gemm", "kernel", begin, 300 + 10 * rank + k, pid=0))
            events.append(call("allreduce", begin + 1000 + late, 500 - late, MB, Seq=2 * k))
            events.append(call("_allgather_base", begin + 2000 + late, 500 - late, 4096, Seq=2 * k + 1))
            events.append(event("Memcpy HtoD", "gpu_memcpy", begin + 3000, 7, pid=0))
        content = kineto(events, rank=rank, world_size=4)
        content["distributedInfo"]["pg_config"] = config
        write(folder / f"rank{rank}.json", content)


def test_communication_by_group_and_size(tmp_path: Path) -> None:
    job(tmp_path / "p")
    rows = {row["collective"]: row for row in rows_of(analyzed(tmp_path / "p"), "communication.csv")}
    assert rows.keys() == {"allreduce", "_allgather_base"}
    reduce, gather = rows["allreduce"], rows["_allgather_base"]
    assert {row["group"] for row in rows.values()} == {"tp"}
    assert (reduce["size_class"], gather["size_class"]) == ("1MiB-16MiB", "4KiB-64KiB")
    assert (reduce["calls"], reduce["calls_of_one_rank"]) == ("5", "0")
    assert float(reduce["bytes"]) == 5 * 4 * MB
    times = [float(reduce[name]) for name in ("elapsed_ms", "waiting_ms", "moving_ms")]
    assert times == pytest.approx([2.5, 0.5, 2.0])
    assert float(reduce["algbw_gb_s"]) == pytest.approx(4 * MB / 400e-6 / 1e9)
    assert float(reduce["busbw_gb_s"]) == pytest.approx(2 * 3 / 4 * 4 * MB / 400e-6 / 1e9)
    assert float(gather["busbw_gb_s"]) == pytest.approx(3 / 4 * 4 * 4096 / 400e-6 / 1e9)
    assert (reduce["latest_rank"], reduce["slowest_rank"]) == ("3", "")


def test_operators_with_the_spread_of_ranks(tmp_path: Path) -> None:
    job(tmp_path / "p")
    report = analyzed(tmp_path / "p")
    rows = {row["operator"]: row for row in rows_of(report, "operator_time.csv")}
    gemm = rows["gemm"]
    times = [300 + 10 * rank + k for rank in range(4) for k in range(5)]
    assert (gemm["kind"], gemm["count"], gemm["share"]) == ("compute", "20", "1.000000")
    named = [float(gemm[name]) for name in ("total_us", "average_us", "min_us", "max_us")]
    assert named == [sum(times), sum(times) / 20, 300, 334]
    assert [float(gemm["least_rank_us"]), float(gemm["most_rank_us"])] == [sum(times[:5]), sum(times[15:])]
    assert (gemm["least_rank"], gemm["most_rank"]) == ("0", "3")
    assert (
        rows["Memcpy HtoD"]["kind"] == "copy" and rows["ncclDevKernel_allreduce"]["kind"] == "communication"
    )
    kinds = rows_of(report, "compute_op_sum.csv")
    assert [(row["OpType"], row["Rank"], row["Count"]) for row in kinds] == [
        ("gemm", rank, "20" if rank == "all" else "5") for rank in ("all", "0", "1", "2", "3")
    ]
    deviation = (sum((t - sum(times) / 20) ** 2 for t in times) / 19) ** 0.5
    assert float(kinds[0]["StdNs"]) == pytest.approx(deviation * 1000, rel=1e-6)
    breakdown = rows_of(report, "temporal_breakdown.csv")[0]
    assert float(breakdown["window_us"]) == 43_007
    assert float(breakdown["compute_us"]) == sum(times[:5])
    assert float(breakdown["non_compute_us"]) == 5 * (500 + 500 + 7)
    shares = [float(breakdown[f"{part}_share"]) for part in ("idle", "compute", "non_compute")]
    assert sum(shares) == pytest.approx(1, abs=2e-6)


def test_which_side_of_a_message_is_late(tmp_path: Path) -> None:
    # 0 sends to 1: first the sender is 300 us late, then the receiver is 200 us late.
    times = {"send": [(1300, 200), (5000, 400)], "recv": [(1000, 500), (5200, 200)]}
    for rank, name in enumerate(times):
        peer = {"Dst Rank": 1} if name == "send" else {"Src Rank": 0}
        events = [call(name, start, took, 1024, Seq=-1, **peer) for start, took in times[name]]
        write(tmp_path / "p" / f"rank{rank}.json", kineto(events, rank=rank, world_size=2))
    (row,) = rows_of(analyzed(tmp_path / "p"), "messages.csv")
    assert (row["source"], row["destination"], row["messages"], row["unpaired"]) == ("0", "1", "2", "0")
    named = [float(row[name]) for name in ("late_sender_ms", "late_receiver_ms", "moving_ms")]
    assert named == pytest.approx([0.3, 0.2, 0.4])


def test_messages_of_a_group_name_ranks_of_the_job(tmp_path: Path) -> None:
    """As torch.profiler writes them, whatever the group."""
    config = [{"pg_name": "5", "pg_desc": "pp", "ranks": [1, 3]}]
    for rank, name, peer in ((1, "recv", {"Src Rank": 3}), (3, "send", {"Dst Rank": 1})):
        events = [call(name, 1000, 200, 1024, **{**peer, "Process Group Name": "5"})]
        content = kineto(events, rank=rank, world_size=4)
        content["distributedInfo"]["pg_config"] = config
        write(tmp_path / "p" / f"rank{rank}.json", content)
    (row,) = rows_of(analyzed(tmp_path / "p"), "messages.csv")
    assert (row["source"], row["destination"], row["messages"], row["unpaired"]) == ("3", "1", "1", "0")


def test_a_message_to_oneself_tells_no_peer(tmp_path: Path) -> None:
    for rank, name, peer in ((0, "send", {"Dst Rank": 0}), (1, "recv", {"Src Rank": 1})):
        events = [call(name, 1000, 200, 1024, **peer)]
        write(tmp_path / "p" / f"rank{rank}.json", kineto(events, rank=rank, world_size=2))
    assert "messages.csv" not in [file.name for file in analyzed(tmp_path / "p").files]


def test_kernels_of_ascend_profiles(tmp_path: Path) -> None:
    for rank in range(2):
        output = ascend_rank(tmp_path / "p", rank) / "ASCEND_PROFILER_OUTPUT"
        text = "Step Id,Name,Type,OP State,Accelerator Core,Start Time(us),Duration(us),Input Shapes\r\n"
        text += f'5,mm,MatMulV2,dynamic,AI_CORE,1736408883704643.212\t,{50 + rank}.5,"""2,3"""\r\n' * 3
        text += "5,hcom_allReduce__586_0_1,hcom_allReduce_,N/A,HCCL,1.0\t,10.25,N/A\r\n5,cut,Ad"
        (output / "kernel_details.csv").write_bytes(text.encode())
    report = analyzed(tmp_path / "p")
    rows = {row["operator"]: row for row in rows_of(report, "operator_time.csv")}
    assert rows.keys() == {"mm", "hcom_allReduce__586_0_1"}
    assert (rows["mm"]["type"], rows["mm"]["kind"], rows["mm"]["count"]) == ("MatMulV2", "compute", "6")
    assert float(rows["mm"]["total_us"]) == 3 * 50.5 + 3 * 51.5
    assert any("1 rows are cut off" in problem["problem"] for problem in report.data["problems"])
    (row,) = rows_of(report, "communication.csv")
    assert (row["collective"], row["calls"]) == ("hcom_allReduce", "2")
    assert float(row["bytes"]) == 2 * 20e6 and row["algbw_gb_s"] == ""


def test_the_tables_as_columns(tmp_path: Path) -> None:
    training_job(tmp_path / "p", ranks=3, steps=4, late={1: 500})
    report = analyzed(tmp_path / "p")
    assert {"summary", "operator_time", "communication", "slow_rank"} <= set(report.tables)
    summary = report.table("summary")
    assert summary["rank"] == [rank for rank in range(3) for _ in range(4)]
    assert all(isinstance(value, float) for value in summary["computing_us"])
    with pytest.raises(KeyError, match="there are "):
        report.table("nothing")


def test_arrow_pandas_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    training_job(tmp_path / "p", ranks=2, steps=3)
    report = analyzed(tmp_path / "p")
    table = report.arrow("summary")
    assert table.column("rank").type == pyarrow.int64()
    assert table.num_rows == 6
    files = report.write_parquet()
    assert {file.stem for file in files} == set(report.tables)
    for file in files:
        assert parquet.read_table(file).to_pydict() == report.table(file.stem)
    pandas = pytest.importorskip("pandas")
    assert isinstance(report.pandas("summary"), pandas.DataFrame)


def test_without_pyarrow_the_command_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    training_job(tmp_path / "p", ranks=1, steps=2)
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    command = ["analyze", "cluster", "-d", str(tmp_path / "p"), "-o", str(tmp_path / "out"), "--parquet"]
    assert cli.main(command) == analyze.FAILED
    assert "pip install pyarrow" in capsys.readouterr().err


def test_columns_keep_text_and_gaps(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["a", "b", "c", "d"], ["1", "", "x,\ny", ""], ["2", "0.5", "3", ""]])
    assert analysis_tables.read(path) == {"a": [1, 2], "b": [None, 0.5], "c": ["x,\ny", "3"], "d": ["", ""]}


def test_every_new_mode_alone(tmp_path: Path) -> None:
    job(tmp_path / "p")
    for mode, name in [
        ("communication", "communication.csv"),
        ("operator_time", "operator_time.csv"),
        ("compute_op_sum", "compute_op_sum.csv"),
        ("temporal_breakdown", "temporal_breakdown.csv"),
    ]:
        assert [file.name for file in analyzed(tmp_path / "p", mode).files] == [name]
    with pytest.raises(ValueError, match="sends and receives that name the other rank"):
        analyzed(tmp_path / "p", "messages")
    json.loads(json.dumps(analyzed(tmp_path / "p").data))
