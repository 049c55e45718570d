"""HTTP: paths, content types, and the documents that describe the API.

app               paths, authentication, limits
handlers          the methods of each path
negotiation       content types
protobuf          requests in protobuf (`kubernetes.proto`)
discovery         lists of the served kinds
openapi           the OpenAPI documents
openapi_protobuf  the OpenAPI v2 document in protobuf (`openapi.proto`)
"""
