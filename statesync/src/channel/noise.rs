//! Noise_IK_25519_ChaChaPoly_BLAKE2s by snow, with the randomness passed in.
//!
//! Refuses to ask the operating system for anything: a handshake's ephemeral key comes from a seed that the channel
//! draws from its own generator.

use rand_chacha::ChaCha20Rng;
use rand_core::{Rng, SeedableRng};
use snow::params::{CipherChoice, DHChoice, HashChoice, NoiseParams};
use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::types::{Cipher, Dh, Hash, Random};
use snow::{Builder, Error, HandshakeState};
use zeroize::Zeroizing;

/// Bytes that authenticated encryption adds.
pub(crate) const TAG_LEN: usize = 16;

const PATTERN: &str = "Noise_IK_25519_ChaChaPoly_BLAKE2s";

/// Mixed into every handshake, so that another protocol or major version can't agree on keys by accident.
const PROLOGUE: &[u8] = b"holdfast channel major 1";

/// Mixed into the greeting's check value.
const GREETING_LABEL: &[u8] = b"holdfast greeting 1";

struct SeededRandom(ChaCha20Rng);

impl Random for SeededRandom {
    fn try_fill_bytes(&mut self, dest: &mut [u8]) -> Result<(), Error> {
        self.0.fill_bytes(dest);
        Ok(())
    }
}

/// snow's own primitives, but the generator is ours.
struct Resolver {
    seed: Zeroizing<[u8; 32]>,
}

impl CryptoResolver for Resolver {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(SeededRandom(ChaCha20Rng::from_seed(*self.seed))))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        DefaultResolver.resolve_dh(choice)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        DefaultResolver.resolve_hash(choice)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        DefaultResolver.resolve_cipher(choice)
    }
}

fn builder<'a>(seed: Zeroizing<[u8; 32]>, secret: &'a [u8; 32]) -> Result<Builder<'a>, Error> {
    let params: NoiseParams = PATTERN.parse()?;
    Builder::with_resolver(params, Box::new(Resolver { seed })).local_private_key(secret)?.prologue(PROLOGUE)
}

/// A handshake that we start with the peer of this public key. `seed` must never be used twice.
pub(crate) fn initiator(
    seed: Zeroizing<[u8; 32]>,
    secret: &[u8; 32],
    remote: &[u8; 32],
) -> Result<HandshakeState, Error> {
    builder(seed, secret)?.remote_public_key(remote)?.build_initiator()
}

/// A handshake that a peer started. `seed` must never be used twice.
pub(crate) fn responder(seed: Zeroizing<[u8; 32]>, secret: &[u8; 32]) -> Result<HandshakeState, Error> {
    builder(seed, secret)?.build_responder()
}

/// The public key of a secret key.
pub(crate) fn public_key(secret: &[u8; 32]) -> [u8; 32] {
    let mut dh = DefaultResolver.resolve_dh(&DHChoice::Curve25519).expect("snow is built with X25519");
    dh.set(secret);
    let mut public = [0; 32];
    public.copy_from_slice(dh.pubkey());
    public
}

/// The secret key that a seed stands for.
pub(crate) fn secret_from_seed(seed: &[u8; 32]) -> [u8; 32] {
    let mut secret = [0; 32];
    ChaCha20Rng::from_seed(*seed).fill_bytes(&mut secret);
    secret
}

/// Check value of a greeting: whoever doesn't know the receiver's public key can't make one, and checking it costs a
/// hash instead of four curve multiplications.
pub(crate) fn greeting_check(receiver: &[u8; 32], greeting: &[u8]) -> [u8; 16] {
    let mut hash = DefaultResolver.resolve_hash(&HashChoice::Blake2s).expect("snow is built with BLAKE2s");
    let mut key = [0; 32];
    hash.input(GREETING_LABEL);
    hash.input(receiver);
    hash.result(&mut key);
    let mut full = [0; 32];
    hash.hmac(&key, greeting, &mut full);
    let mut check = [0; 16];
    check.copy_from_slice(&full[..16]);
    check
}
