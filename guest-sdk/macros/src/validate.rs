//! What may be written. Mistakes are errors at the place where they are, all of them at once.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote};
use syn::spanned::Spanned;
use syn::{
    Attribute, Data, DeriveInput, Error, Expr, ExprLit, Fields, FnArg, GenericArgument, Ident, ItemFn, Lit,
    LitStr, Member, Meta, Pat, PathArguments, Result, ReturnType, Type, TypeReference, parse_quote,
};

use crate::literal;
use crate::parse::{Function, Setting, Value};

pub struct Workflow {
    pub function: Body,
    pub token: Option<LitStr>,
    pub retain_ms: Option<u64>,
    pub timeout_ms: Option<u64>,
    pub timeout_grace_ms: Option<u64>,
    pub hook: Option<Type>,
    pub on: Option<LitStr>,
    pub schedule: Option<Schedule>,
    pub webhook: Option<Webhook>,
    pub concurrency: Option<Concurrency>,
}

/// What another service calls to start a workflow.
pub struct Webhook {
    pub path: LitStr,
    pub signature: LitStr,
    pub secret_env: LitStr,
}

/// How many runs are at work at once, in all or for each value of the key.
pub struct Concurrency {
    pub limit: u32,
    pub key: Option<LitStr>,
}

/// When a workflow starts by itself; the host reads the expression and knows the time zones.
pub struct Schedule {
    pub cron: LitStr,
    pub time_zone: Option<LitStr>,
    pub catch_up: Option<LitStr>,
}

pub struct Step {
    pub function: Body,
    pub retries: Option<u32>,
    pub timeout_ms: Option<u64>,
    pub backoff: Option<Backoff>,
    pub key: Option<LitStr>,
    pub key_ttl_ms: Option<u64>,
    pub at_most_once: bool,
    pub on_unknown: Option<Then>,
    pub on_exhausted: Option<Then>,
}

/// What follows when no further attempt does.
#[derive(Clone, Copy)]
pub enum Then {
    Block,
    Fail,
}

#[derive(Default)]
pub struct Backoff {
    pub initial_ms: Option<u64>,
    pub factor: Option<f64>,
    pub max_ms: Option<u64>,
}

/// The function that becomes a workflow or a step.
pub struct Body {
    pub item: ItemFn,
    /// By which the host knows it.
    pub name: String,
    pub description: String,
    pub parameters: Vec<Parameter>,
    pub output: Type,
}

pub struct Parameter {
    pub name: Ident,
    /// As written.
    pub ty: Type,
    /// What the input is read into.
    pub owned: Type,
    pub passed: Passed,
}

/// How the function gets its argument from the owned value.
#[derive(Clone, Copy)]
pub enum Passed {
    Owned,
    Borrowed,
    /// `Option<&T>`
    AsRef,
    /// `Option<&str>`, `Option<&[T]>`
    AsDeref,
}

