import pytest
from page_pictures import Browser, find_chromium


@pytest.fixture(scope="session")
def browser():
    """One headless Chromium for all pages."""
    if find_chromium() is None:
        pytest.skip("needs Chromium")
    with Browser() as started:
        yield started
