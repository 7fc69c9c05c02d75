//! `wasi:http`: what leaves a step, checked against the operator's grants.

use std::sync::Arc;

use http_body_util::BodyExt;
use wasmtime_wasi_http::{Error, RequestOptions, WasiBody, WasiHttpHooks, default_send_request};

use crate::sandbox::grants::HttpGrant;

/// The way out of one instance. By default it leads nowhere.
#[derive(Debug, Clone, Default)]
pub struct HttpEgress {
    pub grants: Arc<[HttpGrant]>,
}

type Transfer = Box<dyn Future<Output = Result<(), Error>> + Send>;

impl HttpEgress {
    fn check(&self, request: &http::Request<WasiBody>) -> Result<(), Error> {
        let uri = request.uri();
        let Some(host) = uri.host() else {
            return Err(Error::HttpRequestUriInvalid);
        };
        let default = if uri.scheme_str() == Some("http") { 80 } else { 443 };
        let port = uri.port_u16().unwrap_or(default);
        if self.grants.iter().any(|grant| grant.covers(host, port)) {
            return Ok(());
        }
        let text = format!(
            "no grant for {host}:{port}; the operator can give it with `serve --allow-http {host}:{port}`"
        );
        Err(Error::InternalError(Some(text)))
    }
}

impl WasiHttpHooks for HttpEgress {
    fn send_request(
        &mut self,
        request: http::Request<WasiBody>,
        options: Option<RequestOptions>,
        _processed: Transfer,
    ) -> Box<dyn Future<Output = Result<(http::Response<WasiBody>, Transfer), Error>> + Send> {
        let checked = self.check(&request);
        Box::new(async move {
            checked?;
            let (response, transfer) = default_send_request(request, options).await?;
            Ok((
                response.map(BodyExt::boxed_unsync),
                Box::new(transfer) as Transfer,
            ))
        })
    }
}
