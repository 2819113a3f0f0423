"""The decoder ranker: its scores are those of the language model, wherever it is saved."""

import json
import random

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

import ltr
from ltr.__main__ import main
from ltr.data.template import Template
from ltr.data.templated_pairs import TemplatedPairs
from ltr.datamodules import TripletDataModule
from ltr.errors import InputError
from ltr.in_batch import OtherQueries
from ltr.losses import LambdaRankLoss, MarginRankingLoss, SoftmaxLoss
from ltr.mining.judge import open_judge
from ltr.models import DecoderRanker, DualEncoder, PairWiseBertRanker
from ltr.models.encoder.text_encoder import TextEncoder
from ltr.module import RankerModule
from ltr.use.export import export
from ltr.use.rankers import TextRanker
from tests.world.configurations import write_config
from tests.world.decoders import CONFIGS, decoder_tokenizer, save_decoder
from tests.world.rankers import data_for, first_batch, losses_of_repeated_batch
from tests.world.tokenizers import KINDS, byte_level_bpe, llama_like, xlm_roberta_like

# What is saved in `make test`; the others in `make test-long`.
SHORT = [(("yes", "no"), "qwen3"), (("yes", "no"), "gemma2"), (None, "gemma3")]
PAIRS = [("w1 w2", "w3 w4"), ("w1 w2", "w5 w6 w7"), ("w7", "w8 w9 w10 w1 w1"), ("w7", "")]


@pytest.fixture(scope="module")
def qwen(tmp_path_factory) -> str:
    return save_decoder(tmp_path_factory.mktemp("decoders") / "qwen3")


@pytest.fixture(scope="module")
def embedder(tmp_path_factory) -> str:
    """As embedders are: a token at the end of each text."""
    return save_decoder(tmp_path_factory.mktemp("decoders") / "embedder", appends_end=True)


def scores(ranker):
    return torch.from_numpy(TextRanker(ranker, "32-true").score(PAIRS))


def scores_there(folder):
    """By sentence-transformers."""
    return torch.from_numpy(CrossEncoder(str(folder), device="cpu").predict(PAIRS))


def asked(query, document):
    """The text of Qwen3-Reranker, as its authors write it."""
    return (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
        'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
        "<|im_start|>user\n"
        "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
        f"<Query>: {query}\n<Document>: {document}<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )


@pytest.mark.parametrize("name", CONFIGS)
def test_the_sigmoid_of_a_score_is_the_models_softmax_over_both_words(name, tmp_path):
    """Of the text of Qwen3-Reranker, by the means of transformers alone. The head over all words is
    not computed. Gemma 2 caps its logits: the ranker begins with what it caps.
    """
    folder = save_decoder(tmp_path, name)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    words = [tokenizer.convert_tokens_to_ids(word) for word in ("yes", "no")]
    expected = []
    for pair in PAIRS:
        ids = tokenizer(asked(*pair), return_tensors="pt")["input_ids"]
        logits = model(ids).logits[0, -1, words]
        if name == "gemma2":
            logits = 30 * (logits / 30).atanh()
        expected.append(logits.softmax(dim=0)[0])
    ranker = DecoderRanker(folder)
    assert ranker.encoder.reads_packed and ranker.head.weight.shape == (1, 16)
    torch.testing.assert_close(scores(ranker).sigmoid(), torch.stack(expected).detach())


def test_scores_are_float32_from_the_last_hidden_state_on(qwen):
    """Rounded to bfloat16 many would tie."""
    ranker = DecoderRanker(qwen).eval()
    pairs = [(f"w{n % 60}", f"w{n // 5} w{n}") for n in range(300)]
    half = torch.from_numpy(TextRanker(ranker, "bf16-mixed").score(pairs))
    assert half.dtype == torch.float32
    assert len(half.unique()) > 290 > len(half.bfloat16().unique())


ONE_TOKEN = r"one token, got 'relevant' with 8, .*\(option words\)"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"words": ("relevant", "no")}, ONE_TOKEN),
        ({"words": ("no", "no")}, r"the words must be two, got 'no' twice"),
        ({"encoder": TextEncoder.Options(pooling="mean")}, "is a decoder.*set pooling to last"),
        ({"template": Template()}, "needs a template of both, got none; set template.pair"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1, got 1.0"),
    ],
)
def test_options_out_of_bounds_are_refused(qwen, options, message):
    with pytest.raises(InputError, match=message):
        DecoderRanker(qwen, **options)


