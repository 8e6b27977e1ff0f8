//! A QUIC client on quinn, as Felix clients are: no ALPN, default settings; and a server that stores nothing.
//! For tests and benchmarks.
//!
//!     quinn-peer ADDRESS echo STREAMS BYTES       each stream comes back whole, all at once
//!     quinn-peer ADDRESS latency ROUNDS [PAUSE]   one stream, 64 bytes there and back; microseconds
//!     quinn-peer ADDRESS send MEGABYTES           after the line "sink", until the server has all; MB/s
//!     quinn-peer ADDRESS pull BYTES [CONNECTIONS] after the line "push N", a stream of the server; MB/s
//!     quinn-peer ADDRESS ask REQUEST ANSWER WINDOW COUNT      after the line "answer R A"; answers/s
//!     quinn-peer ADDRESS tell WORD                the line, and what the server answers to it
//!     quinn-peer ADDRESS writes BYTES COUNT TOPIC             Fujin, with its ALPN; MB/s and messages/s
//!     quinn-peer ADDRESS batches EACH BYTES COUNT             Felix, binary publishes; MB/s and messages/s
//!     quinn-peer ADDRESS events SUBSCRIBERS BYTES COUNT       Felix, COUNT batches of 64; bytes and MB/s
//!     quinn-peer ADDRESS cache WINDOW BYTES COUNT             Felix, cache_get; gets/s
//!     quinn-peer ADDRESS delivery ROUNDS                      Felix, publish to event; microseconds
//!     quinn-peer 127.0.0.1:PORT serve [APPLICATION]           the control, see serving.rs
//!
//! Prints one line of numbers. The certificate is not checked: the server of the test is known.

mod connecting;
mod felix;
mod fujin;
mod serving;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use quinn::{Connection, Endpoint};

use connecting::connect;

const CHUNK: usize = 64 * 1024;
const LIMIT: usize = 1 << 30;

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

async fn latency(connection: &Connection, rounds: usize, pause: Duration) -> Result<()> {
    let (mut send, mut receive) = connection.open_bi().await?;
    let (message, mut answer) = ([7u8; 64], [0u8; 64]);
    let mut taken = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let begin = Instant::now();
        send.write_all(&message).await?;
        receive.read_exact(&mut answer).await?;
        taken.push(begin.elapsed());
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
    }
    percentiles(taken);
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
    report(sent, begin.elapsed().as_secs_f64(), connection.stats().path.lost_packets);
    Ok(())
}

/// Streams of the server on several connections at once.
async fn pull(address: SocketAddr, connections: usize, size: usize) -> Result<()> {
    let mut opened = Vec::new();
    for _ in 0..connections {
        opened.push(connect(address, &[]).await?);
    }
    let begin = Instant::now();
    let mut tasks = Vec::new();
    for (_, connection) in &opened {
        let connection = connection.clone();
        tasks.push(tokio::spawn(async move { pull_one(&connection, size).await }));
    }
    for task in tasks {
        task.await??;
    }
    let lost = opened.iter().map(|(_, one)| one.stats().path.lost_packets).sum();
    report(size * connections, begin.elapsed().as_secs_f64(), lost);
    for (endpoint, connection) in &opened {
        leave(endpoint, connection).await;
    }
    Ok(())
}

async fn pull_one(connection: &Connection, size: usize) -> Result<()> {
    let (mut send, _receive) = connection.open_bi().await?;
    send.write_all(format!("push {size}\n").as_bytes()).await?;
    let mut stream = connection.accept_uni().await?;
    let mut found = 0;
    while let Some(chunk) = stream.read_chunk(usize::MAX, true).await? {
        found += chunk.bytes.len();
    }
    ensure!(found == size, "{found} bytes of {size}");
    Ok(())
}