pub fn workflow(Function { options, item }: Function) -> Result<Workflow> {
    let mut errors = Errors::default();
    let mut found = Found::new(
        &mut errors,
        "workflow",
        options,
        &[
            "token",
            "retain",
            "hook",
            "timeout",
            "timeout_grace",
            "name",
            "on",
            "cron",
            "time_zone",
            "catch_up",
            "webhook",
            "concurrency",
            "concurrency_key",
        ],
    );
    let token = found.text(&mut errors, "token");
    let retain = found.take("retain");
    let hook = found.take("hook");
    let timeout = found.take("timeout");
    let grace = found.take("timeout_grace");
    let name = found.text(&mut errors, "name");
    let on = found.text(&mut errors, "on");
    let schedule = schedule(&mut errors, &mut found);
    let webhook = found.take("webhook").and_then(|it| webhook(&mut errors, it));
    let concurrency = concurrency(&mut errors, &mut found);
    if let Some(on) = &on {
        errors.keep(event_name(on));
    }
    if let (None, Some(grace)) = (&timeout, &grace) {
        let message = "`timeout_grace` counts from the timeout, so it needs `timeout`";
        errors.push(Error::new(grace.name.span(), message));
    }
    for dependent in [&retain, &hook].into_iter().flatten() {
        if token.is_none() {
            let message = format!(
                "`{}` says more about the token, so it needs `token`",
                dependent.name
            );
            errors.push(Error::new(dependent.name.span(), message));
        }
    }
    let retain_ms = retain.and_then(|retain| errors.keep(duration(&retain)));
    let timeout_ms = timeout.and_then(|timeout| errors.keep(duration(&timeout)));
    let timeout_grace_ms = grace.and_then(|grace| errors.keep(duration(&grace)));
    let hook = hook.and_then(|hook| errors.keep(payload_type(hook)));
    let function = body(&mut errors, "workflow", item, name.as_ref());
    if let (Some(token), Some(function)) = (&token, &function) {
        errors.keep(check_template(token, &function.parameters));
    }
    let concurrency_key = concurrency.as_ref().and_then(|it| it.key.as_ref());
    if let (Some(key), Some(function)) = (concurrency_key, &function) {
        errors.keep(check_template(key, &function.parameters));
    }
    if let (Some(schedule), Some(function)) = (&schedule, &function) {
        errors.keep(check_scheduled(schedule, &function.parameters));
    }
    errors.finish()?;
    let function = function.expect("without errors there is a body");
    Ok(Workflow {
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
    })
}

fn concurrency(errors: &mut Errors, found: &mut Found) -> Option<Concurrency> {
    let limit = found.take("concurrency");
    let key = found.text(errors, "concurrency_key");
    let Some(limit) = limit else {
        if let Some(key) = key {
            let message = "this says which runs are counted together, so it needs `concurrency`";
            errors.push(Error::new(key.span(), message));
        }
        return None;
    };
    let span = limit.name.span();
    let limit = errors.keep(count(&limit))?;
    if limit == 0 {
        let message = "with `concurrency = 0` no run would ever be at work; write 1 or more";
        errors.push(Error::new(span, message));
    }
    Some(Concurrency { limit, key })
}

fn schedule(errors: &mut Errors, found: &mut Found) -> Option<Schedule> {
    let cron = found.text(errors, "cron");
    let time_zone = found.text(errors, "time_zone");
    let catch_up = found.text(errors, "catch_up");
    if let Some(catch_up) = &catch_up
        && !["one", "skip", "all"].contains(&&*catch_up.value())
    {
        let message = "write `catch_up = \"one\"`, `\"skip\"` or `\"all\"`";
        errors.push(Error::new(catch_up.span(), message));
    }
    let Some(cron) = cron else {
        for dependent in [&time_zone, &catch_up].into_iter().flatten() {
            let message = "this says more about a schedule, so it needs `cron`";
            errors.push(Error::new(dependent.span(), message));
        }
        return None;
    };
    if cron.value().split_whitespace().count() != 5 && !cron.value().starts_with('@') {
        let message =
            "a cron expression has five fields, as in `\"0 9 * * 1-5\"`: minute, hour, day, month, weekday";
        errors.push(Error::new(cron.span(), message));
    }
    Some(Schedule {
        cron,
        time_zone,
        catch_up,
    })
}

