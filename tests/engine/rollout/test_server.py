"""The rollout server answers what waits together in one batch, and survives what fails."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from omnirl.engine.rollout.sampling import Answer, Sampler, Sampling
from omnirl.engine.rollout.server import HFServer
from omnirl.engine.thinker import media_token_ids
from tests.engine.conftest import KINDS

GREEDY = {"temperature": 0, "logprobs": True}


class CountingServer(HFServer):
    """Notes the size of every batch."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.batches: list[int] = []

    def _sample(self, requests: list[Any], sampling: Sampling | None) -> list[Answer] | list[list[float]]:
        self.batches.append(len(requests))
        return super()._sample(requests, sampling)


@pytest.fixture
def server(config: Any) -> CountingServer:
    return CountingServer(config.actor_rollout_ref.rollout, config.actor_rollout_ref.model, 0)


@pytest.fixture
def loop() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def request_of(ask, encode):
    """A row as the keyword arguments of `generate`."""

    def make(row: dict[str, Any]) -> dict[str, Any]:
        question = ask(row)
        return {
            "prompt_ids": encode(row).token_ids,
            "image_data": question["images"],
            "video_data": question["videos"],
            "audio_data": question["audio"],
        }

    return make


def together(loop: asyncio.Runner, server: HFServer, requests: list[dict[str, Any]], params: list[dict[str, Any]]):
    async def run() -> list[Any]:
        answers = [
            server.generate(**request, sampling_params=parameters, request_id=str(index))
            for index, (request, parameters) in enumerate(zip(requests, params, strict=True))
        ]
        return await asyncio.gather(*answers, return_exceptions=True)

    return loop.run(run())


def test_128_requests_with_media_are_one_batch(server, loop, request_of, encode, rows, thinker, processor) -> None:
    some = [rows[kind][index] for index in range(4) for kind in KINDS]
    outputs = together(loop, server, [request_of(row) for row in some * 8], [GREEDY] * 128)
    assert server.batches == [128]
    vocabulary = processor.tokenizer
    sampler = Sampler(
        thinker,
        end_ids=[vocabulary.eos_token_id],
        banned_ids=media_token_ids(thinker.config),
        pad_id=vocabulary.pad_token_id,
        seed=0,
    )
    expected = sampler.sample([encode(row) for row in some], Sampling(max_tokens=8, temperature=0))
    for index, output in enumerate(outputs):
        answer = expected[index % len(some)]
        assert output.token_ids == answer.token_ids
        assert output.log_probs == pytest.approx(answer.log_probs, abs=1e-5)
    # What comes above the limit waits for the next batch.
    server.max_batch = 12
    together(loop, server, [request_of(rows["text"][0])] * 30, [GREEDY] * 30)
    assert server.batches[1:] == [12, 12, 6]


def test_each_request_keeps_its_own_sampling(server, loop, request_of, rows) -> None:
    request = request_of(rows["image"][0])
    params = [GREEDY, {"temperature": 1.0}, {"temperature": 1.0, "max_tokens": 2, "logprobs": True}] * 4
    outputs = together(loop, server, [request] * 12, params)
    assert sorted(server.batches) == [4, 4, 4]
    greedy, free, short = outputs[::3], outputs[1::3], outputs[2::3]
    assert len({tuple(output.token_ids) for output in greedy}) == 1
    assert len({tuple(output.token_ids) for output in free}) > 1
    assert all(output.log_probs is None for output in free)
    assert all(len(output.token_ids) == len(output.log_probs) <= 2 for output in short)


TEACHER = {"max_tokens": 1, "temperature": 1.0, "prompt_logprobs": 0, "detokenize": False}
"""What verl asks a teacher with."""


