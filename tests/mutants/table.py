"""The planted mistakes: what a hurried change might do to the code that must not lose a turn."""

from dataclasses import dataclass

SESSION = "tests/agentic_backend/session"
CHAT = "tests/agentic_backend/chat"
FLEET = "tests/agentic_backend/fleet"
PEERS = "tests/agentic_backend/peers"
PERSIST = "tests/agentic_backend/persist"
REST = "tests/agentic_backend/rest"
SPOOL = "tests/agentic_backend/spool"
SERVICE = "tests/integration"
KIT = "tests/backend_kit"


@dataclass(frozen=True, slots=True)
class Mutant:
    """A mistake: in `file` the text `old`, which stands there once, becomes `new`; then `test` must fail."""

    name: str
    file: str
    old: str
    new: str
    test: str


MUTANTS = (
    Mutant(
        "final is sent before the turn is handed to storage",
        "agentic_backend/session/turn.py",
        "                durable = await self._log.append(record)\n",
        "                durable = 'none'\n"
        "                asyncio.get_running_loop().call_later(1.0, asyncio.ensure_future, self._log.append(record))\n",
        f"{SERVICE}/test_native.py::test_a_turn_streams_and_ends_with_the_answer_and_its_ledger",
    ),
    Mutant(
        "a stop reaches a turn that is being recorded",
        "agentic_backend/session/stream.py",
        "if self.ended or self.cancel_requested or self._settled:",
        "if self.ended or self.cancel_requested:",
        f"{SERVICE}/test_failures.py::test_a_stop_while_a_turn_is_being_recorded_comes_too_late",
    ),
    Mutant(
        "an instance lets whoever asks follow its turns",
        "agentic_backend/peers/relay.py",
        'return hmac.compare_digest(shown.encode(), f"Bearer {self.token}".encode())',
        "return bool(shown)",
        f"{PEERS}/test_relay.py::test_who_may_not_know_is_told_that_there_is_nothing[changed0]",
    ),
    Mutant(
        "what is followed anew is taken twice",
        "agentic_backend/session/stream.py",
        "known = event.seq <= self._seq and",
        "known = event.seq < self._seq and",
        f"{PEERS}/test_relay.py::test_what_is_taken_twice_or_after_the_end_is_there_once",
    ),
    Mutant(
        "a turn of another instance that breaks off is complete",
        "agentic_backend/peers/mirror.py",
        "if last is not None and not last.terminal:",
        "if last is not None and not last.seq:",
        f"{PEERS}/test_relay.py::test_a_stream_that_ends_before_its_turn_has_lost_its_peer",
    ),
    Mutant(
        "a turn of another instance ends where a person was asked before",
        "agentic_backend/peers/mirror.py",
        "turn.take(asked, goes_on=True)",
        "turn.take(asked)",
        f"{PEERS}/test_relay.py::test_a_run_that_a_person_let_continue_is_mirrored_with_what_was_before",
    ),
    Mutant(
        "what was only told again is the newest answer",
        "agentic_backend/session/registry.py",
        " and end.messages[-1].rank + 1 == slot.known.session.next_rank",
        "",
        f"{SESSION}/test_registry.py::test_what_failed_or_was_only_told_again_is_not_the_newest_answer",
    ),
    Mutant(
        "ranks begin one too high",
        "agentic_backend/session/exchange.py",
        "self._next_rank = session.next_rank",
        "self._next_rank = session.next_rank + 1",
        f"{SESSION}/test_exchange.py::test_ranks_go_on_from_the_session_and_have_no_gap",
    ),
    Mutant(
        "a session is freed where it should be handed over",
        "agentic_backend/session/registry.py",
        "                slot.running = turn\n                place.set_result(None)\n",
        "                slot.running = None\n                place.set_result(None)\n",
        f"{SESSION}/test_registry.py::test_a_session_is_handed_over_and_a_newcomer_finds_it_busy",
    ),
    Mutant(
        "a slot for a turn is freed where it should be handed over",
        "agentic_backend/session/admission.py",
        "                self._take(line)  # the slot changes hands: no newcomer finds it free\n",
        "",
        f"{SESSION}/test_admission.py::test_slots_go_to_the_longest_waiting",
    ),
    Mutant(
        "the same ask twice is two turns",
        "agentic_backend/session/registry.py",
        "if ask.human is None and known is not None and ask.repeats(known.ask):",
        "if ask.human is None and known is not None and known.ended and ask.repeats(known.ask):",
        f"{SESSION}/test_registry.py::test_the_same_ask_twice_is_one_turn_and_another_text_a_conflict",
    ),
    Mutant(
        "a drain does not wait for running turns",
        "agentic_backend/session/registry.py",
        "            async with asyncio.timeout(deadline_s):\n                # Without anything",
        "            async with asyncio.timeout(0):\n                # Without anything",
        f"{SESSION}/test_registry.py::test_a_drain_waits_for_running_turns_and_refuses_new_ones",
    ),
    Mutant(
        "a resumed turn begins with an event that the client has",
        "agentic_backend/session/stream.py",
        "return entry.place + min(seq - entry.seq + 1, len(entry))",
        "return entry.place + min(seq - entry.seq, len(entry))",
        "tests/agentic_backend/session/test_replay.py::test_the_place_after_a_number",
    ),
    Mutant(
        "who has events of a run that broke off goes on behind them in the next one",
        "agentic_backend/session/stream.py",
        "return max(self.shown_from, self.events.after(seq))",
        "return self.events.after(seq)",
        f"{SESSION}/test_begun_again.py::test_who_has_events_of_another_run_gets_the_last_one_whole[1]",
    ),
    Mutant(
        "a run again has numbers that its exchange has had",
        "agentic_backend/session/stream.py",
        "(self._seq_before // RUN_SEQS + runs_before) * RUN_SEQS",
        "runs_before * RUN_SEQS",
        f"{SESSION}/test_begun_again.py::"
        "test_an_exchange_that_goes_on_after_a_person_was_asked_goes_on_with_its_numbers",
    ),
    Mutant(
        "joined fragments lose text",
        "agentic_backend/session/stream.py",
        'return "".join(self._texts[start:end])',
        'return "".join(self._texts[start : max(start + 1, end - 1)])',
        f"{SESSION}/test_event_log.py::test_fragments_of_one_message_are_joined_and_nothing_else",
    ),
    Mutant(
        "the compatible protocol asks the next before the end of the one before",
        "agentic_backend/chat/dialects.py",
        "        elif not self.outbox.follows:\n",
        "        elif not self.outbox.waiting:\n",
        f"{CHAT}/test_socket.py::test_a_compatible_socket_asks_the_next_only_after_the_end_of_the_one_before",
    ),
    Mutant(
        "closing with 4000 does not cancel",
        "agentic_backend/chat/socket.py",
        "            if code == CLIENT_STOP or (turn",
        "            if code != CLIENT_STOP and (turn",
        f"{CHAT}/test_socket.py::test_4000_cancels_every_followed_turn_and_another_code_none",
    ),
    Mutant(
        "a peer that never reads is never cut",
        "agentic_backend/chat/hub.py",
        "if clock.since and now - clock.since > rules.send_s:",
        "if clock.since and now - clock.last_sent > 10 * rules.send_s:",
        f"{CHAT}/test_socket.py::test_a_peer_that_never_reads_is_aborted_at_the_send_deadline_and_its_turn_goes_on",
    ),
    Mutant(
        "a key asks every agent",
        "agentic_backend/session/registry.py",
        "if ask.credentials is not None and not ask.credentials.may_ask(ask.agent_id):",
        "if ask.credentials is not None and not ask.agent_id:",
        f"{SERVICE}/test_api_keys.py::test_a_key_asks_its_own_agents_alone",
    ),
    Mutant(
        "whoever uses an agent says who may",
        "agentic_backend/rest/agent_access.py",
        "if not state.policy.may_share(identity, agent_id):",
        "if not state.policy.may_use(identity, agent_id):",
        f"{SERVICE}/test_agent_access.py::test_who_may_share_says_who_and_others_do_not_learn_that_it_is_there",
    ),
    Mutant(
        "nobody is said to have deleted a session",
        "agentic_backend/spool/batcher.py",
        "(event := event_of(bodies[op])) is not None",
        "(event := event_of(bodies[op])) is None",
        f"{SPOOL}/test_replay.py::test_a_deleted_session_does_not_come_back",
    ),
    Mutant(
        "a key makes one that may do more",
        "agentic_backend/rest/keys.py",
        "if not identity.may(scope):",
        "if not scope:",
        f"{SERVICE}/test_api_keys.py::test_a_key_makes_no_key_that_may_do_more",
    ),
    Mutant(
        "a session is read whoever owns it",
        "agentic_backend/spool/statements.py",
        "FROM session WHERE session_id = :session_id AND user_id = :user_id",
        "FROM session WHERE session_id = :session_id AND :user_id IS NOT NULL",
        f"{PERSIST}/test_store.py::test_another_users_session_is_an_unknown_one[False]",
    ),
    Mutant(
        "a taken rank is overwritten",
        "agentic_backend/spool/statements.py",
        "    WHERE session_history.exchange_id = excluded.exchange_id\n"
        "        AND excluded.metadata_json #>> '{extras,interrupted_by}' IS DISTINCT FROM 'restart'\n"
        "        AND (session_history.metadata_json #>> '{extras,interrupted_by}' = 'restart'\n"
        "            OR session_history.metadata_json #>> '{extras,status}' = 'awaiting_human'\n"
        "            AND (excluded.metadata_json #>> '{extras,status}' IS DISTINCT FROM 'awaiting_human'\n"
        "                OR session_history.metadata_json #> '{extras,awaiting,seq}'\n"
        "                    < excluded.metadata_json #> '{extras,awaiting,seq}'))\n",
        "",
        f"{SPOOL}/test_batcher.py::test_a_rank_taken_by_another_writer_meanwhile_is_a_conflict_too",
    ),
    Mutant(
        "an answer is called final before it is on the disk",
        "agentic_backend/spool/spool.py",
        "        self._next.landed.append(landed)\n",
        "        landed.set_result(None)\n",
        f"{SPOOL}/test_spool.py::test_nothing_has_landed_before_its_commit_has",
    ),
    Mutant(
        "the spool is written and never flushed",
        "agentic_backend/spool/spoolfile.py",
        "{'FULL' if flush else 'NORMAL'}",
        "NORMAL",
        f"{SPOOL}/test_flushes.py::test_only_a_commit_that_somebody_waits_for_is_flushed",
    ),
    Mutant(
        "the mark names a record that a power loss may take",
        "agentic_backend/spool/spoolfile.py",
        "        if flush and self._unflushed:\n",
        "        if self._unflushed:\n",
        f"{SPOOL}/test_flushes.py::test_a_power_loss_at_any_moment_takes_nothing_that_was_acknowledged[0]",
    ),
    Mutant(
        "a session that a pooler shares out may hold the claim",
        "agentic_backend/spool/pooler.py",
        "    if not heard:\n",
        "    if False:\n",
        f"{SPOOL}/test_pooler.py::test_a_session_that_hears_nothing_is_no_session",
    ),
    Mutant(
        "what is not ours is written to the database",
        "agentic_backend/spool/batcher.py",
        "                if not self._owner.held:\n",
        "                if False:\n",
        "tests/integration/test_replicas.py::"
        "test_a_service_whose_database_another_process_took_gives_way_and_loses_nothing",
    ),
    Mutant(
        "a turn is accepted whose question nobody else has",
        "agentic_backend/session/turn.py",
        "            await leases.record(lease, begun)\n",
        "            pass\n",
        f"{SESSION}/test_lease.py::test_a_question_is_stored_before_anybody_hears_of_it",
    ),
    Mutant(
        "who was away itself calls others dead",
        "agentic_backend/fleet/statements.py",
        "        AND steady_since <= clock_timestamp() - make_interval(secs => :dead_s)\n",
        "",
        f"{FLEET}/test_takeover.py::test_who_was_not_steady_itself_calls_nobody_dead",
    ),
    Mutant(
        "an end that comes too late ends the turn of who has the session now",
        "agentic_backend/spool/statements.py",
        " AND held.exchange_id = record.exchange_id AND held.fence = record.fence\n",
        " AND held.exchange_id = record.exchange_id\n",
        f"{FLEET}/test_leases.py::test_the_same_turn_of_a_stale_holder_neither_is_written_nor_ends_the_new_one",
    ),
    Mutant(
        "who was stopped for long renews and goes on as if nothing had been",
        "agentic_backend/fleet/membership.py",
        "        self._notice_loss()  # one that was stopped may renew before anybody looks\n",
        "",
        f"{FLEET}/test_membership.py::test_who_was_stopped_and_renews_before_anybody_looks_has_let_go_first",
    ),
    Mutant(
        "an interrupted ask is forgotten at the start",
        "agentic_backend/persist/persistence.py",
        'if entry.kind == "ask"]',
        'if entry.kind == "asked"]',
        f"{SPOOL}/test_replay.py::test_an_ask_without_its_turn_becomes_an_interrupted_turn",
    ),
    Mutant(
        "a turn that kills its process is tried for ever",
        "agentic_backend/session/models.py",
        "restarts=self.rerun.restarts + 1",
        "restarts=self.rerun.restarts",
        f"{SPOOL}/test_restart.py::test_one_that_kills_its_next_process_too_is_not_begun_a_third_time",
    ),
    Mutant(
        "what a person had let continue runs again from its question",
        "agentic_backend/session/turn.py",
        'agent.restart == "from_question" and not continued',
        'agent.restart == "from_question"',
        f"{SESSION}/test_restarts.py::test_what_a_person_had_let_continue_never_runs_again_from_its_question",
    ),
    Mutant(
        "a graph's state is looked for among the last exchanges alone",
        "agentic_backend/session/turn.py",
        "return history, await self._store.newest_checkpoint(*key, ask.agent_id, up_to)",
        'return history, ""',
        f"{SESSION}/test_state.py::test_a_state_behind_the_last_exchanges_is_looked_up_and_no_other",
    ),
    Mutant(
        "an edited question is told what it replaces",
        "agentic_backend/session/turn.py",
        "up_to = ask.after_rank if ask.after_rank is not None",
        "up_to = None if ask.after_rank is not None",
        f"{SESSION}/test_forked_turns.py::test_an_edit_is_told_what_stood_before_the_question",
    ),
    Mutant(
        "a branch that runs again after a kill is none",
        "agentic_backend/session/restarts.py",
        "        after_rank=branching.after_rank,\n",
        "",
        f"{SESSION}/test_forked_turns.py::test_a_cut_off_fork_runs_again_as_the_same_fork[asked0]",
    ),
    Mutant(
        "what a stored branch has superseded is live",
        "agentic_backend/spool/statements.py",
        "rank <= fork.after_rank ORDER BY rank DESC LIMIT 1) AS older",
        "rank < 0 ORDER BY rank DESC LIMIT 1) AS older",
        f"{PERSIST}/test_branches.py::test_every_window_is_that_of_the_line[2]",
    ),
    Mutant(
        "what a pending branch has superseded is live",
        "agentic_backend/spool/pending.py",
        'return {"superseded": f"{{{ranges}}}", "forks_below"',
        'return {"superseded": "{}", "forks_below"',
        f"{PERSIST}/test_branches.py::test_every_window_is_that_of_the_line[0]",
    ),
    Mutant(
        "an agent remembers what was superseded",
        "agentic_backend/spool/cache.py",
        "            self.forget(key)\n        entry",
        "            pass\n        entry",
        f"{PERSIST}/test_branches.py::test_what_is_cached_is_what_would_be_read[20-0]",
    ),
    Mutant(
        "history does not show what is still pending",
        "agentic_backend/persist/history.py",
        "        waiting = await self._waiting(key)\n",
        "        waiting = (await self._waiting(key))[:0]\n",
        f"{PERSIST}/test_store.py::test_a_reader_sees_its_own_writes_at_every_moment",
    ),
    Mutant(
        "a batch that failed is taken for written",
        "agentic_backend/spool/batcher.py",
        "                self._failed(error)\n                await",
        "                self._failed(error)\n                self._settle(batch)\n                await",
        f"{SPOOL}/test_batcher.py::test_history_is_readable_while_a_batch_is_refused",
    ),
    Mutant(
        "a document that nobody lists stays in the index",
        "agentic_backend/rest/attachments.py",
        "        if not kept:\n",
        "        if kept:\n",
        f"{REST}/test_upload.py::test_a_document_that_is_not_kept_is_deleted_now_or_later[deleted]",
    ),
    Mutant(
        "who has had a place stays first in the line",
        "backend_kit/aio/fair.py",
        "            self._line.move_to_end(user_id)\n",
        "",
        f"{KIT}/aio/test_fair.py::test_who_comes_later_waits_for_one_of_the_flood_and_no_more",
    ),
    Mutant(
        "a stranger's body is read",
        "backend_kit/http/admission.py",
        "            await self._app(scope, _no_body, send)\n",
        "            await self._app(scope, receive, send)\n",
        f"{KIT}/http/test_admission.py::test_a_stranger_is_refused_before_a_byte_of_the_body_is_read[/search]",
    ),
    Mutant(
        "before the relations are known everybody uses everything",
        "agentic_backend/agent/policy.py",
        "        if not self.loaded:\n            return False\n",
        "",
        "tests/agentic_backend/agent/test_policy.py::test_nobody_uses_anything_before_the_relations_are_known",
    ),
)
