"""Serving HTTP beside other work.

web           the server inside a process: health, readiness, metrics, TLS, clean shutdown
server        uvicorn with its callers counted
protocol      HTTP as uvicorn reads it, with a bound on headers
post_server   bodies that are posted on a few paths, and their answers
post_streams  the same over HTTP/2: many requests at one time on one connection
bodies        memory that requests' bodies take, all together
listening     addresses to listen on, and sockets there
strangers     connections of callers that are not identified yet
"""
