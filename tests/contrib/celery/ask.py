"""Starts every flow of the shop and prints what became of it, as one JSON document."""

from __future__ import annotations

import json
import time

import shop

PATIENCE = 60


def outcome(start):
    try:
        return start().get(timeout=PATIENCE)
    except Exception as error:
        return f"raised {type(error).__name__}"


found = {name: outcome(start) for name, start in shop.flows().items()}
again = shop.add.delay(1, 1)
again.get(timeout=PATIENCE)
found["states"] = [again.state, again.ready(), again.successful(), again.failed(), again.result]
bad = shop.fail.delay("text")
found["not propagated"] = repr(bad.get(timeout=PATIENCE, propagate=False))
found["state"] = [bad.state, bad.failed(), "ValueError" in bad.traceback]
found["by id"] = shop.app.AsyncResult(again.id).get(timeout=PATIENCE)
found["unknown"] = shop.app.AsyncResult("never-heard-of").state
deadline = time.monotonic() + PATIENCE
notes = []
while len(notes) < len(shop.NOTED) and time.monotonic() < deadline:
    notes = shop.NOTES.read_text().splitlines() if shop.NOTES.exists() else []
found["notes"] = sorted(notes)
print(json.dumps(found))
