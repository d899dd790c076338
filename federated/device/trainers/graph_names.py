"""Names of the inputs and outputs of training graphs, which `export.trainstep` writes and a trainer
without PyTorch runs. All numbers are float32, all labels and tokens int32; N is the graph's batch.

Every graph:
    x           [N, *inputs]  raw examples; of a masked network, with the hidden tokens' id in place
    weights     [N]           of each example; 0 for those that only fill up the batch
    p.NAME                    parameters
A step also:
    y           [N, ...]      classes, tokens, or raw values
    b.NAME                    running statistics, only if the recipe tracks them
    m.NAME, v.NAME            the optimiser's state, zeros at first (SGD: only m)
    lr, momentum, decay, c1, c2, pull, clip
                              numbers, those that the recipe needs; Adam's c1 = 1 - 0.9^t and
                              c2 = 1 - 0.999^t in step t = 1, 2, ...
    classes     [outputs]     1 for the classes that the device holds, otherwise 0; if masked
    start.NAME                the received parameters, for `pull`
    c.NAME                    the correction of gradients (FedDyn: -c_i) or of steps (SCAFFOLD:
                              c - c_i)
    option.NAME               numbers of the recipe's options, which a method's own loss reads
    draw.I                    masks of dropout and stochastic depth, ones with the probabilities of
                              the property `draws`
and returns `loss` and next.NAME for each input NAME that changes.
A calibration returns b.NAME, the mean and the unbiased variance of this batch.
An evaluation also takes b.NAME instead of weights, and returns out.I, the logits (or standardised
values) of each exit, the network's own last.
"""

from __future__ import annotations

__all__ = ["CORRECTION", "DRAW", "NEXT", "OPTION", "OUT", "PARAMETER", "START", "STATISTIC"]

PARAMETER, STATISTIC, START, CORRECTION = "p.", "b.", "start.", "c."
DRAW, NEXT, OPTION, OUT = "draw.", "next.", "option.", "out."
