//! The control of benchmarks: a server that parses and answers, and stores nothing.
//!
//! What a stream begins with says what it is:
//!
//!     sink\n      the rest is dropped
//!     push N\n    N bytes on a stream of the server
//!     lost\n      the packets that were lost on their way from the server, of connections that are over
//!     0x01        Fujin, CONNECT WRITER: every WRITE gets its result
//!     FLX1        Felix: binary batches are counted, every JSON frame gets an ok
//!     else        an echo

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Arc;

use anyhow::{bail, Result};
use quinn::{Connection, Endpoint, RecvStream, SendStream, ServerConfig};

use crate::{felix, fujin};

const READ_BYTES: usize = 256 * 1024;

static LOST: AtomicU64 = AtomicU64::new(0);

async fn push(connection: Connection, size: usize) -> Result<()> {
    let mut send = connection.open_uni().await?;
    let data = vec![1u8; READ_BYTES];
    let mut left = size;
    while left > 0 {
        let now = left.min(data.len());
        send.write_all(&data[..now]).await?;
        left -= now;
    }
    send.finish()?;
    Ok(())
}

async fn answer(
    connection: Connection,
    mut send: SendStream,
    mut receive: RecvStream,
) -> Result<()> {
    let Some(first) = receive.read_chunk(usize::MAX, true).await? else {
        send.finish()?;
        return Ok(());
    };
    let data = &first.bytes[..];
    if data == b"sink\n" {
        send.write_all(data).await?;
        while receive.read_chunk(usize::MAX, true).await?.is_some() {}
    } else if let Some(size) = data.strip_prefix(b"push ") {
        push(connection, std::str::from_utf8(size)?.trim().parse()?).await?;
    } else if data == b"lost\n" {
        send.write_all(format!("{}\n", LOST.load(Relaxed)).as_bytes()).await?;
    } else if data[0] == fujin::CONNECT_WRITER {
        split(data, &mut send, &mut receive, fujin::CONNECT_BYTES, fujin::answer_write).await?;
    } else if data.starts_with(felix::MAGIC) {
        split(data, &mut send, &mut receive, 0, felix::answer_frame).await?;
    } else {
        send.write_all(data).await?;
        while let Some(chunk) = receive.read_chunk(usize::MAX, true).await? {
            send.write_all(&chunk.bytes).await?;
        }
    }
    send.finish()?;
    Ok(())
}

/// `one`: the size of the frame that the bytes begin with, 0 while it is cut off; what it answers is appended.
async fn split(
    first: &[u8],
    send: &mut SendStream,
    receive: &mut RecvStream,
    skipped: usize,
    one: fn(&[u8], &mut Vec<u8>) -> Result<usize>,
) -> Result<()> {
    if first.len() < skipped {
        bail!("the first packet is too short");
    }
    let mut rest = first[skipped..].to_vec();
    let mut answers = Vec::new();
    let mut buffer = vec![0u8; READ_BYTES];
    loop {
        let mut at = 0;
        loop {
            let size = one(&rest[at..], &mut answers)?;
            if size == 0 {
                break;
            }
            at += size;
        }
        rest.drain(..at);
        if !answers.is_empty() {
            send.write_all(&answers).await?;
            answers.clear();
        }
        match receive.read(&mut buffer).await? {
            Some(size) => rest.extend_from_slice(&buffer[..size]),
            None => return Ok(()),
        }
    }
}

/// `application`: the only name of ALPN that is taken; without one, clients offer none.
pub async fn serve(address: SocketAddr, application: Option<&str>) -> Result<()> {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".into()])?;
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(made.key_pair.serialize_der());
    let mut crypto = rustls::ServerConfig::builder_with_provider(Arc::new(
        rustls::crypto::ring::default_provider(),
    ))
    .with_protocol_versions(&[&rustls::version::TLS13])?
    .with_no_client_auth()
    .with_single_cert(vec![made.cert.into()], key.into())?;
    crypto.alpn_protocols = application.iter().map(|name| name.as_bytes().to_vec()).collect();
    let crypto = quinn::crypto::rustls::QuicServerConfig::try_from(crypto)?;
    let mut config = ServerConfig::with_crypto(Arc::new(crypto));
    let mut transport = quinn::TransportConfig::default();
    transport.stream_receive_window((1u32 << 20).into());
    transport.receive_window((4u32 << 20).into());
    config.transport_config(Arc::new(transport));
    let endpoint = Endpoint::server(config, address)?;
    println!("{}", endpoint.local_addr()?);
    while let Some(incoming) = endpoint.accept().await {
        tokio::spawn(async move {
            let connection = incoming.await?;
            while let Ok((send, receive)) = connection.accept_bi().await {
                tokio::spawn(answer(connection.clone(), send, receive));
            }
            LOST.fetch_add(connection.stats().path.lost_packets, Relaxed);
            anyhow::Ok(())
        });
    }
    Ok(())
}
