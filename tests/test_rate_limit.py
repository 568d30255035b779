"""A rate that several readers share."""

from bootseer.rate_limit import RateLimit


def test_a_budget_is_shared():
    budget = RateLimit(100.0)
    assert [budget.take(50, 10.0) for _ in range(3)] == [0.0, 0.5, 1.0]
    assert budget.take(50, 20.0) == 0.0
    assert RateLimit(100.0).take(50, 0.0) == 0.0
    assert RateLimit(0).take(10**9, 0.0) == 0.0
