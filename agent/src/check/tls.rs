//! TLS towards what is probed: rustls with ring. The certificate is held against the roots and the name that are
//! configured, or taken as it is, and its end is told in time.

use super::describe;
use holdfast_node::config::Tls;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::OnceCell;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::Resumption;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{self, CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};
use x509_cert::Certificate;
use x509_cert::der::Decode as _;

const DAY: u64 = 24 * 3600;

/// What a certificate is held against, made once: reading the roots takes longer than a handshake.
#[derive(Debug, Default)]
pub(super) struct Client(OnceCell<Arc<ClientConfig>>);

impl Client {
    /// Shakes hands on a connection; gives what is to be said of the certificate too.
    pub(super) async fn handshake<S: super::wire::Talk>(
        &self,
        tls: &Tls,
        stream: S,
    ) -> Result<(TlsStream<S>, Option<String>), String> {
        let name = ServerName::try_from(tls.server_name.clone())
            .map_err(|_| format!("{} can't be the name of a server", tls.server_name))?;
        // A failure isn't kept: the file may come.
        let config = self.0.get_or_try_init(|| client_config(tls)).await?;
        let connector = TlsConnector::from(Arc::clone(config));
        let stream = connector.connect(name, stream).await.map_err(|e| match e.kind() {
            io::ErrorKind::UnexpectedEof => "connection closed within the handshake".to_owned(),
            _ => in_words(&e),
        })?;
        let (_, session) = stream.get_ref();
        let note = expiry(session.peer_certificates().unwrap_or_default(), tls, SystemTime::now());
        Ok((stream, note))
    }
}

async fn client_config(tls: &Tls) -> Result<Arc<ClientConfig>, String> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?;
    let mut config = if tls.verify {
        let file = tls.ca_file.clone();
        let roots = tokio::task::spawn_blocking(move || roots(file.as_deref())).await;
        let roots = roots.map_err(|_| "the agent is stopping".to_owned())??;
        builder.with_root_certificates(roots).with_no_client_auth()
    } else {
        let any = Arc::new(Anybody(provider));
        builder.dangerous().with_custom_certificate_verifier(any).with_no_client_auth()
    };
    // Each probe is to see the certificate that is served now.
    config.resumption = Resumption::disabled();
    config.alpn_protocols = Vec::new();
    Ok(Arc::new(config))
}

/// Those of the file, or the system's.
fn roots(file: Option<&Path>) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    match file {
        Some(path) => {
            let wrong = |why: String| format!("ca_file {}: {why}", path.display());
            let pem = crate::config::file::read_regular(path, CA_FILE_MAX);
            let pem = pem.map_err(|e| wrong(crate::config::file::in_words(&e)))?;
            for certificate in CertificateDer::pem_slice_iter(&pem) {
                let certificate = certificate.map_err(|e| wrong(e.to_string()))?;
                roots.add(certificate).map_err(|e| wrong(e.to_string()))?;
            }
            if roots.is_empty() {
                return Err(wrong("there is no certificate in it".to_owned()));
            }
        }
        None => {
            // One that can't be read doesn't matter unless there is no other.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if roots.is_empty() {
                return Err(
                    "this system trusts no roots (no ca-certificates?): say ca_file or verify = false".to_owned()
                );
            }
        }
    }
    Ok(roots)
}

/// All of a system's roots are a quarter of it.
const CA_FILE_MAX: usize = 1 << 20;

/// When the certificates that were shown end, if that is soon or over.
fn expiry(chain: &[CertificateDer<'_>], tls: &Tls, now: SystemTime) -> Option<String> {
    let end = |der: &CertificateDer<'_>| {
        let certificate = Certificate::from_der(der).ok()?;
        Some(certificate.tbs_certificate.validity.not_after.to_unix_duration())
    };
    let first = chain.iter().filter_map(end).min()?;
    in_time(first, now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default(), tls.expiry_warning_days)
}

/// In words, if `end` is less than so many days away; both since 1970.
fn in_time(end: Duration, now: Duration, days: u16) -> Option<String> {
    let left = end.checked_sub(now).map(|left| left.as_secs() / DAY);
    match left {
        _ if days == 0 => None,
        None => Some("the certificate has expired".to_owned()),
        Some(0) => Some("the certificate ends within a day".to_owned()),
        Some(left) if left < u64::from(days) => {
            Some(format!("the certificate ends in {left} {}", if left == 1 { "day" } else { "days" }))
        }
        Some(_) => None,
    }
}

/// `verify = false`: whoever answers is taken, but must have the key of the certificate that he shows.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, self.algorithms())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, self.algorithms())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms().supported_schemes()
    }
}

impl Anybody {
    fn algorithms(&self) -> &crypto::WebPkiSupportedAlgorithms {
        &self.0.signature_verification_algorithms
    }
}

/// As [`describe`], with what TLS has to say.
pub(super) fn in_words(e: &io::Error) -> String {
    let Some(tls) = e.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) else {
        return describe(e);
    };
    match tls {
        Error::InvalidCertificate(wrong) => certificate(wrong),
        Error::AlertReceived(alert) => format!("TLS refused by the server: {alert:?}"),
        Error::InvalidMessage(_) => "not a TLS answer".to_owned(),
        other => format!("TLS: {other}"),
    }
}

fn certificate(wrong: &CertificateError) -> String {
    match wrong {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => "the certificate has expired".to_owned(),
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "the certificate isn't valid yet".to_owned()
        }
        CertificateError::NotValidForName => "the certificate is for another name".to_owned(),
        CertificateError::NotValidForNameContext { expected, .. } => {
            format!("the certificate isn't for {}", expected.to_str())
        }
        CertificateError::UnknownIssuer => "the certificate's issuer isn't trusted".to_owned(),
        other => format!("the certificate is refused: {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_certificate_is_told_so_many_days_ahead() {
        let told = |left_s: i64, days| {
            let now = Duration::from_secs(1_700_000_000);
            let end = Duration::from_secs(1_700_000_000_u64.checked_add_signed(left_s).expect("a time"));
            in_time(end, now, days)
        };
        let day = i64::try_from(DAY).expect("few seconds");
        assert_eq!(told(14 * day, 14), None);
        assert_eq!(told(14 * day - 1, 14).as_deref(), Some("the certificate ends in 13 days"));
        assert_eq!(told(2 * day - 1, 14).as_deref(), Some("the certificate ends in 1 day"));
        assert_eq!(told(day - 1, 14).as_deref(), Some("the certificate ends within a day"));
        assert_eq!(told(-1, 14).as_deref(), Some("the certificate has expired"));
        assert_eq!(told(-1, 0), None, "not wanted");
    }

    #[test]
    fn what_is_no_certificate_has_no_end() {
        let tls = Tls { server_name: "x".to_owned(), verify: false, ca_file: None, expiry_warning_days: 14 };
        let nonsense = [CertificateDer::from(vec![0x30, 0x82, 0xff, 0xff, 1, 2, 3])];
        assert_eq!(expiry(&nonsense, &tls, SystemTime::now()), None);
    }
}
