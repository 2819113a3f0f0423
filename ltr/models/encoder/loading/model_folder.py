"""A pretrained model, opened: what its files say of it, before any weight is read."""

import importlib.util
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import HfApi, constants, snapshot_download
from huggingface_hub.errors import HfHubHTTPError
from transformers import AutoConfig, PretrainedConfig
from transformers.utils import cached_file

from ltr.data.files import seen_from
from ltr.entries import parse_json
from ltr.errors import InputError, local_path

# Whoever loads a model here says ``trust_remote_code=False``. Where nothing is said, transformers
# asks on the terminal whether it may run the code of a model.

PACKAGE = "package:"
# What a ranker of ours reads, beside a model that sentence-transformers or transformers loads.
SETTINGS = "ltr.json"
SETTINGS_THERE = "config_sentence_transformers.json"
MODULES = "modules.json"
# The type of what JSON files of a model hold; files of other names may hold anything.
HOLDS = {
    "config.json": dict,
    SETTINGS_THERE: dict,
    MODULES: list,
    "sentence_bert_config.json": dict,
    "tokenizer.json": dict,
    "tokenizer_config.json": dict,
}
# What loading raises where a model is absent, of another kind, or damaged. Each reader of another
# package raises what it stumbles over, and that of tokenizer.json a bare Exception.
LOAD_ERRORS = Exception

# Files of a model at the hub that no library reads which we load with.
OTHER_FORMS = ["onnx/*", "openvino/*", "*.onnx", "*.h5", "*.msgpack", "*.ot", "*.tflite", "*.gguf"]

# What is raised where the hub refuses or can't be reached: the error of httpx, or of httpx2 in later
# versions of huggingface_hub, and OSError.
HUB_ERRORS = HfHubHTTPError.__bases__
HUB_SECONDS = 10  # within which the hub must answer

# How the names of classes end that have no head, or the one over words of pretraining.
WITHOUT_TASK = (
    "Model",
    "ForMaskedLM",
    "ForPreTraining",
    "ForCausalLM",
)


