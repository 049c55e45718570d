from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Document(_message.Message):
    __slots__ = ("swagger", "info", "paths", "definitions")
    SWAGGER_FIELD_NUMBER: _ClassVar[int]
    INFO_FIELD_NUMBER: _ClassVar[int]
    PATHS_FIELD_NUMBER: _ClassVar[int]
    DEFINITIONS_FIELD_NUMBER: _ClassVar[int]
    swagger: str
    info: Info
    paths: Paths
    definitions: Definitions
    def __init__(self, swagger: _Optional[str] = ..., info: _Optional[_Union[Info, _Mapping]] = ..., paths: _Optional[_Union[Paths, _Mapping]] = ..., definitions: _Optional[_Union[Definitions, _Mapping]] = ...) -> None: ...

class Info(_message.Message):
    __slots__ = ("title", "version")
    TITLE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    title: str
    version: str
    def __init__(self, title: _Optional[str] = ..., version: _Optional[str] = ...) -> None: ...

class Paths(_message.Message):
    __slots__ = ("path",)
    PATH_FIELD_NUMBER: _ClassVar[int]
    path: _containers.RepeatedCompositeFieldContainer[NamedPathItem]
    def __init__(self, path: _Optional[_Iterable[_Union[NamedPathItem, _Mapping]]] = ...) -> None: ...

