"""Filters: ask, and be told true, false or undefined; only true delivers."""

from whimbrel import Filter, FilterError

alarm = Filter("begins-with(bed, 'ICU-') && (pulse > 110 || spo2 < 93)")
events: list[dict[str, object]] = [
    {"bed": "ICU-4", "pulse": 96, "spo2": 91},
    {"bed": "ICU-4", "pulse": 96, "spo2": 97},
    {"bed": "ICU-4", "pulse": 96},  # the oxygen clip slipped off
    {"bed": "W3-7", "pulse": 130},
]
for event in events:
    print("delivered" if alarm.matches(event) else "kept back", event)

print(alarm.verdict({"bed": "ICU-4", "pulse": 96}), "is undefined: spo2 could have been anything")
print("Normal form:", Filter("!(pulse <= 110 && !(spo2 < 93))").normal())

try:
    Filter("pulse > 110 and spo2 < 93")
except FilterError as error:
    print(error.pointed())
