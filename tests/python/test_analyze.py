"""The analysis of profiles of many ranks: numbers against brute force, damage, who waits for whom, files."""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from collective_ops import analyze
from made_up_profiles import BASE_NS, analyzed, ascend_rank, event, kineto, rows_of, training_job, write

# ---- steps -------------------------------------------------------------------------------------------


def covered(intervals: list[tuple[int, int]]) -> set[int]:
    return {tick for begin, end in intervals for tick in range(begin, end)}


@pytest.mark.parametrize("seed", range(12))
def test_a_step_is_the_sum_of_its_parts(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    events, compute, communication, copies = [], [], [], []
    for _ in range(chance.randint(1, 30)):
        begin, length = chance.randrange(400), chance.randrange(1, 60)
        cat, name, into = chance.choice(
            [
                ("kernel", "gemm", compute),
                ("kernel", "ncclKernel_AllReduce_RING_LL", communication),
                ("gpu_memcpy", "Memcpy HtoD", copies),
            ]
        )
        into.append((begin, begin + length))
        events.append(event(name, cat, begin / 1000, length / 1000, pid=0, tid=chance.randrange(3)))
    chance.shuffle(events)
    write(tmp_path / "p" / "rank0.json", kineto(events))
    (step,) = analyzed(tmp_path / "p").data["ranks"][0]["steps"]
    busy, moving = covered(compute), covered(communication)
    everything = compute + communication + copies
    window = max(e for _, e in everything) - min(b for b, _ in everything)
    assert step["end_ns"] - step["begin_ns"] == window
    assert step["begin_ns"] == BASE_NS + min(b for b, _ in everything)
    expected = [len(busy), len(moving - busy), len(moving & busy), window - len(busy | moving)]
    named = ["computing_us", "exposed_communication_us", "overlapped_us", "free_us"]
    assert [round(step[name] * 1000) for name in named] == expected
    assert sum(round(step[name] * 1000) for name in named if name != "overlapped_us") == window


def test_kernels_belong_to_the_step_that_launched_them(tmp_path: Path) -> None:
    events = [
        event("ProfilerStep#3", "user_annotation", 0, 100),
        event("ProfilerStep#4", "user_annotation", 100, 100),
        event("cudaLaunchKernel", "cuda_runtime", 90, 5, correlation=1),
        event("gemm", "kernel", 120, 30, pid=0, correlation=1),  # runs in 4, launched in 3
        event("gemm", "kernel", 160, 20, pid=0),
        event("gemm", "kernel", 500, 20, pid=0),
    ]
    write(tmp_path / "p" / "rank0.json", kineto(events))
    report = analyzed(tmp_path / "p")
    steps = report.data["ranks"][0]["steps"]
    assert [(step["step"], step["computing_us"], step["preparing_us"]) for step in steps] == [
        ("3", 30, 120),
        ("4", 20, 60),
    ]
    assert "1 device events were launched outside of every step" in report.text


def test_what_is_communication(tmp_path: Path) -> None:
    kernels = {
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)": True,
        "void vllm::cross_device_reduce_1stage<float, 8>(x)": True,
        "void deep_ep::internode::dispatch<false>(x)": True,
        "hcom_allReduce_": True,
        "some_kernel_of_a_vendor": True,  # by its arguments
        "ampere_sgemm_128x64_nn": False,
        "MEMORY_COPY_HOST_TO_DEVICE": False,
    }
    events = []
    for i, name in enumerate(kernels):
        arguments = {"Collective name": "allreduce", "In msg nelems": 3} if name.startswith("some_") else {}
        events.append(event(name, "kernel", 100 * i, 10, pid=0, **arguments))
    write(tmp_path / "p" / "rank0.json", kineto(events))
    (step,) = analyzed(tmp_path / "p").data["ranks"][0]["steps"]
    assert (step["communication_us"], step["computing_us"]) == (50, 10)


