"""Options of a verification."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from helenus_connector.config.connector import ConnectorSettings
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.placement import LEAST_TOKEN, MOST_TOKEN, token_ranges


@dataclass(frozen=True)
class VerifyOptions:
    """`repair` appends an event for each key that differs. `tokens` are the ranges to look at, each by its first and
    last token, in order; `sample` is the share of them to look at. `limit` is how many keys of each kind are named.

    `patience` in s: a key that differs is looked at again until that time has passed since it was found.
    Raises ValueError.
    """

    repair: bool = False
    tokens: tuple[tuple[int, int], ...] = ((LEAST_TOKEN, MOST_TOKEN),)
    sample: float = 1.0
    limit: int = 10
    patience: float = 30.0

    def __post_init__(self) -> None:
        if not 0 < self.sample <= 1:
            raise ValueError(f"sample: {self.sample:g} is no share: give more than 0, and 1 at most")
        if not 0 <= self.limit <= 100_000:
            raise ValueError(f"limit: {self.limit} is not between 0 and 100000")
        if not 0 <= self.patience <= 3600:
            raise ValueError(f"patience: {self.patience:g} s is not between 0 and 3600")

    @property
    def is_whole(self) -> bool:
        """Return whether all of the table is verified."""
        return self.sample == 1 and self.tokens == ((LEAST_TOKEN, MOST_TOKEN),)

    @classmethod
    def from_words(cls, words: dict[str, Any]) -> VerifyOptions:
        """Parse options from JSON: `repair`, `token_range` (`after:until`, or several of them with commas), `sample`,
        `limit`, `patience`. Raises ValueError.
        """
        names = {"repair", "token_range", "sample", "limit", "patience"}
        if unknown := words.keys() - names:
            raise ValueError(f"{min(unknown)} is not known: there are {', '.join(sorted(names))}")
        options: dict[str, Any] = {}
        if "repair" in words:
            if not isinstance(words["repair"], bool):
                raise ValueError(f"repair: {words['repair']} is neither true nor false")
            options["repair"] = words["repair"]
        if "token_range" in words:
            try:
                ranges = token_ranges(str(words["token_range"]))
            except ValueError as error:
                raise ValueError(f"token_range: {error}") from None
            options["tokens"] = tuple((after if after == LEAST_TOKEN else after + 1, until) for after, until in ranges)
        for name, kind in (("sample", float), ("limit", int), ("patience", float)):
            if name in words:
                try:
                    options[name] = kind(words[name])
                except (TypeError, ValueError, OverflowError):
                    raise ValueError(f"{name}: {words[name]} is no number") from None
        return cls(**options)


def verify_obstacle(settings: ConnectorSettings) -> HelenusError | None:
    """Return why the records of a connector can't be verified; None if they can."""
    problem = advice = ""
    if settings.output_format in ("debezium-cassandra", "cep44") or settings.resolver == "none":
        problem = f"records of output.format={settings.output_format}, resolver={settings.resolver} can't be verified"
        advice = "only those can that have a whole row: of debezium with resolver=reread, and of formats of rows"
    elif skipped := settings.skipped - {"t"}:
        problem = f"a topic without the operations {', '.join(sorted(skipped))} is not to be as its table"
        advice = "only one without skipped.operations can be verified"
    elif settings.has_transforms:
        problem = "records that transforms change can't be verified: they are not what the rows say"
        advice = "verify a connector without transforms"
    return HelenusError(Kind.CONFIG, problem, settings.name, advice) if problem else None