fn webhook(errors: &mut Errors, option: Setting) -> Option<Webhook> {
    let span = option.name.span();
    let Value::Settings(options) = option.value else {
        let message =
            "write `webhook(path = \"shop/orders\", signature = \"github\", secret_env = \"SHOP_SECRET\")`";
        errors.push(Error::new(span, message));
        return None;
    };
    let mut found = Found::new(errors, "webhook", options, &["path", "signature", "secret_env"]);
    let mut needed = |name: &str| {
        let given = found.0.iter().any(|option| option.name == name);
        if !given {
            errors.push(Error::new(span, format!("a webhook needs `{name}`")));
        }
        found.text(errors, name)
    };
    let (path, signature, secret_env) = (needed("path"), needed("signature"), needed("secret_env"));
    if let Some(signature) = &signature
        && !["hmac", "github", "stripe"].contains(&&*signature.value())
    {
        let message = "write `signature = \"hmac\"`, `\"github\"` or `\"stripe\"`";
        errors.push(Error::new(signature.span(), message));
    }
    if let Some(path) = &path
        && path.value().split('/').any(str::is_empty)
    {
        let message = "the path stands after `/webhooks/`: write `\"shop/orders\"`, no slash at the ends";
        errors.push(Error::new(path.span(), message));
    }
    Some(Webhook {
        path: path?,
        signature: signature?,
        secret_env: secret_env?,
    })
}

/// There is nobody to give a scheduled workflow its input.
fn check_scheduled(schedule: &Schedule, parameters: &[Parameter]) -> Result<()> {
    for parameter in parameters {
        if parameter.name != "slot" && option_item(&parameter.ty).is_none() {
            let message = "a workflow with `cron` has no parameters but `slot`, the time that it is started for, and \
                           those of type `Option`";
            return Err(Error::new(schedule.cron.span(), message));
        }
    }
    Ok(())
}

/// As the host has it.
fn event_name(name: &LitStr) -> Result<()> {
    let text = name.value();
    if text.len() > 255 || text.chars().any(char::is_control) {
        let message = "the name of an event has at most 255 bytes and no control characters";
        return Err(Error::new(name.span(), message));
    }
    Ok(())
}

pub fn step(Function { options, item }: Function) -> Result<Step> {
    let mut errors = Errors::default();
    let names = [
        "retries",
        "timeout",
        "backoff",
        "key",
        "key_ttl",
        "at_most_once",
        "on_unknown",
        "on_exhausted",
        "name",
    ];
    let mut found = Found::new(&mut errors, "step", options, &names);
    let at_most_once = found.take("at_most_once");
    let retries = found.take("retries");
    let backoff = found.take("backoff");
    if at_most_once.is_some() {
        for meaningless in [&retries, &backoff].into_iter().flatten() {
            let message = "a step that runs at most once has no retries";
            errors.push(Error::new(meaningless.name.span(), message));
        }
    }
    let at_most_once = at_most_once.is_some_and(|it| errors.keep(flag(&it)).is_some());
    let retries = retries.and_then(|retries| errors.keep(count(&retries)));
    let timeout_ms = found
        .take("timeout")
        .and_then(|timeout| errors.keep(duration(&timeout)));
    let backoff = backoff.map(|it| self::backoff(&mut errors, it));
    let key = found.text(&mut errors, "key");
    let key_ttl_ms = found
        .take("key_ttl")
        .and_then(|length| errors.keep(duration(&length)));
    let on_unknown = found.take("on_unknown").and_then(|it| errors.keep(then(&it)));
    let on_exhausted = found.take("on_exhausted").and_then(|it| errors.keep(then(&it)));
    let name = found.text(&mut errors, "name");
    let function = body(&mut errors, "step", item, name.as_ref());
    if let (Some(key), Some(function)) = (&key, &function) {
        errors.keep(check_template(key, &function.parameters));
    }
    errors.finish()?;
    let function = function.expect("without errors there is a body");
    Ok(Step {
        function,
        retries,
        timeout_ms,
        backoff,
        key,
        key_ttl_ms,
        at_most_once,
        on_unknown,
        on_exhausted,
    })
}

/// Options by name, each at most once.
struct Found(Vec<Setting>);

