"""How long does mining take, and how much memory?  OMP_NUM_THREADS=1 python benchmarks/mining.py

search: the 100 best of a million random embeddings of 384 dimensions for 10,000 queries, exact, by
cosine, read from a memory map by one process on the CPU (on a GPU if there is one). Reading is the
pass that checks that all are finite. The memory is the process's own at its peak, libraries
included, beside the pages of the map, which the system may drop.

mining: from texts to the negatives of all training queries of a collection, on the CPU, against
mine_hard_negatives of sentence-transformers: as it comes, and tuned (the fastest batch size for
some of the documents, faiss if it is there, its smallest output, bf16 weights in bf16 rows). Both
find ``--depth`` documents, leave out relevant ones and those that score above 95 % of the lowest
relevant one, and keep the best ``--negatives``. A query with fewer keeps what it has. Where
``range_max`` is R and no query has more than p relevant documents, theirs searches R + p deep: here
R is the depth minus p.

* ltr tokenises all texts before it encodes them, once for all refreshes; sentence-transformers
  whenever it encodes.
* The rest is filters, and the output: theirs is a data set of texts, ours a folder of numbers.
* Theirs reads texts that are several times in the corpus once. Overlaps compare texts, not ids.
* The peak is the process's own, libraries and mapped files included.

Wants ``pip install -e '.[bench]'``; without it ltr runs alone.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial, wraps
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness.machine import machine_line, resident
from harness.meter import Meter, Step
from harness.options import LIVEQA, MEDQUAD, add_backbone, add_data, parser
from harness.processes import environment, take_turns
from harness.sides import Result, Setting, Side
from harness.tables import head, row

from ltr.data.collection import Collection, open_collection
from ltr.data.disk import new_array
from ltr.data.files import map_given_array
from ltr.data.query_lists import QueryLists
from ltr.mining.filters import Recipe
from ltr.models.encoder.loading.model_folder import resolve
from ltr.search.embeddings import DOCS_AT_ONCE
from ltr.search.shards import Shards
from ltr.similarity import similarity_of
from ltr.spans import RowSpans, spans

EVERY = 0.02  # seconds between two looks at the memory
ST = "sentence-transformers"
DEFAULT = f"{ST}, default"
BATCHES = (16, 32, 64, 128)  # that the tuned side tries
# On so many documents it does, of about one length: it sorts them by length, so a batch is hardly
# padded.
TRIED = 128


class Peak:
    """While entered, watches the memory of this process that is not mapped from files; ``bytes`` is
    the peak.
    """

    def __enter__(self) -> "Peak":
        self.bytes = 0
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._left.wait(EVERY):
            self.bytes = max(self.bytes, resident("RssAnon"))

    def __exit__(self, *_: object) -> None:
        self.bytes = max(self.bytes, resident("RssAnon"))
        self._left.set()
        self._thread.join()


def random_map(file: Path, n_docs: int, dim: int) -> np.ndarray:
    """``[D, H]``, mapped from a file: a block of normal numbers again and again, each time moved by
    another vector.
    """
    rng = np.random.default_rng(0)
    docs = new_array(file, np.float32, (n_docs, dim))
    block = rng.standard_normal((min(n_docs, DOCS_AT_ONCE), dim), dtype=np.float32)
    for span in spans(n_docs, DOCS_AT_ONCE):
        docs[span] = block[: span.stop - span.start] + rng.standard_normal(dim, dtype=np.float32)
    docs.flush()
    return map_given_array(file)


def search(n_docs: int, n_queries: int, dim: int, depth: int, folder: str) -> None:
    """Print a table of one row."""
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        docs = random_map(Path(temporary) / "docs.npy", n_docs, dim)
        queries = np.random.default_rng(1).standard_normal((n_queries, dim), dtype=np.float32)
        with Peak() as peak:
            start = time.perf_counter()
            start_cpu = time.process_time()
            shards = Shards(docs, RowSpans([slice(0, n_docs)]), similarity_of("cosine"))
            read = time.perf_counter()
            shards.search(queries, depth)
            end = time.perf_counter()
            end_cpu = time.process_time()
    columns = ["documents", "queries", "depth", "map, GB", "read and checked, s", "searched, s"]
    print(head([*columns, "both, s of CPU", "peak beside the map, GB"]))
    cells = [
        f"{n_docs:,}",
        f"{n_queries:,}",
        depth,
        f"{docs.nbytes / 1e9:.2f}",
        f"{read - start:.1f}",
        f"{end - read:.1f}",
        f"{end_cpu - start_cpu:.1f}",
        f"{peak.bytes / 1e9:.2f}",
    ]
    print(row(cells))


def work(setting: Setting, n_queries: int | None) -> tuple[Collection, QueryLists]:
    """The collection, and the first of its training queries with their judgements."""
    collection = open_collection(setting.data)
    judged = collection.learnable("train")
    if n_queries is None:
        return collection, judged
    offsets = judged.offsets[: n_queries + 1]
    n_docs = offsets[-1]  # of the queries that are kept
    return collection, QueryLists(
        judged.query_rows[:n_queries], offsets, judged.doc_rows[:n_docs], judged.values[:n_docs]
    )


def ours(recipe: Recipe, n_queries: int | None, meter: Meter, setting: Setting, side: Side) -> None:
    """From texts to a folder of negatives."""
    from ltr.mining.miner import Miner
    from ltr.models import DualEncoder
    from ltr.search.embed_texts import encode_in_memory
    from ltr.search.encoding_places import TemporaryEncodings

    collection, judged = work(setting, n_queries)
    model = DualEncoder(setting.backbone, max_length=setting.max_length)
    meter.watch(model.query_tower.encoder.model)
    # The warm-up.
    encode_in_memory(
        model.doc_tower,
        model.reads.docs.store(collection.corpus),
        model.reads.docs,
        middle_rows([len(text) for text in collection.corpus.texts]),
    )
    precision = partial(torch.autocast, "cpu", torch.bfloat16, enabled=side.precision == "bf16")
    turn = 0
    while meter.step_ended():
        start = time.process_time()
        folder = setting.folder / f"{side.name} {turn}"
        turn += 1
        os.environ["LTR_CACHE"] = str(folder / "cache")  # so that it tokenises
        miner = Miner(model, collection, judged, recipe, min_negatives=0)
        negatives = miner.mine(TemporaryEncodings(folder), precision)
        negatives.save(folder / "negatives", collection)
        seconds = dict(negatives.manifest["seconds"])
        seconds["tokenise"] = 0.0
        stores = [
            model.reads.queries.store(collection.queries),
            model.reads.docs.store(collection.corpus),
        ]
        for store in stores:
            manifest = (store.folder / "manifest.json").read_text()
            seconds["tokenise"] += json.loads(manifest)["seconds"]
        note(setting, side, start, seconds)
    doc_rows = np.load(folder / "negatives/ids.npy")[judged.query_rows]
    # Equal texts count as one document. An id of -1, no negative, reads the last entry: -1 again.
    first_row, _ = first_rows(collection.corpus.texts)
    first_row = np.append(first_row, -1)
    np.save(setting.folder / f"{side.name} negatives.npy", first_row[doc_rows])


def theirs(
    recipe: Recipe, n_queries: int | None, meter: Meter, setting: Setting, side: Side
) -> None:
    """From texts in memory to a data set of texts."""
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.util import hard_negatives

    collection, judged = work(setting, n_queries)
    docs = list(collection.corpus.texts)
    queries = [collection.queries.texts[row] for row in judged.query_rows]
    pairs_of: dict[str, list[str]] = {"query": [], "relevant": []}
    for query, query_row in zip(queries, judged.query_rows, strict=True):
        doc_rows, grades = judged.of(query_row)
        for doc_row in doc_rows[grades > 0]:
            pairs_of["query"].append(query)
            pairs_of["relevant"].append(docs[doc_row])
    pairs = Dataset.from_dict(pairs_of)
    options = {"dtype": torch.bfloat16} if side.precision == "bf16" else {}
    model = SentenceTransformer(setting.backbone, device="cpu", model_kwargs=options)
    model.max_seq_length = setting.max_length
    meter.watch(model.transformers_model)
    tried = [docs[row] for row in middle_rows([len(text) for text in docs])]
    model.encode(tried, show_progress_bar=False)  # the warm-up
    chosen: dict[str, Any] = {"output_format": "triplet"}
    if side.tuned:
        batch = fastest_batch(model, tried)
        faiss = find_spec("faiss") is not None
        chosen = {"output_format": "labeled-list", "batch_size": batch, "use_faiss": faiss}
    seconds: dict[str, float] = defaultdict(float)

    def blocks(*limits: int, **_: Any) -> Iterator[int]:
        """In place of the progress bar around the search, which knows when it begins and ends."""
        start = time.perf_counter()
        yield from range(*limits)
        seconds["search"] += time.perf_counter() - start

    model.encode = timed(seconds, "encode", model.encode)
    hard_negatives.trange = blocks
    while meter.step_ended():
        seconds.clear()
        start = time.process_time()
        mined = hard_negatives.mine_hard_negatives(
            pairs,
            model,
            corpus=docs,
            range_max=recipe.depth - int(judged.n_relevant().max()),
            num_negatives=recipe.n,
            relative_margin=1 - recipe.relative,
            verbose=False,
            **chosen,
        )
        note(setting, side, start, seconds | {"batch": chosen.get("batch_size", 32)})
    negatives: dict[str, dict[str, None]] = defaultdict(dict)  # of a query, in order and once
    for line in mined:
        if side.tuned:
            listed = list(zip(line["relevant"], line["labels"], strict=True))
        else:
            listed = [(line["negative"], 0)]
        for text, label in listed:
            if not label:
                negatives[line["query"]][text] = None
    ids = np.full((len(queries), recipe.n), -1)
    _, row_of = first_rows(docs)
    for of_query, query in zip(ids, queries, strict=True):
        rows = [row_of[text] for text in negatives[query]]
        of_query[: len(rows)] = rows
    np.save(setting.folder / f"{side.name} negatives.npy", ids)


def middle_rows(lengths: list[int]) -> np.ndarray:
    """Rows of documents of middling length."""
    begin = max(0, (len(lengths) - TRIED) // 2)
    return np.argsort(lengths, kind="stable")[begin : begin + TRIED]


def fastest_batch(model: Any, texts: list[str]) -> int:
    """The batch size by which a model of sentence-transformers embeds texts in the least time."""

    def took(batch: int) -> float:
        start = time.perf_counter()
        model.encode(texts, batch_size=batch, show_progress_bar=False)
        return time.perf_counter() - start

    return min(BATCHES, key=took)


def timed(seconds: dict[str, float], name: str, function: Callable) -> Callable:
    """The function without its progress bar, which also adds what it took to ``seconds[name]``."""

    @wraps(function)
    def called(*args: Any, **options: Any) -> Any:
        start = time.perf_counter()
        result = function(*args, **options | {"show_progress_bar": False})
        seconds[name] += time.perf_counter() - start
        return result

    return called


def first_rows(texts: Any) -> tuple[np.ndarray, dict[str, int]]:
    """Of each text the first row that has it; and the same by text."""
    rows: dict[str, int] = {}
    return np.array([rows.setdefault(text, row) for row, text in enumerate(texts)]), rows


def note(setting: Setting, side: Side, start: float, numbers: dict[str, float]) -> None:
    """Keep a line about a turn for the table, which began at ``start`` seconds of this process on
    the CPU.
    """
    numbers = numbers | {"cpu": time.process_time() - start, "peak": resident("VmHWM")}
    with open(setting.folder / f"{side.name}.jsonl", "a") as file:
        print(json.dumps(numbers), file=file)


def mining(options: argparse.Namespace) -> None:
    """Print a table of a row for each side."""
    # Forked processes have everything imported.
    multiprocessing.set_start_method("fork" if options.tiny else "spawn", force=True)
    depth = options.depth
    n = options.negatives
    length = options.max_length
    if options.tiny:
        depth = 6
        n = 2
        length = 64
    recipe = Recipe(depth=depth, n=n, relative=0.95)
    with (
        tempfile.TemporaryDirectory(dir=options.folder) as folder,
        environment(
            LTR_CACHE=f"{folder}/cache",
            CUDA_VISIBLE_DEVICES="",
            HF_DATASETS_DISABLE_PROGRESS_BARS="1",
        ),
    ):
        setting = Setting(
            device="cpu",
            data=options.data,
            backbone=resolve(options.backbone),
            max_length=length,
            batch=0,  # is each side's own
            steps=1,  # a turn mines once
            turns=options.turns,
            folder=Path(folder),
            warm_up=1,
        )
        collection, judged = work(setting, options.queries)
        n_docs = len(collection.corpus)
        different = len(set(collection.corpus.texts))
        print(
            f"{len(judged.query_rows):,} queries of {options.data}, "
            f"{n_docs:,} documents ({different:,} different ones); "
            f"{options.backbone}, {length} tokens at most; "
            f"{n} negatives of the best {depth}; {setting.turns} turns.\n",
            flush=True,
        )
        sides = _sides(
            partial(theirs, recipe, options.queries), partial(ours, recipe, options.queries)
        )
        is_absent = find_spec("datasets") is None
        runnable = [side for side in sides if not (is_absent and side.name.startswith(ST))]
        results = take_turns(runnable, setting)
        reason = "datasets absent (pip install -e '.[bench]')"
        _print_sides({side: results.get(side, reason) for side in sides}, setting)
    print(f"\n{machine_line()}; {ST} {version(ST)}")


def _sides(theirs: Callable, ours: Callable) -> list[Side]:
    precisions = ["float32"]
    if torch.cpu.get_capabilities().get("amx_bf16", False):
        precisions.append("bf16")
    sides = [Side(DEFAULT, theirs, "float32")]
    for precision in precisions:
        sides.append(Side(_tuned(precision), theirs, precision, tuned=True))
    for precision in precisions:
        sides.append(Side(f"ltr, {precision}", ours, precision))
    return sides


def _tuned(precision: str) -> str:
    return f"{ST}, tuned, {precision}"


def _print_sides(results: dict[Side, Result | str], setting: Setting) -> None:
    columns = [
        "side",
        "tokenised, s",
        "encoded, s",
        "searched, s",
        "rest, s",
        "in all, s",
        "s of CPU",
        "searching",
        "vs default",
        "vs tuned",
        "padding",
        "peak MB",
        "negatives of a query",
        "also default's",
        "turns kept",
    ]
    print(head(columns))
    ids_of_default = None
    seconds_of: dict[str, float] = {}  # the sides so far
    for side, result in results.items():
        if isinstance(result, str):
            print(f"| {side.name} | cannot run: {result} |{' |' * (len(columns) - 2)}")
            continue
        step, noted = _median_turn(side, result, setting)
        ids = np.load(setting.folder / f"{side.name} negatives.npy")
        if side.name == DEFAULT:
            ids_of_default = ids
        seconds_of[side.name] = step.seconds

        name = side.name
        if "batch" in noted:
            name += f", batches of {noted['batch']}"
        parts = [noted.get(part) for part in ("tokenise", "encode", "search")]
        rest = step.seconds - sum(part or 0.0 for part in parts)
        cells = [name]
        for seconds in (*parts, rest, step.seconds, noted["cpu"]):
            cells.append("" if seconds is None else f"{seconds:.2f}")
        cells.append(f"{noted['search'] / step.seconds:.1%}")
        for base in (DEFAULT, _tuned(side.precision)):
            has_ratio = base in seconds_of and side.name != DEFAULT
            cells.append(f"{seconds_of[base] / step.seconds:.2f}" if has_ratio else "")
        cells.append(f"{1 - step.tokens / step.with_padding:.1%}")
        cells.append(f"{noted['peak'] / 1e6:,.0f}")
        cells.append(f"{(ids >= 0).sum(axis=1).mean():.2f}")
        cells.append("" if ids_of_default is None else f"{overlap(ids, ids_of_default):.2%}")
        cells.append(result.kept()[1])
        print(row(cells))


def _median_turn(side: Side, result: Result, setting: Setting) -> tuple[Step, dict[str, Any]]:
    """The turn of median seconds, and what the side noted of it."""
    kept, _ = result.kept()
    median = statistics.median_low(step.seconds for step in kept)
    lines = (setting.folder / f"{side.name}.jsonl").read_text().splitlines()
    for step, line in zip(result.steps, lines, strict=True):
        if step.seconds == median:
            return step, json.loads(line)
    raise AssertionError("the median is one of the steps")


def overlap(ids: np.ndarray, others: np.ndarray) -> float:
    """The share of these negatives ``[Q, n]`` that the others hold for the same query too."""
    shared = (ids[:, :, None] == others[:, None, :]).any(axis=2) & (ids >= 0)
    return float(shared.sum() / max(1, (ids >= 0).sum()))


def main() -> None:
    """Read the options, print a table of each part."""
    arguments = parser(__doc__)
    arguments.add_argument("--only", choices=["search", "mining"], help="one part; default: both")
    arguments.add_argument("--depth", type=int, default=100)
    arguments.add_argument(
        "--queries",
        type=int,
        help="search: 10,000 by default; mining: the first of all training queries",
    )
    arguments.add_argument(
        "--folder",
        help="where memory maps lie for as long as they are searched; default: the system's",
    )
    arguments.add_argument("--docs", type=int, default=1_000_000, help="of search")
    arguments.add_argument("--dim", type=int, default=384, help="of search")
    add_data(arguments, LIVEQA, MEDQUAD)
    add_backbone(arguments)
    arguments.add_argument("--negatives", type=int, default=10, help="of a query")
    arguments.add_argument(
        "--max-length", type=int, default=256, help="tokens of a text, special ones counted"
    )
    arguments.add_argument(
        "--turns", type=int, default=1, help="of each side, which mines once in a turn"
    )
    options = arguments.parse_args()
    if options.only != "mining":
        print(machine_line(), "\n")
        if options.tiny:
            search(n_docs=1000, n_queries=10, dim=16, depth=5, folder=options.folder)
        else:
            n_queries = options.queries or 10_000
            search(options.docs, n_queries, options.dim, options.depth, options.folder)
        print()
    if options.only != "search":
        mining(options)


if __name__ == "__main__":
    main()
