import asyncio

from resync.admin.health import Health


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


async def answering() -> None:
    pass


async def test_nothing_is_well_before_the_first_sign_of_life():
    report = Health(answering).report()
    assert not report.healthy
    assert len(report.problems) == 2


async def test_well_when_loop_and_database_answer():
    health = Health(answering)
    health.beat()
    await health.probe()
    assert health.report().healthy
    assert health.report().problems == []


async def test_signs_of_life_grow_old():
    clock = Clock()
    health = Health(answering, bound_seconds=10, clock=clock)
    health.beat()
    await health.probe()
    clock.now += 10
    assert health.report().healthy
    clock.now += 0.1
    await health.probe()
    assert health.report().problems == ["the worker's loop has not turned for 10 s"]
    health.beat()
    clock.now += 10.1
    health.beat()
    [problem] = health.report().problems
    assert problem.startswith("the database does not answer")


async def test_a_database_that_fails_and_comes_back():
    broken = True

    async def ping() -> None:
        if broken:
            raise ConnectionError("refused\nand more")

    health = Health(ping)
    health.beat()
    await health.probe()
    assert health.report().problems == ["the database does not answer: refused"]
    broken = False
    await health.probe()
    assert health.report().healthy


async def test_a_database_that_never_answers():
    async def ping() -> None:
        await asyncio.Event().wait()

    health = Health(ping, bound_seconds=0.05, clock=Clock())
    health.beat()
    await health.probe()
    assert health.report().problems == ["the database does not answer: no answer within 0.05 s"]


async def test_it_asks_again_and_again():
    asked = asyncio.Semaphore(0)

    async def ping() -> None:
        asked.release()

    health = Health(ping, interval_seconds=0.01)
    task = asyncio.create_task(health.run())
    async with asyncio.timeout(5):
        for _ in range(3):
            await asked.acquire()
    task.cancel()
