"""What functions about networks refuse first: modules, arrays and whatever else is no network or property."""

from __future__ import annotations

from blocklp.options import of_type
from blocklp.problems.verification.network import Network
from blocklp.problems.verification.properties import Property


def check_network(network: object) -> None:
    """Refuse what is no network.

    Raises
    ------
    OptionError
        If it is none.
    """
    of_type(network, Network, "network", "a Network, as from_torch(module, input_shape) or read_onnx(path) makes it")


def check_query(network: object, prop: object) -> None:
    """Refuse what is no network, or no property.

    Raises
    ------
    OptionError
        If one of them is none.
    """
    check_network(network)
    of_type(prop, Property, "prop", "a Property, as Property.of(...), Property.robustness(...) or read_vnnlib(path) makes it")
