"""An evaluation's bytes depend on plan and policy only: not on workers, crashes, kills or resumes."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import av
import pytest

from vlarge.contracts import InputError
from vlarge.evaluate.config import EvaluateConfig
from vlarge.evaluate.journal import Journal
from vlarge.evaluate.plan import EvaluationPlan, load_plan, make_plan
from vlarge.evaluate.run import run
from vlarge.sim.config import SimConfig

SIM = SimConfig(image_size=16, cameras=("front",))
NOISY = "fake_sim:noisy"


def plan_of(*tasks: str, episodes: int = 4, sim: SimConfig = SIM, **settings: int) -> EvaluationPlan:
    return make_plan(EvaluateConfig(tasks=tasks, episodes=episodes, **settings), sim)


def limits(**settings: float) -> EvaluateConfig:
    return EvaluateConfig(**{"videos": 0, "workers": 1, **settings})  # type: ignore[arg-type]


def lines(folder: Path, name: str = "episodes.jsonl") -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def test_same_bytes_for_one_and_two_workers_and_after_a_crash(fake_sim):
    plan = plan_of("fake/line", "fake/crash", episodes=6)
    run(plan, NOISY, Path("one"), limits())
    Path("fake_sim_faults").write_bytes(b"x")
    summary = run(plan, NOISY, Path("two"), limits(workers=2))

    for name in ("episodes.jsonl", "summary.json", "plan.json"):
        assert Path("one", name).read_bytes() == Path("two", name).read_bytes()
    assert [(line["task"], line["init_id"]) for line in lines(Path("two"))] == [
        (task, init_id) for task in ("fake/crash", "fake/line") for init_id in range(6)
    ]
    assert {line["outcome"] for line in lines(Path("two"))} == {"success", "failure"}
    assert summary["num_infra_error"] == 0
    attempts = lines(Path("two"), "attempts.jsonl")
    assert len(attempts) == 13
    lost = next(attempt for attempt in attempts if attempt["outcome"] == "infra_error")
    assert "the worker process ended (exit code -9)" in lost["error"]
    later = {attempt["worker_pid"] for attempt in attempts[attempts.index(lost) + 1 :]}
    assert lost["worker_pid"] not in later, "a dead worker plays no more"
    retried = [attempt for attempt in attempts if (attempt["task"], attempt["init_id"]) == ("fake/crash", 1)]
    assert [attempt["attempt"] for attempt in retried] == [1, 2]


def test_hanging_worker_is_killed_and_errors_end_as_infra_error(fake_sim):
    Path("fake_sim_faults").write_bytes(b"xxx")
    plan = plan_of("fake/hang", "fake/raise", episodes=2)
    start = time.monotonic()
    summary = run(plan, "zero", Path("out"), limits(step_timeout_s=1.5))
    assert time.monotonic() - start < 40
    by_key = {(line["task"], line["init_id"]): line for line in lines(Path("out"))}
    hung = by_key["fake/hang", 1]
    assert list(hung.values()) == ["fake/hang", 1, 0, "infra_error", None, None]
    assert by_key["fake/raise", 1]["outcome"] == "failure", "the fault passed at the second attempt"
    assert (summary["num_success"], summary["num_failure"], summary["num_infra_error"]) == (0, 3, 1)
    assert summary["success_rate"] == 0.0
    errors = [attempt["error"] for attempt in lines(Path("out"), "attempts.jsonl") if attempt["error"]]
    assert len(errors) == 3
    assert "silent for 1.5 s" in errors[0]
    assert "ArithmeticError: the simulation blew up" in errors[2]


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ("crash", "the worker process ended (exit code -9)"),
        ("reset", "ArithmeticError: no start was found"),
        ("nan", "fake/nan shows NaN or infinity in its state"),
    ],
)
@pytest.mark.parametrize(("num_faults", "outcome"), [(1, "as without"), (2, "infra_error")])
def test_a_fault_of_the_environment_is_recovered_or_counted_apart(fake_sim, task, said, num_faults, outcome):
    plan = plan_of(f"fake/{task}", episodes=3)
    run(plan, NOISY, Path("whole"), limits())
    Path("fake_sim_faults").write_bytes(b"x" * num_faults)
    summary = run(plan, NOISY, Path("out"), limits())
    whole, found = lines(Path("whole")), lines(Path("out"))
    assert (found[0], found[2]) == (whole[0], whole[2])
    assert found[1] == whole[1] if outcome == "as without" else found[1]["outcome"] == "infra_error"
    assert summary["num_infra_error"] == num_faults - 1
    errors = [attempt["error"] for attempt in lines(Path("out"), "attempts.jsonl") if attempt["error"]]
    assert len(errors) == num_faults
    assert all(said in error for error in errors)


def test_nan_actions_are_an_infra_error_with_a_clear_text(fake_sim):
    summary = run(plan_of("fake/line", episodes=1), "fake_sim:sick", Path("out"), limits(max_attempts=1))
    assert summary["num_infra_error"] == 1
    assert summary["success_rate"] is None
    assert summary["wilson95"] == [0.0, 1.0]
    (attempt,) = lines(Path("out"), "attempts.jsonl")
    assert "policy sick returned NaN or infinity at step" in attempt["error"]


def test_resumes_after_kill_without_running_anything_twice(fake_sim):
    plan = plan_of("fake/line", episodes=30)
    run(plan, NOISY, Path("whole"), limits())
    plan.save(Path("plan.json"))
    code = (
        "from pathlib import Path; from test_evaluate_run import *\n"
        "def slow(attempt): import time; time.sleep(0.05)\n"
        f"if __name__ == '__main__': run(load_plan(Path('plan.json')), {NOISY!r}, Path('out'), limits(), slow)"
    )
    # A file, because spawned workers import the main module by its path.
    script = Path("interrupted.py")
    script.write_text(f"import sys; sys.path[:0] = {sys.path!r}\n{code}\n")
    process = subprocess.Popen([sys.executable, str(script)])
    journal = Path("out/attempts.jsonl")
    deadline = time.monotonic() + 60
    while not journal.exists() or journal.read_bytes().count(b"\n") < 5:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    num_before = journal.read_bytes().count(b"\n")
    assert num_before < 30
    with journal.open("ab") as file:
        file.write(b'{"task": "fake/li')  # torn by the kill

    run(plan, NOISY, Path("out"), limits(workers=2))
    for name in ("episodes.jsonl", "summary.json"):
        assert Path("out", name).read_bytes() == Path("whole", name).read_bytes()
    attempts = lines(Path("out"), "attempts.jsonl")
    assert len(attempts) == 30
    before = journal.read_bytes()
    run(plan, NOISY, Path("out"), limits())
    assert journal.read_bytes() == before, "a finished evaluation runs nothing"


def test_replan_and_noise_key_decide_actions(fake_sim):
    outcomes = []
    for replan in (0, 1, 1):
        folder = Path(f"out{len(outcomes)}")
        run(plan_of("fake/line", episodes=5, replan=replan), NOISY, folder, limits())
        outcomes.append((folder / "episodes.jsonl").read_bytes())
    assert outcomes[1] == outcomes[2]
    assert outcomes[0] != outcomes[1]


def test_endless_environment_is_cut_at_its_horizon_and_free_success_is_counted(fake_sim):
    summary = run(plan_of("fake/endless", "fake/done", episodes=2), "zero", Path("out"), limits())
    assert summary["tasks"]["fake/endless"]["num_failure"] == 2
    assert summary["tasks"]["fake/done"]["num_success"] == 2
    assert summary["num_success_at_reset"] == summary["tasks"]["fake/done"]["num_success_at_reset"] == 2
    assert {line["num_steps"] for line in lines(Path("out")) if line["task"] == "fake/endless"} == {40}


def test_summary_holds_the_protocol(fake_sim):
    plan = plan_of("fake/line", episodes=3, seed=5)
    summary = run(plan, "expert", Path("out"), limits())
    assert json.loads(Path("out/summary.json").read_text()) == summary
    assert summary["metric"] == "success_once"
    assert (summary["num_success"], summary["num_failure"], summary["num_infra_error"]) == (3, 0, 0)
    assert summary["success_rate"] == 1.0
    assert summary["wilson95"][1] == 1.0
    assert summary["wilson95"][0] == pytest.approx(0.4385, abs=1e-4)
    assert summary["tasks"]["fake/line"]["num_success"] == 3
    assert summary["policy"] == "expert"
    assert summary["plan_hash"] == load_plan(Path("out/plan.json")).plan_hash() == plan.plan_hash()
    assert summary["spec_hash"] == plan.spec_hash()
    protocol = summary["protocol"]
    assert (protocol["seeds"], protocol["init_ids"], protocol["replan"]) == ([5], [0, 1, 2], 0)
    assert protocol["render_quality"] == "fast"
    assert protocol["horizon"] == {"fake/line": 40}
    assert {"vlarge", "python", "numpy", "torch"} <= set(protocol["versions"])


def test_films_play_and_do_not_change_the_episode(fake_sim):
    plan = plan_of("fake/line", episodes=3)
    run(plan, NOISY, Path("without"), limits())
    run(plan, NOISY, Path("with"), limits(videos=2))
    assert Path("with/episodes.jsonl").read_bytes() == Path("without/episodes.jsonl").read_bytes()
    films = sorted(Path("with/videos").iterdir())
    assert [film.name for film in films] == ["fake__line-0000-0.mp4", "fake__line-0001-0.mp4"]
    num_steps = lines(Path("with"))[0]["num_steps"]
    with av.open(str(films[0])) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.pix_fmt, stream.average_rate) == ("h264", "yuv420p", 5)
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]
    assert len(frames) == num_steps // 4 + 1
    assert frames[0].shape == (256, 256, 3)
    data = films[0].read_bytes()
    assert data.index(b"moov") < data.index(b"mdat"), "a browser can start before the end is there"


def test_another_evaluation_in_the_folder_is_refused(fake_sim):
    run(plan_of("fake/line", episodes=1), "zero", Path("out"), limits())
    with pytest.raises(InputError, match="another plan"):
        run(plan_of("fake/line", episodes=2), "zero", Path("out"), limits())
    with pytest.raises(InputError, match="another policy"):
        run(plan_of("fake/line", episodes=1), "expert", Path("out"), limits())


@pytest.mark.parametrize("policy", ["nowhere/at/all", "fake_sim:absent", "no_such_module:f"])
def test_missing_policy_is_an_input_error(fake_sim, policy):
    with pytest.raises(InputError, match="policy"):
        run(plan_of("fake/line", episodes=1), policy, Path("out"), limits())


def test_environment_that_changed_since_the_plan_is_refused(fake_sim):
    plan = plan_of("fake/line", episodes=1)
    text = json.dumps({"sim": {"horizon": 7}})
    assert text
    altered = EvaluationPlan(plan.keys, plan.specs, SimConfig(image_size=16, cameras=("front",), horizon=7), 0)
    with pytest.raises(InputError, match="not as planned, it differs in horizon"):
        run(altered, "zero", Path("out"), limits())


def test_edited_or_foreign_plan_file_is_refused(fake_sim):
    plan_of("fake/line", episodes=2).save(Path("plan.json"))
    content = json.loads(Path("plan.json").read_text())
    for change, message in (
        ({"replan": 3}, "edited"),
        ({"keys": []}, "no episode"),
        ({"keys": [["fake/line", 0, 0]] * 2}, "twice"),
        ({"format": 99}, "format 99"),
    ):
        Path("other.json").write_text(json.dumps({**content, **change}))
        with pytest.raises(InputError, match=message):
            load_plan(Path("other.json"))
    with pytest.raises(InputError, match="no evaluation plan"):
        load_plan(Path("absent.json"))


@pytest.mark.parametrize(
    "config",
    [
        EvaluateConfig(),
        EvaluateConfig(tasks=("fake/line", "fake/line")),
        EvaluateConfig(tasks=("fake/line",), episodes=0),
        EvaluateConfig(tasks=("fake/line",), seed=-1),
        EvaluateConfig(tasks=("fake/lime",)),
    ],
)
def test_plan_of_nonsense_is_refused(fake_sim, config):
    with pytest.raises(InputError):
        make_plan(config, SIM)


def test_two_evaluations_do_not_share_a_folder(fake_sim):
    plan = plan_of("fake/line")
    Path("out").mkdir()
    other = Journal(Path("out/attempts.jsonl"))
    plan.save(Path("out/plan.json"))
    Path("out/policy.json").write_text(json.dumps({"policy": "zero", "fingerprint": ""}) + "\n")
    with pytest.raises(InputError, match="another evaluation is writing to out"):
        run(plan, "zero", Path("out"), limits())
    other.close()
    assert run(plan, "zero", Path("out"), limits())["num_episodes"] == 4


@pytest.mark.parametrize(("policy", "message"), [("no_policy", "config.json"), ("os:getcwd", "which is no policy")])
def test_a_policy_that_cannot_act_leaves_nothing_behind(fake_sim, policy, message):
    Path("no_policy").mkdir()
    with pytest.raises(InputError, match=message):
        run(plan_of("fake/line"), policy, Path("out"), limits())
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"workers": 0}, "evaluate.workers is 0; it must be at least 1"),
        ({"videos": -1}, "evaluate.videos is -1; it must be at least 0"),
        ({"step_timeout_s": 0.0}, "evaluate.step_timeout_s is 0.0; it must be above 0"),
        ({"max_attempts": 0}, "evaluate.max_attempts is 0; it must be at least 1"),
    ],
)
def test_settings_out_of_range_are_refused_whoever_calls(fake_sim, settings, message):
    with pytest.raises(InputError, match=message):
        run(plan_of("fake/line"), "zero", Path("out"), limits(**settings))
    assert not Path("out").exists()


@pytest.mark.parametrize("settings", [{"episodes": 0}, {"replan": -1}, {"seed": -1}])
def test_plans_out_of_range_are_refused_whoever_calls(fake_sim, settings):
    with pytest.raises(InputError, match=r"evaluate\.\w+ is (0|-1); it must be at least"):
        plan_of("fake/line", **settings)
