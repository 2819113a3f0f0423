"""How data modules are read."""

from ltr.data.layouts import ApartTexts, FeatureVectors, JoinedPairs, SingleTexts
from tests.world.backbones import wordpiece_tokenizer


def reads_of(kind: str) -> JoinedPairs | ApartTexts | FeatureVectors | None:
    tokenizer = wordpiece_tokenizer()
    made = {
        "pairs": lambda: JoinedPairs(tokenizer, 24),
        "apart": lambda: ApartTexts(SingleTexts(tokenizer, 24), SingleTexts(tokenizer, 16)),
        "features": lambda: FeatureVectors(5),
        "nothing": lambda: None,
    }
    return made[kind]()