class ModelFolder:
    """A pretrained model by its files. Each file is read once, when it is first asked for.

    Args:
        name: hub id, ``HUB_ID@REVISION``, folder, or ``package:NAME``.
        option: that names it, for errors.

    Attributes:
        source: the hub id or the folder, as transformers loads it. Where the hub can't be reached,
            the folder in its cache.

    Raises:
        InputError: as :func:`resolve`, and for a hub id where the hub can't be reached and its cache
            has no such model.
    """

    def __init__(self, name: str, option: str = "backbone") -> None:
        self.name = name
        self.option = option
        self.source = resolve(name)
        if not self.is_local and not constants.is_offline_mode():
            self.source = self._at_hub_or_in_cache()
        self._json: dict[str, Any] = {}

    @property
    def known_as(self) -> str:
        """What a model that is loaded from it says of its origin: the package, whose folder is another
        one on each machine, or the source.
        """
        return self.name if self.name.startswith(PACKAGE) else self.source

    @property
    def is_local(self) -> bool:
        """Whether it lies in a folder of this machine, and not at a hub."""
        return Path(self.source).is_dir()

    def _at_hub_or_in_cache(self) -> str:
        """The hub id where the hub answers; else the folder in its cache. It is asked once: the
        libraries would ask for every file, six times each in half a minute.
        """
        try:
            HfApi().model_info(self.source, timeout=HUB_SECONDS)
        except (HfHubHTTPError, ValueError):
            return self.source  # it answers, or the name is none: the libraries say what is wrong
        except HUB_ERRORS as error:
            try:
                return str(snapshot_download(self.source, local_files_only=True))
            except (OSError, ValueError):
                raise InputError(
                    f"backbone {self.name!r} is no folder here{seen_from(self.name)}, and as a model of the hub it can't be had: {constants.ENDPOINT} can't be reached ({one_line(error)}), and its cache has no such model; mend the path, or fetch the model where there is a network",
                    option=self.option,
                ) from None
        return self.source

    def json(self, file: str) -> Any:
        """The content of a JSON file; None where the model has no such file, or it can't be fetched.
        An InputError where it is damaged.
        """
        if file not in self._json:
            self._json[file] = self._read_json(file)
        return self._json[file]

    def json_object(self, file: str) -> dict[str, Any]:
        """The content of a JSON file that holds an object; empty where it holds something else, or
        :meth:`json` is None.
        """
        content = self.json(file)
        return content if isinstance(content, dict) else {}

    def _read_json(self, name: str) -> Any:
        options = {
            "_raise_exceptions_for_missing_entries": False,
            "_raise_exceptions_for_connection_errors": False,
        }
        try:
            file = cached_file(self.source, name, **options)
        except LOAD_ERRORS:
            return None
        if file is None:
            return None
        try:
            return parse_json(Path(file).read_bytes())
        except ValueError as error:
            raise InputError(
                f"backbone {self.source!r}: its {name} must be JSON, but can't be read ({error}); "
                "mend the file",
                option=self.option,
            ) from None

    @cached_property
    def config(self) -> PretrainedConfig:
        """The configuration of transformers; one of :data:`LOAD_ERRORS` where it can't be read."""
        return AutoConfig.from_pretrained(self.source, trust_remote_code=False)

    @cached_property
    def n_labels(self) -> int | None:
        """How many labels a sequence classifier of transformers has; None for another model, and
        where its configuration can't be read.
        """
        try:
            config = self.config
        except LOAD_ERRORS:
            return None
        return config.num_labels if is_classifier(config.architectures) else None

    @property
    def is_pair_classifier(self) -> bool:
        """Whether it is a sequence classifier of transformers with one score; False also where its
        configuration can't be read.
        """
        return self.n_labels == 1

    @property
    def is_language_model(self) -> bool:
        """Whether it is a causal language model that sentence-transformers has not saved; False also
        where its configuration can't be read.
        """
        architectures = self.json_object("config.json").get("architectures")
        is_causal = any(str(name).endswith("ForCausalLM") for name in architectures or [])
        return is_causal and not self.has_modules

    @property
    def left_out_head(self) -> str | None:
        """What a model of transformers was trained with beside its encoder, in words: the head of
        another task, or a decoder. None for a plain encoder, one with a head over words, which it
        was pretrained with, and a model whose configuration can't be read.
        """
        if self.n_labels is not None:
            return f"its head of {self.n_labels} label{'' if self.n_labels == 1 else 's'}"
        try:
            config = self.config
        except LOAD_ERRORS:
            return None
        name = (config.architectures or ["Model"])[0]
        if getattr(config, "is_encoder_decoder", False) and not name.endswith("EncoderModel"):
            return f"its decoder ({name})"
        return None if name.endswith(WITHOUT_TASK) else f"its head ({name})"

    @property
    def has_modules(self) -> bool:
        """Whether sentence-transformers has saved it as a list of modules."""
        return self.json(MODULES) is not None

    @property
    def is_cross_encoder(self) -> bool:
        """Whether it scores pairs: a sequence classifier of transformers with one score, or a
        CrossEncoder of sentence-transformers.

        Raises:
            InputError: for a CrossEncoder whose list of modules is lost.
        """
        return self.is_pair_classifier or self.has_cross_modules

    @property
    def has_cross_modules(self) -> bool:
        """Whether it is a CrossEncoder of sentence-transformers with a list of modules; an
        InputError as of :attr:`is_cross_encoder`.
        """
        if self._cross_encoder_settings is None:
            return False
        if self.has_modules:
            return True
        if self.is_pair_classifier:  # its head lies with the encoder
            return False
        raise InputError(
            f"backbone {self.name!r} is a CrossEncoder of sentence-transformers without modules.json, so its head can't be found; copy the whole folder",
            option=self.option,
        )

    @property
    def query_prompt(self) -> str:
        """The default prompt of a CrossEncoder of sentence-transformers, which stands in front of
        each query; empty where it has none.
        """
        settings = self._cross_encoder_settings
        if settings is None:
            return ""
        prompts = settings.get("prompts")
        name = settings.get("default_prompt_name")
        prompt = prompts.get(name) if isinstance(prompts, dict) else None
        return prompt or ""

    @property
    def _cross_encoder_settings(self) -> dict[str, Any] | None:
        """What a CrossEncoder of sentence-transformers says of itself; None for all other models. An
        InputError where only its kind is lost: its modules could be those of a dual encoder.
        """
        settings = self.json_object(SETTINGS_THERE)
        kind = settings.get("model_type")
        if kind == "CrossEncoder":
            return settings
        if "activation_fn" in settings:
            raise InputError(
                f"backbone {self.source!r}: its config_sentence_transformers.json has the activation_fn of a CrossEncoder, and the model_type {kind!r}; mend the file",
                option=self.option,
            )
        return None

    @property
    def is_decoder_ranker(self) -> bool:
        """Whether it is a decoder ranker: one of ours, or one of sentence-transformers that
        compares two words.
        """
        return self.is_saved_decoder or self._logit_score is not None

    @property
    def is_saved_decoder(self) -> bool:
        """Whether it was written by :class:`ltr.models.DecoderRanker`."""
        return self.json_object(SETTINGS).get("ranker") == "DecoderRanker"

    @property
    def answer_ids(self) -> list[int] | None:
        """The tokens of the two answers that a CrossEncoder of sentence-transformers compares; None
        where it compares none.

        Raises:
            InputError: if they are not named.
        """
        module = self._logit_score
        if module is None:
            return None
        settings = self.json(f"{module}/config.json") or {}
        yes, no = settings.get("true_token_id"), settings.get("false_token_id")
        if not (isinstance(yes, int) and isinstance(no, int)):
            raise InputError(
                f"backbone {self.name!r}: its LogitScore must name a true and a false token, got {yes!r} and {no!r}; take another backbone",
                option=self.option,
            )
        return [yes, no]

    @property
    def _logit_score(self) -> str | None:
        """The folder of the module by which a CrossEncoder compares two words; None without."""
        modules = self.json(MODULES)
        for module in modules if isinstance(modules, list) else []:
            if isinstance(module, dict) and str(module.get("type")).endswith(".LogitScore"):
                return str(module.get("path"))
        return None


