"""What may be passed as extra."""

from typing import Any

import pytest
from torch.utils.data import DataLoader

from deadpool.host.errors import ConfigError
from deadpool.trainer_hooks.state.extras import stateful


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
def test_a_loader_is_refused_with_what_to_write_instead() -> None:
    module: Any = pytest.importorskip("torchdata.stateful_dataloader")
    loaders: list[Any] = [DataLoader([1]), module.StatefulDataLoader([1])]  # type: ignore[arg-type]
    for loader in loaders:
        with pytest.raises(ConfigError, match=r"'data': .*leave it out and write: for step, batch in guard.steps\(loader, until"):
            stateful({"data": loader})
