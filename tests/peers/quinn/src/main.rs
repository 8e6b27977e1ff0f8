//! A QUIC client on quinn, as Felix clients are: no ALPN, default settings. For tests and benchmarks.
//!
//!     quinn-peer ADDRESS echo STREAMS BYTES       each stream comes back whole, all at once
//!     quinn-peer ADDRESS latency ROUNDS           one stream, 64 bytes there and back; microseconds
//!     quinn-peer ADDRESS send MEGABYTES           after the line "sink", until the server has all; MB/s
//!     quinn-peer ADDRESS pull BYTES               after the line "push N", a stream of the server; MB/s
//!     quinn-peer 127.0.0.1:PORT serve             the control: echoes, or drops after "sink"
//!
//! Prints one line of numbers. The certificate is not checked: the server of the test is known.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use quinn::{ClientConfig, Connection, Endpoint, RecvStream, SendStream, ServerConfig};

const CHUNK: usize = 64 * 1024;
const LIMIT: usize = 1 << 30;

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

async fn connect(address: SocketAddr) -> Result<(Endpoint, Connection)> {
    let provider = rustls::crypto::ring::default_provider();
    let crypto = rustls::ClientConfig::builder_with_provider(Arc::new(provider.clone()))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Trusting(provider)))
        .with_no_client_auth();
    let quic = quinn::crypto::rustls::QuicClientConfig::try_from(crypto)?;
    let mut endpoint = Endpoint::client("127.0.0.1:0".parse()?)?;
    endpoint.set_default_client_config(ClientConfig::new(Arc::new(quic)));
    let connection = endpoint.connect(address, "localhost")?.await?;
    Ok((endpoint, connection))
}

async fn echo(connection: &Connection, streams: usize, size: usize) -> Result<()> {
    let mut tasks = Vec::new();
    for number in 0..streams {
        let connection = connection.clone();
        tasks.push(tokio::spawn(async move {
            let (mut send, mut receive) = connection.open_bi().await?;
            let sent = vec![(number % 251) as u8; size];
            let copy = sent.clone();
            let writing = tokio::spawn(async move {
                send.write_all(&copy).await?;
                send.finish()?;
                anyhow::Ok(send)
            });
            let found = receive.read_to_end(LIMIT).await?;
            writing.await??;
            ensure!(found == sent, "stream {number} came back otherwise");
            anyhow::Ok(())
        }));
    }
    for task in tasks {
        task.await??;
    }
    println!("{streams} streams of {size} bytes");
    Ok(())
}

async fn latency(connection: &Connection, rounds: usize) -> Result<()> {
    let (mut send, mut receive) = connection.open_bi().await?;
    let (message, mut answer) = ([7u8; 64], [0u8; 64]);
    let mut taken = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let begin = Instant::now();
        send.write_all(&message).await?;
        receive.read_exact(&mut answer).await?;
        taken.push(begin.elapsed());
    }
    taken.sort();
    let micros = |share: f64| taken[((rounds - 1) as f64 * share) as usize].as_micros();
    println!("p50 {} p99 {}", micros(0.5), micros(0.99));
    Ok(())
}

async fn send(connection: &Connection, megabytes: usize) -> Result<()> {
    let (mut send, mut receive) = connection.open_bi().await?;
    send.write_all(b"sink\n").await?;
    let mut ready = [0u8; 5];
    receive.read_exact(&mut ready).await?;
    let chunk = vec![1u8; CHUNK];
    let total = megabytes * 1_000_000;
    let begin = Instant::now();
    let mut sent = 0;
    while sent < total {
        send.write_all(&chunk).await?;
        sent += CHUNK;
    }
    send.finish()?;
    receive.read_to_end(LIMIT).await?;
    report(sent, begin, connection);
    Ok(())
}

async fn pull(connection: &Connection, size: usize) -> Result<()> {
    let (mut send, _receive) = connection.open_bi().await?;
    send.write_all(format!("push {size}\n").as_bytes()).await?;
    let begin = Instant::now();
    let mut stream = connection.accept_uni().await?;
    let mut found = 0;
    while let Some(chunk) = stream.read_chunk(usize::MAX, true).await? {
        found += chunk.bytes.len();
    }
    ensure!(found == size, "{found} bytes of {size}");
    report(found, begin, connection);
    Ok(())
}

fn report(bytes: usize, begin: Instant, connection: &Connection) {
    let seconds = begin.elapsed().as_secs_f64();
    let lost = connection.stats().path.lost_packets;
    println!("{:.1} MB/s lost {lost}", bytes as f64 / 1e6 / seconds);
}

async fn answer(mut send: SendStream, mut receive: RecvStream) -> Result<()> {
    let mut dropping = false;
    while let Some(chunk) = receive.read_chunk(usize::MAX, true).await? {
        if !dropping && &chunk.bytes[..] == b"sink\n" {
            dropping = true;
            send.write_all(b"sink\n").await?;
        } else if !dropping {
            send.write_all(&chunk.bytes).await?;
        }
    }
    send.finish()?;
    Ok(())
}

async fn serve(address: SocketAddr) -> Result<()> {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".into()])?;
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(made.key_pair.serialize_der());
    let mut config = ServerConfig::with_single_cert(vec![made.cert.into()], key.into())?;
    let mut transport = quinn::TransportConfig::default();
    transport.stream_receive_window((1u32 << 20).into());
    transport.receive_window((4u32 << 20).into());
    config.transport_config(Arc::new(transport));
    let endpoint = Endpoint::server(config, address)?;
    println!("{}", endpoint.local_addr()?);
    while let Some(incoming) = endpoint.accept().await {
        tokio::spawn(async move {
            let connection = incoming.await?;
            loop {
                let (send, receive) = connection.accept_bi().await?;
                tokio::spawn(answer(send, receive));
            }
            #[allow(unreachable_code)]
            anyhow::Ok(())
        });
    }
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let words: Vec<String> = std::env::args().skip(1).collect();
    let address: SocketAddr = words.first().context("ADDRESS MODE ...")?.parse()?;
    let number = |place: usize| -> Result<usize> {
        Ok(words.get(place).context("a number is missing")?.parse()?)
    };
    let mode = words.get(1).map(String::as_str).unwrap_or("");
    if mode == "serve" {
        return serve(address).await;
    }
    let (endpoint, connection) = connect(address).await?;
    match mode {
        "echo" => echo(&connection, number(2)?, number(3)?).await?,
        "latency" => latency(&connection, number(2)?).await?,
        "send" => send(&connection, number(2)?).await?,
        "pull" => pull(&connection, number(2)?).await?,
        other => bail!("no mode {other}"),
    }
    connection.close(0u32.into(), b"");
    tokio::time::timeout(Duration::from_secs(5), endpoint.wait_idle()).await.ok();
    Ok(())
}
