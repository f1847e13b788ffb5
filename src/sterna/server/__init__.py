"""`sterna serve`: models behind the HTTP protocols of OpenAI and Anthropic.

The way of a request:

    launcher            the process: loading, signals, shutdown
    connection          timeouts of sockets
    middleware          hosts, origins, keys; request ids and the log
    endpoints/          one file per path: checks a body, makes `GenerationRequest`s of it
    json_body           bytes to checked structs; unsupported_fields: what passes unread
    service             what endpoints share; request_limits: whom it refuses
    active_request      a request that is being answered
    responder           its whole answer or its stream, in a protocol's form; sse: events

What chats share:

    chat_generation     messages to a prompt with constraints, and back
    chat_rendering      the template; system_messages: where it has no place for them
    tool_choice         tools; tool_call_formats/: how families of models write calls
    output_parser       text to reasoning, content and tool calls

Further rooms: model_manager (loading and unloading), batch/ with file_store, response_store,
replay (`sterna verify-answer`), webui/ (the page). Needs `pip install 'sterna[server]'`.
"""
