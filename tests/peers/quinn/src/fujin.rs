//! Fujin as far as a benchmark needs it: WRITE without headers, and its result.
//!
//!     CONNECT WRITER   1, u32 id                  WRITE    3, cid, u32 and topic, u32 and message
//!                                                 result   2, cid, 0

use anyhow::{ensure, Context, Result};
use quinn::Connection;

use crate::random;

pub const CONNECT_WRITER: u8 = 1;
/// The id that this client sends is a number.
pub const CONNECT_BYTES: usize = 5;
const WRITE: u8 = 3;
const WRITTEN: u8 = 2;
const RESULT_BYTES: usize = 6;
/// Opcode, cid and the length of the topic.
const HEAD_BYTES: usize = 9;
/// Commands are given to the library in blocks of about this size.
const BLOCK_BYTES: usize = 64 * 1024;

fn length(data: &[u8], at: usize) -> usize {
    u32::from_be_bytes(data[at..at + 4].try_into().expect("four bytes")) as usize
}

/// Of the sink: the size of the WRITE that `data` begins with, 0 while it is cut off.
pub fn answer_write(data: &[u8], answers: &mut Vec<u8>) -> Result<usize> {
    if data.len() < HEAD_BYTES {
        return Ok(0);
    }
    ensure!(data[0] == WRITE, "not a WRITE but {}", data[0]);
    let message = HEAD_BYTES + length(data, 5);
    if data.len() < message + 4 {
        return Ok(0);
    }
    let end = message + 4 + length(data, message);
    if data.len() < end {
        return Ok(0);
    }
    answers.push(WRITTEN);
    answers.extend_from_slice(&data[1..5]);
    answers.push(0);
    Ok(end)
}

/// A ping is a stream of the server: who ends the other side lives.
async fn answer_pings(connection: Connection) {
    while let Ok((mut send, _receive)) = connection.accept_bi().await {
        send.finish().ok();
    }
}

/// Many messages to one topic on one stream; the time is over when the last result is there. Returns the
/// seconds.
pub async fn writes(connection: &Connection, topic: &str, size: usize, count: usize) -> Result<f64> {
    tokio::spawn(answer_pings(connection.clone()));
    let (mut send, mut receive) = connection.open_bi().await?;
    send.write_all(&[CONNECT_WRITER, 0, 0, 0, 0]).await?;
    let each = HEAD_BYTES + topic.len() + 4 + size;
    let in_block = (BLOCK_BYTES / each).max(1);
    let payloads = random(in_block * size);
    let topic = topic.as_bytes().to_vec();
    let begin = std::time::Instant::now();
    let writing = tokio::spawn(async move {
        let mut sent = 0;
        let mut block = Vec::with_capacity(in_block * each);
        while sent < count {
            let here = in_block.min(count - sent);
            block.clear();
            for number in 0..here {
                block.push(WRITE);
                block.extend_from_slice(&((sent + number) as u32).to_be_bytes());
                block.extend_from_slice(&(topic.len() as u32).to_be_bytes());
                block.extend_from_slice(&topic);
                block.extend_from_slice(&(size as u32).to_be_bytes());
                block.extend_from_slice(&payloads[number * size..(number + 1) * size]);
            }
            send.write_all(&block).await?;
            sent += here;
        }
        anyhow::Ok(send)
    });
    let mut found = 0;
    let mut rest: Vec<u8> = Vec::new();
    while found < count {
        let chunk = receive.read_chunk(usize::MAX, true).await?.context("the server ended")?;
        rest.extend_from_slice(&chunk.bytes);
        let whole = rest.len() / RESULT_BYTES;
        for result in rest.chunks_exact(RESULT_BYTES) {
            let cid = u32::from_be_bytes(result[1..5].try_into()?) as usize;
            ensure!(
                result[0] == WRITTEN && result[5] == 0 && cid == found,
                "result {found}: {result:?}"
            );
            found += 1;
        }
        rest.drain(..whole * RESULT_BYTES);
    }
    let seconds = begin.elapsed().as_secs_f64();
    let mut send = writing.await??;
    send.finish()?;
    Ok(seconds)
}
