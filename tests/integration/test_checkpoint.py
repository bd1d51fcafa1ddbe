"""``serve --model DIR`` serves a checkpoint of the operator, from its folder to the client."""

from checkpoints import write_checkpoint
from gateway_server import ChildServer

MESSAGES = [{"role": "user", "content": "Tell me about tides."}]


def greedy(folder, tokens):
    """Return the greedy output of transformers."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    text = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, tokenize=False)
    ids = torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])
    with torch.no_grad():
        out = model.generate(ids, max_new_tokens=tokens, do_sample=False)
    return tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)


def test_a_checkpoint_is_served_with_the_output_of_transformers(tmp_path):
    """The server starts without data, with an embedded worker."""
    folder = tmp_path / "tides-llama"
    folder.mkdir()
    write_checkpoint(folder, "llama")
    expected = greedy(folder, 16)
    with ChildServer(tmp_path / "data", empty=True, workers=1, model=folder) as server:
        client = server.openai(server.new_app()["api_key"])
        assert [model.id for model in client.models.list()] == [folder.name]
        for name in (folder.name, str(folder)):
            answer = client.chat.completions.create(
                model=name, messages=MESSAGES, max_tokens=16, temperature=0
            )
            assert answer.choices[0].message.content == expected
