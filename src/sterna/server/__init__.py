"""`sterna serve`: models behind the protocols that clients know, OpenAI's first.

    settings     what the command's options say
    run          the process: loading, signals, the end
    connection   timeouts of sockets: slow headers, readers that do not read
    guard        who may ask: hosts, origins, keys; one line of log for each request
    bodies       bytes to checked fields; errors: what a client is told
    requests     `Ask`, the one request that all endpoints make
    batches      `Ask`s of files, on idle time; inside: how they reach the endpoints
    service      an `Ask` on its way: limits, disconnects, figures
    endpoints/   one file each

Needs `pip install 'sterna[server]'`.
"""