# ---- formats and damage ------------------------------------------------------------------------------


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("name", ["rank1.json", "rank1.json.gz"])
def test_old_and_new_schema_give_the_same(tmp_path: Path, name: str, indent: int | None) -> None:
    new = kineto([event("gemm", "kernel", 5183222291600.674, 10.5, pid=0)], rank=1, world_size=2)
    old = kineto([event("gemm", "kernel", 1694128201429795, 10.0, pid=0)], rank=1, world_size=2)
    del old["baseTimeNanoseconds"]
    behind = {"traceEvents": new["traceEvents"], **{k: v for k, v in new.items() if k != "traceEvents"}}
    bare = [{**e, "ts": "5183222291600.674", "dur": "10.5"} for e in new["traceEvents"]]
    begins = []
    for kind, content in {"new": new, "old": old, "behind": behind, "bare": bare}.items():
        write(tmp_path / kind / name, content, indent=indent)
        (rank,) = analyzed(tmp_path / kind).data["ranks"]
        assert rank["rank"] == 1
        begins.append(rank["steps"][0]["begin_ns"])
    assert begins == [
        BASE_NS + 5183222291600674,
        1694128201429795000,
        BASE_NS + 5183222291600674,
        5183222291600674,
    ]


def damaged_text(kind: str) -> bytes:
    events = [event(f"gemm{i}", "kernel", 10 * i, 5, pid=0, grid=[1, 2, 3]) for i in range(200)]
    text = json.dumps(kineto(events))
    if kind == "truncated":
        return text[: text.index("gemm150")].encode()
    changes = {
        "quote in a name": ('"gemm150"', '"ge"mm150"'),
        "missing quote": ('"gemm150"', '"gemm150'),
        "control character": ('"gemm150"', '"ge\x01\nmm150"'),
        "missing brace": ('"name": "gemm150"', '"args": {"name": "gemm150"'),
        "stray byte": ('"name": "gemm150"', '"name"# "gemm150"'),
        "NaN duration": ('"ts": 1500, "dur": 5', '"ts": 1500, "dur": NaN'),
        "negative duration": ('"ts": 1500, "dur": 5', '"ts": 1500, "dur": -7.5'),
        "absurd duration": ('"ts": 1500, "dur": 5', '"ts": 1500, "dur": 1e15'),
        "huge time": ('"ts": 1500,', '"ts": 99999999999999999999999,'),
        "object for a name": ('"name": "gemm150"', '"name": {"a": ["gemm150"]}'),
        "not UTF-8": ("gemm150", "gemm\udcff150"),
    }
    old, new = changes[kind]
    assert old in text
    return text.replace(old, new).encode(errors="surrogateescape")


@pytest.mark.parametrize(
    "kind, lost",
    [
        ("truncated", 50),
        ("quote in a name", 1),
        ("missing quote", 1),
        ("control character", 0),
        ("missing brace", 1),
        ("stray byte", 1),
        ("NaN duration", 1),
        ("negative duration", 1),
        ("absurd duration", 1),
        ("huge time", 1),
        ("object for a name", 0),
        ("not UTF-8", 0),
    ],
)
def test_damage_costs_one_event_and_is_told(tmp_path: Path, kind: str, lost: int) -> None:
    folder = tmp_path / "p q 文"
    folder.mkdir()
    (folder / "rank0.json").write_bytes(damaged_text(kind))
    report = analyzed(folder)
    (rank,) = report.data["ranks"]
    assert rank["steps"][0]["computing_us"] == 5 * (200 - lost)
    assert report.partial == (lost > 0)
    assert all(str(folder) in problem["path"] for problem in report.data["problems"])


