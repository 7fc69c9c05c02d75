//! The code. It names nothing but the SDK's `__private` module, so that what users import cannot disturb it.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Attribute, Error};

use crate::validate::{
    Body, Parameter, Passed, Retry, Step, StepError, Then, Workflow, option_item, plain_name,
};

/// The errors, and the item as it was written: what calls it shall not be reported as well.
pub fn errors(errors: Error, item: &TokenStream) -> TokenStream {
    let errors = errors.into_compile_error();
    quote!(#errors #item)
}

/// The function stays as it is; beside it stands its registration.
pub fn workflow(workflow: Workflow) -> TokenStream {
    let Workflow {
        function,
        token,
        retain_ms,
        timeout_ms,
        timeout_grace_ms,
        hook,
        on,
        schedule,
        concurrency,
        webhook,
    } = workflow;
    let item = &function.item;
    let (name, description, output) = (&function.name, &function.description, &function.output);
    let cfgs = cfgs(&item.attrs);
    let body = body(&function, &item.sig.ident);
    let schema = input_schema(
        &function.parameters,
        |ty| quote_spanned!(ty.span()=> |generator| generator.subschema_for::<#ty>().into()),
    );
    let output_schema = output_schema(&quote!(<#output as ::onemark_sdk::WorkflowOutput>::Value));
    let token = option(token);
    let retain_ms = option(retain_ms);
    let timeout_ms = option(timeout_ms);
    let timeout_grace_ms = option(timeout_grace_ms);
    let on = option(on);
    let webhook = option(webhook.map(|webhook| {
        let (path, signature, secret_env) = (webhook.path, webhook.signature, webhook.secret_env);
        quote!(__onemark::Webhook { path: #path, signature: #signature, secret_env: #secret_env })
    }));
    let schedule = option(schedule.map(|schedule| {
        let cron = schedule.cron;
        let (time_zone, catch_up) = (option(schedule.time_zone), option(schedule.catch_up));
        quote!(__onemark::Schedule { cron: #cron, time_zone: #time_zone, catch_up: #catch_up })
    }));
    let concurrency = option(concurrency.map(|concurrency| {
        let (limit, key) = (concurrency.limit, option(concurrency.key));
        quote!(__onemark::Concurrency { limit: #limit, key: #key })
    }));
    let hook = option(hook.map(|ty| quote_spanned!(ty.span()=> __onemark::schema_of::<#ty>)));
    quote! {
        #item

        #(#cfgs)*
        const _: () = {
            use ::onemark_sdk::__private as __onemark;
            #body
            __onemark::inventory::submit! {
                __onemark::WorkflowDefinition {
                    name: #name,
                    description: #description,
                    input: || #schema,
                    output: || #output_schema,
                    token: #token,
                    retain_ms: #retain_ms,
                    timeout_ms: #timeout_ms,
                    timeout_grace_ms: #timeout_grace_ms,
                    hook: #hook,
                    on: #on,
                    schedule: #schedule,
                    webhook: #webhook,
                    concurrency: #concurrency,
                    run: |input| __onemark::run_workflow(__body(input)),
                }
            }
        };
    }
}

/// The function becomes one that makes a call. The body that was written moves into it.
pub fn step(step: Step) -> TokenStream {
    let Step {
        function,
        retries,
        timeout_ms,
        backoff,
        key,
        key_ttl_ms,
        at_most_once,
        on_unknown,
        on_exhausted,
    } = step;
    let mut written = function.item.clone();
    let (name, description, output) = (&function.name, &function.description, &function.output);
    let cfgs: Vec<_> = cfgs(&written.attrs).cloned().collect();
    let docs: Vec<_> = written
        .attrs
        .iter()
        .filter(|it| it.path().is_ident("doc"))
        .cloned()
        .collect();
    let visibility = std::mem::replace(&mut written.vis, syn::Visibility::Inherited);
    let ident = std::mem::replace(&mut written.sig.ident, format_ident!("__step"));
    written
        .attrs
        .retain(|it| !it.path().is_ident("doc") && !it.path().is_ident("cfg"));

    let body = body(&function, &written.sig.ident);
    let parameters = function
        .parameters
        .iter()
        .map(|Parameter { name, ty, .. }| quote!(#name: #ty));
    let arguments = function.parameters.iter().map(|Parameter { name, .. }| {
        let key = plain_name(name);
        quote_spanned!(name.span()=> .with(#key, &#name))
    });
    let schema = input_schema(
        &function.parameters,
        |ty| quote!(|generator| (&__onemark::Probe::<#ty>::new()).input(generator)),
    );
    let error_schema = output_schema(&quote!(<#output as ::onemark_sdk::StepOutput>::Error));
    let output_schema = output_schema(&quote!(<#output as ::onemark_sdk::StepOutput>::Value));
    let retries = option(retries);
    let timeout_ms = option(timeout_ms);
    let key = option(key.map(|key| quote!(__onemark::Cow::Borrowed(#key))));
    let key_ttl_ms = option(key_ttl_ms);
    let at_most_once = option(at_most_once.then_some(true));
    let (on_unknown, on_exhausted) = (option(on_unknown.map(then)), option(on_exhausted.map(then)));
    let backoff = option(backoff.map(|backoff| {
        let (initial_ms, factor, max_ms) = (
            option(backoff.initial_ms),
            option(backoff.factor),
            option(backoff.max_ms),
        );
        quote!(::onemark_sdk::Backoff { initial_ms: #initial_ms, factor: #factor, max_ms: #max_ms })
    }));
    quote! {
        #(#cfgs)*
        #(#docs)*
        #[allow(clippy::too_many_arguments, reason = "reported where the body is")]
        #visibility fn #ident(#(#parameters),*) -> ::onemark_sdk::StepCall<#output> {
            use ::onemark_sdk::__private as __onemark;
            #written
            #body
            __onemark::inventory::submit! {
                __onemark::StepDefinition {
                    name: #name,
                    description: #description,
                    input: || #schema,
                    output: || #output_schema,
                    error: || #error_schema,
                    options: __onemark::StepOptions {
                        retries: #retries,
                        backoff: #backoff,
                        timeout_ms: #timeout_ms,
                        key: #key,
                        key_ttl_ms: #key_ttl_ms,
                        at_most_once: #at_most_once,
                        on_unknown: #on_unknown,
                        on_exhausted: #on_exhausted,
                    },
                    run: |input| __onemark::run_step(__body(input)),
                }
            }
            __onemark::Input::new() #(#arguments)* .call(#name, __body)
        }
    }
}

/// `__body`: reads the input and makes the future of `function`.
fn body(function: &Body, callee: &Ident) -> TokenStream {
    let output = &function.output;
    let fields = function
        .parameters
        .iter()
        .map(|Parameter { name, owned, .. }| quote!(#name: #owned));
    let arguments = function
        .parameters
        .iter()
        .map(|Parameter { name, passed, .. }| match passed {
            Passed::Owned => quote!(__input.#name),
            Passed::Borrowed => quote!(&__input.#name),
            Passed::AsRef => quote!(__input.#name.as_ref()),
            Passed::AsDeref => quote!(__input.#name.as_deref()),
        });
    quote! {
        #[derive(__onemark::serde::Deserialize)]
        #[serde(crate = "::onemark_sdk::__private::serde", deny_unknown_fields)]
        struct __Input { #(#fields),* }

        fn __body(
            input: &str,
        ) -> ::core::result::Result<
            __onemark::LocalBoxFuture<'static, #output>,
            __onemark::JsonError,
        > {
            let __input: __Input = __onemark::parse(input)?;
            ::core::result::Result::Ok(::std::boxed::Box::pin(async move { #callee(#(#arguments),*).await }))
        }
    }
}

fn input_schema(parameters: &[Parameter], schema: impl Fn(&syn::Type) -> TokenStream) -> TokenStream {
    let properties = parameters.iter().map(|Parameter { name, owned, .. }| {
        let key = plain_name(name);
        let schema = schema(owned);
        match option_item(owned) {
            Some(_) => quote!(.optional(#key, #schema)),
            None => quote!(.required(#key, #schema)),
        }
    });
    quote! {{
        #[allow(unused_imports, reason = "which one is used depends on the parameter types")]
        use __onemark::{HasNoSchema as _, HasSchema as _};
        __onemark::InputSchema::new() #(#properties)* .finish()
    }}
}

fn output_schema(ty: &TokenStream) -> TokenStream {
    quote! {{
        #[allow(unused_imports, reason = "which one is used depends on the result type")]
        use __onemark::{HasNoSchema as _, HasSchema as _};
        (&__onemark::Probe::<#ty>::new()).output()
    }}
}

fn cfgs(attributes: &[Attribute]) -> impl Iterator<Item = &Attribute> {
    attributes
        .iter()
        .filter(|attribute| attribute.path().is_ident("cfg"))
}

fn then(then: Then) -> TokenStream {
    match then {
        Then::Block => quote!(__onemark::Then::Block),
        Then::Fail => quote!(__onemark::Then::Fail),
    }
}

fn option(value: Option<impl quote::ToTokens>) -> TokenStream {
    match value {
        Some(value) => quote!(::core::option::Option::Some(#value)),
        None => quote!(::core::option::Option::None),
    }
}

pub fn error(error: StepError) -> TokenStream {
    let StepError { name, cases } = error;
    let arms = cases.iter().map(|case| {
        let pattern = &case.pattern;
        let retry = match case.retry {
            Retry::Backoff => quote!(::onemark_sdk::Retry::Backoff),
            Retry::Never => quote!(::onemark_sdk::Retry::Never),
            Retry::Unknown => quote!(::onemark_sdk::Retry::Unknown),
            Retry::AfterMs(ms) => {
                quote!(::onemark_sdk::Retry::After(::core::time::Duration::from_millis(#ms)))
            }
            Retry::AfterField(span) => {
                let wait = Ident::new("wait", Span::mixed_site());
                quote_spanned!(span=> ::onemark_sdk::Retry::After(*#wait))
            }
        };
        quote!(#pattern => #retry)
    });
    quote! {
        #[automatically_derived]
        impl ::onemark_sdk::StepError for #name {
            fn retry(&self) -> ::onemark_sdk::Retry {
                match self { #(#arms),* }
            }

            fn message(&self) -> ::std::string::String {
                #[allow(unused_imports, reason = "which one is used depends on whether there is a Display")]
                use ::onemark_sdk::__private::{Displayed as _, Undisplayed as _};
                (&::onemark_sdk::__private::Message(self)).text()
            }
        }
    }
}