impl Found {
    fn new(errors: &mut Errors, what: &str, options: Vec<Setting>, names: &[&str]) -> Self {
        let mut found: Vec<Setting> = Vec::new();
        for option in options {
            let name = option.name.to_string();
            if found.iter().any(|other| other.name == name) {
                errors.push(Error::new(option.name.span(), format!("`{name}` is given twice")));
            } else if names.contains(&&*name) {
                found.push(option);
            } else {
                errors.push(Error::new(option.name.span(), unknown_option(what, &name, names)));
            }
        }
        Self(found)
    }

    fn take(&mut self, name: &str) -> Option<Setting> {
        let index = self.0.iter().position(|option| option.name == name)?;
        Some(self.0.swap_remove(index))
    }

    fn text(&mut self, errors: &mut Errors, name: &str) -> Option<LitStr> {
        let option = self.take(name)?;
        let text = errors.keep(text(&option))?;
        if text.value().is_empty() {
            errors.push(Error::new(text.span(), format!("an empty `{name}`")));
        }
        Some(text)
    }
}

fn unknown_option(what: &str, name: &str, names: &[&str]) -> String {
    let names: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
    let names = names.join(", ");
    format!("a {what} has no option `{name}`; it has {names}")
}

fn text(option: &Setting) -> Result<LitStr> {
    match &option.value {
        Value::Literal(Lit::Str(text)) => Ok(text.clone()),
        _ => Err(wrong_value(option, "= \"…\"")),
    }
}

fn duration(option: &Setting) -> Result<u64> {
    match &option.value {
        Value::Literal(Lit::Str(text)) => literal::duration(text),
        _ => Err(wrong_value(option, "= \"500ms\"")),
    }
}

fn count(option: &Setting) -> Result<u32> {
    match &option.value {
        Value::Literal(Lit::Int(number)) => number.base10_parse().map_err(|_| wrong_value(option, "= 3")),
        _ => Err(wrong_value(option, "= 3")),
    }
}

fn factor(option: &Setting) -> Result<f64> {
    let factor = match &option.value {
        Value::Literal(Lit::Int(number)) => number.base10_parse(),
        Value::Literal(Lit::Float(number)) => number.base10_parse(),
        _ => return Err(wrong_value(option, "= 2.0")),
    }?;
    if !(1.0..=f64::MAX).contains(&factor) {
        return Err(wrong_value(option, "= 2.0, at least 1"));
    }
    Ok(factor)
}

fn flag(option: &Setting) -> Result<()> {
    match &option.value {
        Value::None => Ok(()),
        _ => {
            let message = format!("write `{}` alone", option.name);
            Err(Error::new(option.name.span(), message))
        }
    }
}

fn then(option: &Setting) -> Result<Then> {
    match &option.value {
        Value::Literal(Lit::Str(text)) if text.value() == "block" => Ok(Then::Block),
        Value::Literal(Lit::Str(text)) if text.value() == "fail" => Ok(Then::Fail),
        _ => Err(wrong_value(option, "= \"block\"` or `= \"fail\"")),
    }
}

fn payload_type(option: Setting) -> Result<Type> {
    match option.value {
        Value::Type(ty) => Ok(*ty),
        _ => Err(wrong_value(&option, "= PayloadType")),
    }
}

fn wrong_value(option: &Setting, example: &str) -> Error {
    let message = format!("write `{} {example}`", option.name);
    match &option.value {
        Value::Literal(literal) => Error::new_spanned(literal, message),
        Value::Type(ty) => Error::new_spanned(ty, message),
        Value::None | Value::Settings(_) => Error::new_spanned(&option.name, message),
    }
}

fn backoff(errors: &mut Errors, option: Setting) -> Backoff {
    let Value::Settings(options) = option.value else {
        let initial_ms = errors.keep(duration(&option));
        return Backoff {
            initial_ms,
            ..Backoff::default()
        };
    };
    let mut found = Found::new(errors, "backoff", options, &["initial", "factor", "max"]);
    Backoff {
        initial_ms: found
            .take("initial")
            .and_then(|initial| errors.keep(duration(&initial))),
        factor: found.take("factor").and_then(|it| errors.keep(factor(&it))),
        max_ms: found.take("max").and_then(|max| errors.keep(duration(&max))),
    }
}