/// Requests of known size, so many under way, each with an answer of known size.
async fn ask(connection: &Connection, sizes: (usize, usize), window: usize, count: usize) -> Result<()> {
    let (mut send, mut receive) = connection.open_bi().await?;
    send.write_all(format!("answer {} {}\n", sizes.0, sizes.1).as_bytes()).await?;
    let mut ready = [0u8; 1];
    receive.read_exact(&mut ready).await?;
    let request = random(sizes.0);
    let rate =
        felix::pipelined(&mut send, &mut receive, &request, sizes.1, window, count).await?;
    println!("{rate:.0} answers/s");
    send.finish()?;
    Ok(())
}

async fn tell(connection: &Connection, word: &str) -> Result<()> {
    let (mut send, mut receive) = connection.open_bi().await?;
    send.write_all(format!("{word}\n").as_bytes()).await?;
    print!("{}", String::from_utf8(receive.read_to_end(LIMIT).await?)?);
    Ok(())
}

fn report(bytes: usize, seconds: f64, lost: u64) {
    println!("{:.1} MB/s lost {lost}", bytes as f64 / 1e6 / seconds);
}

fn report_messages(count: usize, size: usize, seconds: f64, connection: &Connection) {
    let lost = connection.stats().path.lost_packets;
    let rate = count as f64 / seconds;
    println!("{:.1} MB/s {rate:.0} messages/s lost {lost}", rate * size as f64 / 1e6);
}

fn percentiles(mut taken: Vec<Duration>) {
    taken.sort();
    let last = (taken.len() - 1) as f64;
    let micros = |share: f64| taken[(last * share) as usize].as_micros();
    println!("p50 {} p99 {}", micros(0.5), micros(0.99));
}

/// Bytes that do not repeat soon: a linear congruence.
fn random(size: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    (0..size)
        .map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 56) as u8
        })
        .collect()
}

async fn leave(endpoint: &Endpoint, connection: &Connection) {
    connection.close(0u32.into(), b"");
    tokio::time::timeout(Duration::from_secs(5), endpoint.wait_idle()).await.ok();
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let address: SocketAddr = words.first().context("ADDRESS MODE ...")?.parse()?;
    let number = |place: usize| -> Result<usize> {
        Ok(words.get(place).context("a number is missing")?.parse()?)
    };
    let mode = words.get(1).map(String::as_str).unwrap_or("");
    match mode {
        "serve" => return serving::serve(address, words.get(2).map(String::as_str)).await,
        "pull" => return pull(address, number(3).unwrap_or(1), number(2)?).await,
        "events" => return felix::events(address, number(2)?, number(3)?, number(4)?).await,
        "delivery" => return felix::delivery(address, number(2)?).await,
        _ => {}
    }
    let applications: &[&str] = if mode == "writes" { &["fujin"] } else { &[] };
    let (endpoint, connection) = connect(address, applications).await?;
    match mode {
        "echo" => echo(&connection, number(2)?, number(3)?).await?,
        "latency" => {
            let pause = Duration::from_micros(number(3).unwrap_or(0) as u64);
            latency(&connection, number(2)?, pause).await?
        }
        "send" => send(&connection, number(2)?).await?,
        "ask" => ask(&connection, (number(2)?, number(3)?), number(4)?, number(5)?).await?,
        "tell" => tell(&connection, words.get(2).context("WORD is missing")?).await?,
        "writes" => {
            let (size, count) = (number(2)?, number(3)?);
            let topic = words.get(4).context("TOPIC is missing")?;
            let seconds = fujin::writes(&connection, topic, size, count).await?;
            report_messages(count, size, seconds, &connection);
        }
        "batches" => {
            let (each, size, count) = (number(2)?, number(3)?, number(4)?);
            let seconds = felix::batches(&connection, each, size, count).await?;
            report_messages(count * each, size, seconds, &connection);
        }
        "cache" => felix::cache(&connection, number(2)?, number(3)?, number(4)?).await?,
        other => bail!("no mode {other}"),
    }
    leave(&endpoint, &connection).await;
    Ok(())
}