def test_what_is_no_decoder_is_refused(backbone):
    template = Template(pair="{query}{document}")
    with pytest.raises(InputError, match="BertModel is no decoder.*take PairWiseBertRanker"):
        DecoderRanker(backbone, words=None, max_length=60, template=template)


def test_words_that_are_exchanged_turn_the_scores(qwen):
    ranker = DecoderRanker(qwen)
    turned = DecoderRanker(qwen, words=("no", "yes"), template=ranker.template)
    torch.testing.assert_close(scores(turned), -scores(ranker))


def test_without_words_the_head_is_new_and_the_answer_is_not_asked_for(qwen):
    ranker = DecoderRanker(qwen, words=None)
    assert "yes" not in ranker.template.pair and ranker.head.bias is None
    other = DecoderRanker(qwen, words=None)
    assert not torch.equal(ranker.head.weight, other.head.weight)


def test_without_a_chat_template_the_text_is_plain(tmp_path):
    ranker = DecoderRanker(save_decoder(tmp_path, chat=False))
    assert ranker.template.pair.startswith("Judge whether the Document meets")
    assert ranker.template.pair.endswith("{query}\n{document}\n<Answer>:\n")


# Each architecture has a folder of its own; the others differ in their layers alone.
SAVED = [
    pytest.param(words, name, marks=[] if (words, name) in SHORT else pytest.mark.long)
    for words, name in [*((("yes", "no"), name) for name in CONFIGS), (None, "gemma3")]
]


@pytest.mark.parametrize(("words", "name"), SAVED)
def test_a_saved_ranker_scores_the_same_everywhere(name, words, tmp_path):
    """By sentence-transformers, by transformers, and here, by whichever door."""
    ranker = DecoderRanker(save_decoder(tmp_path / "model", name), words=words, max_length=300)
    expected = scores(ranker)
    ranker.save(tmp_path / "there")
    torch.testing.assert_close(scores_there(tmp_path / "there"), expected)

    ranker.save_plain(tmp_path / "plain")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "plain")
    classifier = AutoModelForSequenceClassification.from_pretrained(tmp_path / "plain")
    messages = [
        [{"role": "query", "content": query}, {"role": "document", "content": document}]
        for query, document in PAIRS
    ]
    options = {"padding": True, "return_dict": True, "return_tensors": "pt"}
    inputs = tokenizer.apply_chat_template(messages, **options)
    torch.testing.assert_close(classifier(**inputs).logits[:, 0].detach(), expected)

    for folder in ("there", "plain"):
        loaded = ltr.load(tmp_path / folder).model
        assert loaded.reads.max_length == 300
        for again in (DecoderRanker(str(tmp_path / folder)), loaded):
            assert isinstance(again, DecoderRanker) and again.template == ranker.template
            torch.testing.assert_close(scores(again), expected)
        with pytest.raises(InputError, match="is a DecoderRanker, which reads its pairs in a"):
            PairWiseBertRanker(str(tmp_path / folder))


def test_special_tokens_of_the_tokenizer_are_saved_with_a_template_that_has_none(tmp_path):
    """A plain text gets them from the tokenizer; under a chat template they must stand in it."""
    folder = save_decoder(tmp_path / "model", chat=False, appends_end=True)
    ranker = DecoderRanker(folder, max_length=300)
    assert ranker.reads.special_texts() == ("", "<|endoftext|>")
    ranker.save(tmp_path / "there")
    expected = scores(ranker)
    torch.testing.assert_close(scores_there(tmp_path / "there"), expected)
    torch.testing.assert_close(scores(DecoderRanker(str(tmp_path / "there"))), expected)


