/** The days under which conversations are listed: today, yesterday, the week before, then months. */

/** @import { Session } from "./api.js" */
import { catalogue, language } from "./i18n.js";

const t = catalogue({
  en: { pinned: "Pinned", today: "Today", yesterday: "Yesterday", week: "Previous 7 days", found: "Found" },
  fr: { pinned: "Épinglées", today: "Aujourd'hui", yesterday: "Hier", week: "7 derniers jours", found: "Résultats" },
});

const MONTH = new Intl.DateTimeFormat(language, { month: "long" });
const MONTH_AND_YEAR = new Intl.DateTimeFormat(language, { month: "long", year: "numeric" });

/** @typedef {{key: string, name: string}} Group */

/**
 * Says of a session under what it is listed; days begin where the person is.
 * @param {Date} now
 * @returns {(session: Pick<Session, "updated_at"|"pinned">) => Group}
 */
export function grouping(now = new Date()) {
  /** @param {number} days before today */
  const midnight = (days) => new Date(now.getFullYear(), now.getMonth(), now.getDate() - days).getTime();
  const [today, yesterday, week] = [midnight(0), midnight(1), midnight(7)];
  return ({ updated_at: stamp, pinned }) => {
    if (pinned) return { key: "pinned", name: t("pinned") };
    const date = new Date(stamp);
    const at = date.getTime();
    if (Number.isNaN(at) || at >= today) return { key: "today", name: t("today") };
    if (at >= yesterday) return { key: "yesterday", name: t("yesterday") };
    if (at >= week) return { key: "week", name: t("week") };
    return { key: `${date.getFullYear()}-${date.getMonth()}`, name: monthName(date, now) };
  };
}

/** What a search found, in one group. @returns {Group} */
export function foundGroup() {
  return { key: "found", name: t("found") };
}

/** @param {Date} date @param {Date} now */
function monthName(date, now) {
  const name = (date.getFullYear() === now.getFullYear() ? MONTH : MONTH_AND_YEAR).format(date);
  return name.charAt(0).toLocaleUpperCase(language) + name.slice(1);
}
