"""What is said to be uploaded is what Ray packs, file by file and byte by byte; what can't be packed is refused."""

import os
import tempfile
from pathlib import Path
from zipfile import ZipFile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ray._private.ray_constants import get_runtime_env_default_excludes
from ray._private.runtime_env.packaging import create_package

from jobs import upload
from jobs.upload import check_named, check_size, inside, survey
from tiercache.errors import SpecError


def fill(folder: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return folder


def packed_by_ray(folder: Path, gitignore: bool = True) -> tuple[set[str], int]:
    """(files, bytes) of the archive that Ray itself would send."""
    with tempfile.TemporaryDirectory() as elsewhere:
        archive = Path(elsewhere) / "package.zip"
        create_package(str(folder), archive, gitignore, excludes=get_runtime_env_default_excludes())
        with ZipFile(archive) as package:
            return {name for name in package.namelist() if not name.endswith("/")}, archive.stat().st_size


PARTS = st.sampled_from(["a", "b", "data", "venv", "x.py", "é", "__pycache__"])
PATHS = st.lists(PARTS, min_size=1, max_size=3).map("/".join)
RULES = st.lists(st.sampled_from(["a", "*.py", "data/", "!a", "b/**", "/b", "é", "# no rule", ""]), max_size=4)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(paths=st.sets(PATHS, max_size=8), rules=RULES, ray_rules=RULES, deeper=st.sampled_from(["", "a/", "b/"]))
def test_the_survey_is_what_ray_packs(
    paths: set[str], rules: list[str], ray_rules: list[str], deeper: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path in sorted(paths, key=len, reverse=True):  # a name can be a file or a folder
            if not (folder / path).exists():
                fill(folder, {path: "content" * len(path)})
        (folder / "empty").mkdir()
        fill(folder, {".rayignore": "\n".join(ray_rules)})
        if not (folder / deeper).is_file():
            fill(folder, {f"{deeper}.gitignore": "\n".join(rules)})
        for ignored in ("0", "1"):
            monkeypatch.setenv("RAY_RUNTIME_ENV_IGNORE_GITIGNORE", ignored)
            found = survey(folder)
            assert (set(found.files), found.total) == packed_by_ray(folder, gitignore=ignored == "0")


def test_rays_default_excludes_can_be_replaced_as_in_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, {".git/config": "", "venv/a": "", "x.py": ""})
    assert set(survey(tmp_path).files) == {"x.py"}
    monkeypatch.setenv("RAY_OVERRIDE_RUNTIME_ENV_DEFAULT_EXCLUDES", "x.py")
    assert set(survey(tmp_path).files) == {".git/config", "venv/a"}


@pytest.mark.parametrize(
    "links", [{"a/self": "."}, {"a/up": ".."}, {"a/x": "../b", "b/y": "../a"}, {"a/all": "/"}], ids=str
)
def test_a_link_that_leads_back_is_refused_and_not_followed_for_ever(tmp_path: Path, links: dict[str, str]) -> None:
    fill(tmp_path, {"a/f": "", "b/f": ""})
    for name, target in links.items():
        (tmp_path / name).symlink_to(target)
    with pytest.raises(SpecError, match=r"leads back.*\.rayignore"):
        survey(tmp_path)
    fill(tmp_path, {".rayignore": "\n".join(links)})
    assert set(survey(tmp_path).files) == {".rayignore", "a/f", "b/f"}


def test_links_to_elsewhere_are_followed_as_ray_follows_them(tmp_path: Path) -> None:
    folder = fill(tmp_path / "project", {"x": "1"})
    (folder / "data").symlink_to(fill(tmp_path / "big", {"rows": "12345"}))
    (folder / "broken").symlink_to("nowhere")
    found = survey(folder)
    assert found.files == {"x": 1, "data/rows": 5}
    assert (set(found.files), found.total) == packed_by_ray(folder)


def test_a_pipe_would_make_ray_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SpecError, match="pipe"):
        survey(tmp_path)


def test_what_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, {"secret": "", "x": ""})
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "secret")
    with pytest.raises(SpecError, match=r"secret may not be read"):
        survey(tmp_path)
    monkeypatch.undo()
    (tmp_path / ".gitignore").write_bytes(b"\xff\xfe")
    with pytest.raises(SpecError, match="can't be packed"):
        survey(tmp_path)


def test_a_folder_with_too_many_files_is_left_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload, "MAX_FILES", 3)
    fill(tmp_path, {str(i): "" for i in range(4)})
    with pytest.raises(SpecError, match="more than 3 files"):
        survey(tmp_path)


def test_over_the_limit_the_five_largest_are_named(tmp_path: Path) -> None:
    fill(tmp_path, {f"file{size}": "x" * size * 1000 for size in range(1, 8)})
    found = survey(tmp_path)
    assert found.total == 28_000 + 7 * (76 + 2 * len("file1")) + 22
    check_size(found, found.total)
    with pytest.raises(SpecError) as refused:
        check_size(found, found.total - 1)
    lines = str(refused.value).splitlines()
    assert "28.0 KiB in 7 files" in lines[0]
    assert "--max-upload" in lines[0]
    assert [line.split()[-1] for line in lines[1:]] == ["file7", "file6", "file5", "file4", "file3"]
    assert "6.84 KiB" in lines[1]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    files = [
        "s.yaml",
        "data/a.jsonl",
        "data/.cache",
        "model/config.json",
        "model/w.safetensors",
        "hidden/x",
        "deep/er/x",
    ]
    fill(tmp_path / "outside", {"x": ""})
    return fill(tmp_path / "project", dict.fromkeys(files, "") | {".gitignore": "*.safetensors\nhidden/\n.cache"})


@pytest.mark.parametrize("name", ["s.yaml", "./s.yaml", "data/../s.yaml", "data", "data/", "data/a.jsonl", "deep"])
def test_a_file_that_is_uploaded_passes(project: Path, name: str) -> None:
    assert check_named(survey(project), name, "field")


@pytest.mark.parametrize("name", ["/somewhere/x", "~/x"])
def test_an_absolute_path_is_left_to_the_nodes(project: Path, name: str) -> None:
    assert not check_named(survey(project), name, "field")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("../outside/x", "outside of the working directory"),
        ("data/../../outside", "outside of the working directory"),
        ("nowhere", "no such file"),
        ("model/w.safetensors", "would not be uploaded.*gitignore"),
        ("model", "model/w.safetensors in it would not be uploaded"),
        ("hidden", "hidden/x in it would not be uploaded"),
        ("hidden/x", "would not be uploaded"),
    ],
)
def test_a_file_that_the_job_would_miss_is_refused(project: Path, name: str, words: str) -> None:
    with pytest.raises(SpecError, match=f"field: '{name}'.*{words}"):
        check_named(survey(project), name, "field")


def test_paths_of_the_command_line_are_found_in_the_folder(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project / "data")
    assert inside(project, Path("a.jsonl")) == "data/a.jsonl"
    assert inside(project, Path("../s.yaml")) == "s.yaml"
    assert inside(project, project / "s.yaml") == "s.yaml"
    assert inside(project, Path("../../outside/x")) is None
    (project.parent / "alias").symlink_to(project)
    assert inside(project, project.parent / "alias" / "s.yaml") == "s.yaml"
