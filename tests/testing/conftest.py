"""Every test here also checks that it leaves nothing behind."""

from __future__ import annotations

import pytest

from shoal import testing

leak_guard = pytest.fixture(autouse=True)(testing.leak_guard)
