"""What a library makes of the probes of an exported folder, layer by layer, in this process.

The library loads the folder as its users do. What it shows is compared with the proof by
:mod:`ltr.use.verify.compared_layers`.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ltr.errors import InputError
from ltr.models.encoder.loading.pretrained import quiet
from ltr.use.proof.contract import Proof
from ltr.use.proof.network import Kind, TokenRow, inputs_of, pool_padded
from ltr.use.proof.reading import Text

TOGETHER = 8  # texts that are read beside each other


class Shown(NamedTuple):
    """What a library makes of the texts of a kind.

    Attributes:
        texts: what goes into its tokenizer; None where it does not say.
        rows: the token ids.
        hidden: ``[S, H]``, its hidden states, pooled as the contract says; None where they are not
            seen.
        pooled: ``[S, H]``, what its head reads, each text alone.
        together: the same, with texts beside each other.
        output: ``[S]`` or ``[S, dim]``, of its head, before an activation.
        final: the same, behind it: what its users get.
        final_together: the same, with texts beside each other.
        activation: its name.
        dtype: of the weights.
        is_rounded: whether half precision holds all weights of the encoder, as those that were
            merged or stored in it; None where they are not seen.
    """

    texts: list[list[str]] | None
    rows: list[TokenRow]
    hidden: np.ndarray | None
    pooled: np.ndarray | None
    together: np.ndarray | None
    output: np.ndarray | None
    final: np.ndarray
    final_together: np.ndarray
    activation: str
    dtype: str
    is_rounded: bool | None = None


class Library(NamedTuple):
    """A loaded library: what it shows of each kind, and how it compares embeddings."""

    shown: dict[Kind, Shown]
    similarity: str | None = None


def show(proof: Proof, library: str) -> Library:
    """Let a library read the probes of a folder.

    Args:
        proof: of the folder.
        library: ``sentence-transformers``, ``transformers`` or ``onnx``.

    Raises:
        InputError: if it can't load the folder.
    """
    form = proof.contract["form"]
    if (library == "onnx") != (form == "onnx"):
        raise InputError(
            f"{proof.folder} is a folder for {form}, and --with is {library}; export it with --to {library}"
        )
    readers: dict[str, Callable[[Proof], Library]] = {
        "sentence-transformers": _by_sentence_transformers,
        "transformers": _by_transformers,
        "onnx": _by_onnx,
    }
    try:
        with quiet(), torch.inference_mode():
            return readers[library](proof)
    except InputError:
        raise
    # A library raises whatever it stumbles over.
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(
            f"{proof.folder}: {library} can't load or run this folder: {reason}"
        ) from None


def _by_sentence_transformers(proof: Proof) -> Library:
    if proof.is_dual:
        return _by_sentence_transformer(proof)
    from sentence_transformers import CrossEncoder

    cross = CrossEncoder(
        str(proof.folder), device="cpu", local_files_only=True, trust_remote_code=False
    )
    texts = proof.texts["pair"]
    pairs = [tuple(text.fields) for text in texts]
    prompt = cross._resolve_prompt(None, None) or ""

    def features(batch: Sequence[Any]) -> dict[str, Any]:
        return dict(cross.preprocess(list(batch), prompt=prompt or None))

    def final(output: Tensor) -> Tensor:
        return cross.activation_fn(output).squeeze(-1)

    modules = list(cross)
    rendered = [[prompt + query, document] for query, document in pairs]
    with_template = rendered if len(texts[0].rendered) == 2 else None
    shown = _modules_shown(
        proof, "pair", pairs, with_template, modules, features, final, "scores", cross.activation_fn
    )
    scores = cross.predict(pairs, batch_size=TOGETHER, show_progress_bar=False)
    return Library({"pair": shown._replace(final_together=np.asarray(scores, np.float32))})


def _by_sentence_transformer(proof: Proof) -> Library:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Router

    dual = SentenceTransformer(
        str(proof.folder), device="cpu", local_files_only=True, trust_remote_code=False
    )
    shown: dict[Kind, Shown] = {}
    encode = {"query": dual.encode_query, "document": dual.encode_document}
    for kind in proof.rows:
        modules = list(dual)
        if isinstance(modules[0], Router):
            modules = [*modules[0].sub_modules[kind], *modules[1:]]
        raw = [text.fields[0] for text in proof.texts[kind]]
        names = ("query",) if kind == "query" else ("document", "passage", "corpus")
        prompt = next((dual.prompts[name] for name in names if dual.prompts.get(name)), "")
        if not prompt and dual.default_prompt_name:
            prompt = dual.prompts[dual.default_prompt_name]

        def features(batch: Sequence[Any], prompt: str = prompt, kind: Kind = kind) -> dict:
            return dict(dual.preprocess(list(batch), prompt=prompt or None, task=kind))

        behind = [module for module in modules if isinstance(module, Normalize)]
        shown_here = _modules_shown(
            proof,
            kind,
            raw,
            [[prompt + text] for text in raw],
            [module for module in modules if not isinstance(module, Normalize)],
            features,
            _normalised if behind else _as_it_is,
            "sentence_embedding",
            behind[0] if behind else nn.Identity(),
        )
        together = encode[kind](raw, batch_size=TOGETHER, show_progress_bar=False)
        shown[kind] = shown_here._replace(final_together=np.asarray(together, np.float32))
    return Library(shown, str(dual.similarity_fn_name))


def _normalised(output: Tensor) -> Tensor:
    return nn.functional.normalize(output, dim=1)


def _as_it_is(output: Tensor) -> Tensor:
    return output


def _modules_shown(
    proof: Proof,
    kind: Kind,
    inputs: Sequence[Any],
    texts: list[list[str]] | None,
    modules: Sequence[Any],
    features: Callable[[Sequence[Any]], dict[str, Any]],
    final: Callable[[Tensor], Tensor],
    name: str,
    activation: Any,
) -> Shown:
    """What the modules of a model of sentence-transformers show."""
    rows = []
    hidden: list[np.ndarray] = []
    pooled: list[np.ndarray] = []
    outputs: list[np.ndarray] = []
    finals: list[np.ndarray] = []
    for one in inputs:
        given = features([one])
        rows.append(_row(given))
        states, contract_states, output = _through(proof, kind, modules, given, name)
        pooled.append(_array(states)[0])
        hidden.append(_array(contract_states)[0])
        outputs.append(_array(output)[0])
        finals.append(_array(final(output.float()))[0])
    together: list[np.ndarray] = []
    for first in range(0, len(inputs), TOGETHER):
        given = features(inputs[first : first + TOGETHER])
        together.extend(_array(_through(proof, kind, modules, given, name)[0]))
    weight = next(modules[0].parameters())
    return Shown(
        texts,
        rows,
        np.stack(hidden),
        np.stack(pooled),
        np.stack(together),
        np.stack(outputs).reshape(len(rows), -1),
        np.stack(finals),
        np.stack(finals),
        type(activation).__name__,
        str(weight.dtype).removeprefix("torch."),
        _is_rounded(modules[0]),
    )


def _through(
    proof: Proof, kind: Kind, modules: Sequence[Any], given: dict[str, Any], name: str
) -> tuple[Tensor, Tensor, Tensor]:
    """What a model's head reads, its states pooled by the contract, and what it makes of them."""
    features = given
    if len(modules) == 1:  # a classifier: its head is inside
        with inputs_of(_last_linear(modules[0])) as seen:
            features = modules[0](features)
        states = seen[0].reshape(len(features[name]), -1)
        return states, states, features[name]
    features = modules[0](features)
    tokens, mask = features["token_embeddings"].float(), features["attention_mask"]
    contract_states = _pooled_right(tokens, mask, proof.contract["pooling"][kind])
    features = modules[1](features)
    states = features["sentence_embedding"]
    for module in modules[2:]:
        features = module(features)
    return states, contract_states, features[name]


