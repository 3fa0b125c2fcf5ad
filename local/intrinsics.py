"""CloudFormation's intrinsic functions, worked out against names that are known before anything is created.

Only what a template of this pattern needs; an unknown function is an error, never a guess.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

NO_VALUE = object()
_PLACEHOLDER = re.compile(r"\$\{(!?)([^}]+)\}")


class TemplateError(ValueError):
    """The template says something that one machine cannot play."""


@dataclass(frozen=True)
class Identity:
    """What `Ref` and `Fn::GetAtt` give for one resource."""

    ref: str
    attributes: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Intrinsics:
    """Resolves values of one template.

    `identify` names a resource by its logical id; it may call back to resolve the resource's own properties.
    """

    document: Mapping[str, Any]
    parameters: Mapping[str, Any]
    identify: Callable[[str], Identity]

    def resolve(self, value: Any) -> Any:
        """`value` with every intrinsic function replaced by its result and `AWS::NoValue` left out."""
        if isinstance(value, list):
            return [item for item in map(self.resolve, value) if item is not NO_VALUE]
        if not isinstance(value, dict):
            return value
        if len(value) == 1:
            name, argument = next(iter(value.items()))
            if name in self._functions:
                return self._functions[name](argument)
            if name.startswith("Fn::"):
                raise TemplateError(f"{name} is not known here: {argument!r}")
        resolved = {key: self.resolve(item) for key, item in value.items()}
        return {key: item for key, item in resolved.items() if item is not NO_VALUE}

    def holds(self, condition: Any) -> bool:
        """Whether a condition, given by name or as an expression, is true."""
        if isinstance(condition, str):
            try:
                return self.holds(self.document["Conditions"][condition])
            except KeyError:
                raise TemplateError(f"there is no condition {condition}") from None
        name, argument = next(iter(condition.items()))
        match name:
            case "Condition":
                return self.holds(argument)
            case "Fn::Equals":
                left, right = self.resolve(argument)
                return _text(left) == _text(right)
            case "Fn::Not":
                return not self.holds(argument[0])
            case "Fn::And":
                return all(self.holds(item) for item in argument)
            case "Fn::Or":
                return any(self.holds(item) for item in argument)
        raise TemplateError(f"{name} is not a condition known here")

    @cached_property
    def _functions(self) -> dict[str, Callable[[Any], Any]]:
        return {
            "Ref": self._ref,
            "Fn::GetAtt": self._get_att,
            "Fn::Sub": self._sub,
            "Fn::Join": lambda argument: argument[0].join(map(_text, self.resolve(argument[1]))),
            "Fn::Split": lambda argument: _text(self.resolve(argument[1])).split(argument[0]),
            "Fn::Select": lambda argument: self.resolve(argument[1])[
                int(self.resolve(argument[0]))
            ],
            "Fn::If": lambda argument: self.resolve(argument[1 if self.holds(argument[0]) else 2]),
            "Fn::FindInMap": self._find_in_map,
        }

    def _ref(self, name: str) -> Any:
        if name == "AWS::NoValue":
            return NO_VALUE
        if name in self.parameters:
            value = self.parameters[name]
            return value if isinstance(value, list) else _text(value)
        return self.identify(name).ref

    def _get_att(self, argument: Any) -> str:
        logical_id, attribute = argument.split(".", 1) if isinstance(argument, str) else argument
        attributes = self.identify(logical_id).attributes
        # An attribute that nothing local needs (a role's id, say) still gets a value that tells where it is from.
        return attributes.get(attribute, f"{logical_id}.{attribute}")

    def _sub(self, argument: Any) -> str:
        text, given = (argument, {}) if isinstance(argument, str) else argument

        def replace(match: re.Match[str]) -> str:
            literal, name = match.groups()
            if literal:
                return f"${{{name}}}"
            if name in given:
                return _text(self.resolve(given[name]))
            return self._get_att(name) if "." in name else _text(self._ref(name))

        return _PLACEHOLDER.sub(replace, text)

    def _find_in_map(self, argument: list[Any]) -> Any:
        name, first, second = self.resolve(argument)
        return self.document["Mappings"][name][first][second]


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
