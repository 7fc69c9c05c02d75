//! What workflow code must not do, each with an error that says what to use instead.

use onemark_sdk::prelude::*;

#[workflow]
async fn forbidden(what: String) -> WorkflowResult<String> {
    Ok(match what.as_str() {
        "socket" => format!("{:?}", std::net::TcpStream::connect("127.0.0.1:1").err()),
        "file" => format!("{:?}", std::fs::read("/etc/hostname").err()),
        "lookup" => format!(
            "{:?}",
            std::net::ToSocketAddrs::to_socket_addrs("localhost:1").err()
        ),
        "udp" => format!("{:?}", std::net::UdpSocket::bind("127.0.0.1:0").err()),
        "env" => format!("{:?}", std::env::vars().count()),
        "thread_sleep" => {
            std::thread::sleep(Duration::from_millis(1));
            "slept".into()
        }
        "exit" => std::process::exit(0),
        "http" => {
            let sent = wstd::runtime::block_on(async {
                let request = wstd::http::Request::get("http://127.0.0.1:1/").body(wstd::http::Body::empty());
                wstd::http::Client::new()
                    .send(request.map_err(|e| e.to_string())?)
                    .await
                    .map_err(|e| e.to_string())?;
                Ok::<_, String>(())
            });
            format!("{sent:?}")
        }
        other => format!("unknown {other}"),
    })
}

#[step(retries = 0)]
async fn asks_outside(what: String) -> Result<String, StepFailed> {
    match what.as_str() {
        "sleep" => match sleep(Duration::from_millis(1)).await {
            Ok(()) => Ok("slept".into()),
            Err(error) => Ok(error.to_string()),
        },
        "hook" => match Hook::<u64>::open("of-a-step") {
            Ok(_) => Ok("opened".into()),
            Err(error) => Ok(error.to_string()),
        },
        "socket" => Ok(std::net::TcpStream::connect("127.0.0.1:1").is_err().to_string()),
        "env" => Ok(std::env::vars().count().to_string()),
        "file" => Ok(std::fs::read("/etc/hostname").is_err().to_string()),
        "step" => Ok(plain().await?),
        other => Ok(other.to_owned()),
    }
}

#[step]
async fn plain() -> Result<String, StepFailed> {
    Ok("a plain call".into())
}

/// What a step may not do, and that a step called in a step is a plain call.
#[workflow]
async fn forbidden_in_step(what: String) -> WorkflowResult<String> {
    Ok(asks_outside(what).await?)
}

#[step(retries = 0)]
async fn durable_inside(what: String) -> Result<String, StepFailed> {
    let failure = match what.as_str() {
        "sleep" => sleep(Duration::from_millis(1)).await.err(),
        _ => sleep_until(std::time::SystemTime::UNIX_EPOCH).await.err(),
    };
    Ok(failure.map_or("none".into(), |failure| {
        format!("{}: {}", failure.kind, failure.message)
    }))
}

/// What a durable call inside a step comes to.
#[workflow]
async fn not_in_step(what: String) -> WorkflowResult<String> {
    Ok(durable_inside(what).await?)
}
