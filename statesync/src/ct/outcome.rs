//! What the kernel's answers mean.
//!
//! Error numbers are Linux's generic ones (x86, ARM, RISC-V, POWER below 35).

use thiserror::Error;

const EPERM: i32 = 1;
const ENOENT: i32 = 2;
const EINTR: i32 = 4;
const EAGAIN: i32 = 11;
const ENOMEM: i32 = 12;
const EBUSY: i32 = 16;
const EEXIST: i32 = 17;
const EINVAL: i32 = 22;
const ENOSPC: i32 = 28;
const ERANGE: i32 = 34;
const EOPNOTSUPP: i32 = 95;
const ENOBUFS: i32 = 105;

/// What a message of a batch asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// A flow that isn't there yet.
    Create,
    /// A change of one that is there.
    Update,
    /// A change after a create said [`Outcome::Exists`].
    UpdateExisting,
    /// A longer life, nothing else.
    Refresh,
    /// Its end.
    Delete,
}

/// What became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
pub enum Outcome {
    /// It is so.
    #[error("done")]
    Done,
    /// Create: one of its tuples is taken. Send the update as [`Operation::UpdateExisting`]: that tells by whom.
    #[error("a tuple of it is in the table")]
    Exists,
    /// It isn't in the table, or (delete) another flow has its tuple now.
    #[error("not in the table")]
    Missing,
    /// Its answers would be taken for another flow's: a conflict of the translated side, no duplicate.
    #[error("its reply tuple belongs to another flow")]
    ReplyClash,
    /// The hash chain is too long: the table has too few buckets.
    #[error("a chain of the table is too long (more buckets are needed)")]
    ChainFull,
    /// The table is full, or memory is short.
    #[error("the table is full")]
    TableFull,
    /// Something changed meanwhile: once more.
    #[error("to be tried again")]
    Retry,
    /// It would have to lose ASSURED or SEEN_REPLY, which can't be: delete it and create it anew.
    #[error("another flow's state would have to be undone")]
    Unchangeable,
    /// Its timeout is fixed, or we lack CAP_NET_ADMIN.
    #[error("not permitted")]
    NotPermitted,
    /// A helper or an extension isn't there, or NAT of an entry that is there was to be changed.
    #[error("not supported for this flow")]
    Unsupported,
    /// The kernel can't read it: ours is the fault, or the kernel is too old.
    #[error("the kernel takes it for malformed (error {0})")]
    Invalid(i32),
    /// Anything else.
    #[error("error {0}")]
    Other(i32),
}

impl Outcome {
    /// What this error number (0: none) means for this operation.
    #[must_use]
    pub const fn of(operation: Operation, errno: i32) -> Self {
        match (errno, operation) {
            (0, _) => Self::Done,
            (EEXIST, _) => Self::Exists,
            (ENOENT, Operation::UpdateExisting) => Self::ReplyClash,
            (ENOENT, _) => Self::Missing,
            (ENOSPC, _) => Self::ChainFull,
            (ENOMEM | ENOBUFS, _) => Self::TableFull,
            (EAGAIN | EINTR, _) => Self::Retry,
            (EBUSY, _) => Self::Unchangeable,
            (EPERM, _) => Self::NotPermitted,
            (EOPNOTSUPP, _) => Self::Unsupported,
            (EINVAL | ERANGE, _) => Self::Invalid(errno),
            (_, _) => Self::Other(errno),
        }
    }

    /// A short word for tables and metrics.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Exists => "exists",
            Self::Missing => "missing",
            Self::ReplyClash => "reply-clash",
            Self::ChainFull => "chain-full",
            Self::TableFull => "table-full",
            Self::Retry => "retry",
            Self::Unchangeable => "unchangeable",
            Self::NotPermitted => "not-permitted",
            Self::Unsupported => "unsupported",
            Self::Invalid(_) => "invalid",
            Self::Other(_) => "other",
        }
    }
}
