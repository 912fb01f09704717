"""Parameters of cost functions in ``.cfn`` files, brought into the order that ``.wcsp`` files state them in.

``TEMPLATES`` has the fields of each function: K a word, c a cost, v a value, N a whole number, V a variable;
``[..]`` any number of entries, ``(..)`` one for each variable of the scope, both in brackets of their own
where an entry has several parts or is a list (``*``).
"""

from __future__ import annotations

import math

from blocklp.problems.mrf.cost_networks.cfn_fields import FieldReader

NESTED = "cfnconstraint"
"""Its fields are ``cfn`` (a network on the variables of the scope), ``lb``, ``ub``, ``duplicatehard`` and ``strongduality``; the
network costs at least lb and less than ub."""

_COST = "metric:K cost:c "
_GRAMMAR = _COST + "nb_symbols:N nb_values:N start:N "

TEMPLATES = {
    "alldiff": "exceptedvalues:[v] deltacosts:[vc]",
    "gcc": "bounds:[vNN] deltacosts:[vc]",
    "clique": "rhs:N values:(v*)",
    "knapsack": "capacity:N weights:(N)",
    "knapsackv": "capacity:N weightedvalues:[VvN]",
    **dict.fromkeys(("salldiff", "salldiffdp", "salldiffkp", "walldiff", "wsame"), _COST),
    **dict.fromkeys(("sgcc", "sgccdp", "sgcckp", "wgcc", "wsamegcc"), _COST + "bounds:[vNN]"),
    "sgcc wdec": _COST + "bounds:[vNNcc]",
    "ssame": "cost:c vars1:[V] vars2:[V]",
    **dict.fromkeys(("sregular", "sregulardp"), _COST + "nb_states:N starts:[N] ends:[N] transitions:[NvN]"),
    **dict.fromkeys(("samong", "samongdp"), _COST + "min:N max:N values:[v]"),
    "wamong": _COST + "values:[v] min:N max:N",
    "wvaramong": _COST + "values:[v]",
    **dict.fromkeys(("wsum", "woverlap"), _COST + "comparator:K to:N"),
    "wvarsum": _COST + "comparator:K",
    **dict.fromkeys(("max", "smaxdp"), "defaultcost:c tuples:[Vvc]"),
    **dict.fromkeys(("MST", "smstdp"), ""),
    "wregular": "nb_states:N starts:[Nc] ends:[Nc] transitions:[NvNc]",
    **dict.fromkeys(("wdiverse", "whdiverse", "wtdiverse"), "distance:N values:(v)"),
    **dict.fromkeys(("sgrammar", "sgrammardp"), _GRAMMAR + "terminals:0[Nv] non_terminals:1[NNN]"),
    **dict.fromkeys(("sgrammar weight", "sgrammardp weight"), _GRAMMAR + "terminals:2[Nvc] non_terminals:3[NNNc]"),
    **dict.fromkeys((">=", ">", "<=", "<", "="), "constant:N tolerance:N"),
    "disj": "cstx:N csty:N w:c",
    "sdisj": "cstx:N csty:N xmax:N ymax:N wx:c wy:c",
}
"""Fields by function, or by function and metric; a digit before ``[`` is the kind of rule of a grammar."""


def parameters(network: FieldReader, name: str, variables: int) -> list[str]:
    """Read the parameters of a function up to the bracket that closes them.

    Parameters
    ----------
    network : FieldReader
        At the first parameter.
    name : str
        One of ``TEMPLATES``.
    variables : int
        Number of variables of the scope.

    Returns
    -------
    list of str
        Words in the order of ``.wcsp``: lists with their numbers of entries, costs in whole units.
    """
    flat: list[str] = []
    rules: list[str] = []
    entries = 0
    for k in range(len(TEMPLATES[name].split())):
        # The metric, which comes first, may change the fields after it.
        fields = TEMPLATES.get(f"{name} {flat[0]}", TEMPLATES[name]) if flat else TEMPLATES[name]
        tag, form = fields.split()[k].split(":")
        network.tag(tag)
        kind, form = (form[0], form[1:]) if form[0].isdigit() else ("", form)
        if form[0] not in "[(":
            flat.append(_item(network, name, form))
            continue
        found = _entries(network, name, form[1:-1])
        words = [word for entry in found for word in ([kind, *entry] if kind else entry)]
        if kind:
            rules += words
            entries += len(found)
        elif tag == "vars2":
            # Both numbers come before both lists.
            flat.insert(2, str(len(found)))
            flat += words
        elif form[0] == "[":
            flat += [str(len(found)), *words]
        elif len(found) != variables:
            raise network.words.error(
                network.words.at - 1, f"{name} has {variables} variables, and {tag} {len(found)} entries; give one each"
            )
        else:
            flat += words
    return [*flat, str(entries), *rules] if rules else flat


def _entries(network: FieldReader, name: str, form: str) -> list[list[str]]:
    """Read a list of entries, each in brackets unless it is one word."""
    found: list[list[str]] = []
    network.open("a list")
    while network.until_closed():
        if len(form) == 1:
            found.append([_item(network, name, form)])
            continue
        network.open("an entry")
        if form[-1] == "*":
            values = []
            while network.until_closed():
                values.append(_item(network, name, form[0]))
            found.append([str(len(values)), *values])
        else:
            found.append([_item(network, name, letter) for letter in form])
            network.close("an entry")
    return found


def _item(network: FieldReader, name: str, letter: str) -> str:
    """Read one word, checked where its place tells what it is."""
    if letter == "V":
        return str(network.variable())
    if letter == "c":
        value = network.units(f"a cost of {name}")
        if network.sign < 0 and name != "wregular" and 0 < value < math.inf:
            raise network.words.error(
                network.words.at - 1, f"finite costs of {name} are not read in maximisation; negate the costs and minimise"
            )
        return "inf" if value == math.inf else str(network.sign * value)
    return network.words.word(f"a parameter of {name}")
