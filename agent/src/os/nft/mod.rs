//! Our table in the kernel's packet filter (`inet holdfast`), written without the `nft` program.

mod guard;

pub use guard::Guard;