class NamedPathItem(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: PathItem
    def __init__(self, name: _Optional[str] = ..., value: _Optional[_Union[PathItem, _Mapping]] = ...) -> None: ...

class PathItem(_message.Message):
    __slots__ = ("put", "post", "delete", "patch")
    PUT_FIELD_NUMBER: _ClassVar[int]
    POST_FIELD_NUMBER: _ClassVar[int]
    DELETE_FIELD_NUMBER: _ClassVar[int]
    PATCH_FIELD_NUMBER: _ClassVar[int]
    put: Operation
    post: Operation
    delete: Operation
    patch: Operation
    def __init__(self, put: _Optional[_Union[Operation, _Mapping]] = ..., post: _Optional[_Union[Operation, _Mapping]] = ..., delete: _Optional[_Union[Operation, _Mapping]] = ..., patch: _Optional[_Union[Operation, _Mapping]] = ...) -> None: ...

class Operation(_message.Message):
    __slots__ = ("operation_id", "consumes", "parameters", "responses", "vendor_extension")
    OPERATION_ID_FIELD_NUMBER: _ClassVar[int]
    CONSUMES_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    RESPONSES_FIELD_NUMBER: _ClassVar[int]
    VENDOR_EXTENSION_FIELD_NUMBER: _ClassVar[int]
    operation_id: str
    consumes: _containers.RepeatedScalarFieldContainer[str]
    parameters: _containers.RepeatedCompositeFieldContainer[ParametersItem]
    responses: Responses
    vendor_extension: _containers.RepeatedCompositeFieldContainer[NamedAny]
    def __init__(self, operation_id: _Optional[str] = ..., consumes: _Optional[_Iterable[str]] = ..., parameters: _Optional[_Iterable[_Union[ParametersItem, _Mapping]]] = ..., responses: _Optional[_Union[Responses, _Mapping]] = ..., vendor_extension: _Optional[_Iterable[_Union[NamedAny, _Mapping]]] = ...) -> None: ...

class ParametersItem(_message.Message):
    __slots__ = ("parameter",)
    PARAMETER_FIELD_NUMBER: _ClassVar[int]
    parameter: Parameter
    def __init__(self, parameter: _Optional[_Union[Parameter, _Mapping]] = ...) -> None: ...

class Parameter(_message.Message):
    __slots__ = ("non_body_parameter",)
    NON_BODY_PARAMETER_FIELD_NUMBER: _ClassVar[int]
    non_body_parameter: NonBodyParameter
    def __init__(self, non_body_parameter: _Optional[_Union[NonBodyParameter, _Mapping]] = ...) -> None: ...

class NonBodyParameter(_message.Message):
    __slots__ = ("query_parameter",)
    QUERY_PARAMETER_FIELD_NUMBER: _ClassVar[int]
    query_parameter: QueryParameter
    def __init__(self, query_parameter: _Optional[_Union[QueryParameter, _Mapping]] = ...) -> None: ...

class QueryParameter(_message.Message):
    __slots__ = ("location", "name", "type", "unique_items")
    LOCATION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    UNIQUE_ITEMS_FIELD_NUMBER: _ClassVar[int]
    location: str
    name: str
    type: str
    unique_items: bool
    def __init__(self, location: _Optional[str] = ..., name: _Optional[str] = ..., type: _Optional[str] = ..., unique_items: _Optional[bool] = ...) -> None: ...

class Responses(_message.Message):
    __slots__ = ("response_code",)
    RESPONSE_CODE_FIELD_NUMBER: _ClassVar[int]
    response_code: _containers.RepeatedCompositeFieldContainer[NamedResponseValue]
    def __init__(self, response_code: _Optional[_Iterable[_Union[NamedResponseValue, _Mapping]]] = ...) -> None: ...

class NamedResponseValue(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: ResponseValue
    def __init__(self, name: _Optional[str] = ..., value: _Optional[_Union[ResponseValue, _Mapping]] = ...) -> None: ...

class ResponseValue(_message.Message):
    __slots__ = ("response",)
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    response: Response
    def __init__(self, response: _Optional[_Union[Response, _Mapping]] = ...) -> None: ...

class Response(_message.Message):
    __slots__ = ("description",)
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    description: str
    def __init__(self, description: _Optional[str] = ...) -> None: ...

class Definitions(_message.Message):
    __slots__ = ("properties",)
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    properties: _containers.RepeatedCompositeFieldContainer[NamedSchema]
    def __init__(self, properties: _Optional[_Iterable[_Union[NamedSchema, _Mapping]]] = ...) -> None: ...

class NamedSchema(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: Schema
    def __init__(self, name: _Optional[str] = ..., value: _Optional[_Union[Schema, _Mapping]] = ...) -> None: ...

class Schema(_message.Message):
    __slots__ = ("ref", "format", "description", "default", "maximum", "minimum", "max_length", "min_length", "pattern", "max_items", "min_items", "required", "enum", "additional_properties", "type", "items", "properties", "vendor_extension")
    REF_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_FIELD_NUMBER: _ClassVar[int]
    MAXIMUM_FIELD_NUMBER: _ClassVar[int]
    MINIMUM_FIELD_NUMBER: _ClassVar[int]
    MAX_LENGTH_FIELD_NUMBER: _ClassVar[int]
    MIN_LENGTH_FIELD_NUMBER: _ClassVar[int]
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    MAX_ITEMS_FIELD_NUMBER: _ClassVar[int]
    MIN_ITEMS_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_FIELD_NUMBER: _ClassVar[int]
    ENUM_FIELD_NUMBER: _ClassVar[int]
    ADDITIONAL_PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    VENDOR_EXTENSION_FIELD_NUMBER: _ClassVar[int]
    ref: str
    format: str
    description: str
    default: Any
    maximum: float
    minimum: float
    max_length: int
    min_length: int
    pattern: str
    max_items: int
    min_items: int
    required: _containers.RepeatedScalarFieldContainer[str]
    enum: _containers.RepeatedCompositeFieldContainer[Any]
    additional_properties: AdditionalProperties
    type: Type
    items: Items
    properties: Definitions
    vendor_extension: _containers.RepeatedCompositeFieldContainer[NamedAny]
    def __init__(self, ref: _Optional[str] = ..., format: _Optional[str] = ..., description: _Optional[str] = ..., default: _Optional[_Union[Any, _Mapping]] = ..., maximum: _Optional[float] = ..., minimum: _Optional[float] = ..., max_length: _Optional[int] = ..., min_length: _Optional[int] = ..., pattern: _Optional[str] = ..., max_items: _Optional[int] = ..., min_items: _Optional[int] = ..., required: _Optional[_Iterable[str]] = ..., enum: _Optional[_Iterable[_Union[Any, _Mapping]]] = ..., additional_properties: _Optional[_Union[AdditionalProperties, _Mapping]] = ..., type: _Optional[_Union[Type, _Mapping]] = ..., items: _Optional[_Union[Items, _Mapping]] = ..., properties: _Optional[_Union[Definitions, _Mapping]] = ..., vendor_extension: _Optional[_Iterable[_Union[NamedAny, _Mapping]]] = ...) -> None: ...

class AdditionalProperties(_message.Message):
    __slots__ = ("schema", "allowed")
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_FIELD_NUMBER: _ClassVar[int]
    schema: Schema
    allowed: bool
    def __init__(self, schema: _Optional[_Union[Schema, _Mapping]] = ..., allowed: _Optional[bool] = ...) -> None: ...

class Type(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, value: _Optional[_Iterable[str]] = ...) -> None: ...

class Items(_message.Message):
    __slots__ = ("schema",)
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    schema: _containers.RepeatedCompositeFieldContainer[Schema]
    def __init__(self, schema: _Optional[_Iterable[_Union[Schema, _Mapping]]] = ...) -> None: ...

class NamedAny(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: Any
    def __init__(self, name: _Optional[str] = ..., value: _Optional[_Union[Any, _Mapping]] = ...) -> None: ...

class Any(_message.Message):
    __slots__ = ("yaml",)
    YAML_FIELD_NUMBER: _ClassVar[int]
    yaml: str
    def __init__(self, yaml: _Optional[str] = ...) -> None: ...
