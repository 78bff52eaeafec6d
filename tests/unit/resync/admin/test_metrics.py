from prometheus_client.parser import text_string_to_metric_families

from resync.admin.metrics import Metrics


def samples(metrics: Metrics) -> dict[tuple[str, tuple[str, ...]], float]:
    families = text_string_to_metric_families(metrics.render().decode())
    return {
        (one.name, tuple(one.labels.values())): one.value
        for family in families
        for one in family.samples
    }


def test_everything_counted_is_rendered():
    metrics = Metrics()
    metrics.rooms_by_state({"queued": 2, "backoff": 1})
    metrics.join("partial")
    metrics.attempt("complete")
    metrics.events_un_partial_stated(5)
    metrics.events_checked("dropped", 3)
    metrics.request("state_ids", "ok")
    metrics.request("state_ids", "403")
    metrics.stage_seconds("verify", 1.5)
    metrics.leases_held(4)
    metrics.lease("released")
    metrics.admin_request("GET", "/health", 200)
    found = samples(metrics)
    assert found["resync_rooms", ("queued",)] == 2
    assert found["resync_rooms", ("complete",)] == 0
    assert found["resync_joins_total", ("partial",)] == 1
    assert found["resync_attempts_total", ("complete",)] == 1
    assert found["resync_events_un_partial_stated_total", ()] == 5
    assert found["resync_events_checked_total", ("dropped",)] == 3
    assert found["resync_federation_requests_total", ("state_ids", "403")] == 1
    assert found["resync_stage_seconds_total", ("verify",)] == 1.5
    assert found["resync_leases_held", ()] == 4
    assert found["resync_leases_total", ("released",)] == 1
    assert found["resync_admin_requests_total", ("GET", "/health", "200")] == 1


def test_a_state_that_is_empty_again_goes_to_zero():
    metrics = Metrics()
    metrics.rooms_by_state({"running": 2})
    metrics.rooms_by_state({"complete": 2})
    assert samples(metrics)["resync_rooms", ("running",)] == 0


def test_the_longest_stall_is_kept():
    metrics = Metrics()
    for seconds in (0.01, 0.3, 0.02):
        metrics.event_loop_stall(seconds)
    found = samples(metrics)
    assert found["resync_event_loop_stall_max_seconds", ()] == 0.3
    assert found["resync_event_loop_lag_seconds_count", ()] == 3


def test_time_in_a_stage_is_added_up_even_if_it_fails():
    metrics = Metrics()
    try:
        with metrics.stage("store"):
            raise ValueError
    except ValueError:
        pass
    assert samples(metrics)["resync_stage_seconds_total", ("store",)] > 0


def test_two_registries_do_not_mix():
    first, second = Metrics(), Metrics()
    first.events_un_partial_stated(1)
    assert samples(second)["resync_events_un_partial_stated_total", ()] == 0
