"""Recipes: what is read is what was written, and every mistake names its place."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vlarge import recipe as recipes
from vlarge.contracts import InputError
from vlarge.recipe import Recipe


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_a_dumped_recipe_loads_as_the_same(tmp_path: Path) -> None:
    changed = recipes.load([], {"train.lr": 3e-7, "train.betas": (0.5, 0.9), "data.exclude_episodes": [4, 5]})
    changed = recipes.replace(changed, "data.path", 'hf://a/"b"\\ \n\x7f é 机')
    assert recipes.load([write(tmp_path / "r.toml", recipes.dump(changed))]) == changed
    assert changed != Recipe()


@settings(max_examples=40, deadline=None)  # it writes files
@given(
    text=st.text(st.characters(codec="utf-8")), number=st.floats(min_value=0, allow_infinity=False), flag=st.booleans()
)
def test_any_value_survives_a_dump(
    tmp_path_factory: pytest.TempPathFactory, text: str, number: float, flag: bool
) -> None:
    changed = recipes.load([], {"train.max_time_s": number, "track.tensorboard": flag, "evaluate.tasks": (text, text)})
    path = write(tmp_path_factory.getbasetemp() / "any.toml", recipes.dump(changed))
    assert recipes.load([path]) == changed


def test_a_list_of_tables_loads_from_a_file_and_from_an_option(tmp_path: Path) -> None:
    text = '[[data.mixture]]\npath = "a"\nweight = 2\n[[data.mixture]]\npath = "b"\ncameras = ["c"]'
    loaded = recipes.load([write(tmp_path / "r.toml", text)])
    assert [(part.path, part.weight, part.cameras) for part in loaded.data.mixture] == [
        ("a", 2.0, ()),
        ("b", 1.0, ("c",)),
    ]
    assert recipes.load([write(tmp_path / "again.toml", recipes.dump(loaded))]) == loaded
    by_option = recipes.load([], {"data.mixture": '[{path = "a", weight = 2}, {path = "b", cameras = ["c"]}]'})
    assert by_option.data.mixture == loaded.data.mixture
    assert recipes.load([tmp_path / "r.toml"], {"data.mixture": "[]"}).data.mixture == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[data.mixture]]\npat = "a"', "data.mixture: unknown key pat; did you mean path?"),
        ('[[data.mixture]]\npath = "a"\nweight = 0', "data.mixture.weight is 0.0; it must be above 0"),
        ("[[data.mixture]]\npath = 3", "data.mixture.path must be text, got 3"),
        ('[data]\nmixture = "a"', "data.mixture must be a list of tables, as"),
        ('[data]\nmixture = ["a"]', "data.mixture must be a list of tables, as"),
        ('[data]\nmixture = {path = "a"}', "data.mixture must be a list of tables, as"),
    ],
)
def test_mistakes_in_a_list_of_tables_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path / "r.toml", text)
    with pytest.raises(InputError, match=re.escape(message)):
        recipes.load([path])


def test_a_dump_is_complete() -> None:
    text = recipes.dump(Recipe())
    for table in fields(Recipe):
        section = text.split(f"[{table.name}]\n")[1].split("\n\n")[0]
        settings = fields(getattr(Recipe(), table.name))
        assert [line.split(" = ")[0] for line in section.splitlines()] == [item.name for item in settings]


def test_overlays_and_overrides_win_in_order(tmp_path: Path) -> None:
    first = write(tmp_path / "first.toml", "[train]\nsteps = 1\nbatch_size = 2\nclip_norm = 1\n[run]\nseed = 3")
    overlay = write(tmp_path / "overlay.toml", "[train]\nbatch_size = 20\nsteps = 10")
    loaded = recipes.load([first, overlay], {"train.steps": "100"})
    assert (loaded.train.steps, loaded.train.batch_size, loaded.run.seed) == (100, 20, 3)
    assert loaded.train.clip_norm == 1.0
    assert isinstance(loaded.train.clip_norm, float)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[train]\nstep = 4", "unknown key train.step; did you mean train.steps?"),
        ("[train]\nseed = 4", "unknown key train.seed; did you mean run.seed?"),
        ("[data]\nclip_norm = 4", "unknown key data.clip_norm; did you mean train.clip_norm?"),
        ("[trian]\nsteps = 4", r"unknown table \[trian\]; did you mean train?"),
        ("[zzz]", r"unknown table \[zzz\]; tables: run, data, model"),
        ("steps = 4", "key steps stands outside every table; did you mean train.steps?"),
        ('[train]\nsteps = "40"', 'train.steps must be a whole number, got "40"'),
        ("[train]\nsteps = 4.0", "train.steps must be a whole number, got 4.0"),
        ("[train]\nsteps = true", "train.steps must be a whole number, got true"),
        ("[train]\nlr = true", "train.lr must be a number, got true"),
        ("[track]\ntensorboard = 1", "track.tensorboard must be true or false, got 1"),
        ("[run]\ndir = 1", "run.dir must be text, got 1"),
        ("[train]\nbetas = [0.9]", r"train.betas must be a list of 2 values, each a number, got \[0.9\]"),
        ("[evaluate]\ntasks = [1]", r"evaluate.tasks must be a list of text, got \[1\]"),
        ('[evaluate]\ntasks = "a"', 'evaluate.tasks must be a list of text, got "a"'),
        ("[train]\nsteps = ", "cannot be read as TOML"),
    ],
)
def test_a_mistake_names_file_and_key(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path / "wrong.toml", text)
    with pytest.raises(InputError, match=message) as caught:
        recipes.load([path])
    assert str(caught.value).startswith(f"{path}: ")


def test_a_recipe_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"no recipe at {tmp_path}/none.toml"):
        recipes.load([tmp_path / "none.toml"])
    with pytest.raises(InputError, match="cannot be read"):
        recipes.load([tmp_path])


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("train.steps", "40", 40),
        ("train.lr", "1e-4", 1e-4),
        ("train.clip_norm", "2", 2.0),
        ("track.tensorboard", "False", False),
        ("data.path", "[a", "[a"),
        ("data.cameras", "a, b", ("a", "b")),
        ("data.cameras", '["a,b"]', ("a,b",)),
        ("data.cameras", "", ()),
        ("data.exclude_episodes", "4", (4,)),
        ("train.betas", "0.9,0.95", (0.9, 0.95)),
    ],
)
def test_a_command_lines_text_is_read_by_type(key: str, text: str, value: object) -> None:
    table, name = key.split(".")
    assert getattr(getattr(recipes.load([], {key: text}), table), name) == value


@pytest.mark.parametrize(
    ("key", "text"),
    [("train.steps", "4.5"), ("track.tensorboard", "yes"), ("train.betas", "1,2,3"), ("data.exclude_episodes", "[1,")],
)
def test_text_of_another_type_is_refused(key: str, text: str) -> None:
    with pytest.raises(InputError, match=f"^{key} must be .*, got"):
        recipes.load([], {key: text})


def test_replace_changes_one_setting_and_is_strict() -> None:
    recipe = Recipe()
    assert recipes.replace(recipe, "train.steps", 40).train.steps == 40
    assert recipe == Recipe()
    with pytest.raises(InputError, match="whole number"):
        recipes.replace(recipe, "train.steps", "40")
    with pytest.raises(InputError, match=r"did you mean train.steps"):
        recipes.replace(recipe, "train.stepz", 40)


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        ("train.steps", "0", "at least 1"),
        ("train.batch_size", "-2", "at least 1"),
        ("train.lr", "0", "above 0"),
        ("train.lr", "1e30", "below 1"),
        ("train.lr", "nan", "finite"),
        ("train.lr_min", "inf", "finite"),
        ("train.betas", "0.9,1.0", "below 1"),
        ("train.ema_decay", "-1", "at least 0"),
        ("train.suffixes_per_prefix", "0", "at least 1"),
        ("train.num_threads", "-1", "at least 0"),
        ("run.seed", "-1", "at least 0"),
        ("data.workers", "-2", "at least -1"),
        ("model.image_size", "100000", "below 2049"),
        ("model.action_horizon", "-1", "at least 0"),
        ("evaluate.alpha", "0.5", "below 0.5"),
        ("record.noise_hold_steps", "0", "at least 1"),
    ],
)
def test_a_value_out_of_its_range_is_refused(key: str, value: str, rule: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"^{key} is .*; it must be {rule}"):
        recipes.load(overrides={key: value})
    table, name = key.split(".")
    text = f"[{value}]" if "," in value else value
    (tmp_path / "bad.toml").write_text(f"[{table}]\n{name} = {text}\n")
    with pytest.raises(InputError, match=f"bad.toml: {key} .*{rule}"):
        recipes.load([tmp_path / "bad.toml"])


@pytest.mark.parametrize("given", ["auto", "400"])
def test_a_number_may_be_a_word(tmp_path: Path, given: str) -> None:
    loaded = recipes.load([], {"train.micro_batch_tokens": given})
    assert loaded.train.micro_batch_tokens == ("auto" if given == "auto" else 400)
    assert recipes.load([write(tmp_path / "r.toml", recipes.dump(loaded))]) == loaded


@pytest.mark.parametrize(("given", "said"), [("most", "a whole number or 'auto', got \"most\""), ("-1", "at least 0")])
def test_no_other_word_will_do(given: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        recipes.load([], {"train.micro_batch_tokens": given})