SCRIPTS = ["w1 w2 yes ", "öäüß ", "αβγδ ε", "日本語東京大学", "😀🎉👩‍👧 w", "한국어 서"]
SCRIPTS += ["e\u0301 a\n\n\t", "012 .,"]
TOKENIZERS = {
    "Qwen": decoder_tokenizer,
    "RoBERTa": byte_level_bpe,
    "Llama": llama_like,
    "XLM-R": xlm_roberta_like,
    "MiniLM": KINDS["MiniLM"],
}
CUT_TEMPLATES = [
    Template(pair="{query} {document} yes?"),
    Template("[{instruction}] {query}", "D: {document}", "{query}\n{document}\n", "task"),
    Template(pair="{query}{document}"),
]


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_cut_is_that_of_sentence_transformers(kind, tmp_path):
    """Token by token, also where it parts a character of several tokens."""
    tokenizer = TOKENIZERS[kind]()
    config = type(CONFIGS["qwen3"]).from_dict(CONFIGS["qwen3"].to_dict())
    config.vocab_size = max(tokenizer.get_vocab().values()) + 1
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    rng = random.Random(0)
    n_parted = 0
    for number, template in enumerate(CUT_TEMPLATES):
        ranker = DecoderRanker(str(tmp_path / "model"), template, words=None, max_length=300)
        ranker.read_up_to(ranker.reads.n_template + 10 + number)
        ranker.save(tmp_path / str(number))
        there = CrossEncoder(str(tmp_path / str(number)), device="cpu")
        queries = [rng.choice(["w1", "日", "0"]) for _ in range(4 * len(SCRIPTS))]
        documents = ["".join(rng.choices(script, k=40)) for script in SCRIPTS for _ in range(4)]
        rows = np.arange(len(queries))
        texts = ranker.reads.lay_out(
            ranker.reads.tokens(queries, "query"),
            rows,
            ranker.reads.tokens(documents, "document"),
            rows,
        )
        laid_out = texts.ids.split(texts.lengths.tolist())
        for *pair, ids in zip(queries, documents, laid_out, strict=True):
            assert ids.tolist() == there.preprocess([pair])["input_ids"][0].tolist(), pair
            n_parted += ranker.reads.document_for_proof(*pair) != pair[1]
    assert n_parted > 0 or kind == "MiniLM"


def test_a_ready_classifier_is_a_cross_encoder_as_ever(tmp_path):
    """It says no template, and is read as its tokenizer joins two texts."""
    folder = save_decoder(tmp_path, kind="classifier")
    assert isinstance(ltr.load(folder).model, PairWiseBertRanker)
    ranker = PairWiseBertRanker(folder, max_length=40)
    assert ranker.has_own_head and ranker.encoder.reads_packed
    template = Template(pair="{query}{document}")
    decoder = DecoderRanker(folder, max_length=40, template=template)
    assert torch.equal(decoder.head.weight, ranker.encoder.model.score.weight)


def test_two_words_of_sentence_transformers_are_read_with_their_template(qwen, tmp_path):
    """A CrossEncoder of a language model: its roles say the text, and its prompt the instruction."""
    there = CrossEncoder(qwen, device="cpu", activation_fn=torch.nn.Identity())
    there.tokenizer.chat_template = (
        "{% for m in messages %}{{ '<' + m.role + '>' + m.content }}{% endfor %}{{ '<answer>' }}"
    )
    there.prompts = {"web": "find it"}
    there.default_prompt_name = "web"
    there.save(str(tmp_path / "there"))
    ranker = ltr.load(tmp_path / "there").model
    assert isinstance(ranker, DecoderRanker)
    assert ranker.template.pair == "<system>find it<query>{query}<document>{document}<answer>"
    torch.testing.assert_close(scores(ranker), scores_there(tmp_path / "there"))


def test_a_language_model_by_name_ranks_and_where_embeddings_are_needed_embeds(qwen, embedder):
    assert isinstance(ltr.load(qwen).model, DecoderRanker)
    judge = open_judge(qwen)
    assert isinstance(judge, DecoderRanker) and judge.reads.max_length == 512
    assert isinstance(judge.reads, TemplatedPairs)
    shorter = open_judge(qwen, max_length=300)
    assert shorter.reads.max_length == 300 and shorter.template == judge.template
    module = RankerModule(
        DualEncoder(embedder, max_length=30), SoftmaxLoss(), in_batch=OtherQueries(guide=embedder)
    )
    assert module.in_batch._encoders_beside[embedder].query_tower.encoder.pooling == "last"


