"""Text streams in whole characters; stop strings are found wherever tokens cut them."""

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from fairserve.engine.torch.detokenizer import ByteLevelDetokenizer, detokenizer_factory
from fairserve.engine.torch.output_text import OutputText, StopStrings


def stream(tokenizer, ids, **options):
    detokenizer = detokenizer_factory(tokenizer)(**options)
    return [detokenizer.push(each) for each in ids] + [detokenizer.flush()]


def test_a_character_is_emitted_with_its_last_byte(byte_level):
    ids = list("a€😀".encode())
    assert stream(byte_level, ids) == ["a", "", "", "€", "", "", "", "😀", ""]


def test_an_incomplete_character_at_the_end_is_replaced(byte_level):
    assert stream(byte_level, list("a€".encode())[:-1]) == ["a", "", "", "�"]


def test_special_tokens_give_no_text(byte_level):
    assert stream(byte_level, [97, 256, 259, 98]) == ["a", "", "", "b", ""]


def test_special_tokens_without_a_role_give_no_text(byte_level):
    backend = Tokenizer.from_str(byte_level.backend_tokenizer.to_str())
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>")
    assert tokenizer.all_special_ids == [256]
    ids = [97, 256, 259, 98, 261]
    assert (
        "".join(stream(tokenizer, ids)) == tokenizer.decode(ids, skip_special_tokens=True) == "ab"
    )


@given(ids=st.lists(st.integers(0, 261), max_size=12))
def test_special_tokens_may_be_shown(ids, byte_level):
    expected = byte_level.decode(ids, skip_special_tokens=False)
    for spaces in (True, False):
        pieces = stream(byte_level, ids, skip_special=False, spaces=spaces)
        assert "".join(pieces) == expected


def test_spaces_between_special_tokens_may_be_left_out():
    words = Tokenizer(models.WordLevel(vocab={"one": 0, "two": 1}, unk_token=None))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, additional_special_tokens=["<a>", "<b>"]
    )
    ids = [0, 2, 3, 2, 1, 3]
    for skip_special, spaces, expected in [
        (True, True, "one two"),
        (True, False, "one two"),
        (False, True, "one <a> <b> <a> two <b>"),
        (False, False, "one <a><b><a> two <b>"),
    ]:
        pieces = stream(tokenizer, ids, skip_special=skip_special, spaces=spaces)
        assert "".join(pieces) == expected


@given(text=st.text(max_size=40))
def test_any_text_survives_streaming(text, byte_level):
    assert isinstance(detokenizer_factory(byte_level)(), ByteLevelDetokenizer)
    assert "".join(stream(byte_level, list(text.encode("utf-8", "ignore")))) == (
        text.encode("utf-8", "ignore").decode()
    )


@given(data=st.binary(max_size=40))
def test_any_bytes_stream_as_they_are_decoded(data, byte_level):
    pieces = stream(byte_level, list(data))
    assert "".join(pieces) == byte_level.decode(list(data)) == data.decode(errors="replace")


def test_byte_fallback_and_leading_spaces_are_kept(sentence_piece):
    ids = [0, 1, *(6 + byte for byte in "é€😀".encode()), 4, 2, 3]
    pieces = stream(sentence_piece, ids)
    assert "".join(pieces) == "Hello worldé€😀!world"
    assert pieces[:2] == ["Hello", " world"]
    assert not any("�" in piece for piece in pieces)


def test_byte_fallback_delays_a_bounded_number_of_bytes(sentence_piece):
    pieces = stream(sentence_piece, [6 + 0xFF] * 30)
    assert "".join(pieces) == "�" * 30
    assert sum(bool(piece) for piece in pieces) > 2


def test_tokens_without_text_do_not_lengthen_the_window(sentence_piece, monkeypatch):
    decode, lengths = sentence_piece.decode, []

    def counted(ids, **options):
        lengths.append(len(ids))
        return decode(ids, **options)

    monkeypatch.setattr(sentence_piece, "decode", counted)
    silent = [sentence_piece.eos_token_id, len(sentence_piece)] * 50
    assert "".join(stream(sentence_piece, [0, *silent, 1, *silent])) == "Hello world"
    assert max(lengths) == 2


def pushed(stop, pieces):
    stops = StopStrings(tuple(stop))
    text = ""
    for piece in pieces:
        text += stops.push(piece)
        if stops.stopped:
            return text, True
    return text + stops.flush(), False


def test_a_stop_string_may_span_pieces():
    assert pushed(["<end>"], ["ab<", "en", "d>c"]) == ("ab", True)
    assert pushed(["<end>"], ["ab<", "en", "xd>c"]) == ("ab<enxd>c", False)
    assert pushed(["aab"], ["a", "a", "a", "b"]) == ("a", True)
    assert pushed(["END", "N"], ["xEN", "D"]) == ("xE", True)


def test_only_possible_stop_prefixes_are_held_back():
    stops = StopStrings(("<end>",))
    assert stops.push("abc") == "abc"
    assert stops.push("d<e") == "d"
    assert stops.push("f") == "<ef"


@given(
    stop=st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3),
    pieces=st.lists(st.text("abc", max_size=5), max_size=12),
)
def test_stopping_does_not_depend_on_the_pieces(stop, pieces):
    text, expected = "", None
    for piece in pieces:
        text += piece
        found = [at for at in map(text.find, stop) if at >= 0]
        if found:
            expected = (text[: min(found)], True)
            break
    assert pushed(stop, pieces) == (expected or (text, False))


def test_a_stop_string_may_end_in_an_incomplete_character(byte_level):
    output = OutputText(detokenizer_factory(byte_level)(), ("�",))
    assert [output.push(97), output.push(0xE2), output.flush()] == ["a", "", ""]
    assert output.stopped


def test_held_back_characters_are_counted(byte_level):
    output = OutputText(detokenizer_factory(byte_level)(), ("äxy",))
    counts = []
    for byte in "aäx€".encode():
        output.push(byte)
        counts.append(output.characters)
    assert counts == [1, 1, 2, 3, 3, 3, 4]


def test_a_stop_before_min_tokens_does_not_count_later():
    stops = StopStrings(("ab", "xabyyy"))
    assert stops.push("xab", may_stop=False) == ""
    assert stops.push("c") == "xabc"
    assert not stops.stopped


@given(
    stop=st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3),
    pieces=st.lists(st.text("abc", max_size=5), max_size=12),
    silent=st.integers(0, 6),
)
def test_a_stop_counts_at_its_end(stop, pieces, silent):
    def expected():
        text = ""
        for number, piece in enumerate(pieces):
            before, text = len(text), text + piece
            found = [text.find(each, max(0, before - len(each) + 1)) for each in stop]
            if number >= silent and piece and max(found) >= 0:
                return text[: min(at for at in found if at >= 0)], True
        return text, False

    stops = StopStrings(tuple(stop))
    shown = ""
    for number, piece in enumerate(pieces):
        shown += stops.push(piece, may_stop=number >= silent)
        if stops.stopped:
            break
    shown += "" if stops.stopped else stops.flush()
    assert (shown, stops.stopped) == expected()
