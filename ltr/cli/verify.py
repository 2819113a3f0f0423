"""``ltr verify``: does a library or a server compute what an exported ranker does?"""

import sys

from ltr.data.console import say, speech_on_stderr
from ltr.use.verify.verification import verify as verify_proof


def verify(folder: str, *, with_: str | None = None) -> None:
    """Compare a library or a server with the proof of an exported folder.

    Says pass, or the layer where it departs: template, tokens, special tokens, truncation, place,
    dtype, hidden state, head, activation, order, calibration. Ends with code 1 if it departs. Where
    the folder has a calibration, a line says whether it can be used on what is served.

    Args:
        folder: An exported folder.
        with_: sentence-transformers, transformers or onnx, which then loads the folder; or the URL
            of a server, with a route /rerank or /embeddings. None: the library that the folder is
            for.
    """
    try:
        with speech_on_stderr():
            verified = verify_proof(folder, with_)
    except KeyboardInterrupt:
        say(f"interrupted; {folder} is not verified", to=sys.stderr)
        raise
    if verified.finding is None:
        say(f"pass: {verified.n_probes} probes, largest difference {verified.largest:.2g}")
    else:
        layer, fault, evidence = verified.finding
        say(f"{layer}: {fault}")
        say(f"  {evidence}")
    if verified.of_calibration:
        say(f"  {verified.of_calibration}")
    if verified.changed:
        say(f"  changed since the export: {', '.join(verified.changed)}")
    if verified.finding is not None:
        raise SystemExit(1)
