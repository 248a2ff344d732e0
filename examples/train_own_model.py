"""A model of one's own with berth's sparse rows, trained on the built-in clicks."""

import torch

import berth.train as bt


class Mine(torch.nn.Module):
    """Rows of eight numbers for every id, and a small tower over them."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = bt.Embedding(8, optimiser=bt.adagrad(0.05))
        self.top = torch.nn.Sequential(
            torch.nn.Linear(26 * 8 + 13, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)
        )

    def forward(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        """A logit for each example."""
        rows = self.rows(inputs["slots"]).flatten(1)
        return self.top(torch.cat([rows, inputs["dense"]], dim=1)).squeeze(1)


def make_model() -> Mine:
    """For `berth train train_own_model.py:make_model`."""
    return Mine()


if __name__ == "__main__":
    torch.manual_seed(0)
    result = bt.fit(make_model(), steps=100, batch=1024)
    print(f"{result.examples:,} examples: AUC {result.auc:.2f}, loss {result.loss:.2f}")
