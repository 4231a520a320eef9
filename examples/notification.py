"""A notification from a JSON body, and three filters that look at it."""

from whimbrel import Filter, InvalidInputError
from whimbrel.model import Notification, Place, parse_time, type_of
from whimbrel.model.codecs import from_json

BODY = b'{"drug": "Morphine sulfate", "dose-mg": 8.5, "pump": {"serial": 5000000000, "charging": false}, "tags": ["a"]}'

infusion = Notification(
    node="ward-3",
    seq=17,
    published_at=parse_time("2026-01-05T07:00:00Z"),
    subject="bed/ICU-4/pump",
    body=BODY,
    attributes=from_json(BODY),
    place=Place(47.3769, 8.5417),
    radius_m=50,
)
print(infusion.id, infusion.subject)
for name, value in infusion.attributes.items():
    print(f"  {name} is {value!r}, {type_of(value).word}")

for text in (
    "contains(fold-case(drug), 'morphine') && dose-mg > 6.0",
    "pump.charging == true",
    "pump.battery < 20",
):
    print(f"{text}: {Filter(text).verdict(infusion.attributes)}")

try:
    from_json('{"dose-mg": 8.5, "dose-mg": 85}')
except InvalidInputError as error:
    print("Refused:", error)
