"""Who may use, edit and share an agent: every subject by every relation, and when a change counts."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest

from agentic_backend.agent.policy import AgentGrant, AgentPolicy, PolicyRoles, Relation, SubjectKind
from backend_kit.auth import AuditAction, AuditEvent, Grant, Identity

ROLES = PolicyRoles(operators=frozenset({"operator"}), editors=frozenset({"editor"}))
EVENT = AuditEvent(AuditAction.AGENT_SHARED, "agent", "a", actor="ann")
CALLERS = {
    "user": Identity("ann", "Ann"),
    "group": Identity("bob", "Bob", groups=("/staff",)),
    "role": Identity("cleo", "Cleo", roles=frozenset({"analyst"})),
}
# Called like a user, a group and a role of the above, each in another place, and almost like them.
STRANGERS = (
    Identity("/staff", "", groups=("ann", "analyst", "/Staff", "staff"), roles=frozenset({"ann", "/staff", "Analyst"})),
    Identity("analyst", ""),
    Identity("ANN", "", groups=("/staff/",)),
)
SUBJECTS: dict[SubjectKind, str] = {"user": "ann", "group": "/staff", "role": "analyst"}


@dataclass
class Kept:
    """Relations in memory."""

    grants: set[AgentGrant] = field(default_factory=set)

    async def revision(self) -> str:
        return repr(sorted(self.grants))

    async def all(self) -> list[AgentGrant]:
        return sorted(self.grants)

    async def replace(self, agent_id: str, grants: Iterable[AgentGrant], event: AuditEvent) -> None:
        assert event is EVENT
        self.grants = {one for one in self.grants if one.agent_id != agent_id} | set(grants)


async def policy_of(*grants: AgentGrant, roles: PolicyRoles = ROLES) -> AgentPolicy:
    policy = AgentPolicy(Kept(set(grants)), roles)
    await policy.look()
    return policy


def rights(policy: AgentPolicy, caller: Identity, agent_id: str = "a") -> str:
    """Letters of what the caller may do with an agent."""
    may = (policy.may_use, policy.may_edit, policy.may_share)
    return "".join(letter for letter, asked in zip("ues", may, strict=True) if asked(caller, agent_id))


async def test_without_relations_everybody_uses_editors_edit_and_operators_share() -> None:
    policy = await policy_of()
    for caller in (*CALLERS.values(), *STRANGERS):
        assert rights(policy, caller) == "u"
    assert rights(policy, Identity("e", "", roles=frozenset({"editor"}))) == "ue"
    assert rights(policy, Identity("o", "", roles=frozenset({"operator"}))) == "ues"


@pytest.mark.parametrize("kind", SUBJECTS)
@pytest.mark.parametrize(("relation", "theirs"), [("use", "u"), ("edit", "ue"), ("share", "ues")])
async def test_each_subject_has_its_relation_with_that_agent_and_nobody_else_has(
    kind: SubjectKind, relation: str, theirs: str
) -> None:
    closed = AgentGrant("a", Relation.USE, "user", "somebody")
    policy = await policy_of(closed, AgentGrant("a", Relation(relation), kind, SUBJECTS[kind]))
    for name, caller in CALLERS.items():
        assert rights(policy, caller) == (theirs if name == kind else "")
        assert rights(policy, caller, "b") == "u"
    for caller in STRANGERS:
        assert rights(policy, caller) == ""
    assert rights(policy, Identity("e", "", roles=frozenset({"editor"}))) == "ue"
    assert rights(policy, Identity("o", "", roles=frozenset({"operator"}))) == "ues"


async def test_a_relation_to_edit_alone_closes_it_for_nobody() -> None:
    policy = await policy_of(AgentGrant("a", Relation.EDIT, "user", "ann"))
    assert [rights(policy, caller) for caller in CALLERS.values()] == ["ue", "u", "u"]
    assert [policy.may_edit_any(caller) for caller in CALLERS.values()] == [True, False, False]
    assert not any(policy.may_create(caller) for caller in CALLERS.values())


async def test_nobody_uses_anything_before_the_relations_are_known() -> None:
    policy = AgentPolicy(Kept(), ROLES)
    assert [rights(policy, caller) for caller in CALLERS.values()] == ["", "", ""]
    await policy.look()
    assert [rights(policy, caller) for caller in CALLERS.values()] == ["u", "u", "u"]


async def test_without_authentication_the_one_user_may_everything_and_a_named_one_what_is_theirs() -> None:
    nobody = PolicyRoles(None, None)
    policy = await policy_of(AgentGrant("a", Relation.USE, "user", "via:openwebui:bob"), roles=nobody)
    assert rights(policy, Identity("admin", "admin")) == "ues"
    assert rights(policy, Identity("admin", "admin", grant=Grant())) == "ues"
    for uid, theirs in (("via:openwebui:bob", "u"), ("via:openwebui:eve", "")):
        assert rights(policy, Identity(uid, "", grant=Grant(acting=True))) == theirs


async def test_a_change_counts_for_callers_who_have_come_in_before_it() -> None:
    policy = await policy_of()
    ann = CALLERS["user"].come(policy.agents_of(CALLERS["user"]), "")
    key = Identity("ann", "Ann", grant=Grant(agents=frozenset({"b"})))
    key = key.come(policy.agents_of(key), "")
    assert (ann.may_ask("a"), ann.may_ask("b"), key.may_ask("a"), key.may_ask("b")) == (True, True, False, True)
    await policy.replace("a", [AgentGrant("a", Relation.USE, "group", "/staff")], EVENT)
    assert (ann.may_ask("a"), ann.may_ask("b"), key.may_ask("b")) == (False, True, True)
    await policy.replace("b", [AgentGrant("b", Relation.USE, "group", "/staff")], EVENT)
    assert (ann.may_ask("b"), key.may_ask("b")) == (False, False)
    await policy.replace("a", [], EVENT)
    assert ann.may_ask("a")
