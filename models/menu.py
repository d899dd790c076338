"""Make the menu of a network, the submodels of several widths and depths, and choose submodels to
time.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from models.families.catalogue import family
from models.submodel import Network, Submodel
from models.submodel_building import parameters

__all__ = ["menu", "probes"]

# widths: mostly calls of operations; channels that fill no vector; arithmetic
PROBED = (0.125, 0.3, 0.5)


def menu(
    made: Network,
    widths: Iterable[float],
    depths: Iterable[int | Sequence[int]],
    features: Iterable[str] = (),
) -> tuple[Submodel, ...]:
    """Return the submodels of every width with every depth, each once, by number of parameters.

    widths: kept fractions in (0, 1]. depths: blocks kept per section, from the front, one number
    for all or one per section; a section with fewer blocks keeps all. ValueError: there are none,
    or they are out of range.
    """
    sizes = family(made).presets[made.preset].depths
    widths, features = tuple(widths), tuple(sorted(features))
    rows = [(d,) * len(sizes) if isinstance(d, int) else tuple(d) for d in depths]
    known = all(type(d) is int and d >= 1 for row in rows for d in row)
    if (
        not widths
        or not rows
        or not all(0 < w <= 1 for w in widths)
        or any(len(row) != len(sizes) for row in rows)
        or not known
    ):
        raise ValueError(
            "submodels: expected widths above 0 and at most 1, and depths of at least 1, each one "
            f"number or one for each of {len(sizes)} sections; found widths {list(widths)} and "
            f"depths {rows}"
        )
    unique = {
        Submodel(
            made,
            float(w),
            tuple((1,) * min(d, n) + (0,) * max(n - d, 0) for d, n in zip(row, sizes, strict=True)),
            features,
        )
        for w, row in itertools.product(widths, rows)
    }
    return tuple(sorted(unique, key=lambda s: (parameters(s), s.width, s.name)))


def probes(
    made: Network, depths: Iterable[int], features: Iterable[str] = ()
) -> tuple[Submodel, ...]:
    """Return submodels to time, smallest first: cheap ones that differ in their use of a machine,
    so that its costs can be fitted.

    depths: the least and the greatest of the submodels to be predicted. A user's network that
    cannot be narrowed is whole at both.
    """
    features, depths = tuple(features), tuple(depths)
    least, most = min(depths), max(depths)
    try:
        chosen = {
            menu(made, (width,), (depth,), features)
            for width, depth in zip(PROBED, (most, least, most), strict=True)
        }
    except ValueError:
        chosen = {menu(made, (1.0,), (depth,), features) for depth in (least, most)}
    return tuple(
        sorted((submodel for (submodel,) in chosen), key=lambda s: (parameters(s), s.name))
    )
