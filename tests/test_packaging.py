"""What is installed: under which name, with which files, and what it needs."""

import configparser
import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import zipfile
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

import ltr
from tests.test_architecture import imports_of

ROOT = Path(__file__).parents[1]
FOLDERS = ("benchmarks", "docs", "examples", "experiments", "ltr", "notebooks", "tests")
SUFFIXES = (".py", ".md", ".cfg", ".toml", ".yaml", ".yml", ".txt", ".ipynb", ".html", ".cff")
DEMO = ("examples", "experiments", "ltr")  # the folders that `make demo` reads

# "ltr" as something to install: behind pip's word, or with extras or a version behind it.
INSTALLED_AS_LTR = re.compile(
    r"""pip3?\ install\ [^`\n&;|]*?(?<![\w./-])ltr(?![\w/.-])  # pip install -U ltr
    |   (?<![\w.])ltr\[[a-z]+(,[a-z]+)*\](?!\()            # ltr[onnx]
    |   (?<![\w.-])ltr\ ?[=~]=\ ?\d                         # ltr==0.1
    """,
    re.VERBOSE,
)


def setup() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    return parser


def requirements(lines: str) -> dict[str, str]:
    """The bounds of each package, by its name as it is imported."""
    found = {}
    for line in lines.strip().splitlines():
        if not line.startswith("#"):
            name, bounds = re.fullmatch(r"([\w-]+)(?:\[\w+\])?(.*)", line).groups()
            found[name.lower().replace("-", "_")] = bounds.strip()
    return found


def texts() -> dict[str, str]:
    """The text files of the project, but for this one."""
    files = [file for file in ROOT.iterdir() if file.is_file()]
    for folder in FOLDERS:
        files += (ROOT / folder).rglob("*")
    found = {}
    for file in files:
        is_text = file.suffix in SUFFIXES or file.name in ("Makefile", "Dockerfile")
        if is_text and file != Path(__file__):
            found[str(file.relative_to(ROOT))] = file.read_text(encoding="utf-8")
    return found


def test_the_distribution_is_not_the_stranger_of_the_same_name():
    """``ltr`` on the public index is another project's code."""
    parser = setup()
    assert parser["metadata"]["name"] == "ltr-lab"
    assert parser["options.entry_points"]["console_scripts"].strip() == "ltr = ltr.__main__:program"
    assert "`ltr-lab`" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_nothing_says_to_install_ltr():
    found = []
    for name, text in texts().items():
        for match in INSTALLED_AS_LTR.finditer(text):
            line = text[: match.start()].count("\n") + 1
            found.append(f"{name}:{line}: {match.group()}")
    assert found == []


SAYS_IT = [
    "pip install ltr",
    "pip install -U torch ltr",
    "needs `pip install ltr[onnx]`",
    'pip install "ltr[cpu,onnx]"',
    "ltr==0.1.0",
]
SAYS_IT_NOT = [
    "pip install 'ltr-lab[onnx]'",
    "pip install -e . && ltr fit",
    "pip install ir_datasets",
    "from ltr import load",
]


@pytest.mark.parametrize("text", SAYS_IT + SAYS_IT_NOT)
def test_ways_to_say_it_are_known(text):
    assert (INSTALLED_AS_LTR.search(text) is not None) == (text in SAYS_IT)


def test_every_package_that_is_imported_is_a_requirement():
    """Or an extra, or comes with a requirement."""
    parser = setup()
    required = requirements(parser["options"]["install_requires"])
    extras = parser["options.extras_require"]
    optional = {"ir_datasets": ""}
    for extra in ("check", "cpu", "lora", "mteb", "onnx", "parquet", "stemming", "zstd", "data"):
        optional |= requirements(extras[extra])
    other_names = {"yaml": "pyyaml", "faiss": "faiss_cpu", "Stemmer": "pystemmer"}
    other_names["sklearn"] = "scikit_learn"
    other_names["markupsafe"] = "jinja2"  # comes with it
    other_names["triton"] = "torch"  # comes with its builds for CUDA
    missing = set()
    for file in (ROOT / "ltr").rglob("*.py"):
        for name in imports_of(file.read_text(encoding="utf-8")):
            top = name.partition(".")[0]
            is_ours = top in sys.stdlib_module_names or top == "ltr"
            if not is_ours and other_names.get(top, top) not in required | optional:
                missing.add(top)
    assert missing == set()


