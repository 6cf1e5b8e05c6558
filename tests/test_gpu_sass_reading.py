"""Reading of ptxas' and nvdisasm's output, the rules on it, and the table's file: without either tool."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from gpu.sass import capability, gate, table, toolchain
from gpu.sass.listing import Block, Instruction, blocks, loops, parse
from gpu.sass.mix import Mix, access_width, flop, shared_bytes
from gpu.sass.report import Report, read

LOG = """\
ptxas info    : Compiling entry function 'k' for 'sm_90a'
ptxas info    : Function properties for k
    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 16 bytes cumulative stack size, 256 bytes smem
"""
WARNING = (
    "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to "
    "insufficient register resources for the wgmma pipeline in function 'k'\n"
)
CODE = """\
	.section	.text.k,"ax",@progbits
k:
.text.k:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/              @!P1 BRA `(.L_x_9) ;
.L_x_1:
        /*0020*/              @!P0 BRA P2, `(.L_x_2) ;
        /*0030*/                   LDGSTS.E.BYPASS.128 [R2], desc[UR4][R4.64] ;
.L_x_2:
        /*0040*/                   LDSM.16.M88.4 R8, [R3] ;
        /*0050*/                   HMMA.16816.F32.BF16 R12, R8, R10, R12 ;
        /*0060*/                   MUFU.EX2 R5, R5 ;
        /*0070*/               @P3 BRA `(.L_x_3) ;
        /*0080*/                   FSEL R5, R5, -INF , P4 ;
.L_x_3:
        /*0090*/                   FFMA.FTZ R6, R6, R7, R5 ;
.L_x_4:
        /*00a0*/                   IMAD.SHL.U32 R9, R9, 0x2, RZ ;
        /*00b0*/               @P5 BRA `(.L_x_4) ;
        /*00c0*/                   BRA.DIV UR4, `(.L_x_8) ;
        /*00d0*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*00e0*/               @P0 BRA `(.L_x_1) ;
.L_x_9:
        /*00f0*/                   STG.E.U16 desc[UR4][R4.64], R6 ;
        /*0100*/                   EXIT ;
.L_x_8:
        /*0110*/                   SHFL.BFLY PT, R5, R5, 0x1, 0x1f ;
        /*0120*/                   BRA `(.L_x_3) ;
.L_x_10:
        /*0130*/                   BRA `(.L_x_10);
        /*0140*/                   NOP;
