"""General linear programs from files, their block structure, and models from it."""

from blocklp.lazy import publish

TYPE_CHECKING = False

if TYPE_CHECKING:
    from blocklp.problems.lp.decompositions import read_decomposition as read_decomposition
    from blocklp.problems.lp.decompositions import write_decomposition as write_decomposition
    from blocklp.problems.lp.picture import write_picture as write_picture
    from blocklp.problems.lp.readers import LinearProgramFile as LinearProgramFile
    from blocklp.problems.lp.readers import read_linear_program as read_linear_program
    from blocklp.problems.lp.structured import model_of_rows as model_of_rows
    from blocklp.problems.lp.structured import structured_model as structured_model
    from blocklp.problems.lp.structured import unbounded_variables as unbounded_variables
else:
    publish(
        __name__,
        {
            "blocklp.problems.lp.decompositions": ["read_decomposition", "write_decomposition"],
            "blocklp.problems.lp.picture": ["write_picture"],
            "blocklp.problems.lp.readers": ["LinearProgramFile", "read_linear_program"],
            "blocklp.problems.lp.structured": ["model_of_rows", "structured_model", "unbounded_variables"],
        },
    )
