//! Values that are too large for a journal.

use onemark_sdk::Blob;
use onemark_sdk::prelude::*;

use crate::marks;

#[step(retries = 0)]
async fn keep(text: String) -> Result<Blob, StepFailed> {
    Ok(Blob::write(text)?)
}

/// The text of a blob, or why it cannot be read.
#[step(retries = 0)]
async fn read(blob: Blob) -> Result<String, StepFailed> {
    Ok(match blob.read() {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(failure) => failure.kind.to_string(),
    })
}

/// Written by a step and by a closure, read by a step and by a closure.
#[workflow]
async fn hands_blobs_on(text: String) -> WorkflowResult<(Blob, Blob, Vec<String>)> {
    let first = keep(text.clone()).await?;
    let second = step("closure", || async {
        let mut writer = Blob::writer()?;
        for word in [&text, " and ", &text] {
            writer.write(word.as_bytes())?;
        }
        Ok(writer.finish()?)
    })
    .await?;
    let mut read_back = vec![read(first.clone()).await?, read(second.clone()).await?];
    let of_closure = step("reader", || async {
        Ok(String::from_utf8_lossy(&first.read()?).into_owned())
    });
    read_back.push(of_closure.await?);
    Ok((first, second, read_back))
}

#[workflow]
async fn reads_blob(blob: Blob) -> WorkflowResult<String> {
    Ok(read(blob).await?)
}

#[step]
async fn read_marked(marks: &str, blob: Blob) -> Result<String, StepFailed> {
    marks::leave(marks, "blob").await?;
    Ok(String::from_utf8(blob.read()?)?)
}

#[workflow]
async fn reads_after_a_crash(marks: String, text: String) -> WorkflowResult<String> {
    let blob = keep(text).await?;
    Ok(read_marked(&marks, blob).await?)
}

/// What workflow code is told that reads or writes by itself.
#[workflow]
async fn blobs_in_workflow_code() -> WorkflowResult<Vec<String>> {
    let blob = keep("x".into()).await?;
    let told = [Blob::write("y").map(drop), blob.read().map(drop)];
    Ok(told
        .into_iter()
        .map(|told| told.map_or_else(|failure| failure.to_string(), |()| "done".to_owned()))
        .collect())
}

/// Writes and reads more than fits into an attempt's memory.
#[step(retries = 0)]
async fn stream_blob(mib: u64) -> Result<Blob, StepFailed> {
    let mut writer = Blob::writer()?;
    for number in 0..mib {
        writer.write(&vec![number as u8; 1 << 20])?;
    }
    let blob = writer.finish()?;
    let mut reader = blob.reader()?;
    let mut bytes = 0;
    while let Some(chunk) = reader.next()? {
        let expected = (bytes >> 20) as u8;
        if chunk.iter().any(|&byte| byte != expected) {
            return Err(StepFailed::retry(format!("other bytes at {bytes}")));
        }
        bytes += chunk.len() as u64;
    }
    match bytes == blob.bytes {
        true => Ok(blob),
        false => Err(StepFailed::retry(format!("{bytes} bytes were read"))),
    }
}

#[workflow]
async fn streams_a_blob(mib: u64) -> WorkflowResult<Blob> {
    Ok(stream_blob(mib).await?)
}

/// Writers that are never finished, and more of them than an attempt may hold.
#[step(retries = 0)]
async fn hoard_writers() -> Result<(usize, String), StepFailed> {
    let mut writers = Vec::new();
    loop {
        match Blob::writer() {
            Ok(mut writer) => {
                writer.write(b"never finished")?;
                writers.push(writer);
            }
            Err(failure) => {
                let held = writers.len();
                std::mem::forget(writers);
                return Ok((held, failure.kind.to_string()));
            }
        }
    }
}

#[workflow]
async fn hoards_writers() -> WorkflowResult<(usize, String)> {
    Ok(hoard_writers().await?)
}

/// Writes more than may be, and then what may: what each came to.
#[step(retries = 0)]
async fn overfill(sizes: Vec<usize>) -> Result<Vec<String>, StepFailed> {
    let mut told = Vec::new();
    for size in sizes {
        let mut writer = Blob::writer()?;
        let written = writer.write(&vec![0; size]);
        // What was refused is not in it.
        let blob = writer.finish()?;
        told.push(match written {
            Ok(()) => blob.bytes.to_string(),
            Err(failure) => format!("{}, {}", failure.kind, blob.bytes),
        });
    }
    Ok(told)
}

#[workflow]
async fn overfills(sizes: Vec<usize>) -> WorkflowResult<Vec<String>> {
    Ok(overfill(sizes).await?)
}
