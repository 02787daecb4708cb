/** The words of index.html, which holds none itself: `data-text`, `data-label` and `data-hint` name them. */

import { catalogue, translate } from "./i18n.js";

const t = catalogue({
  en: {
    skip: "Skip to the message box",
    conversations: "Conversations",
    newChat: "New conversation",
    search: "Search",
    searchLabel: "Search your conversations",
    yours: "Your conversations",
    noSessions: "Your conversations will be listed here.",
    nothingFound: "No conversation has all these words.",
    places: "Places",
    signOut: "Sign out",
    saveMarkdown: "Save as Markdown",
    saveJson: "Save as JSON",
    messages: "Messages",
    welcome: "What would you like to know?",
    loading: "Reading the conversation…",
    earlier: "Show earlier messages",
    toEnd: "To the latest message",
    attached: "Attached files",
    message: "Your message",
    messageHint: "Ask something",
    agent: "Agent",
    agents: "Who to ask",
    goTo: "Go to… (Ctrl K)",
    scope: "Where to search",
    model: "Model",
    attach: "Attach files",
  },
  fr: {
    skip: "Aller à la zone de message",
    conversations: "Conversations",
    newChat: "Nouvelle conversation",
    search: "Rechercher",
    searchLabel: "Rechercher dans vos conversations",
    yours: "Vos conversations",
    noSessions: "Vos conversations apparaîtront ici.",
    nothingFound: "Aucune conversation ne contient tous ces mots.",
    places: "Rubriques",
    signOut: "Se déconnecter",
    saveMarkdown: "Enregistrer en Markdown",
    saveJson: "Enregistrer en JSON",
    messages: "Messages",
    welcome: "Que souhaitez-vous savoir ?",
    loading: "Lecture de la conversation…",
    earlier: "Afficher les messages précédents",
    toEnd: "Aller au dernier message",
    attached: "Fichiers joints",
    message: "Votre message",
    messageHint: "Posez une question",
    agent: "Agent",
    agents: "À qui demander",
    goTo: "Aller à… (Ctrl K)",
    scope: "Où chercher",
    model: "Modèle",
    attach: "Joindre des fichiers",
  },
});

/** Puts them there, once. */
export function translateShell() {
  translate(t);
}
