package main

// A tiny assembler: enough of the binary format to write modules down in tests.

func vec(items ...[]byte) []byte {
	out := appendUint32(nil, uint32(len(items)))
	for _, i := range items {
		out = append(out, i...)
	}
	return out
}

func str(s string) []byte { return append(appendUint32(nil, uint32(len(s))), s...) }

func join(parts ...[]byte) []byte {
	var out []byte
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}

func sec(id byte, body []byte) []byte {
	return join([]byte{id}, appendUint32(nil, uint32(len(body))), body)
}

// funcImport imports a function of type 0.
func funcImport(module, name string) []byte { return join(str(module), str(name), []byte{0, 0}) }

// funcExport exports the function with the given index.
func funcExport(name string, index uint32) []byte {
	return join(str(name), []byte{0}, appendUint32(nil, index))
}

func memoryExport() []byte { return join(str("memory"), []byte{2, 0}) }

// assemble makes a module of one function type, the imports, one function, one memory, the exports
// and a body. It is a valid module as long as every exported index is the index of the one
// function.
func assemble(imports, exports [][]byte) []byte {
	return join(header,
		sec(1, vec([]byte{0x60, 0, 0})),
		sec(sectionImport, vec(imports...)),
		sec(3, vec([]byte{0})),
		sec(5, vec([]byte{0, 1})),
		sec(sectionExport, vec(exports...)),
		sec(10, vec([]byte{2, 0, 0x0b})),
	)
}

// goodImports and goodExports make the smallest module that passes.
func goodImports() [][]byte {
	return [][]byte{funcImport("env", "proxy_log"), funcImport("wasi_snapshot_preview1", "clock_time_get")}
}

func goodExports() [][]byte {
	return [][]byte{memoryExport(), funcExport("_initialize", 2), funcExport("proxy_abi_version_0_2_0", 2)}
}
