"""Keep the run's description (its card) on the broker while this coordinator leads, and stop with
`Superseded` when a later coordinator has taken over the run.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import replace

from coordinator.fleet.message_sender import Endpoint
from federated.errors import Superseded
from federated.wire import envelope, messages, topics
from federated.wire.link import Delivery

__all__ = ["CARD_PATIENCE", "FENCE", "Leadership"]

log = logging.getLogger(__name__)

# seconds after a reconnection for the broker to send the card of a later coordinator
FENCE = 1.0
# seconds for the broker to return the run's card to its sender, before it is published again
CARD_PATIENCE = 10.0
# times in a row that the broker acknowledges the card and does not return it, until a warning
UNRETURNED = 2


class Leadership:
    """The state of the card that the broker retains, as far as this coordinator knows.

    leading: whether this process has begun a phase.
    """

    def __init__(self, endpoint: Endpoint, clock: Callable[[], float]) -> None:
        self._endpoint, self._clock = endpoint, clock
        self.leading = False
        self._republish_at = math.inf  # when to publish everything again, after a reconnection
        self._restore_at = math.inf  # when to do so because the card was removed
        self._restored = -math.inf  # when that was done last
        self._returned = b""  # the card that the broker returned last
        self._confirm_at = clock() + CARD_PATIENCE  # when to check that it is the present one
        self._unreturned = 0  # times in a row that it was not, though the broker acknowledged it

    def publish(self, card: messages.Run) -> None:
        """Publish a new card."""
        self._endpoint.publish(card)
        self._confirm_at = self._clock() + CARD_PATIENCE

    def restore_link(self) -> None:
        """Prepare to publish everything again: a restarted broker may have lost what it retained.
        But a later coordinator may lead the run by now, and its card must not be replaced.
        """
        self._endpoint.link.subscribe(topics.run(self._endpoint.card.run))
        self._returned, self._republish_at = b"", self._clock() + FENCE

    def check(self, heartbeat: float = 0.0, *, repeat: bool = False) -> None:
        """Publish again what the broker may have lost. A card that it has not returned is with no
        agent.

        heartbeat: of the fleet, which is published if it is longer than the card's.
        repeat: publish the card every CARD_PATIENCE seconds, since agents that look for any run
            receive none that the broker retained.
        """
        now = self._clock()
        if heartbeat > self._endpoint.card.heartbeat:
            self.publish(replace(self._endpoint.card, heartbeat=heartbeat))
        if now >= self._republish_at:
            self._republish_at, self._confirm_at = math.inf, now + CARD_PATIENCE
            # a broker may still send what it retained, and yet deliver nothing new
            self._returned, self._restore_at = b"", math.inf
            self._endpoint.republish()
        elif now >= self._restore_at and self._republish_at == math.inf:
            self._restore_at, self._restored = math.inf, now
            self._endpoint.republish()
        elif now >= self._confirm_at and self._republish_at == math.inf:
            self._confirm_at = now + CARD_PATIENCE
            returned = self._returned == self._endpoint.announced
            self._check_delivery(returned)
            if repeat or not returned:
                self._endpoint.publish(self._endpoint.card)

    def _check_delivery(self, returned: bool) -> None:
        """Warn if the broker acknowledges the card again and again, but does not return it. NATS
        2.9 may deliver nothing to anyone after it was killed, and no client can change that.
        """
        link = self._endpoint.link
        if returned:
            self._unreturned = 0
        elif not link.backlog and link.flush(0.0):  # else it may be on its way
            self._unreturned += 1
            if self._unreturned == UNRETURNED:
                log.warning(
                    "the broker acknowledges messages, but has not returned the run's card to this "
                    "coordinator for %.0f s: agents may get nothing either. Check it with "
                    "coordinator doctor --broker ADDRESS",
                    UNRETURNED * CARD_PATIENCE,
                )

    def take_card(self, delivery: Delivery) -> None:
        """Compare epochs with the coordinator that published a card of this run.

        If the other coordinator has a later epoch and this one has begun a phase, this one leaves:
        raises Superseded. If this one has not begun a phase, it takes a later epoch itself. If an
        earlier coordinator replaced or removed the card, publish it again. If it was removed, the
        broker may have lost the weights, too, and agents wait for them.
        """
        payload, mine, own = delivery.payload, self._endpoint.epoch, self._endpoint.card
        card, epoch = envelope.decode_with_epoch(payload) if payload else (None, 0)
        if isinstance(card, messages.Run) and card.session == own.session:
            self._returned = payload
            return
        if not mine:
            return
        if epoch >= mine and self.leading:
            raise Superseded(
                f"another coordinator took over run '{own.run}' (epoch {epoch}, expected at most "
                f"{mine}): keep one of them, and stop the other"
            )
        if epoch >= mine:
            self._endpoint.epoch = epoch + 1
        elif delivery.retained:  # from before this one announced itself
            return
        if self._republish_at == math.inf:
            self._endpoint.publish(own)
        if not payload:  # once in CARD_PATIENCE, since anyone might remove it
            due = max(self._clock() + FENCE, self._restored + CARD_PATIENCE)
            self._restore_at = min(self._restore_at, due)