def test_a_release_that_reads_yaml_wrongly_is_refused():
    """tests/run/test_yaml_files.py shows with it what goes wrong."""
    required = requirements(setup()["options"]["install_requires"])
    assert required["pyyaml"] == ">= 6, != 6.0.4"
    # Its 2.6.2 and 2.6.3 were malicious.
    assert required["lightning"] == ">= 2.6.5"


def test_every_file_of_the_package_is_shipped():
    """setuptools takes the .py files by itself, and of the others those that setup.cfg names."""
    declared = set()
    for package, files in setup()["options.package_data"].items():
        declared |= {ROOT.joinpath(*package.split("."), file) for file in files.split(", ")}
    files = [file for file in (ROOT / "ltr").rglob("*") if file.is_file()]
    shipped = {file for file in files if file.suffix not in (".py", ".pyc")}
    # In the sample, ltr check --write puts clean splits.
    assert {file for file in shipped if ".clean." not in file.name} == declared
    assert ROOT / "ltr/py.typed" in declared
    for folder in {file.parent for file in files if file.suffix == ".py"}:
        assert (folder / "__init__.py").is_file(), f"{folder} is in no wheel"


class Targets(HTMLParser):
    """The targets of links and of pictures in a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.pictures: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        if tag == "a" and dict(attrs).get("href"):
            self.links.append(dict(attrs)["href"])
        if tag == "img":
            self.pictures.append(dict(attrs)["src"])


@pytest.mark.parametrize("address", ["", "https://example.org/owner/ltr"])
def test_the_page_of_the_index_has_no_dead_link_and_no_dead_picture(address):
    """Rendered as the index does. Without an address there is nothing that it could lead to."""
    renderer = pytest.importorskip("readme_renderer.markdown")
    long_description = runpy.run_path(str(ROOT / "setup.py"))["long_description"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    html = renderer.render(long_description(readme, address))
    assert html is not None
    targets = Targets(html)
    places = [f"{address}/blob/HEAD/", f"{address}/raw/HEAD/"]
    for found, place in zip((targets.links, targets.pictures), places, strict=True):
        # The renderer gives each heading a link to itself.
        found = [target for target in found if not target.startswith("#user-content-")]
        of_project = [target for target in found if "example.org" in target or "://" not in target]
        assert bool(of_project) == bool(address)
        for target in of_project:
            if target.startswith(f"{address}#"):
                continue
            assert target.startswith(place)
            assert (ROOT / target.removeprefix(place).partition("#")[0]).exists(), target
    assert "![" not in html


def test_links_in_code_and_to_other_places_stay():
    long_description = runpy.run_path(str(ROOT / "setup.py"))["long_description"]
    page = "[`a`](a.md#b), ![p](p.svg), [c](https://c.org), [d](#d)\n\n```\n[e](e.md)\n```\n"
    assert long_description(page, "") == ("`a`, , [c](https://c.org), d\n\n```\n[e](e.md)\n```\n")
    assert long_description(page, "https://x.org/y") == (
        "[`a`](https://x.org/y/blob/HEAD/a.md#b), ![p](https://x.org/y/raw/HEAD/p.svg), "
        "[c](https://c.org), [d](https://x.org/y#d)\n\n```\n[e](e.md)\n```\n"
    )


def test_readme_names_every_extra():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"^\| extra \|.*\n\| --- .*\n((?:\|.*\n)+)", readme, re.MULTILINE)
    named = []
    for row in table.splitlines():
        named += re.findall(r"`(\w+)`", row.split("|")[1])
    assert sorted(named) == sorted(setup()["options.extras_require"])
    assert "exclude each other" in next(row for row in table.splitlines() if "`gpu`" in row)


def extras_in(text: str) -> set[str]:
    """Those of the first list of extras in square brackets."""
    return set(re.search(r"\[(\w+(?:,\w+)+)\]", text)[1].split(","))


def test_conda_and_the_workflow_install_what_make_env_does():
    of_make = extras_in((ROOT / "Makefile").read_text())
    conda = yaml.safe_load((ROOT / "environment.yml").read_text())
    assert conda["channels"] == ["conda-forge", "nodefaults"]
    *packages, of_pip = conda["dependencies"]
    assert extras_in(of_pip["pip"][0]) == of_make - {"cpu"}
    assert any(package.startswith("faiss ") for package in packages)
    workflow = (ROOT / ".github/workflows/wheel.yml").read_text()
    jobs = yaml.safe_load(workflow)["jobs"]
    assert extras_in(workflow.partition("dist/*.whl")[2]) == of_make
    pythons = re.findall(r"Python :: (3\.\d+)", setup()["metadata"]["classifiers"])
    assert jobs["test"]["strategy"]["matrix"]["python"] == pythons
    assert jobs["publish"]["needs"] == "test" and jobs["test"]["needs"] == "build"


@pytest.mark.parametrize(("tag", "rc"), [(ltr.__version__, 0), ("9.9", 1)])
def test_a_tag_of_another_version_is_not_built(tag, rc):
    jobs = yaml.safe_load((ROOT / ".github/workflows/wheel.yml").read_text())["jobs"]
    first = next(one["run"] for one in jobs["build"]["steps"] if "run" in one)
    environment = os.environ | {"GITHUB_REF": f"refs/tags/v{tag}"}
    done = subprocess.run(["bash", "-c", first], cwd=ROOT, env=environment)
    assert done.returncode == rc


def test_the_sdist_holds_what_the_tests_read():
    """This file reads the workflow."""
    assert "graft .github" in (ROOT / "MANIFEST.in").read_text().splitlines()


def test_a_build_leaves_the_site(tmp_path):
    """Of the first line of ``make dist``, which removes what was built before."""
    (line,) = re.findall(r"^dist: .*\n\t(rm .*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for name in ("build/site", "build/lib/ltr", "build/bdist.linux-x86_64", "dist"):
        (tmp_path / name).mkdir(parents=True)
    subprocess.run(["bash", "-c", line], cwd=tmp_path, check=True)
    assert [str(one.relative_to(tmp_path)) for one in tmp_path.rglob("*")] == [
        "build",
        "build/site",
    ]


def test_the_container_runs_as_a_user_and_keeps_its_runs():
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    user = lines.index("USER ltr")
    assert user < lines.index("RUN make env") < lines.index("VOLUME /ltr/runs")


def test_the_container_gets_the_project_and_nothing_that_was_made_here():
    """No .venv of the host, and none of its runs."""
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    left_out = {name.removeprefix("**/") for name in ignored}
    for name in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines():
        assert name.strip("/") in left_out, f"{name} is in .gitignore, and not in .dockerignore"
    for name in ("Makefile", "README.md", "constraints.txt", "pyproject.toml", "setup.cfg", *DEMO):
        assert (ROOT / name).exists() and name not in left_out


@pytest.mark.long
def test_the_sdist_holds_the_project_and_the_wheel_the_package(tmp_path):
    """The wheel is built from the sdist. Both builds fetch setuptools."""
    pytest.importorskip("build")
    if not (ROOT / ".git").exists():
        pytest.skip("only git knows which files are the project's")
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    output = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    of_project = {name for name in output.splitlines() if (ROOT / name).is_file()}
    source = tmp_path / "source"
    for name in of_project:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, source / name)
    # The sample of the package is one of the examples, by a link: the sdist has it in both places.
    (source / "examples/medquad").symlink_to("../ltr/examples/medquad")
    sample = {name.removeprefix("ltr/") for name in of_project if name.startswith("ltr/examples/")}
    command = [sys.executable, "-m", "build", "--outdir", str(tmp_path), str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    if "No matching distribution found for setuptools" in done.stdout + done.stderr:
        pytest.skip("setuptools can't be fetched")
    assert done.returncode == 0, done.stderr

    (sdist,) = tmp_path.glob("ltr_lab-*.tar.gz")
    with tarfile.open(sdist) as archive:
        files = [Path(one.name) for one in archive.getmembers() if one.isfile()]
    packed = {str(file.relative_to(file.parts[0])) for file in files}
    of_build = {"PKG-INFO"} | {name for name in packed if name.startswith("ltr_lab.egg-info/")}
    of_ci = {name for name in of_project if name.startswith(".ci/")}
    assert packed - of_build == of_project - of_ci | sample

    (wheel,) = tmp_path.glob("ltr_lab-*-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = next(name for name in names if name.endswith(".dist-info/METADATA"))
        told = archive.read(metadata).decode()
    assert {name for name in names if ".dist-info/" not in name} == {
        name for name in of_project if name.startswith("ltr/")
    }
    assert "\nName: ltr-lab\n" in told and "\nLicense-Expression: Apache-2.0\n" in told
    assert "Requires-Dist: pyyaml!=6.0.4,>=6\n" in told
