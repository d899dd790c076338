"""A menu has each submodel once, in the order of its size."""

from __future__ import annotations

import pytest

from models.cost import cost
from models.menu import menu
from models.named_network import network
from models.submodel_building import full


def test_menu_is_sorted_capped_and_unique():
    """Depth 9 is depth 4 here; the order is by parameters."""
    found = menu(network("preresnet", (1, 8, 8), 10), (1, 0.5), (9, 2, 4))
    assert [s.name for s in found] == ["w0.5-d2.2.2", "w0.5-d4.4.4", "w1-d2.2.2", "w1-d4.4.4"]
    sizes = [cost(s).parameters for s in found]
    assert sizes == sorted(sizes)
    assert found[-1] == full(found[0].network)


@pytest.mark.parametrize(
    ("widths", "depths"),
    [
        ((), (1,)),
        ((1,), ()),
        ((0,), (1,)),
        ((1.1,), (1,)),
        ((1,), (0,)),
        ((1,), ((1, 2),)),
        ((1,), (("a", "b", "c"),)),
    ],
)
def test_invalid_menus_are_refused(widths, depths):
    with pytest.raises(ValueError, match="expected widths above 0"):
        menu(network("preresnet", (1, 8, 8), 10), widths, depths)
