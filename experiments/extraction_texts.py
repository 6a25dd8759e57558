"""Short texts with known answers, made from templates: the task of answers.py and budgets.py."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import date, timedelta
from random import Random
from typing import Any, NamedTuple


class Shown(NamedTuple):
    """How a prompt shows what the JSON looks like: its separators, and in which way."""

    separators: tuple[str, str]
    as_turn: bool  # as the answer to an example, in an earlier turn of the chat; else as a form in the task


SHOWN = {
    "none": None,
    "spaced": Shown((", ", ": "), as_turn=False),
    "compact": Shown((",", ":"), as_turn=False),
    "turn": Shown((", ", ": "), as_turn=True),
}

_FIRST = ("Ada", "Bruno", "Chiara", "Dario", "Elif", "Farid", "Greta", "Hamid", "Imani", "Jonas", "Katya", "Leif",
          "Mina", "Nadia", "Omar", "Petra", "Quinn", "Rosa", "Samir", "Tilda", "Umar", "Vera", "Wanda")  # fmt: skip
_LAST = ("Abbott", "Becker", "Castro", "Dietz", "Eriksen", "Farrow", "Gallo", "Hansen", "Ibrahim", "Jansen", "Keller",
         "Lindqvist", "Moreau", "Novak", "Okafor", "Pereira", "Quigley", "Rossi", "Sato", "Tanaka", "Ueda")  # fmt: skip
_CITIES = ("Lisbon", "Oslo", "Porto", "Quito", "Leeds", "Turin", "Ghent", "Osaka", "Lima", "Graz", "Bergen", "Dakar",
           "Krakow", "Malmo", "Seville", "Toronto", "Nairobi", "Cardiff", "San Jose", "New Delhi")  # fmt: skip
_JOBS = ("nurse", "teacher", "plumber", "chemist", "baker", "pilot", "lawyer", "welder")
_PRODUCTS = ("desk lamp", "oak shelf", "garden hose", "steel kettle", "wool blanket", "bike pump", "paper trimmer",
             "coffee grinder", "office chair", "rain jacket", "tent", "mirror", "toolbox", "drill")  # fmt: skip
_STATES = ("pending", "shipped", "delivered", "returned")
_TITLES = ("Spring Fair", "Jazz Night", "Robotics Day", "Chess Open", "Film Week", "Book Market", "Harbour Run",
           "Poetry Slam", "Science Gala", "Bread Festival", "Photo Walk", "Choir Evening")  # fmt: skip

_STRING = {"type": "string", "minLength": 1, "maxLength": 30}
_NUMBER = {"type": "integer", "minimum": 0, "maximum": 9999}
_DATE = {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"}


@dataclass(frozen=True)
class Family:
    """Texts of one schema: templates, a form of the document, an example text, and its answer."""

    name: str
    fields: dict[str, Any]
    form: dict[str, Any]
    example: str
    answer: dict[str, Any]
    templates: tuple[str, ...]

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema: every field is required."""
        return {"type": "object", "properties": self.fields, "required": list(self.fields)}

    @property
    def opening(self) -> str:
        """What every document begins with, as `json.dumps` writes it, up to the first value's first character."""
        key, field = next(iter(self.fields.items()))
        return f'{{"{key}": ' + ("" if field.get("type") == "integer" else '"')

    @property
    def pattern(self) -> str:
        """A regex of the schema's documents, as `json.dumps` writes them, strings without escapes."""
        members = (f'"{key}": {_value_pattern(field)}' for key, field in self.fields.items())
        return r"\{" + ", ".join(members) + r"\}"

    @property
    def pattern_behind_opening(self) -> str:
        """A regex of what may follow the opening."""
        return self.pattern.removeprefix("\\" + self.opening)


def _value_pattern(field: dict[str, Any]) -> str:
    if "enum" in field:
        return "(" + "|".join(f'"{member}"' for member in field["enum"]) + ")"
    if field["type"] == "integer":
        return "(0|[1-9][0-9]{0,3})"
    if "pattern" in field:
        return f'"{field["pattern"].strip("^$")}"'
    return rf'"[^"\\\x00-\x1f]{{{field["minLength"]},{field["maxLength"]}}}"'


@dataclass(frozen=True)
class Text:
    """A text and what it says."""

    family: Family
    text: str
    answer: dict[str, Any]

    def messages(self, shown: str) -> list[dict[str, str]]:
        """Return the task as a chat; the keys of ``SHOWN`` say what it shows of the JSON."""
        task, how, family = f"Extract the {self.family.name} as JSON", SHOWN[shown], self.family
        if how is None:
            return [_asked(f"{task}.\n{self.text}")]
        if not how.as_turn:
            form = json.dumps(family.form, separators=how.separators)
            return [_asked(f"{task}, in the form {form}\n\n{self.text}")]
        answer = json.dumps(family.answer, separators=how.separators)
        example = [_asked(f"{task}.\n{family.example}"), {"role": "assistant", "content": answer}]
        return [*example, _asked(f"{task}.\n{self.text}")]

    def right(self, document: Any) -> dict[str, bool]:
        """Return of each field whether a document has it right; upper and lower case are the same."""
        found = document if isinstance(document, dict) else {}
        return {key: _plain(found.get(key)) == _plain(value) for key, value in self.answer.items()}