if TYPE_CHECKING:
    Backbone = str | ModelFolder
else:
    # A configuration names a model. One that is opened already comes from Python alone.
    Backbone = str


def open_folder(backbone: Backbone, option: str = "backbone") -> ModelFolder:
    """A model by its files: of a name, or the same where it is opened already."""
    return backbone if isinstance(backbone, ModelFolder) else ModelFolder(backbone, option)


def resolve(backbone: str) -> str:
    """The hub id or folder of a backbone, as transformers loads it.

    ``package:NAME`` becomes the folder of the installed package NAME that holds ``config.json``, and
    ``HUB_ID@REVISION`` the folder in the hub's cache that holds this branch, tag or commit; any other
    backbone stays as it is.

    Raises:
        InputError: if the package is not installed or holds no model, the revision can't be had, or
            for an address (``s3://…``).
    """
    local_path("backbone", backbone)
    if not backbone.startswith(PACKAGE):
        hub_id, at, revision = backbone.partition("@")
        is_revision = at and not Path(backbone).exists()
        return _revision_of_hub(hub_id, revision) if is_revision else backbone
    name = backbone.removeprefix(PACKAGE)
    if "." in name:
        # To find a package within another one, Python imports the other: a checkpoint would run it.
        raise InputError(
            f"backbone {backbone!r}: package:NAME takes the name of a whole package, without dots"
        )
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.submodule_search_locations:
        distribution = name.replace("_", "-")
        raise InputError(
            f"backbone {backbone!r}: the package {name!r} is not installed: "
            f"pip install {distribution}"
        )
    root = Path(next(iter(spec.submodule_search_locations)))
    for config in (root / "config.json", *sorted(root.glob("*/config.json"))):
        if config.is_file():
            return str(config.parent)
    raise InputError(f"backbone {backbone!r}: the package holds no config.json, so no model")