fn check_template(template: &LitStr, parameters: &[Parameter]) -> Result<()> {
    for name in literal::template_parameters(template)? {
        if !parameters.iter().any(|parameter| parameter.name == name) {
            let message = format!("the function has no parameter `{name}`");
            return Err(Error::new(template.span(), message));
        }
    }
    Ok(())
}

fn body(errors: &mut Errors, what: &str, item: ItemFn, name: Option<&LitStr>) -> Option<Body> {
    let signature = &item.sig;
    if signature.asyncness.is_none() {
        errors.push(Error::new(
            signature.fn_token.span,
            format!("a {what} is an `async fn`"),
        ));
    }
    if let Some(generic) = signature.generics.params.first() {
        errors.push(Error::new_spanned(
            generic,
            format!(
                "a {what} has no generic parameters: the host calls it with JSON, so its types are fixed"
            ),
        ));
    }
    if let Some(clause) = &signature.generics.where_clause {
        errors.push(Error::new_spanned(
            clause,
            format!("a {what} has no `where` clause"),
        ));
    }
    for qualifier in [
        signature.constness.map(|it| it.span()),
        signature.unsafety.map(|it| it.span()),
        signature.abi.as_ref().map(Spanned::span),
        signature.variadic.as_ref().map(Spanned::span),
    ]
    .into_iter()
    .flatten()
    {
        errors.push(Error::new(qualifier, format!("a {what} is a plain `async fn`")));
    }
    let output = match &signature.output {
        ReturnType::Type(_, output) => Some((**output).clone()),
        ReturnType::Default => {
            let result = if what == "step" {
                "Result<T, E>"
            } else {
                "WorkflowResult<T>"
            };
            errors.push(Error::new(
                signature.ident.span(),
                format!("a {what} returns `{result}`"),
            ));
            None
        }
    };
    let parameters: Vec<_> = signature
        .inputs
        .iter()
        .filter_map(|input| errors.keep(parameter(what, input)))
        .collect();
    let name = name.map_or_else(|| plain_name(&signature.ident), LitStr::value);
    let description = description(&item.attrs);
    Some(Body {
        name,
        description,
        parameters,
        output: output?,
        item,
    })
}

/// An identifier without its `r#`.
pub fn plain_name(ident: &Ident) -> String {
    let name = ident.to_string();
    name.strip_prefix("r#").map_or(name.clone(), str::to_owned)
}

fn parameter(what: &str, input: &FnArg) -> Result<Parameter> {
    let input = match input {
        FnArg::Typed(input) => input,
        FnArg::Receiver(receiver) => {
            let message =
                format!("a {what} is a free function: hand what it needs of `self` over as arguments");
            return Err(Error::new_spanned(receiver, message));
        }
    };
    let name = match &*input.pat {
        Pat::Ident(pattern) if pattern.by_ref.is_none() && pattern.subpat.is_none() => pattern.ident.clone(),
        pattern => {
            let message = format!("a parameter of a {what} is a plain name: it is the key in the input");
            return Err(Error::new_spanned(pattern, message));
        }
    };
    let (owned, passed) = owned(&input.ty)?;
    Ok(Parameter {
        name,
        ty: (*input.ty).clone(),
        owned,
        passed,
    })
}

