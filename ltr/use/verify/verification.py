"""Verification: does a library or a server compute what an exported ranker does?"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ltr.data.files import digest_of
from ltr.entries import read_json
from ltr.errors import InputError
from ltr.models.encoder.loading.model_folder import SETTINGS
from ltr.run.run_folder import CALIBRATION
from ltr.use.proof.contract import CARD, MEND, Proof, open_proof
from ltr.use.proof.network import Kind
from ltr.use.proof.reading import Text, filled, rendered_pair
from ltr.use.verify.compared_layers import compare_layers
from ltr.use.verify.diagnosis import NONE, PROBABILITIES, Answers, Diagnosis
from ltr.use.verify.finding import Finding
from ltr.use.verify.imitation import Imitation, Unit
from ltr.use.verify.libraries import show
from ltr.use.verify.server import Server

LIBRARIES = ("sentence-transformers", "transformers", "onnx")
EMBEDDINGS = 2e-4  # by which an embedding may differ, relative to its length
BATCH = 8  # texts of a request for embeddings


class Verified(NamedTuple):
    """What a verification has found.

    Attributes:
        finding: the first layer that departs; None: all is right.
        n_probes: how many were compared.
        largest: the largest difference of a score or an embedding; infinite where layers before
            it depart.
        changed: files of the folder that have changed since the export.
        of_calibration: whether the thresholds and probabilities of ``calibration.json`` can be used
            on what is served, in words; empty where the folder has none.
    """

    finding: Finding | None
    n_probes: int
    largest: float
    changed: list[str]
    of_calibration: str = ""


def verify(folder: str | Path, server: str | None = None) -> Verified:
    """Compare a library, or a server, with the proof of an exported folder.

    Args:
        folder: as ``ltr export`` has written it.
        server: ``sentence-transformers``, ``transformers`` or ``onnx``, which then loads the
            folder in this process; or the URL of a server. None: the library that it is for.

    Raises:
        InputError: if the folder has no proof, or a damaged one; for a server that can't be
            reached, answers in another form, or serves another model.
    """
    proof = open_proof(folder)
    if server is None:
        server = proof.contract["form"]
    if server in LIBRARIES:
        compared = compare_layers(proof, show(proof, server))
        verified = Verified(compared.finding, len(proof.scores), compared.largest, [])
    else:
        verified = _verify_url(proof, server)
    finding = verified.finding or _calibration_finding(proof)
    return verified._replace(
        finding=finding,
        changed=_changed_files(proof),
        of_calibration=_of_calibration(proof, finding),
    )


def _calibration_finding(proof: Proof) -> Finding | None:
    """Whether the calibration beside right scores is another one than that of the export."""
    has_one = (proof.folder / CALIBRATION).is_file() or CALIBRATION in proof.contract["files"]
    if not has_one or proof.calibration is not None:
        return None
    return Finding(
        "calibration",
        f"{CALIBRATION} is not that of the export, so nobody says that it is of these scores",
        "all scores are right; export the ranker again, which hands on the calibration of the run",
    )


def _of_calibration(proof: Proof, finding: Finding | None) -> str:
    """What the calibration of a folder is worth for what is served."""
    if proof.calibration is None:
        return ""
    if finding is None:
        holds = f"{CALIBRATION} holds: keep what scores at or above its thresholds; the code on the card makes probabilities of the scores"
        settings = proof.folder / SETTINGS
        if settings.is_file() and read_json(settings, MEND).get("windows") is not None:
            return f"{holds}; but of a long document that is cut it promises nothing: give each window as a document ({CARD})"
        return holds
    if finding.fault == PROBABILITIES:
        return (
            f"the thresholds of {CALIBRATION} are for raw scores, and these are its probabilities"
        )
    if finding.layer == "dtype":
        return f"{CALIBRATION} is for scores in float32: of these, documents near a threshold may be lost"
    return (
        f"the thresholds and probabilities of {CALIBRATION} are for the right scores, not for these"
    )


def _changed_files(proof: Proof) -> list[str]:
    """The files that are not those of the export any more."""
    changed = []
    for name, digest in proof.contract["files"].items():
        file = proof.folder / name
        if not file.is_file():
            changed.append(f"{name} is missing")
            continue
        if digest_of(file) != digest:
            changed.append(name)
    return changed


def _verify_url(proof: Proof, url: str) -> Verified:
    server = Server(url, "embeddings" if proof.is_dual else "rerank", proof.folder.name)
    if server.route == "embeddings" and not proof.is_dual:
        raise InputError(
            f"{url}: a cross-encoder is asked for scores, and this route gives embeddings; name /rerank"
        )
    if server.route == "embeddings":
        return _verify_embeddings(proof, server)
    return _verify_scores(proof, server)


def _verify_scores(proof: Proof, server: Server) -> Verified:
    """A server that scores the documents of a query."""
    units = [
        Unit({kind: int(rows[probe]) for kind, rows in proof.readings.items()})
        for probe in range(len(proof.scores))
    ]
    queries = [_fields(proof, unit)[0] for unit in units]
    documents = [_fields(proof, unit)[1] for unit in units]
    batches = [np.flatnonzero(proof.lists == number).tolist() for number in np.unique(proof.lists)]
    together = np.empty(len(units))
    for batch in batches:
        together[batch] = server.rerank(queries[batch[0]], [documents[n] for n in batch])
    alone = np.array(
        [server.rerank(query, [text])[0] for query, text in zip(queries, documents, strict=True)]
    )
    expected = proof.scores.astype(np.float64)
    largest = float(max(np.abs(alone - expected).max(), np.abs(together - expected).max()))
    if largest <= proof.tolerance:
        return Verified(None, len(units), largest, [])
    imitation = Imitation(proof)

    def more() -> tuple[np.ndarray, np.ndarray] | None:
        if proof.is_dual:
            return None
        return _more(
            imitation,
            "pair",
            lambda text: np.asarray(server.rerank(text.fields[0], [text.fields[1]])),
        )

    diagnosis = Diagnosis(imitation, units, expected, proof.tolerance, more)
    finding = diagnosis.finding(Answers(alone, together, batches))
    return Verified(finding, len(units), largest, [])


def _verify_embeddings(proof: Proof, server: Server) -> Verified:
    """A server that embeds texts, which have their template when they are sent."""
    units = [Unit({kind: n}) for kind in proof.rows for n in range(len(proof.rows[kind]))]
    texts = []
    rights = []
    for unit in units:
        ((kind, number),) = unit.readings.items()
        texts.append(proof.texts[kind][number].rendered[0])
        rights.append(proof.arrays[kind][number])
    expected = np.stack(rights).astype(np.float64)
    batches = [
        list(range(first, min(first + BATCH, len(units)))) for first in range(0, len(units), BATCH)
    ]
    together = np.concatenate([server.embed([texts[n] for n in batch]) for batch in batches])
    if together.shape != expected.shape:
        raise InputError(
            f"{server.url}: the server must serve the model of {proof.folder}, whose embeddings have {expected.shape[1]} dimensions, got {together.shape[1]}: it has another model"
        )
    alone = np.concatenate([server.embed([text]) for text in texts])
    sizes = np.linalg.norm(expected, axis=1)
    errors = [np.linalg.norm(given - expected, axis=1) / sizes for given in (alone, together)]
    largest = float(np.max(errors))
    if largest <= EMBEDDINGS:
        return Verified(None, len(units), largest, [])
    imitation = Imitation(proof)

    def more() -> tuple[np.ndarray, np.ndarray] | None:
        return _more(imitation, "document", lambda text: server.embed([text.rendered[0]]))

    diagnosis = Diagnosis(imitation, units, expected, EMBEDDINGS, more)
    finding = diagnosis.finding(Answers(alone, together, batches))
    return Verified(finding, len(units), largest, [])


def _fields(proof: Proof, unit: Unit) -> list[str]:
    """The query and the document of a probe."""
    fields: list[str] = []
    for kind, number in unit.readings.items():
        fields += proof.texts[kind][number].fields
    return fields


def _short_texts(proof: Proof, kind: Kind, n: int) -> list[Text]:
    """Distinct short texts of a kind, made of the beginnings of those of the proof."""
    distinct: dict[tuple[str, ...], None] = {}
    known = {tuple(text.fields) for text in proof.texts[kind]}
    words = [[field.split() for field in text.fields] for text in proof.texts[kind]]
    for step in range(1, 40):
        for place, parts in enumerate(words):
            other = words[(place * 5 + step * 3) % len(words)]
            firsts = parts[:-1] if len(parts) == 2 else []
            last = other[-1][step % 7 : step % 7 + 1 + step % 5] or other[-1][:1]
            fields = tuple(" ".join(part) for part in [*firsts, last])
            if all(fields) and fields not in known:
                distinct[fields] = None
        if len(distinct) >= n:
            break
    template = proof.contract["template"]
    texts = []
    for fields in list(distinct)[:n]:
        if kind == "pair":
            rendered = rendered_pair(template, *fields)
        else:
            rendered = [filled(template[kind], kind, fields[0])]
        texts.append(Text(list(fields), rendered))
    return texts


def _more(
    imitation: Imitation, kind: Kind, answer: Callable[[Text], np.ndarray]
) -> tuple[np.ndarray, np.ndarray] | None:
    """Hidden states ``[M, H]`` and a server's answers, for M above H; None for too few texts."""
    proof = imitation.proof
    dim = proof.arrays[f"{kind}_pooled"].shape[1]
    texts = _short_texts(proof, kind, dim + 64)
    if len(texts) <= dim + 8:
        return None
    output = imitation.output(NONE, kind, texts)
    if output is None or output.pooled.shape[1] != dim:
        return None
    return output.pooled, np.concatenate([answer(text) for text in texts])