def _pooled_right(tokens: Tensor, mask: Tensor, pooling: str) -> Tensor:
    """Hidden states pooled as the contract says, wherever the padding stands."""
    vectors = []
    for row, row_mask in zip(tokens, mask.bool(), strict=True):
        own = row[row_mask].unsqueeze(0)
        vectors.append(pool_padded(own, torch.ones(1, own.shape[1]), pooling)[0])
    return torch.stack(vectors)


def _by_transformers(proof: Proof) -> Library:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    if proof.is_dual:
        raise InputError("a dual encoder is no sequence classifier of transformers")
    folder = proof.folder
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    model = AutoModelForSequenceClassification.from_pretrained(folder, trust_remote_code=False)
    model.eval()
    texts = [text.rendered for text in proof.texts["pair"]]
    cut = "only_second" if len(texts[0]) == 2 else True

    def features(batch: Sequence[list[str]]) -> dict[str, Any]:
        columns = map(list, zip(*batch, strict=True))
        options = {"truncation": cut, "padding": True, "return_tensors": "pt"}
        options["add_special_tokens"] = proof.contract["adds_special_tokens"]
        return dict(tokenizer(*columns, **options))

    def run(given: dict[str, Any]) -> tuple[Tensor, Tensor]:
        with inputs_of(_last_linear(model)) as seen:
            logits = model(**given).logits[:, 0]
        states = seen[0]
        if states.ndim == 3 and states.shape[1] > 1:  # a decoder scores every token, and reads one
            states = pool_padded(states, given["attention_mask"], "last")
        return states.reshape(len(logits), -1), logits

    rows = []
    pooled = []
    outputs = []
    for text in texts:
        given = features([text])
        rows.append(_row(given))
        states, logits = run(given)
        pooled.append(_array(states)[0])
        outputs.append(float(logits[0]))
    together: list[np.ndarray] = []
    together_scores: list[float] = []
    for first in range(0, len(texts), TOGETHER):
        states, logits = run(features(texts[first : first + TOGETHER]))
        together.extend(_array(states))
        together_scores.extend(logits.float().tolist())
    states_alone = np.stack(pooled)
    output = np.array(outputs, np.float32)
    shown = Shown(
        None,
        rows,
        states_alone,
        states_alone,
        np.stack(together),
        output,
        output,
        np.array(together_scores, np.float32),
        "Identity",
        str(model.dtype).removeprefix("torch."),
        _is_rounded(model.base_model),
    )
    return Library({"pair": shown})