/// The type that a parameter is read into.
fn owned(ty: &Type) -> Result<(Type, Passed)> {
    if let Type::Reference(reference) = ty {
        return Ok((referent(reference)?, Passed::Borrowed));
    }
    if let Some(Type::Reference(reference)) = option_item(ty) {
        let owned = referent(reference)?;
        let unsized_ = matches!(&*reference.elem, Type::Slice(_)) || is_str(&reference.elem);
        let passed = if unsized_ { Passed::AsDeref } else { Passed::AsRef };
        return Ok((parse_quote!(::core::option::Option<#owned>), passed));
    }
    fixed(ty)?;
    Ok((ty.clone(), Passed::Owned))
}

fn referent(reference: &TypeReference) -> Result<Type> {
    if let Some(mutable) = &reference.mutability {
        return Err(Error::new_spanned(
            mutable,
            "arguments are copied into the step, so a change would be lost: return the new value instead",
        ));
    }
    if let Some(lifetime) = &reference.lifetime {
        return Err(Error::new_spanned(
            lifetime,
            "arguments are borrowed for the call only: leave the lifetime out",
        ));
    }
    match &*reference.elem {
        elem if is_str(elem) => Ok(parse_quote!(::std::string::String)),
        Type::Slice(slice) => {
            fixed(&slice.elem)?;
            let elem = &slice.elem;
            Ok(parse_quote!(::std::vec::Vec<#elem>))
        }
        elem => {
            fixed(elem)?;
            Ok(elem.clone())
        }
    }
}

/// Refuses types that nothing can be read into.
fn fixed(ty: &Type) -> Result<()> {
    match ty {
        Type::Reference(_) => Err(Error::new_spanned(
            ty,
            "a reference inside another type: take the owned type (`&[String]`, not `&[&str]`)",
        )),
        Type::ImplTrait(_) | Type::TraitObject(_) => Err(Error::new_spanned(
            ty,
            "the host calls this with JSON, so its types are fixed: name one",
        )),
        Type::Path(path) => path
            .path
            .segments
            .iter()
            .try_for_each(|segment| match &segment.arguments {
                PathArguments::AngleBracketed(arguments) => {
                    arguments.args.iter().try_for_each(|argument| match argument {
                        GenericArgument::Type(ty) => fixed(ty),
                        _ => Ok(()),
                    })
                }
                _ => Ok(()),
            }),
        Type::Tuple(tuple) => tuple.elems.iter().try_for_each(fixed),
        Type::Array(array) => fixed(&array.elem),
        Type::Slice(slice) => fixed(&slice.elem),
        Type::Paren(inner) => fixed(&inner.elem),
        Type::Group(inner) => fixed(&inner.elem),
        _ => Ok(()),
    }
}

fn is_str(ty: &Type) -> bool {
    matches!(ty, Type::Path(path) if path.path.is_ident("str"))
}

/// The `T` of a type written `Option<T>`.
pub fn option_item(ty: &Type) -> Option<&Type> {
    let Type::Path(path) = ty else { return None };
    let last = path
        .path
        .segments
        .last()
        .filter(|segment| segment.ident == "Option")?;
    match &last.arguments {
        PathArguments::AngleBracketed(arguments) => match arguments.args.first()? {
            GenericArgument::Type(ty) => Some(ty),
            _ => None,
        },
        _ => None,
    }
}

/// The text of the doc comment.
fn description(attributes: &[Attribute]) -> String {
    let lines: Vec<_> = attributes
        .iter()
        .filter_map(|attribute| match &attribute.meta {
            Meta::NameValue(doc) if doc.path.is_ident("doc") => match &doc.value {
                Expr::Lit(ExprLit {
                    lit: Lit::Str(line), ..
                }) => Some(line.value().trim().to_owned()),
                _ => None,
            },
            _ => None,
        })
        .collect();
    lines.join("\n").trim().to_owned()
}

/// An error type, and what each of its cases says about retries.
pub struct StepError {
    pub name: Ident,
    pub cases: Vec<Case>,
}

pub struct Case {
    /// Matches this case, and binds the field that `Retry::AfterField` reads.
    pub pattern: TokenStream,
    pub retry: Retry,
}

pub enum Retry {
    Backoff,
    Never,
    Unknown,
    AfterMs(u64),
    /// `#[retry_after(field)]`; the pattern binds it to `wait`.
    AfterField(Span),
}

pub fn error(item: DeriveInput) -> Result<StepError> {
    let mut errors = Errors::default();
    if let Some(generic) = item.generics.params.first() {
        errors.push(Error::new_spanned(
            generic,
            "the error of a step has no generic parameters",
        ));
    }
    let cases = match &item.data {
        Data::Struct(data) => errors
            .keep(case(&quote!(Self), &data.fields, &item.attrs))
            .into_iter()
            .collect(),
        Data::Enum(data) => {
            if let Some(attribute) = item.attrs.iter().find(|attribute| is_retry_attribute(attribute)) {
                let message = "this says what to do after one variant: put it on the variant";
                errors.push(Error::new_spanned(attribute, message));
            }
            data.variants
                .iter()
                .filter_map(|variant| {
                    let name = &variant.ident;
                    errors.keep(case(&quote!(Self::#name), &variant.fields, &variant.attrs))
                })
                .collect()
        }
        Data::Union(data) => {
            errors.push(Error::new(
                data.union_token.span,
                "the error of a step is an enum or a struct",
            ));
            Vec::new()
        }
    };
    errors.finish()?;
    Ok(StepError {
        name: item.ident,
        cases,
    })
}

fn is_retry_attribute(attribute: &Attribute) -> bool {
    ["retry", "retry_after", "fatal", "unknown"]
        .iter()
        .any(|name| attribute.path().is_ident(name))
}

fn case(path: &TokenStream, fields: &Fields, attributes: &[Attribute]) -> Result<Case> {
    let mut attributes = attributes
        .iter()
        .filter(|attribute| is_retry_attribute(attribute));
    let attribute = attributes.next();
    if let Some(second) = attributes.next() {
        return Err(Error::new_spanned(
            second,
            "one of `retry`, `retry_after`, `fatal` and `unknown`, once",
        ));
    }
    let Some(attribute) = attribute else {
        return Ok(Case {
            pattern: quote!(#path { .. }),
            retry: Retry::Backoff,
        });
    };
    if !attribute.path().is_ident("retry_after") {
        attribute.meta.require_path_only()?;
        let retry = match attribute.path() {
            path if path.is_ident("fatal") => Retry::Never,
            path if path.is_ident("unknown") => Retry::Unknown,
            _ => Retry::Backoff,
        };
        return Ok(Case {
            pattern: quote!(#path { .. }),
            retry,
        });
    }
    let usage = "write `#[retry_after(\"30s\")]`, or `#[retry_after(field)]` with a field of type `Duration`";
    let list = attribute
        .meta
        .require_list()
        .map_err(|_| Error::new_spanned(attribute, usage))?;
    if let Ok(text) = list.parse_args::<LitStr>() {
        let retry = Retry::AfterMs(literal::duration(&text)?);
        return Ok(Case {
            pattern: quote!(#path { .. }),
            retry,
        });
    }
    let field: Member = list
        .parse_args()
        .map_err(|error| Error::new(error.span(), usage))?;
    if !fields.members().any(|member| member == field) {
        let message = format!("there is no field `{}`", field.to_token_stream());
        return Err(Error::new_spanned(&field, message));
    }
    let wait = Ident::new("wait", Span::mixed_site());
    Ok(Case {
        pattern: quote!(#path { #field: #wait, .. }),
        retry: Retry::AfterField(field.span()),
    })
}

/// Collects errors, so that one compilation shows them all.
#[derive(Default)]
struct Errors(Option<Error>);

impl Errors {
    fn push(&mut self, error: Error) {
        match &mut self.0 {
            Some(errors) => errors.combine(error),
            none => *none = Some(error),
        }
    }

    fn keep<T>(&mut self, result: Result<T>) -> Option<T> {
        result.map_err(|error| self.push(error)).ok()
    }

    fn finish(self) -> Result<()> {
        self.0.map_or(Ok(()), Err)
    }
}
