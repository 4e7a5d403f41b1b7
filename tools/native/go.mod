// This module pins abi.h, Envoy's interface for dynamic modules, with which filter/native/build.sh
// compiles the native host. Envoy accepts this version of it since 1.38.
module github.com/weir-proxy/weir/tools/native

go 1.26.0

require github.com/envoyproxy/envoy/source/extensions/dynamic_modules v0.0.0-20260129014508-e8c1dc7dcbcd
