"""What a server would answer that has a fault: computed with the exported ranker itself."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from transformers import AutoTokenizer

from ltr.errors import InputError
from ltr.models.encoder.loading.architecture import max_positions
from ltr.use.load import load
from ltr.use.onnx_graph import Session
from ltr.use.proof.contract import Proof
from ltr.use.proof.network import (
    ForwardOptions,
    Kind,
    Network,
    Output,
    TokenRow,
    forms_of,
    networks_of,
    padded,
)
from ltr.use.proof.reading import Text, token_rows
from ltr.use.proof.write import similarity_scores
from ltr.use.rankers import TextRanker
from ltr.use.verify.faults import Fault
from ltr.use.verify.finding import Layer


class Unit(NamedTuple):
    """What a server answers with one score or one embedding: a pair of texts, or a text.

    Attributes:
        readings: which texts of each kind are read for it.
    """

    readings: dict[Kind, int]


class GraphNetwork:
    """As :class:`ltr.use.proof.network.Network`, for a graph, which shows its output alone."""

    def __init__(self, session: Session, pad_id: int) -> None:
        self._session = session
        self.pad_id = pad_id

    def __call__(
        self,
        rows: Sequence[TokenRow],
        run: ForwardOptions = ForwardOptions(),
        batches: Sequence[Sequence[int]] | None = None,
    ) -> Output | None:
        """None for a way to run that is inside the graph."""
        if run.pooling is not None or run.rounded is not None:
            return None
        outputs: list[np.ndarray] = [np.empty(0)] * len(rows)
        for batch in batches or [[row] for row in range(len(rows))]:
            inputs = padded([rows[row] for row in batch], self.pad_id, run)
            arrays = {name: tensor.numpy() for name, tensor in inputs.items()}
            for row, output in zip(batch, self._session.output(arrays), strict=True):
                outputs[row] = output
        final = np.stack(outputs)
        return Output(np.empty((len(rows), 0)), final)


class Imitation:
    """The exported ranker of a proof, which may be run with faults.

    Args:
        proof: of the folder.

    Raises:
        InputError: if the folder can't be loaded, or gives other numbers than its proof.
    """

    def __init__(self, proof: Proof) -> None:
        self.proof = proof
        self.networks: dict[Kind, Network | GraphNetwork] = {}
        self.tokenizers: dict[Kind, Any] = {}
        self.positions: int | None = None
        if proof.contract["form"] == "onnx":
            self._open_graphs()
        else:
            self._open_ranker()
        units = [Unit({kind: int(proof.readings[kind][0]) for kind in proof.rows})]
        own = self.scores(Fault("order", "none"), units)
        if own is None or not np.abs(own - proof.scores[:1]).max() <= proof.tolerance:
            raise InputError(
                f"{proof.folder}: the folder itself gives other numbers than its proof; "
                f"ltr verify {proof.folder} --with {proof.contract['form']} says where"
            )

    def _open_ranker(self) -> None:
        ranker = load(self.proof.folder, "32-true", "cpu")
        assert isinstance(ranker, TextRanker), "exported rankers read texts"
        self.networks.update(networks_of(ranker.model))
        if set(self.networks) != set(self.proof.rows):
            raise InputError(
                f"{self.proof.folder}: the folder must hold the ranker of its proof, got a "
                f"{type(ranker.model).__name__}; export it again"
            )
        for kind, form in forms_of(ranker.model).items():
            self.tokenizers[kind] = form.tokenizer
        network = next(iter(self.networks.values()))
        assert isinstance(network, Network), "opened above"
        self.positions = max_positions(network.model.base_model)

    def _open_graphs(self) -> None:
        folder = self.proof.folder
        for kind in self.proof.rows:
            is_alone = (folder / f"{kind}.onnx").is_file()
            place = folder / kind if is_alone else folder
            self.tokenizers[kind] = AutoTokenizer.from_pretrained(place, trust_remote_code=False)
            graph = folder / (f"{kind}.onnx" if is_alone else "model.onnx")
            self.networks[kind] = GraphNetwork(
                Session(graph), self.tokenizers[kind].pad_token_id or 0
            )

    def output(
        self,
        fault: Fault,
        kind: Kind,
        texts: Sequence[Text],
        batches: Sequence[Sequence[int]] | None = None,
    ) -> Output | None:
        """What the network makes of texts; None where the fault changes nothing that can be seen."""
        rows = token_rows(
            texts,
            kind,
            self.tokenizers[kind],
            self.proof.contract["max_tokens"][kind],
            self.proof.contract["template"],
            fault.reading,
            self.proof.contract["adds_special_tokens"],
        )
        if rows is None:
            return None
        longest = max(len(row.ids) for row in rows)
        if self.positions is not None and longest > self.positions:
            return None
        return self.networks[kind](rows, fault.run, batches)

    def scores(
        self,
        fault: Fault,
        units: Sequence[Unit],
        batches: Sequence[Sequence[int]] | None = None,
    ) -> np.ndarray | None:
        """Scores ``[U]`` of probes."""
        finals: dict[Kind, np.ndarray] = {}
        for kind in self.networks:
            texts = [self.proof.texts[kind][unit.readings[kind]] for unit in units]
            output = self.output(fault, kind, texts, batches)
            if output is None and fault.layer not in BY_SIDE:
                return None
            if output is None:  # this side has nothing to lose
                output = self.output(Fault("order", "none"), kind, texts, batches)
            if output is None:
                return None
            finals[kind] = output.final
        if "pair" in finals:
            return finals["pair"]
        name = self.proof.contract["similarity"]
        return similarity_scores(name, finals["query"], finals["document"])

    def embeddings(
        self,
        fault: Fault,
        units: Sequence[Unit],
        batches: Sequence[Sequence[int]] | None = None,
    ) -> np.ndarray | None:
        """Embeddings ``[U, dim]`` of texts, each of one side."""
        embeddings: list[np.ndarray] = [np.empty(0)] * len(units)
        for kind in self.networks:
            places = [place for place, unit in enumerate(units) if kind in unit.readings]
            if not places:
                continue
            texts = [self.proof.texts[kind][units[place].readings[kind]] for place in places]
            own_batches = None
            if batches is not None:
                own = {place: number for number, place in enumerate(places)}
                own_batches = [[own[one] for one in batch if one in own] for batch in batches]
                own_batches = [batch for batch in own_batches if batch]
            output = self.output(fault, kind, texts, own_batches)
            if output is None and fault.layer in BY_SIDE:
                output = self.output(Fault("order", "none"), kind, texts, own_batches)
            if output is None:
                return None
            for place, embedding in zip(places, output.final, strict=True):
                embeddings[place] = embedding
        return np.stack(embeddings)


# Of these layers a side may have nothing that a server could lose: a prompt, capitals.
BY_SIDE: tuple[Layer, ...] = ("template", "tokens", "special tokens", "truncation")