def test_its_key_tells_what_decides_its_scores(qwen):
    def key(**options):
        return json.dumps(DecoderRanker(qwen, **options).key)

    template = DecoderRanker(qwen).template
    other = Template(pair="{query}{document}")
    turned = key(words=("no", "yes"), template=template)
    assert key() == key()
    assert len({key(), turned, key(max_length=400), key(template=other)}) == 4


@pytest.mark.parametrize(
    "to", ["sentence-transformers", "transformers", pytest.param("onnx", marks=pytest.mark.long)]
)
def test_an_export_says_how_it_is_used(qwen, tmp_path, to):
    export(qwen, tmp_path / to, to)
    card = (tmp_path / to / "README.md").read_text()
    assert "# A decoder ranker trained with ltr" in card
    assert "takes the place of the instruction, 'Given a web search query" in card
    assert ("apply_chat_template" in card) == (to != "sentence-transformers")


# Training


@pytest.fixture
def module_of(qwen, embedder):
    """A decoder of this kind to be trained."""

    def build(kind, loss, **options):
        if kind == "embedder":
            ranker = DualEncoder(embedder, max_length=30, temperature=0.1)
        else:
            template = Template("{query}", " {document}", "{query} ?{document} :")
            ranker = DecoderRanker(qwen, template, max_length=60)
        return RankerModule(ranker, loss, **options)

    return build


# A loss reads scores alone, and of each tests/losses shows that its gradient is finite.
@pytest.mark.parametrize("loss", [SoftmaxLoss, MarginRankingLoss, LambdaRankLoss])
@pytest.mark.parametrize("kind", ["reranker", "embedder"])
def test_a_loss_trains_a_decoder(kind, loss, module_of, collection_folder):
    module = module_of(kind, loss())
    options = {"negatives_per_query": 3, "batch_size": 4}
    batch = first_batch(data_for(module, TripletDataModule, collection_folder, **options))
    module.training_step(batch, 0).backward()
    for name, weight in module.ranker.named_parameters():
        if weight.requires_grad:
            assert weight.grad is not None and weight.grad.isfinite().all(), name


@pytest.mark.parametrize("kind", ["reranker", "embedder"])
def test_the_loss_of_a_repeated_batch_falls_to_under_a_tenth(kind, module_of, collection_folder):
    """50 steps of AdamW on one batch."""
    module = module_of(kind, SoftmaxLoss())
    losses = losses_of_repeated_batch(module, collection_folder, lr=3e-3)
    assert losses[-1] < losses[0] / 10


@pytest.mark.long  # tests/cli/test_recipes.py trains a decoder every day
@pytest.mark.parametrize("kind", ["DecoderRanker", "DualEncoder"])
def test_fit_and_test_by_the_command_line(kind, qwen, embedder, tmp_path, collection_folder):
    """Its run is loaded by its name."""
    options = {"backbone": embedder, "max_length": 160}
    if kind == "DecoderRanker":
        options = {"backbone": qwen, "max_length": 500}
    changes = {
        "model.ranker": {"class_path": f"ltr.models.{kind}", "init_args": options},
        "data.init_args.negatives": "bm25",
        "data.init_args.evaluation": {"candidates": "bm25", "depth": 5},
        "trainer.max_epochs": 1,
        "trainer.limit_train_batches": 3,
        "trainer.limit_val_batches": 2,
        "trainer.limit_test_batches": 2,
    }
    file = write_config(tmp_path, qwen, collection_folder, **changes)
    assert main(["fit", "--config", str(file)]) == 0
    run = tmp_path / "run"
    assert main(["test", "--config", str(run / "config.yaml"), "--ckpt_path", "best"]) == 0
    loaded = ltr.load(run)
    assert type(loaded.model).__name__ == kind
    assert loaded.rank("What causes glaucoma?", ["Pressure in the eye.", "Rain."])[0].score
