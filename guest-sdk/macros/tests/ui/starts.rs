//! What starts a workflow beside a request: events, schedules, webhooks.
#![allow(unused)]

use onemark_macros::workflow;

#[workflow(on)]
async fn on_nothing(event: u8) -> Result<(), String> {
    Ok(())
}

#[workflow(on = "")]
async fn on_no_name(event: u8) -> Result<(), String> {
    Ok(())
}

#[workflow(cron = "0 9 * *", time_zone = 1, catch_up = "some")]
async fn wrong_schedule(slot: String) -> Result<(), String> {
    Ok(())
}

#[workflow(time_zone = "Europe/Berlin", catch_up = "all")]
async fn no_schedule() -> Result<(), String> {
    Ok(())
}

#[workflow(webhook = "shop/orders")]
async fn unsigned(event: u8) -> Result<(), String> {
    Ok(())
}

#[workflow(webhook(path = "/shop//orders", signature = "md5"))]
async fn badly_signed(event: u8) -> Result<(), String> {
    Ok(())
}

#[workflow(webhook(path = "shop", signature = "hmac", secret_env = "S", secret = "s3cret"))]
async fn secret_in_the_source(event: u8) -> Result<(), String> {
    Ok(())
}

fn main() {}