def _by_onnx(proof: Proof) -> Library:
    from transformers import AutoTokenizer

    from ltr.use.onnx_graph import Session

    shown: dict[Kind, Shown] = {}
    for kind, texts in proof.texts.items():
        is_alone = (proof.folder / f"{kind}.onnx").is_file()
        place = proof.folder / kind if is_alone else proof.folder
        session = Session(proof.folder / (f"{kind}.onnx" if is_alone else "model.onnx"))
        tokenizer = AutoTokenizer.from_pretrained(place, trust_remote_code=False)
        cut = "only_second" if len(texts[0].rendered) == 2 else True
        options = {
            "truncation": cut,
            "max_length": _max_length(proof.folder, kind),
            "padding": True,
            "return_tensors": "np",
            "add_special_tokens": proof.contract["adds_special_tokens"],
        }

        def outputs(
            batch: Sequence[Text],
            tokenizer: Any = tokenizer,
            options: dict[str, Any] = options,
            session: Session = session,
        ) -> tuple[dict[str, Any], np.ndarray]:
            columns = map(list, zip(*(text.rendered for text in batch), strict=True))
            given = dict(tokenizer(*columns, **options))
            return given, session.output(given)

        rows = []
        alone = []
        together: list[np.ndarray] = []
        for text in texts:
            given, output = outputs([text])
            rows.append(_row(given))
            alone.append(output[0])
        for first in range(0, len(texts), TOGETHER):
            together.extend(outputs(texts[first : first + TOGETHER])[1])
        final = np.stack(alone)
        shown[kind] = Shown(
            None, rows, None, None, None, None, final, np.stack(together), "unknown", "unknown"
        )
    return Library(shown, proof.contract["similarity"])


def _max_length(folder: Path, kind: Kind) -> int:
    """The longest text, as ``ltr.json`` says it beside a graph."""
    from ltr.entries import read_json

    settings = read_json(folder / "ltr.json", "export the ranker again")
    if kind == "pair":
        return int(settings["model"]["max_length"])
    return int(settings["max_lengths"][kind])


def _row(given: dict[str, Any]) -> TokenRow:
    """The ids of the only text of a batch, as far as its mask is 1."""
    mask = np.asarray(given["attention_mask"][0]).astype(bool)
    ids = np.asarray(given["input_ids"][0])[mask].tolist()
    if "token_type_ids" not in given:
        return TokenRow(ids, None)
    return TokenRow(ids, np.asarray(given["token_type_ids"][0])[mask].tolist())


def _is_rounded(encoder: nn.Module) -> bool:
    """Whether half precision holds each weight as it is."""
    for dtype in (torch.bfloat16, torch.float16):
        if all(torch.equal(each, each.to(dtype).to(each.dtype)) for each in encoder.parameters()):
            return True
    return False


def _last_linear(model: Any) -> nn.Module:
    """The last linear layer of a classifier that gives a score."""
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    return [module for module in linear if module.out_features == 1][-1]


def _array(tensor: Tensor) -> np.ndarray:
    array: np.ndarray = tensor.float().cpu().numpy()
    return array
