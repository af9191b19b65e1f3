"""A program as Celery's users write it; the tests copy it, once with each import."""

from __future__ import annotations

import os
from pathlib import Path

from celery import Celery, chain, chord, group, shared_task, signature

app = Celery("shop", broker=os.environ["SHOP_URL"], backend=os.environ["SHOP_URL"])
app.conf.update(result_expires=3600, timezone="Europe/Oslo", enable_utc=True)
NOTES = Path(__file__).parent / "notes"


@app.task
def add(x, y):
    return x + y


@app.task
def mul(x, y):
    return x * y


@app.task
def xsum(numbers):
    return sum(numbers)


@app.task
def same(x):
    return x


@shared_task
def negative(x):
    return -x


@app.task
def fail(text):
    raise ValueError(text)


@app.task(bind=True, max_retries=3)
def flaky(self, wanted):
    if self.request.retries < wanted:
        raise self.retry(countdown=0.05, exc=ValueError("not yet"))
    return self.request.retries


@app.task(autoretry_for=(ConnectionError,), retry_kwargs={"max_retries": 1, "countdown": 0.05})
def unreachable():
    raise ConnectionError("no route")


@app.task
def note(text):
    with open(NOTES, "a") as notes:
        notes.write(f"{text}\n")
    return text


@app.task
def on_error(request, exc, traceback):
    with open(NOTES, "a") as notes:
        notes.write(f"{type(exc).__name__} {exc} {'Traceback' in traceback}\n")


class Counting(app.Task):
    seen = ()

    def on_success(self, retval, task_id, args, kwargs):
        note(f"success {retval} {args}")

    def on_failure(self, exc, task_id, args, kwargs, einfo):
        note(f"failure {exc} {args}")


@app.task(base=Counting, bind=True, name="told")
def told(self, x):
    if x < 0:
        raise ValueError("below zero")
    return [self.name, self.request.id == self.request.root_id, x]


@app.task(bind=True)
def by_one(self, x):
    raise self.replace(add.s(x, 1))


@app.task(bind=True)
def by_chain(self, x):
    return self.replace(chain(add.s(x, 1), by_one.s(), mul.s(10)))


@app.task(bind=True)
def by_group(self, x):
    return self.replace(group(add.s(x, n) for n in range(3)))


@app.task(bind=True)
def by_chord(self, x):
    return self.replace(chord([add.s(x, n) for n in range(3)], xsum.s()))


@app.task(bind=True)
def by_failing(self, x):
    return self.replace(chain(add.s(x, 1), fail.si("in its place"), add.s(1)))


def replaced():
    """Those in which a task has another one run in its place."""
    return {
        "replaced": lambda: by_one.delay(3),
        "replaced by a chain": lambda: by_chain.delay(3),
        "replaced by a group": lambda: by_group.delay(3),
        "replaced by a chord": lambda: by_chord.delay(3),
        "replaced by what fails": lambda: by_failing.delay(3),
        "replaced in a chain": lambda: (add.s(1, 1) | by_chain.s() | mul.s(2)).delay(),
        "replaced by a group in a chain": lambda: (by_group.s(1) | xsum.s() | negative.s()).delay(),
        "replaced in a group": lambda: group(by_one.s(1), by_chain.s(2), add.s(1, 1))(),
        "replaced in a chord": lambda: chord(
            [by_one.s(1), by_chain.s(2), add.s(1, 1), by_chord.s(1), by_one.s(5) | mul.s(2)],
            same.s(),
        ).delay(),
        "replaced by a group in a chord": lambda: chord(
            [by_group.s(1), add.s(1, 1)], same.s()
        ).delay(),
        "body replaced": lambda: chord([add.s(1, 1), add.s(2, 2)], xsum.s() | by_chain.s()).delay(),
        "replaced, then linked": lambda: by_chain.apply_async((6,), link=note.s()),
        "replaced, link_error": lambda: by_failing.apply_async((6,), link_error=on_error.s()),
    }


