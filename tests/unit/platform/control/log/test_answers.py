"""Answers to the former version are kept until they are read, and no longer."""

from fairserve.interactions.call import TokenUsage
from fairserve.platform.base.errors import NotFoundError
from fairserve.platform.control.cell_events import CallAnswer
from fairserve.platform.control.log.answers import AnswerBook, answer_bytes
from fairserve.platform.control.log.shared_cell import Applied, EntryId
from fairserve.platform.control.messages import Release


def test_answers_that_a_new_state_passed_over_go_with_the_next_ones():
    book = AnswerBook()
    refused = CallAnswer("call", NotFoundError("no such call"))
    for ms in (1, 2, 3):
        book.took(
            EntryId(ms, 0),
            Applied(Release("call", "cancelled", TokenUsage()), [refused], None),
            {"call"},
        )
    _, second, third = book.next()
    book.read(answer_bytes([second]))  # the answer to the first is in the log before the state
    book.write_again()
    assert book.next() == [third]
    book.read(answer_bytes([third]))
    assert not len(book)
