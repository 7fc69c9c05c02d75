//! The only place that generates bindings from `wit/`.

wasmtime::component::bindgen!({
    path: "../wit",
    world: "workflow",
    imports: {
        "onemark:workflow/promises.wait": async | trappable,
        "onemark:workflow/hooks.[static]hook.open": async | trappable,
        "onemark:workflow/streams.write": async | trappable,
        "onemark:workflow/events.emit-from-step": async | trappable,
        "onemark:workflow/blobs.[static]writer.create": async | trappable,
        "onemark:workflow/blobs.[method]writer.write": async | trappable,
        "onemark:workflow/blobs.[method]writer.finish": async | trappable,
        "onemark:workflow/blobs.[static]reader.open": async | trappable,
        "onemark:workflow/blobs.[method]reader.read": async | trappable,
        default: trappable,
    },
    exports: { default: async },
    with: {
        "onemark:workflow/promises.promise": super::guest::PromiseHandle,
        "onemark:workflow/children.child": super::guest::ChildHandle,
        "onemark:workflow/hooks.hook": super::guest::OpenHook,
        "onemark:workflow/blobs.writer": super::guest::OpenWriter,
        "onemark:workflow/blobs.reader": super::guest::OpenReader,
    },
});