def _asked(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def _plain(value: Any) -> Any:
    return value.casefold() if isinstance(value, str) else value


FAMILIES = (
    Family(
        "person",
        {"name": _STRING, "age": _NUMBER, "city": _STRING},
        {"name": "...", "age": 0, "city": "..."},
        "Ines Duarte is 58 and sells books in Braga.",
        {"name": "Ines Duarte", "age": 58, "city": "Braga"},
        (
            "{name} is {age} and works as a {job} in {city}.",
            "At {age}, {name} moved to {city} to become a {job}.",
            "Our new {job} in {city} is {name}, who is {age} years old.",
            "In {city} we met {name}, a {job} of {age} with {years} years of practice.",
            "The office in {city} has hired {name} ({age}) as a {job}.",
            "{name}, {age}, has been a {job} for {years} years and lives in {city}.",
            "Ask in {city} for the {job}: {age} years old, and called {name}.",
            "A {job} of {age} wrote to us from {city}. It was {name}.",
        ),
    ),
    Family(
        "order",
        {"quantity": _NUMBER, "product": _STRING, "status": {"enum": list(_STATES)}},
        {"quantity": 0, "product": "...", "status": "..."},
        "Ines Duarte is waiting for order 5120, 2 pieces of the clock. It is pending.",
        {"quantity": 2, "product": "clock", "status": "pending"},
        (
            "Order {number}: {quantity} x {product}, {status}.",
            "{name} bought {quantity} pieces of the {product}; the order is {status}.",
            "The {product} is {status}. {name} had ordered {quantity} of them.",
            "Status of order {number} is {status}. Item: {product}. Count: {quantity}.",
            "Your order of {quantity} units, {product}, has been marked {status}.",
            "{status}: order {number} by {name} ({product}, quantity {quantity}).",
            "We have {quantity} of the {product} on order {number}, which is {status}.",
            "For {name} in {city}: {product}, {quantity} in all. It is {status} since {day}.",
        ),
    ),
    Family(
        "event",
        {"title": _STRING, "date": _DATE, "city": _STRING, "seats": _NUMBER},
        {"title": "...", "date": "YYYY-MM-DD", "city": "...", "seats": 0},
        "On 2025-11-02 Braga holds its Lantern Parade for 900 guests.",
        {"title": "Lantern Parade", "date": "2025-11-02", "city": "Braga", "seats": 900},
        (
            "The {title} takes place in {city} on {day} and has {seats} seats.",
            "{city} hosts the {title} on {day}. There are {seats} seats.",
            "On {day} come to the {title} in {city}: {seats} seats, and {quantity} of them are taken.",
            "{seats} seats, one evening: the {title}, {city}, {day}.",
            "Save the date, {day}. The {title} returns to {city} with {seats} seats.",
            "{name} opens the {title} in {city} on {day}; the hall has {seats} seats.",
            "Seats for {seats} guests were booked in {city}, where the {title} is held on {day}.",
            "The {title} ({city}, {seats} seats) was moved to {day}.",
        ),
    ),
)


def texts(num_texts: int, seed: int) -> list[Text]:
    """Return texts of all families in turn, no two alike, each template as often as any other."""
    random = Random(seed)
    found: dict[str, Text] = {}
    while len(found) < num_texts:
        index = len(found)
        family = FAMILIES[index % len(FAMILIES)]
        values = _values(random)
        text = family.templates[index // len(FAMILIES) % len(family.templates)].format(**values)
        answer = {key: values["day_iso" if key == "date" else key] for key in family.fields}
        found.setdefault(text, Text(family, text[0].upper() + text[1:], answer))
    return list(found.values())


def _values(random: Random) -> dict[str, Any]:
    day = date(2026, 1, 1) + timedelta(days=random.randrange(700))
    day_iso = day.isoformat()
    return {
        "name": f"{random.choice(_FIRST)} {random.choice(_LAST)}",
        "age": random.randrange(19, 80),
        "years": random.randrange(2, 19),
        "city": random.choice(_CITIES),
        "job": random.choice(_JOBS),
        "product": random.choice(_PRODUCTS),
        "quantity": random.randrange(2, 60),
        "number": random.randrange(1000, 9999),
        "status": random.choice(_STATES),
        "title": random.choice(_TITLES),
        "seats": random.randrange(60, 999),
        "day_iso": day_iso,
        "day": random.choice([day_iso, f"{day.day} {day:%B} {day.year}"]),
    }
