import pytest

pytest.register_assert_rewrite("bootseer.testing.store_model", "bootseer.testing.store_suite")