def test_a_teacher_tells_how_likely_an_answer_is(server, loop, request_of, rows) -> None:
    """The same number that the answer was drawn with, at the place before each token, as verl reads it."""
    requests = [request_of(rows[kind][index]) for index in (0, 1) for kind in KINDS]
    drawn = {"temperature": 1.0, "logprobs": True}
    answers = together(loop, server, requests, [drawn] * 8)
    whole = [
        {**request, "prompt_ids": request["prompt_ids"] + answer.token_ids}
        for request, answer in zip(requests, answers, strict=True)
    ]
    told = together(loop, server, whole, [TEACHER, TEACHER, GREEDY, TEACHER, TEACHER, TEACHER, TEACHER, TEACHER])
    assert told[2].token_ids
    for request, answer, sequence, output in zip(requests, answers, whole, told, strict=True):
        if output.token_ids:
            continue
        ids, values = output.extra_fields["prompt_ids"], output.extra_fields["prompt_logprobs"]
        assert ids == [[token] for token in sequence["prompt_ids"][1:]] + [[0]]
        assert len(values) == len(ids)
        assert values[-1] == [0.0]
        start = len(request["prompt_ids"]) - 1
        assert [value for (value,) in values[start:-1]] == pytest.approx(answer.log_probs, abs=1e-5)
        assert output.extra_fields["global_steps"] is None


def test_a_teacher_does_not_tell_the_likeliest_tokens(server, loop, request_of, rows) -> None:
    (output,) = together(loop, server, [request_of(rows["text"][0])], [{**TEACHER, "prompt_logprobs": 5}])
    assert isinstance(output, ValueError)


def test_an_answer_fits_into_the_room_that_is_left(server, loop, request_of, rows) -> None:
    request = request_of(rows["text"][0])
    length = server.config.prompt_length + server.config.response_length
    request["prompt_ids"] = (request["prompt_ids"] * 9)[: length - 3]
    outputs = together(loop, server, [request] * 9, [{"temperature": 1.0}] * 9)
    assert max(len(output.token_ids) for output in outputs) == 3


def test_an_error_reaches_every_caller_and_the_server_lives_on(server, loop, request_of, rows) -> None:
    good = request_of(rows["image"][0])
    broken = {**good, "image_data": good["image_data"] * 2}  # one image more than the prompt has room for
    outputs = together(loop, server, [broken, broken, good, good], [GREEDY, GREEDY, {}, {}])
    assert all(isinstance(output, Exception) for output in outputs[:2])
    assert all(output.token_ids for output in outputs[2:])
    (output,) = together(loop, server, [good], [GREEDY])
    assert output.token_ids


def test_a_caller_that_gave_up_disturbs_nobody(server, loop, request_of, rows) -> None:
    request = request_of(rows["text"][0])

    async def run() -> Any:
        first = asyncio.create_task(server.generate(**request, sampling_params=GREEDY, request_id="first"))
        second = asyncio.create_task(server.generate(**request, sampling_params=GREEDY, request_id="second"))
        await asyncio.sleep(0)
        first.cancel()
        return await second

    assert loop.run(run()).token_ids


def test_new_weights_are_used_and_named(server, loop, request_of, rows) -> None:
    request = request_of(rows["video"][0])
    (before,) = together(loop, server, [request], [GREEDY])
    assert before.extra_fields == {"global_steps": None}
    named = {name: tensor.clone() for name, tensor in server.model.named_parameters()}
    head = named.pop("lm_head.weight")
    with pytest.raises(KeyError, match=r"never reached .*lm_head"):
        loop.run(server.update_weights(named, 1))
    loop.run(server.update_weights({**named, "lm_head.weight": -head}, 7))
    (after,) = together(loop, server, [request], [GREEDY])
    assert after.token_ids != before.token_ids
    assert after.extra_fields == {"global_steps": 7}
    loop.run(server.update_weights({"lm_head.weight": head}, 8))
    (again,) = together(loop, server, [request], [GREEDY])
    assert again.token_ids == before.token_ids
    assert torch.tensor(again.log_probs).allclose(torch.tensor(before.log_probs))
