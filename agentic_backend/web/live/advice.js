/** What bounds the service, in words: why, and what to do (docs/operations.md, "Who is the bottleneck"). */

import { catalogue } from "../i18n.js";

const t = catalogue({
  en: {
    nobody: "Nothing",
    nobodyWhy: "Nothing takes 50 ms of a turn, and the event loop is not full.",
    nobodyDo: "There is nothing to change. If users find it slow, look at the network or a proxy before the service.",
    llm_floor: "The model",
    llm_floorWhy: "The model's answer takes most of a turn: the service is not in the way.",
    llm_floorDo: "Use a faster model or endpoint, shorter prompts and answers, or fewer steps that ask the model first.",
    loop_cpu: "The event loop",
    loop_cpuWhy: "The event loop is full, or one call holds it.",
    loop_cpuDo: "Look at the stalls below and make those calls awaited. Without any: fewer turns at once, or more instances.",
    agent: "An agent's own step",
    agentWhy: "A step of an agent waits for a tool, or for something that no phase names.",
    agentDo: "Open the ledger of a slow turn: repair the tool's server, or put a phase and a deadline around what waits.",
    pool_wait: "Connections",
    pool_waitWhy: "Turns wait for a connection: to Postgres, to the model or to the documents.",
    pool_waitDo: "Raise the pool that waits: pool_size of Postgres, or max_connections of the model's client.",
    sql: "The database",
    sqlWhy: "Turns wait for statements, or Postgres takes fewer turns than come.",
    sqlDo: "Look at Postgres: its disk, its memory, who else uses it. Keep less history, or a larger cache of it.",
    disk: "The spool's disk",
    diskWhy: "Finished turns wait until the disk of the spool has flushed them.",
    diskDo: "Put persistence.spool_dir on a local disk of its own that flushes fast.",
    search: "The search in documents",
    searchWhy: "The search in documents is slow, or full.",
    searchDo: "Look at the searches' own phases in a ledger; give the index more cores, or upload at night.",
    embedding: "The embedding model",
    embeddingWhy: "Questions wait for their vectors.",
    embeddingDo: "Give the embedding model more threads or requests at once, or use a smaller one.",
    rerank: "The reranker",
    rerankWhy: "What was found waits for its order.",
    rerankDo: "Give the reranker more threads, rank fewer passages, or do without it.",
    admission: "The limit of turns",
    admissionWhy: "limits.max_turns is reached: questions wait for a place or are turned away.",
    admissionDo: "Raise limits.max_turns where the loop has room; else add an instance.",
    slow_clients: "Slow readers",
    slow_clientsWhy: "Ends of turns wait for clients that read slowly. Nobody else is slower for it.",
    slow_clientsDo: "Look at the network or the proxy in between.",
    starved: "Too few cores",
    starvedWhy: "The event loop waits for a core that others have, or that a quota withholds.",
    starvedDo: "Give the service more cores or a higher quota, or run less beside it.",
  },
  fr: {
    nobody: "Rien",
    nobodyWhy: "Rien ne prend 50 ms d'un tour, et la boucle d'événements n'est pas saturée.",
    nobodyDo: "Il n'y a rien à changer. Si c'est lent pour les utilisateurs, regardez d'abord le réseau ou un proxy.",
    llm_floor: "Le modèle",
    llm_floorWhy: "La réponse du modèle prend l'essentiel d'un tour : le service n'y est pour rien.",
    llm_floorDo: "Prenez un modèle plus rapide, raccourcissez invites et réponses, ou interrogez moins souvent le modèle avant de répondre.",
    loop_cpu: "La boucle d'événements",
    loop_cpuWhy: "La boucle d'événements est saturée, ou un appel la bloque.",
    loop_cpuDo: "Voyez les blocages ci-dessous et rendez ces appels asynchrones. S'il n'y en a pas : moins de tours à la fois, ou plus d'instances.",
    agent: "Une étape d'un agent",
    agentWhy: "Une étape d'un agent attend un outil, ou quelque chose qu'aucune phase ne nomme.",
    agentDo: "Ouvrez le relevé d'un tour lent : réparez le serveur de l'outil, ou entourez l'attente d'une phase et d'un délai.",
    pool_wait: "Les connexions",
    pool_waitWhy: "Des tours attendent une connexion : à Postgres, au modèle ou aux documents.",
    pool_waitDo: "Agrandissez le groupe qui attend : pool_size de Postgres, ou max_connections du client du modèle.",
    sql: "La base de données",
    sqlWhy: "Des tours attendent des requêtes, ou Postgres prend moins de tours qu'il n'en arrive.",
    sqlDo: "Examinez Postgres : son disque, sa mémoire, ses autres usages. Gardez moins d'historique, ou un cache plus grand.",
    disk: "Le disque du spool",
    diskWhy: "Des tours terminés attendent que le disque du spool les ait écrits.",
    diskDo: "Placez persistence.spool_dir sur un disque local dédié et rapide.",
    search: "La recherche dans les documents",
    searchWhy: "La recherche dans les documents est lente, ou saturée.",
    searchDo: "Voyez ses phases dans un relevé ; donnez plus de cœurs à l'index, ou chargez les documents la nuit.",
    embedding: "Le modèle de plongement",
    embeddingWhy: "Les questions attendent leurs vecteurs.",
    embeddingDo: "Donnez-lui plus de fils ou de requêtes simultanées, ou prenez un modèle plus petit.",
    rerank: "Le reclassement",
    rerankWhy: "Les passages trouvés attendent d'être classés.",
    rerankDo: "Donnez plus de fils au reclassement, classez moins de passages, ou passez-vous-en.",
    admission: "La limite de tours",
    admissionWhy: "limits.max_turns est atteint : des questions attendent une place ou sont refusées.",
    admissionDo: "Relevez limits.max_turns si la boucle a de la marge ; sinon ajoutez une instance.",
    slow_clients: "Des lecteurs lents",
    slow_clientsWhy: "Des fins de tours attendent des clients qui lisent lentement. Personne d'autre n'en est ralenti.",
    slow_clientsDo: "Examinez le réseau ou le proxy entre les deux.",
    starved: "Trop peu de cœurs",
    starvedWhy: "La boucle d'événements attend un cœur que d'autres occupent, ou qu'un quota lui refuse.",
    starvedDo: "Donnez au service plus de cœurs ou un quota plus élevé, ou faites tourner moins de choses à côté.",
  },
});

const CAUSES = /** @type {const} */ ([
  "nobody", "llm_floor", "loop_cpu", "agent", "pool_wait", "sql", "disk", "search", "embedding", "rerank", "admission",
  "slow_clients", "starved",
]);

/**
 * The name of a cause, why it bounds, and what to do. A cause that only a newer service knows is shown by its own name.
 * @param {string} cause `bound_by` of a verdict
 */
export function advice(cause) {
  const known = CAUSES.find((one) => one === cause);
  if (known === undefined) return { name: cause, why: "", todo: "" };
  return { name: t(known), why: t(`${known}Why`), todo: t(`${known}Do`) };
}
