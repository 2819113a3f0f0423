"""Feature files that can be learnt."""

from pathlib import Path

import torch


def write_letor(
    folder: Path, *splits: str, n_queries: int = 24, n_features: int = 5, seed: int = 0
) -> Path:
    """``train.txt`` … of 3 to 9 documents a query, grades 0 to 2 by a hidden linear score:
    learnable. Query ids run on.
    """
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(n_features, generator=generator)
    folder.mkdir(parents=True, exist_ok=True)
    for number, split in enumerate(splits or ("train", "vali", "test")):
        lines = []
        for query in range(number * n_queries, (number + 1) * n_queries):
            for doc in range(3 + int(torch.randint(7, (1,), generator=generator))):
                x = torch.randn(n_features, generator=generator)
                grade = int(torch.bucketize(x @ weights, torch.tensor([0.0, 2.0])))
                values = " ".join(f"{i}:{v:.6f}" for i, v in enumerate(x.tolist(), 1))
                lines.append(f"{grade} qid:{query} {values} #docid = d{query}-{9 - doc}\n")
        (folder / f"{split}.txt").write_text("".join(lines))
    return folder