def test_damaged_gzip(tmp_path: Path) -> None:
    events = [event(f"gemm{random.Random(i).random()}", "kernel", 10 * i, 5, pid=0) for i in range(20000)]
    path = write(tmp_path / "p" / "rank0.json.gz", kineto(events))
    path.write_bytes(path.read_bytes()[:-20000])
    report = analyzed(tmp_path / "p")
    assert 0 < report.data["ranks"][0]["steps"][0]["computing_us"] < 100000
    assert "the gzip stream is cut off" in report.text and report.partial


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[", b"{}", b"[1, 2]", b'{"traceEvents": {}}', b"\x00" * 99, b"[" * 10000]
)
def test_what_is_no_profile(tmp_path: Path, content: bytes) -> None:
    folder = tmp_path / "p"
    folder.mkdir()
    (folder / "rank0.json").write_bytes(content)
    with pytest.raises(ValueError, match="no profile that can be used"):
        analyzed(folder)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["p", "rank0.json"]


def test_paths_and_names_that_are_no_utf8(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/p\xff"
    os.mkdir(folder)
    text = json.dumps(kineto([event("ge!m", "kernel", 0, 5, pid=0)])).encode().replace(b"!", b"\xfe")
    Path(os.fsdecode(folder + b"/rank0.json")).write_bytes(text)
    report = analyze.cluster(os.fsdecode(folder))
    assert report.data["ranks"][0]["steps"][0]["computing_us"] == 5
    with pytest.raises(ValueError, match="there is no file or directory"):
        analyze.cluster(os.fsdecode(folder + b"\xfd"))


def test_results_of_one_ascend_rank_lie_beside_it(tmp_path: Path) -> None:
    directory = ascend_rank(tmp_path / "p", 0)
    report = analyze.cluster(f"{directory}/")
    results = tmp_path / "p" / "cluster_analysis_output"
    assert all(path.is_relative_to(results) for path in report.files)


def test_ranks_from_content_then_name(tmp_path: Path) -> None:
    one = [event("gemm", "kernel", 0, 5, pid=0)]
    folder = tmp_path / "p"
    write(folder / "worker7_step_1.json", kineto(one, rank=3, world_size=12))  # the content is believed
    for name in [
        "rank-4.2023.1.pt.trace.json.gz",
        "it/rank5_trace.json",
        "r6-2024.9.json",
        "8/host_12.99.pt.trace.json",
    ]:
        write(folder / name, kineto(one, rank=None))
    write(folder / "settings.json", {"a": 1})
    write(folder / "other" / "rank3.json", kineto(one, rank=3, world_size=12))
    report = analyzed(folder)
    assert [rank["rank"] for rank in report.data["ranks"]] == [3, 4, 5, 6, 8]
    assert report.data["missing_ranks"] == [0, 1, 2, 7, 9, 10, 11]
    assert report.data["ignored"] == [str(folder / "settings.json")]
    (problem,) = report.data["problems"]
    assert {problem["path"], report.data["ranks"][0]["source"]} == {
        str(folder / "other" / "rank3.json"),
        str(folder / "worker7_step_1.json"),
    }
    assert (
        "is of rank 3, as " in problem["problem"] and report.data["ranks"][0]["source"] in problem["problem"]
    )


@pytest.mark.parametrize("rank, world_size", [(2**31 - 1, 4), (0, 2**31 - 1), (2**60, 2**60)])
def test_ranks_that_cannot_be(tmp_path: Path, rank: int, world_size: int) -> None:
    one = [event("gemm", "kernel", 0, 5, pid=0)]
    write(tmp_path / "p" / "rank1.json", kineto(one, rank=1, world_size=4))
    write(tmp_path / "p" / "a.json", kineto(one, rank=rank, world_size=world_size))
    report = analyzed(tmp_path / "p")
    assert report.data["world_size"] == 4 and report.partial
    assert len(report.data["ranks"]) == (2 if rank == 0 else 1)


def test_input_is_only_read(tmp_path: Path) -> None:
    folder = tmp_path / "p"
    training_job(folder / "a" / "b", ranks=2, steps=2)
    ascend_rank(folder, 2)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    report = analyze.cluster(folder)
    after = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    results = folder / "cluster_analysis_output"
    assert {path for path in after if path not in before} == set(report.files)
    assert all(path.is_relative_to(results) for path in report.files)
    assert all(after[path] == time for path, time in before.items())
    assert analyze.cluster(folder).data["ranks"] == report.data["ranks"]  # its own results are no input


# ---- who waits for whom ------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [2, 4, 16])
@pytest.mark.parametrize("share", [0.01, 0.1, 0.5])
def test_a_slow_rank_is_found_with_what_it_costs(tmp_path: Path, ranks: int, share: float) -> None:
    slow = ranks - 1
    training_job(tmp_path / "p", ranks=ranks, late={slow: 10_000 * share}, steps=12)
    report = analyzed(tmp_path / "p")
    (found,) = report.data["slow_ranks"]
    assert found["rank"] == slow
    assert found["late_ms"] == pytest.approx(12 * 10 * share, rel=0.05)
    assert "gemm" in found["cause"]
    waited = [rank["waiting"]["waited_ms"] for rank in report.data["ranks"]]
    assert waited[0] == pytest.approx(12 * 10 * share, rel=0.05) and waited[slow] < 0.1
    for rank in report.data["ranks"]:
        waiting = rank["waiting"]
        whole = sum(step["communication_us"] for step in rank["steps"]) / 1000
        assert waiting["waited_ms"] + waiting["moved_ms"] == pytest.approx(whole, abs=1e-6)
    assert f"slow rank {slow}" in report.text


def test_two_slow_ranks_are_both_found(tmp_path: Path) -> None:
    training_job(tmp_path / "p", ranks=8, late={2: 2000, 5: 2000}, steps=30, noise_us=50)
    found = {slow["rank"]: slow["late_ms"] for slow in analyzed(tmp_path / "p").data["slow_ranks"]}
    assert found.keys() == {2, 5}
    assert list(found.values()) == pytest.approx([60, 60], rel=0.05)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("noise_us", [0, 300])
def test_no_slow_rank_is_invented(tmp_path: Path, seed: int, noise_us: float) -> None:
    training_job(tmp_path / "p", ranks=6, steps=15, noise_us=noise_us, seed=seed)
    report = analyzed(tmp_path / "p")
    assert report.data["slow_ranks"] == []
    assert "slow ranks: none" in report.text
    assert report.data["matched_calls"] == 15
    if noise_us == 0:
        assert report.data["lost_ms"] == 0


def test_half_of_the_ranks_name_the_same(tmp_path: Path) -> None:
    training_job(tmp_path / "p", ranks=8, late={6: 1000}, steps=12)
    for rank in (1, 3, 5, 7):
        (tmp_path / "p" / f"rank{rank}.json").unlink()
    report = analyzed(tmp_path / "p")
    assert [slow["rank"] for slow in report.data["slow_ranks"]] == [6]
    assert report.data["missing_ranks"] == [1, 3, 5, 7] and report.partial


def test_hosts_whose_clocks_differ(tmp_path: Path) -> None:
    for rank in range(4):
        shift = 5000 if rank > 1 else 0  # the second host's clock is 5 ms ahead
        late = 800 if rank == 1 else 0
        events = []
        for k in range(10):
            end = 20_000 * k + 10_000
            start = end - 1800 + late
            arguments = {
                "Collective name": "allreduce",
                "In msg nelems": 64,
                "Process Group Name": "0",
                "Seq": k,
            }
            events.append(
                event("ncclDevKernel_AllReduce", "kernel", start + shift, end - start, pid=0, **arguments)
            )
        write(
            tmp_path / "p" / f"rank{rank}.json",
            kineto(events, rank=rank, world_size=4, host=f"host{rank // 2}"),
        )
    report = analyzed(tmp_path / "p")
    assert [slow["rank"] for slow in report.data["slow_ranks"]] == [1]
    assert report.data["slow_ranks"][0]["late_ms"] == pytest.approx(8)
    assert "clock of host host1 is 5.000 ms from that of host0" in report.text


def test_names_are_as_the_program_wrote_them(tmp_path: Path) -> None:
    for rank in range(2):
        events = []
        for k in range(12):
            begin, late = 1000 * k, 300 * rank
            events.append(event('load "α"\\', "user_annotation", begin, 500 + late))
            events.append(event("ncclDevKernel_AllReduce", "kernel", begin + 500 + late, 400 - late, pid=0))
        write(tmp_path / "p" / f"rank{rank}.json", kineto(events, rank=rank, world_size=2))
    (slow,) = analyzed(tmp_path / "p").data["slow_ranks"]
    assert slow["rank"] == 1 and "busy with 'load \"α\"\\'" in slow["cause"]


def test_calls_that_differ_are_told(tmp_path: Path) -> None:
    for rank in range(2):
        arguments = {
            "Collective name": "allreduce",
            "In msg nelems": 64 + rank,
            "Process Group Name": "0",
            "Seq": 1,
        }
        write(
            tmp_path / "p" / f"rank{rank}.json",
            kineto(
                [event("ncclDevKernel_AllReduce", "kernel", 10, 5, pid=0, **arguments)],
                rank=rank,
                world_size=2,
            ),
        )
    assert "allreduce: rank 0 has 64 elements, rank 1 has 65" in analyzed(tmp_path / "p").text


# ---- Ascend ------------------------------------------------------------------------------------------


def test_ascend_text(tmp_path: Path) -> None:
    folder = tmp_path / "p"
    for rank in range(2):
        ascend_rank(folder / "deeper", rank, links={f"{rank}-{rank}": 400, f"{rank}-{1 - rank}": 15.5})
    report = analyzed(folder)
    assert not report.partial
    assert [rank["host"] for rank in report.data["ranks"]] == ["node", "node"]
    steps = rows_of(report, "cluster_step_trace_time.csv")
    assert [(row["Step"], row["Type"], row["Index"], float(row["Communication"])) for row in steps] == [
        ("5", "rank", "0", 150.25),
        ("5", "rank", "1", 250.25),
    ]
    results = {path.name: path for path in report.files}
    times = json.loads(results["cluster_communication.json"].read_text())["(0, 1)"]["step5"]
    total = times["Total Op Info@17522688603477080586"]["1"]
    assert total["Communication Time Info"]["Elapse Time(ms)"] == 14
    assert total["Communication Time Info"]["Wait Time Ratio"] == 0.3333
    assert total["Communication Bandwidth Info"]["HCCS"]["Size Distribution"] == {"2.5": [16, 4]}
    matrix = json.loads(results["cluster_communication_matrix.json"].read_text())["(0, 1)"]["step5"]
    assert matrix["Total Op Info@17522688603477080586"]["1-0"]["Bandwidth(GB/s)"] == 15.5
    groups = json.loads(results["communication_group.json"].read_text())
    assert groups["collective"] == [[0, 1]]


def test_groups_by_metadata_and_parallel_indices(tmp_path: Path) -> None:
    group_id = "90.91.105.46%enp189s0f0_60000_0_1736410538306028"
    metadata = {
        "distributed_args": {
            "tensor_model_parallel_size": 2,
            "pipeline_model_parallel_size": 2,
            "world_size": 8,
            "data_parallel_size": 2,
            "rank": 4,
        },
        "parallel_group_info": {
            group_id: {"group_name": "tp", "group_rank": 0, "global_ranks": [4, 5]},
            "p": {"group_name": "pp", "group_rank": 1, "global_ranks": [0, 4]},
        },
    }
    ascend_rank(
        tmp_path / "p", 4, group="17148521525495523210", metadata=metadata, links={"0-1": 10.0, "0-0": 300}
    )
    report = analyzed(tmp_path / "p")
    results = {path.name: path for path in report.files}
    (info,) = json.loads(results["communication_group.json"].read_text())["comm_group_parallel_info"]
    assert info == {
        "type": "collective",
        "rank_set": [4, 5],
        "group_name": "17148521525495523210",
        "group_id": group_id,
        "pg_name": "tp",
    }
    assert (
        "4-5"
        in json.loads(results["cluster_communication_matrix.json"].read_text())["(4, 5)"]["step5"][
            "allreduce-total@17148521525495523210"
        ]
    )
    rank, stage = rows_of(report, "cluster_step_trace_time.csv")
    assert [rank[f"{kind} Index"] for kind in ("DP", "PP", "TP")] == ["0", "1", "0"]
    assert (stage["Type"], stage["Index"], stage["Computing"]) == ("stage", "(4, 5)", rank["Computing"])
    assert report.data["missing_ranks"] == [0, 1, 2, 3, 5, 6, 7]


def test_a_slow_link_is_found_with_its_cause(tmp_path: Path) -> None:
    def job(name: str, slow: set[str]) -> list[dict[str, Any]]:
        for rank in range(4):
            links = {
                f"{rank}-{other}": 8.0 if f"{rank}-{other}" in slow else 16.0
                for other in range(4)
                if other != rank
            }
            ascend_rank(tmp_path / name, rank, links=links)
        return analyzed(tmp_path / name).data["slow_links"]

    assert job("none", set()) == []
    (one,) = job("one", {"1-2"})
    assert (one["source"], one["destination"], one["transport"]) == (1, 2, "HCCS")
    assert one["lost_ms"] == pytest.approx(5) and "this link alone" in one["cause"]
    card = job("card", {"3-0", "3-1", "3-2", "0-3", "1-3"})
    assert len(card) == 5 and all("links of rank 3 are slow" in link["cause"] for link in card)


def test_damaged_ascend_files(tmp_path: Path) -> None:
    first, second = ascend_rank(tmp_path / "p", 0), ascend_rank(tmp_path / "p", 1)
    file = first / "ASCEND_PROFILER_OUTPUT" / "communication.json"
    file.write_bytes(file.read_bytes()[: file.read_bytes().index(b"586_1_1") + 40])
    shutil.rmtree(second / "ASCEND_PROFILER_OUTPUT")
    report = analyzed(tmp_path / "p")
    assert [rank["rank"] for rank in report.data["ranks"]] == [0]
    assert report.data["ranks"][0]["calls"] == 1
    assert "communication.json: cut off at byte" in report.text
    assert "the profile is raw: parse it on the training machine" in report.text


# ---- databases ---------------------------------------------------------------------------------------


def ascend_database(folder: Path, rank: int, peer: int, wait_ms: float) -> Path:
    """A directory with a db export: one all-reduce of a group of four, in which `peer` was waited for."""
    directory = ascend_rank(folder, rank)
    output = directory / "ASCEND_PROFILER_OUTPUT"
    for file in output.iterdir():
        file.unlink()
    group_id = "10.0.0.1%eth0_60000_0_1736410538306028"
    members = {group_id: {"group_name": "default_group", "group_rank": rank, "global_ranks": [0, 1, 2, 3]}}
    script = """
        CREATE TABLE STRING_IDS (id INTEGER PRIMARY KEY, value TEXT);
        CREATE TABLE META_DATA (name TEXT, value TEXT);
        CREATE TABLE TASK (startNs INTEGER, endNs INTEGER, globalTaskId INTEGER);
        CREATE TABLE COMMUNICATION_OP (opName INTEGER, groupName INTEGER, opId INTEGER);
        CREATE TABLE COMMUNICATION_TASK_INFO (globalTaskId, taskType, dstRank INTEGER, opId INTEGER);
        INSERT INTO STRING_IDS VALUES (1, 'Notify_Wait'), (2, 'hcom_allReduce__123_0_1');
        INSERT INTO COMMUNICATION_OP VALUES (2, 3, 9);
        INSERT INTO COMMUNICATION_TASK_INFO VALUES (7, 1, 4294967295, 9);
        INSERT INTO COMMUNICATION_TASK_INFO VALUES (8, 1, {peer}, 9), (6, 1, {other}, 9);
        INSERT INTO TASK VALUES (0, 99000000, 7), (0, {wait}, 8), (0, 600000, 6);
    """
    with sqlite3.connect(output / f"ascend_pytorch_profiler_{rank}.db") as own:
        own.executescript(script.format(peer=peer, other=(peer + 1) % 4, wait=int(wait_ms * 1e6)))
        own.execute("INSERT INTO STRING_IDS VALUES (3, ?)", [group_id])
        own.execute("INSERT INTO META_DATA VALUES ('parallel_group_info', ?)", [json.dumps(members)])
    own.close()
    # The hash of the id above, by the rule of the profiler.
    parts = []
    for factor in (29, 131):
        value = 0
        for byte in group_id.encode():
            value = (value * factor + byte) % 2**32
        parts.append(value)
    hashed = str(parts[0] << 32 | parts[1])
    with sqlite3.connect(output / "analysis.db") as analysis:
        analysis.execute(
            "CREATE TABLE CommAnalyzerTime (hccl_op_name, group_name, start_timestamp, elapse_time, "
            "transit_time, wait_time, synchronization_time, idle_time, step, type)"
        )
        row = [
            "hcom_allReduce__123_0_1",
            hashed,
            1736410576431645.5,
            100.0,
            2.0,
            1.0,
            0.5,
            97.0,
            "step5",
            "collective",
        ]
        analysis.execute(f"INSERT INTO CommAnalyzerTime VALUES ({', '.join('?' * len(row))})", row)
    analysis.close()
    return directory


def test_an_absent_rank_is_named_by_those_that_waited_for_it(tmp_path: Path) -> None:
    for rank in (0, 1):
        ascend_database(tmp_path / "p", rank, peer=3, wait_ms=80 + rank)
    before = sorted(path.name for path in (tmp_path / "p").rglob("*"))
    report = analyzed(tmp_path / "p")
    (slow,) = report.data["slow_ranks"]
    assert (slow["rank"], slow["late_ms"], slow["times_last"]) == (3, 80.5, 2)
    assert "its profile is missing; 2 ranks waited for it" in slow["cause"]
    assert rows_of(report, "slow_rank.csv")[-1]["rank"] == "3"
    assert report.data["missing_ranks"] == [2, 3]
    assert sorted(path.name for path in (tmp_path / "p").rglob("*")) == before


def test_two_that_disagree_name_nobody(tmp_path: Path) -> None:
    for rank in (0, 1):
        ascend_database(tmp_path / "p", rank, peer=2 + rank, wait_ms=80)
    assert analyzed(tmp_path / "p").data["slow_ranks"] == []


def test_damaged_databases(tmp_path: Path) -> None:
    first, second = (ascend_database(tmp_path / "p", rank, peer=3, wait_ms=80) for rank in (0, 1))
    (first / "ASCEND_PROFILER_OUTPUT" / "analysis.db").write_bytes(b"no database at all" * 500)
    file = second / "ASCEND_PROFILER_OUTPUT" / "ascend_pytorch_profiler_1.db"
    file.write_bytes(file.read_bytes()[:3000])
    report = analyzed(tmp_path / "p")
    assert [rank["rank"] for rank in report.data["ranks"]] == [1]
    assert report.partial and "ascend_pytorch_profiler_1.db: database disk image is malformed" in report.text
