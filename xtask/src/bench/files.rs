//! Reading and writing one large file, against plain files on the same file system.

use std::time::Instant;

use bytes::Bytes;
use sandbox_core::{ByteStream, Error, Result, SandboxPath};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::report::{Goal, Row};
use super::{Bench, middle};

const BYTES: usize = 256 << 20;
const PIECE: usize = 256 << 10;
const ROUNDS: usize = 5;

pub(super) fn files(bench: &Bench) -> Result<Vec<Row>> {
    bench.runtime.block_on(async {
        let handle = bench.sandbox("files").await?;
        let path = SandboxPath::new("large")?;
        let plain = bench.state.path().join("plain");
        let piece = Bytes::from(vec![7; PIECE]);
        let (mut writes, mut reads) = (Vec::new(), Vec::new());
        let (mut plain_writes, mut plain_reads) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let content =
                futures_util::stream::iter(vec![piece.clone(); BYTES / PIECE].into_iter().map(Ok));
            let before = Instant::now();
            bench
                .backend
                .write_file_at(&handle, &path, ByteStream::new(content))
                .await?;
            writes.push(rate(before));

            let before = Instant::now();
            plain_write(&plain, &piece)
                .await
                .map_err(|error| Error::io("writing a plain file", error))?;
            plain_writes.push(rate(before));

            let before = Instant::now();
            let mut stream = bench.backend.read_file_at(&handle, &path).await?;
            let mut received = 0;
            while let Some(data) = stream.next().await {
                received += data?.len();
            }
            assert_eq!(received, BYTES, "the file came back whole");
            reads.push(rate(before));

            let before = Instant::now();
            let received = plain_read(&plain)
                .await
                .map_err(|error| Error::io("reading a plain file", error))?;
            assert_eq!(received, BYTES, "the plain file came back whole");
            plain_reads.push(rate(before));
        }
        bench.backend.destroy(&handle).await?;
        let goal = Goal::AtLeast(0.5);
        Ok(vec![
            Row::rates(
                "256 MiB file written / tokio::fs",
                goal,
                "MB/s",
                middle(&mut writes),
                Some(middle(&mut plain_writes)),
            ),
            Row::rates(
                "256 MiB file read / tokio::fs",
                goal,
                "MB/s",
                middle(&mut reads),
                Some(middle(&mut plain_reads)),
            ),
        ])
    })
}

async fn plain_write(path: &std::path::Path, piece: &Bytes) -> std::io::Result<()> {
    let mut file = tokio::fs::File::create(path).await?;
    for _ in 0..BYTES / PIECE {
        file.write_all(piece).await?;
    }
    file.flush().await
}

async fn plain_read(path: &std::path::Path) -> std::io::Result<usize> {
    let mut file = tokio::fs::File::open(path).await?;
    let mut buffer = vec![0; PIECE];
    let mut received = 0;
    loop {
        match file.read(&mut buffer).await? {
            0 => return Ok(received),
            length => received += length,
        }
    }
}

/// Megabytes a second.
fn rate(since: Instant) -> f64 {
    BYTES as f64 / 1e6 / since.elapsed().as_secs_f64()
}
