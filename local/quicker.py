"""What moto does with every call, done with less work and to the same end: more than half of its time.

What depends on a text alone is worked out once for it; what is always the same is not worked out anew; and an answer
is written from the fields that it has, where moto looks for each that it could have, under six names.
"""

import copy
import pickle
from collections import deque
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from inspect import signature
from itertools import count
from typing import Any

import moto.core.responses
import moto.dynamodb.parsing.validators
from botocore.auth import SigV4Auth
from moto.core.serialize import BaseJSONSerializer, ResponseSerializer
from moto.core.utils import camelcase_to_underscores, method_names_from_class
from moto.dynamodb.comparisons import ConditionExpressionParser
from moto.dynamodb.models.table import Table
from moto.dynamodb.parsing.ast_nodes import DepthFirstTraverser, Node, UpdateExpression
from moto.dynamodb.parsing.expressions import UpdateExpressionParser
from moto.dynamodb.parsing.validators import ActionCountValidator

Replacement = tuple[Any, str, Any]

# Attributes of an item that are stored as they are sent.
_AS_SENT = frozenset(("S", "N", "BOOL", "NULL", "SS", "NS"))


def replacements() -> Iterator[Replacement]:
    """What is put in the place of what: an object, a name of its, the value."""
    yield from _of_update_expressions()
    yield from _of_conditions()
    yield from _of_answers()
    yield Table, "query", _in_partition()
    # moto reads who signed, and for which service, and checks no signature.
    yield SigV4Auth, "canonical_request", lambda *_: ""
    yield SigV4Auth, "signature", lambda *_: "0" * 64


# --- update expressions ----------------------------------------------------------------------------------------------


def _of_update_expressions() -> Iterator[Replacement]:
    yield UpdateExpressionParser, "make", staticmethod(lru_cache(maxsize=1_000)(_tree))
    yield ActionCountValidator, "traverse", lambda _, tree: tree  # done with the text
    yield moto.dynamodb.parsing.validators, "deepcopy", _copied
    yield DepthFirstTraverser, "traverse_node_recursively", _traverse


_make = UpdateExpressionParser.make
_count_actions = ActionCountValidator.traverse


def _tree(text: str) -> Any:
    """The tree of a text. It is only read: moto copies it before it is worked on."""
    tree = _make(text)
    _count_actions(ActionCountValidator(), tree)
    tree.pickled = pickle.dumps(tree)
    return tree


def _copied(value: Any) -> Any:
    if isinstance(value, UpdateExpression) and (pickled := getattr(value, "pickled", None)):
        return pickle.loads(pickled)
    return copy.deepcopy(value)


def _traverse(traverser: Any, root: Any, child_id: int = -1) -> Any:
    """As moto's, which asks of each node by each of its classes, abstract ones, what it is."""
    processors = traverser._processing_map().items()
    known: dict[type, tuple[bool, Callable[[Any], Any] | None]] = {}

    def down(node: Any, child_id: int) -> Any:
        kind = type(node)
        if kind not in known:
            process = next((p for each, p in processors if issubclass(kind, each)), None)
            known[kind] = issubclass(kind, Node), process
        is_node, process = known[kind]
        if not is_node:
            return node
        parent = node.parent
        for place, child in enumerate(node.children or ()):
            traverser.pre_processing_of_child(node, place)
            if type(child) is not str:
                down(child, place)
        if process is not None:
            node = process(node)
            node.parent = parent
            if parent:
                parent.children[child_id] = node
        return node

    return down(root, child_id)


# --- conditions ------------------------------------------------------------------------------------------------------


def _of_conditions() -> Iterator[Replacement]:
    lex = ConditionExpressionParser._lex_condition_expression

    @lru_cache(maxsize=1_000)
    def words(text: str) -> tuple[Any, ...]:
        return tuple(lex(ConditionExpressionParser(text, {}, {})))

    def lexed(parser: ConditionExpressionParser) -> deque[Any]:
        return deque(words(parser.condition_expression))

    yield ConditionExpressionParser, "_lex_condition_expression", lexed


# --- requests and answers --------------------------------------------------------------------------------------------


def _of_answers() -> Iterator[Replacement]:
    structure, every_field = (
        ResponseSerializer._serialize_type_structure,
        BaseJSONSerializer._serialize_type_structure,
    )
    numbers = count(1)

    def as_sent(serializer: Any, into: Any, value: Any, shape: Any, key: str) -> None:
        # Else each attribute is asked for each type of DynamoDB, in every spelling.
        if key and shape.name == "AttributeValue" and value.keys() <= _AS_SENT:
            serializer._default_serialize(into, value, shape, key)
        else:
            structure(serializer, into, value, shape, key)

    def what_is_there(serializer: Any, into: Any, value: Any, shape: Any, key: str) -> None:
        if not key or type(value) is not dict or not shape.members.keys() >= value.keys():
            every_field(serializer, into, value, shape, key)
            return
        found: Any = serializer.MAP_TYPE()
        for name, held in value.items():
            if held is not None:
                serializer._serialize(found, held, shape.members[name], name)
        serializer._default_serialize(into, found, shape, key)

    def request_id(headers: dict[str, Any] | None = None) -> str:
        # Else 52 characters are drawn, one by one.
        drawn = f"{next(numbers):052}"
        if headers is not None:
            headers["x-amzn-requestid"] = drawn
        return drawn

    yield ResponseSerializer, "_serialize_type_structure", as_sent
    yield BaseJSONSerializer, "_serialize_type_structure", what_is_there
    yield moto.core.responses, "gen_amzn_requestid_long", request_id
    for remembered in (method_names_from_class, camelcase_to_underscores):
        yield moto.core.responses, remembered.__name__, cache(remembered)


def _in_partition() -> Callable[..., Any]:
    query = Table.query

    def in_partition(table: Any, hash_key: Any, *given: Any, **more: Any) -> Any:
        # Else all items of the table are sorted for each query.
        call = signature(query).bind(table, hash_key, *given, **more)
        if call.arguments.get("index_name"):
            return query(*call.args, **call.kwargs)
        whole = table.items
        table.items = {hash_key: whole.get(hash_key, {})}
        try:
            return query(*call.args, **call.kwargs)
        finally:
            table.items = whole

    return in_partition
