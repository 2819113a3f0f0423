"""The faults of ``make mutations`` keep up with the package."""

import ast

from ltr.losses import LOSSES
from tests.mutations import ROOT, read_faults


def test_every_fault_can_be_planted():
    """Its old text stands in its file as often as it says, and what comes of it is Python."""
    bad = []
    for fault in read_faults():
        try:
            ast.parse(fault.plant((ROOT / fault.file).read_text()))
        except (ValueError, SyntaxError) as error:
            bad.append(f"{error}: {fault.what}")
        if fault.old == fault.new:
            bad.append(f"{fault.file}: nothing changes: {fault.what}")
    assert not bad, "\n".join(bad)


def test_every_fault_has_its_own_words_and_tests_that_exist():
    faults = read_faults()
    assert len(faults) >= 190 and len({(f.file, f.what) for f in faults}) == len(faults)
    files = {"ltr/similarity.py", "ltr/gains.py", "ltr/metrics.py", "ltr/compatibility.py"}
    for room in ("losses", "pairs"):
        files |= {str(path.relative_to(ROOT)) for path in (ROOT / "ltr" / room).rglob("*.py")}
    files -= {"ltr/losses/__init__.py"}
    files |= {"ltr/data/collate.py", "ltr/in_batch/policies.py", "ltr/margins/normal_sample.py"}
    files |= {"ltr/in_batch/duplicates.py", "ltr/compare/statistics.py", "ltr/data/cuts.py"}
    files |= {"ltr/data/column_roles.py", "ltr/data/text_rows.py"}
    files |= {"ltr/data/sampling/list_rows.py", "ltr/models/ranker.py"}
    files |= {f"ltr/data/{name}.py" for name in ("pair_files", "judged_lists", "folder_files")}
    files |= {f"ltr/data/{name}.py" for name in ("data_folder", "lines", "named_rows", "trec")}
    files |= {"ltr/data/separated_rows.py"}
    files |= {"ltr/search/exact.py", "ltr/search/tiles.py", "ltr/tf32.py", "ltr/run/precision.py"}
    for name in ("block_attention", "first_tokens", "gelu", "half_weights", "linear"):
        files.add(f"ltr/models/encoder/kernels/{name}.py")
    # A new loss needs its file and its test; what several losses share needs faults.
    losses = {f"{loss.__module__.replace('.', '/')}.py" for loss in LOSSES.values()}
    assert files - losses <= {f.file for f in faults} <= files
    for path, *name in {tuple(test.split("::")) for f in faults for test in f.tests}:
        text = (ROOT / path).read_text()
        assert all(f"def {one}(" in text for one in name), (path, name)