def _revision_of_hub(hub_id: str, revision: str) -> str:
    """The folder in the hub's cache of a revision; an InputError where it can't be had."""
    where = f"{hub_id}@{revision}"
    if not revision:
        raise InputError(
            f"{where}: a branch, a tag or a commit must follow @, got none; name one, or leave out @"
        )
    try:
        # The same weights in the older form, beside those of safetensors; a module in a folder of its
        # own may have none but these.
        older = "pytorch_model*.bin"
        folder = snapshot_download(hub_id, revision=revision, ignore_patterns=[*OTHER_FORMS, older])
        if not any(Path(folder).glob("*.safetensors")):
            folder = snapshot_download(hub_id, revision=revision, ignore_patterns=OTHER_FORMS)
    except (*HUB_ERRORS, ValueError) as error:
        offline = " (HF_HUB_OFFLINE is set)" if constants.is_offline_mode() else ""
        raise InputError(
            f"{where}: the hub must have this revision of this model, or the cache, and it can't be had{offline}: {one_line(error)}; check the name and the revision, and that you may read it"
        ) from None
    return str(folder)


def hub_id_and_commit(name_or_path: str) -> tuple[str, str | None] | None:
    """What the hub calls a model that was loaded: by its hub id alone, or from the folder of a commit
    in the hub's cache. None for any other folder, and for ``package:NAME``.

    Example:
        >>> hub_id_and_commit("org/model")
        ('org/model', None)
    """
    if name_or_path.startswith(PACKAGE):
        return None
    path = Path(name_or_path)
    if not path.exists():
        return name_or_path, None
    model = path.parent.parent.name  # of models--ORG--MODEL/snapshots/COMMIT
    if path.parent.name != "snapshots" or not model.startswith("models--"):
        return None
    return model.removeprefix("models--").replace("--", "/"), path.name


def is_classifier(architectures: list[str] | None) -> bool:
    """Whether a configuration that names these classes is that of a sequence classifier."""
    return any(str(name).endswith("ForSequenceClassification") for name in architectures or [])


def cannot_load(folder: ModelFolder, error: Exception) -> InputError:
    """The error for the user when a model cannot be loaded. An InputError keeps its message."""
    if isinstance(error, InputError):
        return InputError(error.message, option=error.option or folder.option)
    if "trust_remote_code" in str(error):
        return InputError(
            f"backbone {folder.name!r} has code of its own, which never runs here; take a model whose classes are in transformers or sentence-transformers",
            option=folder.option,
        )
    damage = _damaged_json(Path(folder.source))
    if damage is not None:
        return InputError(
            f"backbone {folder.name!r} can't be loaded: {damage}", option=folder.option
        )
    return InputError(
        f"backbone {folder.name!r} can't be loaded: {one_line(error)}. "
        f"Give a hub id, a folder with config.json{seen_from(folder.name)}, or package:NAME",
        option=folder.option,
    )


def one_line(error: BaseException | str) -> str:
    """What an error of another package says, in a line without a stop at its end."""
    lines = " ".join(str(error).split()) or type(error).__name__
    reason = lines if len(lines) <= 200 else f"{lines[:200]}…"
    return reason.rstrip(".: ")


def _damaged_json(folder: Path) -> str | None:
    """What is wrong with the first JSON file of a model that can't be read, or holds something of
    another type; None where all are right, or the model is in no folder.

    The readers of other packages do not say which file it was.
    """
    for file in sorted(folder.rglob("*.json")) if folder.is_dir() else []:
        try:
            content = parse_json(file.read_bytes())
        except (OSError, ValueError) as error:
            return f"{file}: the file is damaged ({error}); save the model again"
        expected = HOLDS.get(file.name)
        if expected is not None and not isinstance(content, expected):
            words = "a list" if expected is list else "an object"
            return f"{file}: the file is damaged, it must hold {words}, got {content!r:.40}; save the model again"
    return None
