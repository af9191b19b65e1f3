"""Whether a store has what an optional protocol asks, by itself or by a store behind it."""

from __future__ import annotations

from outlast import Keys
from outlast.movable import Movable
from outlast.sealing import Vault
from outlast.store import Direct, Ledger, Stepping, offers
from outlast.stores import connect
from outlast.stores.versions import Versioned


def test_a_sealed_store_offers_what_the_one_behind_it_does() -> None:
    store = connect("memory://")
    sealed = Vault(store, Keys(current="k", secrets={"k": bytes(32)}), "default")
    for protocol in (Movable, Direct, Ledger, Stepping, Versioned):
        assert offers(sealed, protocol) == offers(store, protocol)
    assert offers(sealed, Ledger)
    assert not offers(sealed, Versioned)
    assert not offers(object(), Ledger)
