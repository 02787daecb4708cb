"""Which sentence of a passage a claim rests on, in several languages: the page's own code, in the browser."""

import pytest

pytestmark = [pytest.mark.chromium, pytest.mark.asyncio(loop_scope="module")]

SPOOL = [
    "A finished turn is appended to the local spool before the client hears of its end.",
    "The append takes about one millisecond on the reference machine.",
    "A batcher writes the turns to Postgres in groups of up to 500 rows.",
    "When Postgres is away for longer than 30 seconds, new turns are still taken, and the spool grows.",
    "An operator sees the age of its oldest entry as a metric.",
]
FRENCH = [
    "Les conversations sont conservées pendant 90 jours, sauf demande contraire de l'administrateur.",
    "Passé ce délai, elles sont supprimées de façon définitive, avec leurs pièces jointes.",
    "Un utilisateur peut exporter ses conversations à tout moment au format Markdown ou JSON.",
    "L'archive est chiffrée avec une clé que seul M. Dupont détient.",
]
GERMAN = [
    "Die Schlüssel werden im Tresor des Rechenzentrums aufbewahrt, z. B. auf einer Chipkarte.",
    "Zugriff haben nur die beiden Administratorinnen und im Notfall die Geschäftsführung.",
    "Jeder Zugriff wird protokolliert und nach 12 Monaten gelöscht.",
    "Größere Änderungen müssen gemäß Abs. 3 der Betriebsvereinbarung angekündigt werden.",
]
SUPPORT = {
    "the same in other words": (
        SPOOL,
        "Turns are first appended to a local spool, before the client hears of the end.",
        [0],
    ),
    "a short claim of a long sentence": (SPOOL, "The spool grows while Postgres is away.", [3]),
    "a number decides": (SPOOL, "Rows are written in groups of 500.", [2]),
    "a claim from two sentences": (
        SPOOL,
        "The append takes one millisecond, and a batcher writes turns to Postgres in groups.",
        [1, 2],
    ),
    "nothing of it is there": (SPOOL, "Bees make honey from the nectar of flowers.", []),
    "only small words are": (SPOOL, "It is the one of the two that is in the house.", []),
    "French, other forms and no accents": (
        FRENCH,
        "Une conversation est conservee 90 jours sauf si l'administrateur en demande autrement.",
        [0],
    ),
    "French, in other words": (FRENCH, "Chaque utilisateur exporte ses conversations en JSON ou en Markdown.", [2]),
    "French, elided articles": (
        FRENCH,
        "Le chiffrement de l\u2019archive repose sur une clé détenue par M. Dupont.",
        [3],
    ),
    "German, other forms": (
        GERMAN,
        "Alle Zugriffe werden protokolliert, die Protokolle nach 12 Monaten gelöscht.",
        [2],
    ),
    "German, sharp s and umlauts": (
        GERMAN,
        "GRÖSSERE ÄNDERUNGEN werden gemäss der Betriebsvereinbarung angekündigt.",
        [3],
    ),
    "German, in other words": (GERMAN, "Aufbewahrt werden die Schlüssel in einem Tresor im Rechenzentrum.", [0]),
    "German claim of an English text, by number and name": (
        SPOOL,
        "Ist Postgres länger als 30 Sekunden weg, wächst der Spool weiter.",
        [3],
    ),
    "Russian": (
        ["Ключи хранятся в сейфе.", "Журнал доступа удаляется через двенадцать месяцев."],
        "Журналы доступа удаляют через двенадцать месяцев.",
        [1],
    ),
    "Japanese, without spaces": (
        ["会話は九十日間保存されます。", "利用者はいつでも会話を書き出すことができます。"],
        "利用者は会話を書き出せます。",
        [1],
    ),
    "of two that are alike the first": (
        ["The cache holds results.", "The cache holds results."],
        "The cache holds results.",
        [0],
    ),
    "no words at all": (SPOOL, "…", []),
    "no sentences at all": ([], "A claim of some words.", []),
}
PARTED = {
    "One. Two! Three? Four": ["One.", "Two!", "Three?", "Four"],
    "Siehe z. B. Abs. 3 der Ordnung. Danach Nr. 7.": ["Siehe z. B. Abs. 3 der Ordnung.", "Danach Nr. 7."],
    "La clé de M. Dupont, p. ex. celle de l'art. 12. Une autre.": [
        "La clé de M. Dupont, p. ex. celle de l'art. 12.",
        "Une autre.",
    ],
    "It costs 3.5 ms. « Vraiment ? » Oui.": ["It costs 3.5 ms.", "« Vraiment ? »", "Oui."],
    "保存されます。書き出せます。": ["保存されます。", "書き出せます。"],
    "  ": [],
}


@pytest.mark.parametrize(("passage", "claim", "expected"), list(SUPPORT.values()), ids=list(SUPPORT))
async def test_the_sentences_that_support_a_claim_best_are_told(page, fake, passage, claim, expected):
    await page.goto(fake.url)
    found = await page.evaluate(
        "async ([passage, claim]) => (await import('/web/sentences.js')).supporting(passage, claim)", [passage, claim]
    )
    assert found == expected


@pytest.mark.parametrize(("text", "expected"), list(PARTED.items()))
async def test_a_text_is_parted_into_its_sentences(page, fake, text, expected):
    await page.goto(fake.url)
    found = await page.evaluate(
        """async (text) => (await import('/web/sentences.js')).sentencesIn(text)
          .map(({ from, to }) => text.slice(from, to))""",
        text,
    )
    assert found == expected


async def test_a_browser_that_cannot_part_texts_itself_gets_by_without(page, fake):
    await page.add_init_script("delete Intl.Segmenter")
    await page.goto(fake.url)
    passage, claim, expected = SUPPORT["French, in other words"]
    found = await page.evaluate(
        """async ([passage, claim]) => {
          const { sentencesIn, supporting } = await import('/web/sentences.js');
          return [sentencesIn(passage.join(' ')).length, supporting(passage, claim)];
        }""",
        [passage, claim],
    )
    assert found == [len(passage), expected]