def flows():
    """What is done in the tutorials, by name."""
    return {
        "delay": lambda: add.delay(4, 4),
        "apply_async": lambda: add.apply_async((2,), {"y": 3}, countdown=0.1),
        "keyword": lambda: add.delay(x=1, y=5),
        "call": lambda: Held(add(1, 2)),
        "apply": lambda: add.apply((1, 2)),
        "send_task": lambda: app.send_task("shop.mul", (3, 4)),
        "shared": lambda: negative.delay(3),
        "tuple": lambda: add.delay((1, 2), (3,)),
        "partial": lambda: add.s(2).delay(8),
        "option": lambda: add.s(2, 2).set(countdown=0.05).apply_async(),
        "clone": lambda: add.s(2).clone((3,), {}).delay(),
        "signature": lambda: signature("shop.add", args=(2, 2), countdown=0.05).apply_async(),
        "as a dict": lambda: signature(dict(add.s(5, 6))).delay(),
        "chain": lambda: chain(add.s(4, 4), mul.s(8), mul.s(10))(),
        "pipe": lambda: (add.s(4, 4) | mul.s(8)).delay(),
        "one before": lambda: (add.s(4, 4) | mul.s(8)).delay().parent,
        "immutable": lambda: (add.si(2, 2) | add.si(4, 4)).delay(),
        "group": lambda: group(add.s(i, i) for i in range(10))(),
        "partial group": lambda: group(add.s(i) for i in range(3))(10),
        "group of one": lambda: group([add.s(1, 1)])(),
        "chord": lambda: chord((add.s(i, i) for i in range(10)), xsum.s())(),
        "chord body later": lambda: chord([add.s(i, i) for i in range(3)])(xsum.s()),
        "group, then": lambda: (group(add.s(i, i) for i in range(4)) | xsum.s() | negative.s())(),
        "inside": lambda: (add.s(1, 1) | group(add.s(1), add.s(2) | mul.s(10)) | xsum.s())(),
        "two chords": lambda: chord(
            [add.s(1, 1), chord([add.s(1, 1), add.s(2, 2)], xsum.s())], xsum.s()
        )(),
        "groups within groups": lambda: chord(
            [
                chain(add.si(1, 1), group(add.s(1), add.s(2))),
                chord([add.si(1, 1), add.si(2, 2)], same.s()),
                add.si(5, 5),
            ],
            same.s(),
        )(),
        "map": lambda: xsum.map([[1, 2], [3, 4]]).delay(),
        "starmap": lambda: add.starmap([(1, 2), (3, 4)]).delay(),
        "chunks": lambda: add.chunks(zip(range(10), range(10), strict=True), 4)(),
        "skew": lambda: group(add.s(i, i) for i in range(3)).skew(start=0, stop=1, step=0.05)(),
        "retried": lambda: flaky.delay(2),
        "retried too often": lambda: flaky.delay(4),
        "retried by itself": lambda: unreachable.delay(),
        "failed": lambda: fail.delay("no"),
        "failed in a chain": lambda: (fail.s("no") | add.s(1)).delay(),
        "failed in a chord": lambda: chord([add.s(1, 1), fail.s("no")], xsum.s()).delay(),
        "arguments": lambda: add.delay(1),
        "no JSON": lambda: add.delay(object(), 1),
        "class": lambda: told.delay(1),
        "class, failed": lambda: told.delay(-1),
        "link": lambda: add.apply_async((2, 2), link=note.s()),
        "link_error": lambda: fail.apply_async(("no",), link_error=on_error.s()),
        "on_error of a chain": lambda: (add.s(1, 1) | fail.si("still no")).on_error(on_error.s())(),
        **replaced(),
    }


class Held:
    def __init__(self, value):
        self.value = value

    def get(self, timeout):
        return self.value


NOTED = ["4", "80", "ValueError in its place True", "ValueError no True",
         "ValueError still no True", "failure below zero [-1]",
         "success ['told', True, 1] [1]"]  # fmt: skip
