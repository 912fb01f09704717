"""General linear programs from files."""

from blocklp.lazy import publish

TYPE_CHECKING = False

if TYPE_CHECKING:
    from blocklp.problems.lp.readers import LinearProgramFile as LinearProgramFile
    from blocklp.problems.lp.readers import read_linear_program as read_linear_program
else:
    publish(__name__, {"blocklp.problems.lp.readers": ["LinearProgramFile", "read_linear_program"]})
