"""`sterna serve`: models over the HTTP protocols of OpenAI, Anthropic and others.

A request passes through these modules:

    launcher            the process: loading, signals, shutdown
    connection          timeouts of sockets
    middleware          hosts, origins, keys; request ids and the log
    endpoints/          one file per path: checks a body, submits prompts or `ChatRequest`s
    json_body           bytes to checked structs; unsupported_fields: fields that are ignored
    service             state that endpoints share; request_limits: when requests are refused
    active_request      a request that is being answered
    responder           its whole answer or its stream, in a protocol's form; sse: events

Code that chats share:

    submission          prompts and conversations to the engine, by the library's own way
    chat_messages       messages of OpenAI's chat in the library's form
    tool_choice         checks of tools; `sterna.llm` has the formats and parsers of answers

Further modules: model_manager (loading and unloading), batch/ with file_store, response_store,
replay (`sterna verify-answer`), webui/ (the page). Needs `pip install 'sterna[server]'`.
"""
