//! Felix as far as a benchmark needs it: binary publish batches, events for many, the cache, one event at a
//! time.
//!
//!     frame   "FLX1", u16 1, u16 flags, u32 length, payload: JSON, or with the flag 1 a publish batch

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use quinn::{Connection, RecvStream, SendStream};

use crate::connecting::connect;
use crate::{percentiles, random};

pub const MAGIC: &[u8] = b"FLX1";
const HEADER_BYTES: usize = 12;
const BATCH: u16 = 1;
const LIMIT: usize = 1 << 24;
const NAMES: &str = r#""tenant_id":"bench","namespace":"quic","stream":"s""#;

fn framed(payload: &[u8], flags: u16) -> Vec<u8> {
    let mut frame = MAGIC.to_vec();
    frame.extend_from_slice(&1u16.to_be_bytes());
    frame.extend_from_slice(&flags.to_be_bytes());
    frame.extend_from_slice(&(payload.len() as u32).to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

fn json(text: &str) -> Vec<u8> {
    framed(text.as_bytes(), 0)
}

fn batch(count: usize, size: usize) -> Vec<u8> {
    let payloads = random(count * size);
    let mut payload = Vec::new();
    for name in ["bench", "quic", "s"] {
        payload.extend_from_slice(&(name.len() as u16).to_be_bytes());
        payload.extend_from_slice(name.as_bytes());
    }
    payload.extend_from_slice(&(count as u32).to_be_bytes());
    for one in payloads.chunks(size) {
        payload.extend_from_slice(&(size as u32).to_be_bytes());
        payload.extend_from_slice(one);
    }
    framed(&payload, BATCH)
}

fn base64(data: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in data.chunks(3) {
        let mut word = 0u32;
        for place in 0..3 {
            word = word << 8 | u32::from(*three.get(place).unwrap_or(&0));
        }
        for place in 0..4 {
            let digit = DIGITS[(word >> (18 - 6 * place) & 63) as usize] as char;
            text.push(if place <= three.len() { digit } else { '=' });
        }
    }
    text
}

/// Of the sink: the size of the frame that `data` begins with, 0 while it is cut off.
pub fn answer_frame(data: &[u8], answers: &mut Vec<u8>) -> Result<usize> {
    if data.len() < HEADER_BYTES {
        return Ok(0);
    }
    ensure!(data.starts_with(MAGIC), "not a frame");
    let size = HEADER_BYTES + u32::from_be_bytes(data[8..12].try_into()?) as usize;
    if data.len() < size {
        return Ok(0);
    }
    if data[7] as u16 & BATCH == 0 {
        answers.extend_from_slice(&json(r#"{"type":"ok"}"#));
    } else {
        let mut at = HEADER_BYTES;
        for _ in 0..3 {
            at += 2 + u16::from_be_bytes(data[at..at + 2].try_into()?) as usize;
        }
        let count = u32::from_be_bytes(data[at..at + 4].try_into()?);
        at += 4;
        for _ in 0..count {
            at += 4 + u32::from_be_bytes(data[at..at + 4].try_into()?) as usize;
        }
        ensure!(at == size, "a batch of {at} bytes in a frame of {size}");
    }
    Ok(size)
}

async fn frame(receive: &mut RecvStream) -> Result<Vec<u8>> {
    let mut head = [0u8; HEADER_BYTES];
    receive.read_exact(&mut head).await?;
    ensure!(head.starts_with(MAGIC), "not a frame");
    let mut payload = vec![0u8; u32::from_be_bytes(head[8..12].try_into()?) as usize];
    receive.read_exact(&mut payload).await?;
    Ok(payload)
}

async fn expect(receive: &mut RecvStream, what: &str) -> Result<()> {
    let found = String::from_utf8(frame(receive).await?)?;
    ensure!(found.contains(what), "{found} instead of {what}");
    Ok(())
}

fn publish(payload: &[u8], acknowledged: bool) -> Vec<u8> {
    let ack = if acknowledged { "per_message" } else { "none" };
    let payload = base64(payload);
    json(&format!(r#"{{"type":"publish",{NAMES},"payload":"{payload}","ack":"{ack}"}}"#))
}

/// Batches, and one publish behind them that is acknowledged: then they are, too. Returns the seconds.
pub async fn batches(connection: &Connection, each: usize, size: usize, count: usize) -> Result<f64> {
    let (mut send, mut receive) = connection.open_bi().await?;
    send.write_all(&publish(b"first", true)).await?;
    expect(&mut receive, r#""type":"ok""#).await?;
    let block = batch(each, size);
    let begin = Instant::now();
    for _ in 0..count {
        send.write_all(&block).await?;
    }
    send.write_all(&publish(b"last", true)).await?;
    expect(&mut receive, r#""type":"ok""#).await?;
    let seconds = begin.elapsed().as_secs_f64();
    send.finish()?;
    Ok(seconds)
}

async fn subscribe(connection: &Connection) -> Result<RecvStream> {
    let (mut send, mut receive) = connection.open_bi().await?;
    send.write_all(&json(&format!(r#"{{"type":"subscribe",{NAMES}}}"#))).await?;
    expect(&mut receive, r#""type":"ok""#).await?;
    let mut events = connection.accept_uni().await?;
    expect(&mut events, "event_stream_hello").await?;
    send.finish()?;
    Ok(events)
}

/// Every event goes to all connections. Prints bytes of events of one of them, the sum for a second, and
/// lost packets.
pub async fn events(address: SocketAddr, subscribers: usize, size: usize, count: usize) -> Result<()> {
    let (_endpoint, publisher) = connect(address, &[]).await?;
    let (mut send, mut receive) = publisher.open_bi().await?;
    // The stream is there before anybody subscribes.
    send.write_all(&publish(b"first", true)).await?;
    expect(&mut receive, r#""type":"ok""#).await?;
    let mut connections = Vec::new();
    let mut reading = Vec::new();
    for _ in 0..subscribers {
        let (endpoint, connection) = connect(address, &[]).await?;
        let mut stream = subscribe(&connection).await?;
        connections.push((endpoint, connection));
        reading.push(tokio::spawn(async move {
            // The last event is told apart by its content.
            let last = base64(LAST);
            let mut tail: Vec<u8> = Vec::new();
            let mut found = 0;
            loop {
                let chunk = stream.read_chunk(usize::MAX, true).await?.context("ended")?;
                found += chunk.bytes.len();
                tail.extend_from_slice(&chunk.bytes);
                if tail.windows(last.len()).any(|window| window == last.as_bytes()) {
                    return anyhow::Ok(found);
                }
                let kept = tail.len().saturating_sub(last.len());
                tail.drain(..kept);
            }
        }));
    }
    let block = batch(64, size);
    let begin = Instant::now();
    for _ in 0..count {
        send.write_all(&block).await?;
    }
    send.write_all(&publish(LAST, true)).await?;
    let mut each = 0;
    for one in reading {
        each = one.await??;
    }
    let seconds = begin.elapsed().as_secs_f64();
    let lost: u64 = connections.iter().map(|(_, one)| one.stats().path.lost_packets).sum();
    let sum = (each * subscribers) as f64 / 1e6 / seconds;
    println!("{each} bytes to each {sum:.1} MB/s lost {lost}");
    for (_, connection) in &connections {
        connection.close(0u32.into(), b"");
    }
    Ok(())
}

/// Between two deliveries.
const PAUSE: Duration = Duration::from_micros(500);
const LAST: &[u8] = b"the last event of all";

async fn put(send: &mut SendStream, receive: &mut RecvStream, size: usize) -> Result<()> {
    let value = base64(&random(size));
    send.write_all(&json(&format!(r#"{{"type":"cache_put","key":"k","value":"{value}"}}"#))).await?;
    expect(receive, r#""type":"ok""#).await
}

/// Gets on one stream, so many under way. Prints gets for a second and the bytes of a request and an answer.
pub async fn cache(connection: &Connection, window: usize, size: usize, count: usize) -> Result<()> {
    let (mut send, mut receive) = connection.open_bi().await?;
    put(&mut send, &mut receive, size).await?;
    let request = json(r#"{"type":"cache_get","key":"k"}"#);
    send.write_all(&request).await?;
    let answer = HEADER_BYTES + frame(&mut receive).await?.len();
    ensure!(answer > size, "the value is not there");
    let rate = pipelined(&mut send, &mut receive, &request, answer, window, count).await?;
    println!("{rate:.0} gets/s request {} answer {answer}", request.len());
    Ok(())
}

/// Requests and answers of known sizes; answers for a second.
pub async fn pipelined(
    send: &mut SendStream,
    receive: &mut RecvStream,
    request: &[u8],
    answer: usize,
    window: usize,
    count: usize,
) -> Result<f64> {
    let begin = Instant::now();
    let (mut asked, mut answered) = (0, 0);
    let mut buffer = vec![0u8; 64 * 1024];
    while answered / answer < count {
        let room = (answered / answer + window).min(count) - asked;
        if room > 0 {
            send.write_all(&request.repeat(room)).await?;
            asked += room;
        }
        answered += receive.read(&mut buffer).await?.context("the server ended")?;
    }
    Ok(count as f64 / begin.elapsed().as_secs_f64())
}

/// From a publish on one connection to its event on another, one after the other.
pub async fn delivery(address: SocketAddr, rounds: usize) -> Result<()> {
    let (_one, publisher) = connect(address, &[]).await?;
    let (_two, subscriber) = connect(address, &[]).await?;
    let (mut send, mut receive) = publisher.open_bi().await?;
    send.write_all(&publish(b"first", true)).await?;
    expect(&mut receive, r#""type":"ok""#).await?;
    let mut stream = subscribe(&subscriber).await?;
    let message = publish(&random(100), false);
    let mut taken = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let begin = Instant::now();
        send.write_all(&message).await?;
        expect(&mut stream, r#""type":"event""#).await?;
        taken.push(begin.elapsed());
        // What the server does behind an event is not to be in the way of the next.
        tokio::time::sleep(PAUSE).await;
    }
    send.finish()?;
    receive.read_to_end(LIMIT).await.ok();
    percentiles(taken);
    Ok(())
}
