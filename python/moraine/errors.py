"""Errors of Moraine, one class for each kind."""


class MoraineError(Exception):
    """An error of Moraine. `kind` is its kind, as the other programs of Moraine name it."""

    kind = "internal error"


class InvalidArgument(MoraineError):
    """The request can never succeed in this form."""

    kind = "invalid argument"


class NotFound(MoraineError):
    """The thing named does not exist."""

    kind = "not found"


class Exists(MoraineError):
    """The step is saved already, or the name is taken."""

    kind = "already exists"


class NotADirectory(MoraineError):
    """The path goes through something that is not a directory."""

    kind = "not a directory"


class IsADirectory(MoraineError):
    """The path is a directory, where a file is needed."""

    kind = "is a directory"


class NotEmpty(MoraineError):
    """The directory has entries."""

    kind = "directory not empty"


class Unauthenticated(MoraineError):
    """The agent showed no valid certificate to the cluster."""

    kind = "not authenticated"


class ReadOnly(MoraineError):
    """The agent's certificate allows no writes."""

    kind = "read only"


class CrossTenant(MoraineError):
    """A file cannot be moved from one tenant to another: copy its bytes."""

    kind = "crosses tenants"


class CrossPartition(MoraineError):
    """The operation spans two partitions of the metadata."""

    kind = "crosses partitions"


class NameTooLong(MoraineError):
    """A name or a path is past its bound."""

    kind = "name too long"


class Immutable(MoraineError):
    """The file belongs to a committed step, which nobody can change."""

    kind = "immutable"


class Stale(MoraineError):
    """The file was changed after it was opened."""

    kind = "stale"


class SessionExpired(MoraineError):
    """The session has ended, with its grants and locks. Make the request again."""

    kind = "session expired"


class NotLeader(MoraineError):
    """The metadata server that answered is not the leader."""

    kind = "not the leader"


class PermissionDenied(MoraineError):
    """This user may not use the agent, or its certificate does not allow the request."""

    kind = "permission denied"


class NoSpace(MoraineError):
    """The arenas of the node, or the cluster, have no room."""

    kind = "no space"


class QuotaExceeded(MoraineError):
    """The quota of the directory would be exceeded."""

    kind = "quota exceeded"


class TooLarge(MoraineError):
    """A message or a part is past its bound."""

    kind = "too large"


class Unavailable(MoraineError):
    """The agent or the cluster does not answer now. Try again."""

    kind = "unavailable"


class Timeout(MoraineError):
    """The deadline passed: whether the request took effect is unknown."""

    kind = "timed out"


class Canceled(MoraineError):
    """The request was canceled."""

    kind = "canceled"


class Corrupt(MoraineError):
    """Bytes do not match their checksum."""

    kind = "corrupt"


class Lost(MoraineError):
    """Bytes are gone from every place."""

    kind = "lost"


class Busy(MoraineError):
    """Another launch works on the run, or earlier saves still use the memory."""

    kind = "busy"


class Fenced(MoraineError):
    """A later launch has taken over the run."""

    kind = "fenced"


class Aborted(MoraineError):
    """The step will never be committed: a rank failed, or is missing."""

    kind = "aborted"


class Incomplete(MoraineError):
    """Parts are missing: not all ranks have sealed theirs."""

    kind = "incomplete"


class Conflict(MoraineError):
    """Somebody else changed it meanwhile: it has another value than expected."""

    kind = "conflict"


class Unimplemented(MoraineError):
    """The agent or the cluster does not know the request: it is of another version, or lacks a part."""

    kind = "not implemented"


class WrongCluster(MoraineError):
    """The data, or a peer, is of another cluster."""

    kind = "wrong cluster"


class NewerFormat(MoraineError):
    """A newer version of Moraine wrote it than the one that reads it."""

    kind = "newer format"


class IOFailed(MoraineError):
    """A disk or the network answered with an error."""

    kind = "I/O error"


class NoAttribute(MoraineError):
    """The file has no extended attribute of that name."""

    kind = "no such attribute"


class Misrouted(MoraineError):
    """The request came to a metadata server that does not have this partition."""

    kind = "misrouted"


def of(kind: str, text: str) -> MoraineError:
    """Return the error of a kind."""
    for cls in MoraineError.__subclasses__():
        if cls.kind == kind:
            return cls(text)
    err = MoraineError(text)
    err.kind = kind
    return err
