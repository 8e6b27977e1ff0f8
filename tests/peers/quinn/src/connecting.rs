//! Connections to a server of a test, whose certificate is not checked.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Result;
use quinn::{ClientConfig, Connection, Endpoint};

#[derive(Debug)]
struct Trusting(rustls::crypto::CryptoProvider);

impl rustls::client::danger::ServerCertVerifier for Trusting {
    fn verify_server_cert(
        &self,
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &[rustls::pki_types::CertificateDer<'_>],
        _: &rustls::pki_types::ServerName<'_>,
        _: &[u8],
        _: rustls::pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("QUIC has no TLS 1.2".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &rustls::pki_types::CertificateDer<'_>,
        dss: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(
            message,
            cert,
            dss,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// `applications`: names to offer with ALPN.
pub async fn connect(address: SocketAddr, applications: &[&str]) -> Result<(Endpoint, Connection)> {
    let provider = rustls::crypto::ring::default_provider();
    let mut crypto = rustls::ClientConfig::builder_with_provider(Arc::new(provider.clone()))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Trusting(provider)))
        .with_no_client_auth();
    crypto.alpn_protocols = applications.iter().map(|name| name.as_bytes().to_vec()).collect();
    let quic = quinn::crypto::rustls::QuicClientConfig::try_from(crypto)?;
    let mut endpoint = Endpoint::client("127.0.0.1:0".parse()?)?;
    endpoint.set_default_client_config(ClientConfig::new(Arc::new(quic)));
    let connection = endpoint.connect(address, "localhost")?.await?;
    Ok((endpoint, connection))
}
