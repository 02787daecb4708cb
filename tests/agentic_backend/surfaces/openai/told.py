"""What the events of responses have in common, however they were cut."""


def joined(events):
    """The events with neighbouring pieces of one text as one, under the number of the last."""
    told = []
    for event in events:
        last = told[-1] if told else {}
        if event["type"].endswith("text.delta") and last.get("type") == event["type"]:
            told[-1] = {**event, "delta": last["delta"] + event["delta"]}
        else:
            told.append(event)
    return told
