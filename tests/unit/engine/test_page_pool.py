import pytest

from fairserve.engine.torch.page_pool import PagePool, pages_for


def test_every_page_is_allocated_once_and_never_the_pad_page():
    pool = PagePool(5)
    assert sorted(pool.take() for _ in range(5)) == [1, 2, 3, 4, 5]
    assert pool.free_pages == 0
    with pytest.raises(IndexError):
        pool.take()


def test_a_page_cannot_be_freed_twice():
    pool = PagePool(2)
    page = pool.take()
    pool.free(page)
    for wrong in (page, 0, 3):
        with pytest.raises(ValueError, match="is not taken"):
            pool.free(wrong)
    assert pool.free_pages == 2


def test_number_of_pages_is_rounded_up():
    assert [pages_for(tokens) for tokens in (0, 1, 16, 17, 32)] == [0, 1, 1, 2, 2]