"""


def test_loops_of_a_listing() -> None:
    def opcodes(found: tuple[Block, ...]) -> list[str]:
        return [one.name for block in found for one in block.instructions]

    # .L_x_3 is a head too, for the slow path of a shuffle, which lies behind the end, goes back to it
    outer, slow, inner = loops(blocks(parse(CODE)["k"]))
    assert (outer.depth, slow.depth, inner.depth) == (1, 2, 3)
    assert opcodes(inner.always) == ["IMAD", "BRA"] and opcodes(slow.always) == ["FFMA", "BRA", "SHFL", "BRA"]
    assert opcodes(outer.always) == ["BRA", "LDSM", "HMMA", "MUFU", "BRA", "BAR", "BRA"]
    assert opcodes(outer.sometimes) == ["LDGSTS", "FSEL"]
    assert opcodes(outer.nested) == ["FFMA", "IMAD", "BRA", "BRA", "SHFL", "BRA"]


def test_report_of_a_listing() -> None:
    straight = CODE.replace("`(.L_x_8)", "`(.L_x_9)")
    found = read("sm_90a", LOG, straight)
    assert (found.registers, found.stack, found.spill_stores, found.spill_loads, found.shared) == (40, 16, 8, 12, 256)
    assert found.counts == {
        **{"BAR": 1, "FFMA": 1, "HMMA": 1, "LDGSTS.128": 1, "LDSM": 1, "MUFU.EX2": 1},
        **{"SHFL": 1, "STG.U16": 1},
    }
    assert found.instructions == 21 and found.global_access == {"LDGSTS.128": 1, "STG.U16": 1}
    assert [loop.depth for loop in found.loops] == [1, 2]
    mix = found.main_loop.mix if found.main_loop else Mix()
    # of the branches only that with the copy is counted; the padding's loop is no loop of the kernel
    assert (mix.tensor, mix.flop, mix.xu, mix.ex2, mix.fma, mix.alu, mix.heavy) == (1, 4096, 1, 1, 1, 0, 0)
    assert (mix.lsu, mix.shared, mix.global_, mix.issue) == (2, 1024, 512, 10)
    assert found.main_loop and found.main_loop.largest.alu == 1 and found.main_loop.nested == 0


def test_products_in_a_nested_loop_are_told() -> None:
    moved = CODE.replace("IMAD.SHL.U32 R9, R9, 0x2, RZ", "HMMA.16816.F32.BF16 R12, R8, R10, R12")
    loop = read("sm_90a", LOG, moved.replace("`(.L_x_8)", "`(.L_x_9)")).main_loop
    assert loop and (loop.depth, loop.mix.tensor, loop.nested) == (1, 1, 1)


def test_main_loop_is_the_one_with_exponentials() -> None:
    within = "HMMA.16816.F32 R4, R4, R4, R4 ;\n        /*00a8*/        MUFU.EX2 R5, R5"
    around = CODE.replace("MUFU", "NOP").replace("IMAD.SHL.U32 R9, R9, 0x2, RZ", within)
    loop = read("sm_90a", LOG, around.replace("`(.L_x_8)", "`(.L_x_9)")).main_loop
    assert loop and (loop.depth, loop.mix.tensor, loop.nested) == (2, 1, 0)
    without = around.replace("MUFU", "NOP").replace("`(.L_x_8)", "`(.L_x_9)")
    loop = read("sm_90a", LOG, without).main_loop
    assert loop and (loop.depth, loop.mix.tensor, loop.nested) == (1, 1, 1)
    neither = read("sm_90a", LOG, CODE.replace("HMMA", "NOP")).main_loop
    assert neither is None


@pytest.mark.parametrize(
    ("opcode", "operands", "width", "operations", "moved"),
    [
        ("LDG.E.128.CONSTANT", "R4, desc[UR4][R2.64]", "128", None, 0),
        ("LDG.E.U16", "R4, desc[UR4][R2.64]", "U16", None, 0),
        ("LDG.E.S8", "R4, desc[UR4][R2.64]", "U8", None, 0),
        ("LDS.64", "R4, [R2]", "64", None, 256),
        ("LDS.U8", "R4, [R2]", "U8", None, 128),
        ("LDSM.16.MT88.2", "R4, [R2]", "32", None, 256),
        ("LDSM.16.M88", "R4, [R2]", "32", None, 128),
        ("HMMA.1688.F32.TF32", "R4, R4, R8, R4", "32", 2048, 0),
        ("HGMMA.64x128x16.F32.BF16", "R24, R88, gdesc[UR16].tnspB, R24", "32", 65536, 1024),
        ("HGMMA.64x64x16.F32", "R88, gdesc[UR20], R88, gsb0", "32", 32768, 512),
        ("HGMMA.64x64x16.F32", "R88, gdesc[UR20], gdesc[UR22], R88", "32", 32768, 1024),
    ],
)
def test_instructions(opcode: str, operands: str, width: str, operations: int | None, moved: int) -> None:
    one = Instruction(opcode, operands, False)
    assert access_width(one) == width
    assert shared_bytes(one) == moved
    if operations is not None:
        assert flop(one) == operations


REPORT = Report("sm_90", 168, 0, 0, 0, 0, 100, {"HMMA": 64, "LDGSTS.128": 8, "STG.128": 4}, (), ())


@pytest.mark.parametrize(
    ("change", "given", "start"),
    [
        ({"stack": 8}, {}, "stack=8 bytes must be 0"),
        ({"spill_loads": 4}, {}, "spill_stores=0, spill_loads=4 bytes must be 0"),
        ({"counts": {**REPORT.counts, "STL": 1}}, {}, "local memory is accessed (STL=1)"),
        ({"counts": {**REPORT.counts, "HMMA": 63}}, {}, "tensor=63 matrix products"),
        ({"counts": {**REPORT.counts, "LDG.U8": 1}}, {}, "global memory is accessed byte by byte"),
        ({"counts": {**REPORT.counts, "ST.32": 1}}, {}, "accesses whose memory is not known"),
        ({"counts": {"HMMA": 64, "LDG.U16": 8, "STG.128": 1}}, {}, "no load of 16 bytes"),
        ({"registers": 169}, {"threads": 384}, "registers=169 must be <= 168 for 384 threads x 1 blocks"),
        ({}, {"threads": 256, "blocks": 2}, "registers=168 must be <= 128 for 256 threads x 2 blocks"),
        ({"shared": 1024}, {"shared_bytes": 232448}, "shared memory=233472 bytes must be <= 232448 on sm_90"),
        ({"warnings": ("(C7510) serialized",)}, {}, "ptxas warns: (C7510) serialized"),
    ],
)
def test_each_rule_refuses(change: dict[str, object], given: dict[str, int], start: str) -> None:
    kept = {"threads": 384, "tensor": 64, "shared_bytes": 232448}
    assert gate.broken_rules(REPORT, **kept) == []
    (fault,) = gate.broken_rules(dataclasses.replace(REPORT, **change), **{**kept, **given})
    assert fault.startswith(start)


def test_elementwise_kernels_are_spared_two_rules() -> None:
    counts = {"LD.32": 4, "ST.32": 1}
    faults = gate.broken_rules(dataclasses.replace(REPORT, counts=counts), threads=384)
    assert [fault.partition(" ")[0] for fault in faults] == ["accesses", "no"]
    assert gate.broken_rules(dataclasses.replace(REPORT, counts=counts), threads=384, narrow=True) == []


def test_serialised_wgmma_is_a_warning() -> None:
    (line,) = read("sm_90a", LOG + WARNING, CODE).warnings
    assert line.startswith("(C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized")


def test_blocks_of_a_multiprocessor() -> None:
    assert gate.resident_blocks(REPORT, 128, 46080) == 3  # 168 * 128 * 3 <= 65536 registers
    assert gate.resident_blocks(REPORT, 128, 113 * 1024) == 2  # 2 * (113 + 1) KiB <= 228 KiB
    assert gate.resident_blocks(dataclasses.replace(REPORT, registers=24), 1024, 0) == 2  # threads


ROW = {
    **{"registers": 168, "stack": 0, "spills": 0, "local": 0, "tensor": 64, "threads": 128, "shared": 46080},
    **{"blocks": 3, "global": {"LDGSTS.128": 8}, "calls": 0, "barriers": 2, "loop": {"issue": 500}},
}


@pytest.mark.parametrize(
    ("change", "start"),
    [
        ({"registers": 177}, "registers=177 must be <= 168 of the table + 8"),
        ({"stack": 8}, "stack=8, the table has 0"),
        ({"spills": 4}, "spills=4"),
        ({"local": 1}, "local=1"),
        ({"tensor": 65}, "tensor=65"),
        ({"shared": 46096}, "shared=46096"),
        ({"blocks": 2}, "blocks=2 of a multiprocessor, the table has 3"),
        ({"global": {"LDGSTS.128": 7, "LDG.32": 4}}, "global={'LDGSTS.128': 7, 'LDG.32': 4}, the table has"),
        ({"barriers": 3}, "barriers=3"),
        ({"calls": 1}, "calls=1"),
        ({"loop": {"issue": 511}}, "511 instructions in the main loop must be <= 500 of the table + 2%"),
    ],
)
def test_each_difference_is_told(change: dict[str, object], start: str) -> None:
    assert gate.differences(ROW, ROW) == []
    assert gate.differences({**ROW, "registers": 176, "blocks": 4, "loop": {"issue": 510}}, ROW) == []
    (fault,) = gate.differences({**ROW, **change}, ROW)
    assert fault.startswith(start)


def test_table_of_a_row_to_a_line(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    rows = {"k3 b sm_90": ROW, "k3 a sm_90": {**ROW, "tensor": 1}}
    table.save({"ptxas": "13.0.88"}, rows, path)
    assert table.load(path) == ({"ptxas": "13.0.88"}, rows)
    lines = path.read_text().splitlines()
    assert [line.strip().partition(":")[0] for line in lines[2:4]] == ['"k3 a sm_90"', '"k3 b sm_90"']
    assert json.loads("{" + lines[3].strip() + "}") == {"k3 b sm_90": ROW}
    assert table.load(tmp_path / "none.json") == ({}, {})


def test_quick_takes_each_kernel_and_goes_round() -> None:
    every = [table.Entry("k4", k, f"{k}-{d}", a) for k in ("dq", "dkdv") for d in (32, 64, 128) for a in ("a", "b")]
    taken = [table.quick(every, turn) for turn in range(3)]
    assert all({(e.kernel, e.arch) for e in some} == {(e.kernel, e.arch) for e in every} for some in taken)
    assert all(len(some) == 4 and len({e.name.partition("-")[2] for e in some}) > 1 for some in taken)
    assert sorted(e for some in taken for e in some) == sorted(every)


def test_what_does_not_compile_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = table.Entry("k3", "forward", "forward D=64", "sm_90")
    monkeypatch.setattr(table, "_specialisations", lambda module: [])
    outcome = table.examine(entry)
    assert outcome.row == {} and outcome.broken[0].startswith("does not compile: ValueError: ")


def test_capabilities() -> None:
    found = [capability(arch) for arch in ("sm_80", "sm_90", "sm_90a", "sm_120")]
    assert found == [(8, 0), (9, 0), (9, 0, "a"), (12, 0)]
    for arch in ("90", "sm_", "sm_9", "sm_a", "compute_90"):
        with pytest.raises(ValueError, match="must be like 'sm_80'"):
            capability(arch)


def test_missing_tool_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(toolchain.Missing, match=r"no nothere: not in .* no-such.*pip install 'refattn\[gpu-dev"):
        toolchain._find("nothere", "no-such-package")
    tool = tmp_path / "bin" / "nothere"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho 'release 12.4, V12.4.131'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert toolchain._find("nothere", "no-such-package") == tool
    monkeypatch.delenv("CUDA_HOME")
    monkeypatch.setenv("PATH", f"{tool.parent}:/usr/bin:/bin")
    found = toolchain.Tool(toolchain._find("nothere", "no-such-package"))
    assert (found.version, found.release) == ("12.4.131", (12, 4))
    monkeypatch.setattr(toolchain, "_find", lambda name, wheel: tool)
    with pytest.raises(toolchain.Missing, match=r"is 12.4.131, and the PTX of NVVM 13.0 needs at least 13.0"):
        toolchain.ptxas.__wrapped__()
