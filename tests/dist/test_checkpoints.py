"""Checkpoints of several processes: any layout into any other, and one text on all where something is wrong."""

import json
import os
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import set_forkserver_preload
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from vlarge.contracts import InputError
from vlarge.train.checkpoint import Checkpoints, Reader

# --- a small model in several layouts; no size is divided by the number of processes ---


def net() -> nn.Module:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.Linear(7, 3), nn.LayerNorm(3))
    model[2].bias.requires_grad_(False)
    return model


def replicated() -> nn.Module:
    return net()


def fsdp() -> nn.Module:
    return fully_shard(net(), mesh=init_device_mesh("cpu", (dist.get_world_size(),)))


def tensor_parallel() -> nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return parallelize_module(net(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def both() -> nn.Module:
    """Rows of the same tensor over both axes of the mesh."""
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("shard", "tensor"))
    model = parallelize_module(net(), mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return fully_shard(model, mesh=mesh["shard"])


LAYOUTS = {"replicated": replicated, "fsdp": fsdp, "tensor": tensor_parallel, "both": both}


def trained(model: nn.Module, num_steps: int) -> torch.optim.Optimizer:
    """An optimizer after steps with gradients that are the same in every layout."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=0.1)
    for _ in range(num_steps):
        for parameter in parameters:
            parameter.grad = like(parameter, torch.linspace(-1, 1, parameter.numel()).reshape(parameter.shape))
        optimizer.step()
    return optimizer


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> dict[str, Any]:
    moments = get_optimizer_state_dict(model, optimizer)
    return {"model": model.state_dict(), "optimizer": moments, "position": {"step": step, "order": "seed 3"}}


def like(parameter: Tensor, whole: Tensor) -> Tensor:
    if not isinstance(parameter, DTensor):
        return whole
    split = distribute_tensor(whole, parameter.device_mesh, [Replicate()] * parameter.device_mesh.ndim)
    return split.redistribute(placements=parameter.placements)


def wholes(tree: Any, name: str = "") -> dict[str, Any]:
    """Every value of a state, tensors whole."""
    if isinstance(tree, dict | list):
        pairs = tree.items() if isinstance(tree, dict) else enumerate(tree)
        return {key: value for own, each in pairs for key, value in wholes(each, f"{name}.{own}").items()}
    if isinstance(tree, DTensor):
        tree = tree.full_tensor()
    return {name: tree.tolist() if isinstance(tree, Tensor) else str(tree)}


def export(folder: Path, read: Reader) -> None:
    folder.mkdir()
    names = [name for name in read.names if name.startswith("model.")]
    (folder / "weights.json").write_text(json.dumps({name: read(name).tolist() for name in names}))


def refusal(work: Callable[[], object]) -> str:
    try:
        work()
    except InputError as error:
        return str(error)
    return ""


# --- what the processes do; each says what it found, for the tests to look at ---


def save(run: Path, layout: str) -> dict[str, Any]:
    model = LAYOUTS[layout]()
    state = state_of(model, trained(model, num_steps=2), step=8)
    checkpoints = Checkpoints(run / f"{layout}{dist.get_world_size()}", 0)
    expected = wholes(state)
    checkpoints.begin(8, state, export)
    checkpoints.fence()
    for value in state["model"].values():
        value.add_(1)
    checkpoints.finish()
    return expected


def load(run: Path, saved: str, layout: str) -> dict[str, Any]:
    model = LAYOUTS[layout]()
    optimizer = trained(model, num_steps=0)
    state = state_of(model, optimizer, step=0)
    Checkpoints(run / saved, 0).load(state)
    model.load_state_dict(state["model"])
    set_optimizer_state_dict(model, optimizer, state["optimizer"])
    return wholes(state_of(model, optimizer, step=state["position"]["step"]))


def stages(run: Path) -> str:
    """Each process has names of its own, and one that two share."""
    rank = dist.get_rank()
    state = {"model": {f"layer{rank}": torch.full((3,), float(rank))}, "position": {"step": 1}}
    state["model"][f"tied{rank // 2}"] = torch.full((2,), 7.0)
    checkpoints = Checkpoints(run / "stages", 0)
    checkpoints.save(1, state, export)
    for value in state["model"].values():
        value.zero_()
    checkpoints.load(state)
    return str([value.tolist() for value in state["model"].values()])


def refusals(run: Path) -> dict[str, str]:
    """What is wrong on one process only."""
    rank = dist.get_rank()
    checkpoints = Checkpoints(run / "refusals", 0)
    checkpoints.save(1, sharded(1.0), export)
    texts = {}
    spoilt = sharded(2.0)
    if rank == 2:
        spoilt["model"]["w"].to_local()[0] = float("nan")
    texts["not finite"] = refusal(lambda: checkpoints.save(2, spoilt, export))
    differing = sharded(2.0) | {"position": {"step": rank // 3}}
    texts["differs"] = refusal(lambda: checkpoints.save(2, differing, export))
    partly = sharded(2.0)
    if rank == 3:
        del partly["model"]["w"]
    texts["partly held"] = refusal(lambda: checkpoints.save(2, partly, export))
    texts["of another shape"] = refusal(lambda: checkpoints.load(sharded(0.0, num_rows=11)))
    texts["nothing"] = refusal(lambda: Checkpoints(run / "nothing", 0).load(sharded(0.0)))
    if rank == 0:
        (run / "unwritable").mkdir()
        (run / "unwritable" / "checkpoints").touch()
    dist.barrier()
    texts["unwritable"] = refusal(lambda: Checkpoints(run / "unwritable", 0).save(1, sharded(1.0), export))
    texts["not shared"] = refusal(lambda: Checkpoints(run / f"node{rank // 2}", 0).save(1, sharded(1.0), export))
    texts["not shared"] = texts["not shared"].replace("node1", "node0")
    checkpoints.load(state := sharded(0.0))
    texts["untouched"] = str(state["model"]["w"].full_tensor().unique().tolist())
    dist.barrier()
    if rank == 1:
        (run / "refusals" / "checkpoints" / "00000001" / "training_state" / "__2_0.distcp").unlink()
    dist.barrier()
    texts["missing shard"] = refusal(lambda: checkpoints.load(sharded(0.0)))
    return texts


def sharded(value: float, num_rows: int = 10) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return {
        "model": {"w": distribute_tensor(torch.full((num_rows, 2), value), mesh, [Shard(0)])},
        "position": {"step": 1},
    }


def beside_training(run: Path) -> str:
    """Training's collectives go on while the thread's do, late on one process."""
    checkpoints = Checkpoints(run / "beside", 0)
    total = torch.zeros(1)
    for step in range(1, 4):
        checkpoints.begin(step, sharded(step), lambda *_: time.sleep(0.05))
        for _ in range(5):
            dist.all_reduce(total.fill_(1.0))
            time.sleep(0.005 * dist.get_rank())
        checkpoints.fence()
    checkpoints.finish()
    return f"{total.item()} {checkpoints.last().name}"


def one_newest(run: Path) -> str:
    """The main process decides which is the newest, whatever another sees."""
    checkpoints = Checkpoints(run / f"newest{dist.get_rank() // 3}", 0)
    if dist.get_rank() == 0:
        for name in ("00000004", "00000009"):
            (run / "newest0" / "checkpoints" / name).mkdir(parents=True)
    return checkpoints.agreed_last().name


FOUR = {
    "save fsdp": lambda run: save(run, "fsdp"),
    "save both": lambda run: save(run, "both"),
    "save replicated": lambda run: save(run, "replicated"),
    "fsdp to tensor": lambda run: load(run, "fsdp4", "tensor"),
    "fsdp to both": lambda run: load(run, "fsdp4", "both"),
    "both to replicated": lambda run: load(run, "both4", "replicated"),
    "stages": stages,
    "refusals": refusals,
    "beside training": beside_training,
    "newest": one_newest,
}
TWO = {
    "4 to 2": lambda run: load(run, "fsdp4", "fsdp"),
    "both to fsdp": lambda run: load(run, "both4", "fsdp"),
    "save tensor": lambda run: save(run, "tensor"),
}
AGAIN = {"2 to 4": lambda run: load(run, "tensor2", "fsdp")}


def process(rank: int, run: Path) -> None:
    """One of four, of which two sit out the middle."""
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    for number, (size, work) in enumerate([(4, FOUR), (2, TWO), (4, AGAIN)]):
        if rank < size:
            join(run / f"store{number}", rank, size)
            found |= {name: each(run) for name, each in work.items()}
            dist.destroy_process_group()
    (run / f"found{rank}.json").write_text(json.dumps(found))


def join(store: Path, rank: int, size: int) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=timedelta(seconds=60)
    )


def start(work: Callable[..., None], run: Path, num: int) -> None:
    """In processes forked off one that has imported everything already."""
    set_forkserver_preload([__name__, "torch._dynamo"])
    mp.start_processes(work, (run,), nprocs=num, start_method="forkserver")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("run")
    start(process, run, 4)
    return run


@pytest.fixture(scope="module")
def found(run: Path) -> list[dict[str, Any]]:
    """What each process found."""
    return [json.loads((run / f"found{rank}.json").read_text()) for rank in range(4)]


@pytest.mark.parametrize(
    ("saved", "loaded"),
    [
        ("save fsdp", "4 to 2"),
        ("save fsdp", "fsdp to tensor"),
        ("save fsdp", "fsdp to both"),
        ("save both", "both to fsdp"),
        ("save both", "both to replicated"),
        ("save tensor", "2 to 4"),
    ],
)
def test_a_checkpoint_fits_any_layout(saved: str, loaded: str, found: list[dict[str, Any]]) -> None:
    for each in found:
        if loaded in each:
            assert each[loaded] == found[0][saved]


def test_all_layouts_were_saved_alike_and_exported_whole(run: Path, found: list[dict[str, Any]]) -> None:
    weights = {name: value for name, value in found[0]["save replicated"].items() if name.startswith(".model.")}
    assert len(weights) == 6
    for name in ("fsdp4", "both4", "replicated4", "tensor2"):
        folder = run / name / "checkpoints" / "last" / "pretrained_model"
        assert {f".{key}": value for key, value in json.loads((folder / "weights.json").read_text()).items()} == weights


def test_what_is_replicated_is_written_once_and_shared_out(run: Path) -> None:
    files = list((run / "replicated4" / "checkpoints" / "last" / "training_state").glob("*.distcp"))
    assert len([file for file in files if file.stat().st_size]) == 4


def test_each_stage_gets_its_own_back_and_the_export_sees_all(run: Path, found: list[dict[str, Any]]) -> None:
    assert [each["stages"] for each in found] == [str([[float(rank)] * 3, [7.0] * 2]) for rank in range(4)]
    weights = json.loads((run / "stages" / "checkpoints" / "last" / "pretrained_model" / "weights.json").read_text())
    assert weights.keys() == {f"model.{name}" for name in ("layer0", "layer1", "layer2", "layer3", "tied0", "tied1")}


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("not finite", "00000002: not finite: model.w (process 2); the checkpoints before it are untouched"),
        ("differs", "00000002: position.step differs between processes, under one name"),
        ("partly held", "the processes together hold 18 of 20 values of model.w"),
        ("of another shape", "does not fit this run (Size mismatch: model.w is [10, 2] float32 in it and [11, 2]"),
        ("nothing", "has no checkpoint"),
        ("unwritable", "could not save"),
        ("not shared", "__2_0.distcp is not there; all processes need one folder; the checkpoints before it"),
        ("untouched", "[1.0]"),
        ("missing shard", "__2_0.distcp is not there"),
    ],
)
def test_all_processes_say_the_same(case: str, text: str, found: list[dict[str, Any]]) -> None:
    assert text in found[0]["refusals"][case]
    assert {each["refusals"][case] for each in found} == {found[0]["refusals"][case]}


def test_the_threads_collectives_do_not_meet_trainings(found: list[dict[str, Any]]) -> None:
    assert {each["beside training"] for each in found} == {"4.0 00000003"}


def test_all_processes_take_the_main_ones_newest(found: list[dict[str, Any]]) -> None:
    assert {each["newest"] for each in found} == {"00000009"}


def killed(rank: int, run: Path) -> None:
    """The second of two dies while its file is written."""
    join(run / "store", rank, 2)
    checkpoints = Checkpoints(run, 1)
    checkpoints.save(1, sharded(1.0), export)
    if rank == 1:
        from vlarge.train.checkpoint import checkpoints as module

        module.write_shards = lambda *_: os.kill(os.getpid(), 9)
    text = refusal(lambda: checkpoints.save(2, sharded(2.0), export))
    (run / "text").write_text(text)
    os._exit(0)


def test_a_killed_process_is_told_and_leaves_the_checkpoint_before_it(tmp_path: Path) -> None:
    with pytest.raises(mp.ProcessExitedException):
        start(killed, tmp_path, 2)
    checkpoints = Checkpoints(tmp_path, 1)
    checkpoints.load(state := {"model": {"w": torch.zeros(10, 2)}, "position": {"step": 0}})
    assert state["model"]["w"].unique().tolist() == [1.0]
    checkpoints.save(3, state, export)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["00000003", "last"]
