//! Templates that cannot be filled in from the input.
#![allow(unused)]

use onemark_macros::{step, workflow};

#[workflow(token = "order:{order.id}")]
async fn no_such_parameter(id: u32) -> Result<(), String> {
    Ok(())
}

#[step(key = "charge:{}")]
async fn empty_path(id: u32) -> Result<(), String> {
    Ok(())
}

#[step(key = "charge:{id")]
async fn open(id: u32) -> Result<(), String> {
    Ok(())
}

#[step(key = "charge:id}")]
async fn closed(id: u32) -> Result<(), String> {
    Ok(())
}

#[workflow(concurrency = 1, concurrency_key = "customer:{customer}")]
async fn no_such_key(id: u32) -> Result<(), String> {
    Ok(())
}

fn main() {}
