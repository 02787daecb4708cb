// Rules for the JavaScript of the pages; what their types catch is left to tsc (no-undef and the like stay on all the same).
import js from "@eslint/js";
import globals from "globals";

const TEXT = "/[A-Za-z]{2}/";
/** Where a text would be shown: in the children of `el`, in what names or describes a node, in what is set on one. */
const SHOWN = [
  ['CallExpression[callee.name="el"]', ":not(:first-child)"],
  ["Property[key.value=/^(aria-label|title|placeholder|alt)$/]", ".value"],
  ["Property[key.name=/^(title|placeholder|alt|message)$/]", ".value"],
  ["AssignmentExpression[left.property.name=/^(textContent|title|placeholder)$/]", ".right"],
  ["CallExpression[callee.property.name=/^(announce|append|prepend|replaceChildren)$/]:not([callee.object.name=/form/i])", ""],
  ['CallExpression[callee.property.name="setAttribute"][arguments.0.value="aria-label"]', ":not(:first-child)"],
];
/** A text that no catalogue holds, and that would be English in every language. */
const LITERAL_TEXT = SHOWN.flatMap(([parent, place]) => [
  `${parent} > Literal${place}[value=${TEXT}]`,
  `${parent} > TemplateLiteral${place} > TemplateElement[value.raw=${TEXT}]`,
  `${parent} > ConditionalExpression${place} > Literal[value=${TEXT}]`,
  `${parent} > LogicalExpression${place} > Literal[value=${TEXT}]`,
]).map((selector) => ({
  selector: `${selector}:not(CallExpression[callee.name="catalogue"] *)`,
  message: "A text that is shown belongs into a catalogue (i18n.js), in every language.",
}));

export default [
  { ignores: ["agentic_backend/web/vendor/"] }, // other projects' code, as they release it
  js.configs.recommended,
  {
    languageOptions: { ecmaVersion: 2024, sourceType: "module", globals: globals.browser },
    linterOptions: { reportUnusedDisableDirectives: "error", reportUnusedInlineConfigs: "error" },
    rules: {
      "array-callback-return": "error",
      "default-case-last": "error",
      "default-param-last": "error",
      "dot-notation": "error",
      eqeqeq: "error",
      "func-style": ["error", "declaration", { allowArrowFunctions: true }],
      "grouped-accessor-pairs": "error",
      "no-alert": "error",
      "no-console": "error",
      "no-constructor-return": "error",
      "no-duplicate-imports": ["error", { allowSeparateTypeImports: true }],
      "no-else-return": ["error", { allowElseIf: false }],
      "no-eval": "error",
      "no-extend-native": "error",
      "no-implicit-coercion": "error",
      "no-implicit-globals": "error",
      "no-implied-eval": "error",
      "no-lonely-if": "error",
      "no-multi-assign": "error",
      "no-new-func": "error",
      "no-new-wrappers": "error",
      "no-param-reassign": "error",
      "no-promise-executor-return": "error",
      "no-return-assign": "error",
      "no-script-url": "error",
      "no-self-compare": "error",
      "no-sequences": "error",
      "no-shadow": "error",
      "no-throw-literal": "error",
      "no-unmodified-loop-condition": "error",
      "no-unneeded-ternary": "error",
      "no-unreachable-loop": "error",
      "no-unused-expressions": "error",
      "no-unused-vars": ["error", { args: "all", argsIgnorePattern: "^_$" }],
      "no-useless-assignment": "error",
      "no-useless-concat": "error",
      "no-useless-rename": "error",
      "no-useless-return": "error",
      "no-var": "error",
      "object-shorthand": "error",
      "operator-assignment": "error",
      "prefer-arrow-callback": "error",
      "prefer-const": "error",
      "prefer-object-spread": "error",
      "prefer-promise-reject-errors": "error",
      "prefer-rest-params": "error",
      "prefer-spread": "error",
      "prefer-template": "error",
      radix: "error",
      "require-await": "error",
      yoda: "error",
      // As ruff holds the Python: a function fits a screen and does one thing.
      complexity: ["error", 20],
      "max-depth": ["error", 4],
      "max-lines-per-function": ["error", { max: 60 }],
      "max-nested-callbacks": ["error", 4],
      "max-params": ["error", 5],
      "max-statements": ["error", 45],
    },
  },
  {
    files: ["agentic_backend/web/**/*.js"],
    rules: { "no-restricted-syntax": ["error", ...LITERAL_TEXT] },
  },
];
