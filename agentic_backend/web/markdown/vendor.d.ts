// What of the vendored modules is used here. They are named by their address, so that tsc does not read their source.

declare module "*/vendor/markdown-it/markdown-it.min.js" {
  interface Token {
    type: string;
    tag: string;
    nesting: -1 | 0 | 1;
    map: [number, number] | null;
    level: number;
    children: Token[] | null;
    content: string;
    markup: string;
    info: string;
    hidden: boolean;
    attrs: [string, string][] | null;
    attrGet(name: string): string | null;
    attrSet(name: string, value: string): void;
  }

  interface StateBlock {
    src: string;
    md: MarkdownIt;
    env: { inNote?: boolean };
    tokens: Token[];
    bMarks: number[];
    eMarks: number[];
    tShift: number[];
    sCount: number[];
    blkIndent: number;
    level: number;
    line: number;
    isEmpty(line: number): boolean;
    getLines(begin: number, end: number, indent: number, keepLastLF: boolean): string;
    push(type: string, tag: string, nesting: -1 | 0 | 1): Token;
  }

  interface StateInline {
    src: string;
    pos: number;
    posMax: number;
    pending: string;
    linkLevel: number;
    push(type: string, tag: string, nesting: -1 | 0 | 1): Token;
  }

  type BlockRule = (state: StateBlock, start: number, end: number, silent: boolean) => boolean;
  type InlineRule = (state: StateInline, silent: boolean) => boolean;

  interface Ruler<Rule> {
    before(neighbour: string, name: string, rule: Rule, options?: { alt: string[] }): void;
    getRules(chain: string): Rule[];
  }

  interface MarkdownIt {
    validateLink: (url: string) => boolean;
    normalizeLink: (url: string) => string;
    normalizeLinkText: (url: string) => string;
    block: { ruler: Ruler<BlockRule>; parse(text: string, md: MarkdownIt, env: object, tokens: Token[]): void };
    inline: { ruler: Ruler<InlineRule> };
    disable(rules: string[]): void;
    parse(text: string, env: object): Token[];
  }

  global {
    var markdownit: (options: Record<string, unknown>) => MarkdownIt;
  }
}
