package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func problemsOf(t *testing.T, file []byte) string {
	t.Helper()
	m, err := decodeModule(file)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(m.checkModule(), "\n")
}

func TestASoundModulePasses(t *testing.T) {
	if got := problemsOf(t, assemble(goodImports(), goodExports())); got != "" {
		t.Errorf("refused: %s", got)
	}
	ownMalloc := append(goodExports(), funcExport("malloc", 2))
	if got := problemsOf(t, assemble(goodImports(), ownMalloc)); got != "" {
		t.Errorf("an own malloc is refused: %s", got)
	}
}

func TestEachRefusalSaysWhatAndWhatToDo(t *testing.T) {
	tests := map[string]struct {
		imports, exports [][]byte
		want             []string
	}{
		"_start":           {goodImports(), append(goodExports(), funcExport("_start", 2)), []string{`exports "_start"`, "-buildmode=c-shared"}},
		"free":             {goodImports(), append(goodExports(), funcExport("free", 2)), []string{`exports "free"`, "-tags=custommalloc"}},
		"calloc":           {goodImports(), append(goodExports(), funcExport("calloc", 2)), []string{`exports "calloc"`, "-tags=custommalloc"}},
		"realloc":          {goodImports(), append(goodExports(), funcExport("realloc", 2)), []string{`exports "realloc"`, "-tags=custommalloc"}},
		"no _initialize":   {goodImports(), goodExports()[2:], []string{`does not export "_initialize"`, "-buildmode=c-shared"}},
		"no ABI version":   {goodImports(), goodExports()[:2], []string{`does not export "proxy_abi_version_0_2_0"`, "SDK"}},
		"empty module":     {nil, nil, []string{`"_initialize"`, `"proxy_abi_version_0_2_0"`}},
		"unknown hostcall": {[][]byte{funcImport("env", "proxy_enqueue_shared_queue")}, goodExports(), []string{`"env.proxy_enqueue_shared_queue"`, "allow-list"}},
		"file system":      {[][]byte{funcImport("wasi_snapshot_preview1", "path_open")}, goodExports(), []string{`"wasi_snapshot_preview1.path_open"`}},
		"unknown module":   {[][]byte{funcImport("gojs", "proxy_log")}, goodExports(), []string{`"gojs.proxy_log"`}},
		"imported memory":  {[][]byte{join(str("env"), str("proxy_log"), []byte{2, 0, 1})}, goodExports(), []string{`memory "env.proxy_log"`}},
		"imported table":   {[][]byte{join(str("env"), str("t"), []byte{1, 0x70, 1, 1, 2})}, goodExports(), []string{`table "env.t"`}},
		"imported global":  {[][]byte{join(str("env"), str("g"), []byte{3, 0x7f, 0})}, goodExports(), []string{`global "env.g"`}},
		"imported tag":     {[][]byte{join(str("env"), str("e"), []byte{4, 0, 0})}, goodExports(), []string{`tag "env.e"`}},
		"64-bit memory":    {[][]byte{join(str("env"), str("m"), []byte{2, 4, 0x80, 0x80, 0x80, 0x80, 0x80, 1})}, goodExports(), []string{`memory "env.m"`}},
		"several at a time": {[][]byte{funcImport("a", "b")}, [][]byte{funcExport("_start", 1)},
			[]string{"_start", "_initialize", "proxy_abi_version_0_2_0", "a.b"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := problemsOf(t, assemble(tt.imports, tt.exports))
			for _, want := range tt.want {
				if !strings.Contains(got, want) {
					t.Errorf("refusal lacks %q:\n%s", want, got)
				}
			}
		})
	}
}

func TestSizeBudget(t *testing.T) {
	good := assemble(goodImports(), goodExports())
	// A custom section of three bytes of header, a name and padding brings the module exactly to
	// the budget.
	pad := func(total int) []byte {
		body := total - len(good) - 4
		return join(good, sec(sectionCustom, append(str("pad"), make([]byte, body-4)...)))
	}
	exact := pad(maxSize)
	if len(exact) != maxSize {
		t.Fatalf("the test pads to %d bytes, not to %d", len(exact), maxSize)
	}
	if got := problemsOf(t, exact); got != "" {
		t.Errorf("exactly the budget is refused: %s", got)
	}
	if got := problemsOf(t, pad(maxSize+1)); !strings.Contains(got, "1048577 bytes, over the budget of 1048576") {
		t.Errorf("one byte over the budget: %q", got)
	}
}

func TestStripKeepsWhatTheFilterNeedsInOrder(t *testing.T) {
	exports := append(goodExports(),
		funcExport("proxy_on_request_body", 2), funcExport("proxy_on_tick", 2), funcExport("fminimum",
			2), funcExport("malloc", 2))
	m, err := decodeModule(assemble(goodImports(), exports))
	if err != nil {
		t.Fatal(err)
	}
	stripped := m.stripExports()
	want := assemble(goodImports(), append(goodExports(), funcExport("proxy_on_tick", 2), funcExport("malloc", 2)))
	if !bytes.Equal(stripped, want) {
		t.Errorf("stripped to\n%x, want\n%x", stripped, want)
	}
	again, err := decodeModule(stripped)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(again.stripExports(), stripped) {
		t.Error("stripping twice changes the module")
	}
}

func TestOwnCallbacksTakeThePlaceOfTheSDKs(t *testing.T) {
	m, err := decodeModule(assemble(goodImports(), append(goodExports(),
		funcExport("proxy_on_delete", 2), funcExport("weir_on_request_headers", 2), funcExport("weir_on_delete",
			2), funcExport("weir_on_log", 2))))
	if err != nil {
		t.Fatal(err)
	}
	want := assemble(goodImports(),
		append(goodExports(), funcExport("proxy_on_request_headers", 2), funcExport("proxy_on_delete", 2),
			funcExport("proxy_on_log", 2)))
	if got := m.stripExports(); !bytes.Equal(got, want) {
		t.Errorf("stripped to\n%x, want\n%x", got, want)
	}
}

func TestStripRefusesWhatItWouldHide(t *testing.T) {
	dir := t.TempDir()
	in, out := filepath.Join(dir, "in.wasm"), filepath.Join(dir, "out.wasm")
	write(t, in, assemble(goodImports(), append(goodExports(), funcExport("malloc", 2), funcExport("free", 2))))
	err := run([]string{"strip", "-o", out, in}, &bytes.Buffer{})
	if err == nil || !strings.Contains(err.Error(), "custommalloc") {
		t.Errorf("strip of a module with TinyGo's allocator: %v", err)
	}
	if _, err := os.Stat(out); err == nil {
		t.Error("a refused module was written")
	}
}

func TestCommandLine(t *testing.T) {
	dir := t.TempDir()
	in, out := filepath.Join(dir, "in.wasm"), filepath.Join(dir, "out.wasm")
	write(t, in, assemble(goodImports(), append(goodExports(), funcExport("proxy_on_request_body", 2))))
	var said bytes.Buffer
	if err := run([]string{"strip", "-o", out, in}, &said); err != nil {
		t.Fatal(err)
	}
	if err := run([]string{"check", out}, &said); err != nil {
		t.Fatal(err)
	}
	want := out + `: 140 bytes (0% of the budget), 3 exports, 2 imports
  exports: memory _initialize proxy_abi_version_0_2_0
  imports: proxy_log clock_time_get
`
	if said.String() != want {
		t.Errorf("said:\n%s\nwant:\n%s", said.String(), want)
	}
	for _, args := range [][]string{{}, {"check"}, {"strip", in}, {"check", "-o", out, in}, {"look", in},
		{"check", "-x", in}, {"check", in, in}} {
		if err := run(args, &said); err == nil || !strings.HasPrefix(err.Error(), "usage:") {
			t.Errorf("run(%q) = %v, want the usage", args, err)
		}
	}
	if err := run([]string{"check", filepath.Join(dir, "absent")}, &said); err == nil {
		t.Error("an absent file passes")
	}
}

func write(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestBrokenModulesAreRefusedNotTrusted(t *testing.T) {
	export := func(body []byte) []byte { return join(header, sec(sectionExport, body)) }
	tests := map[string]struct {
		file []byte
		want string
	}{
		"empty file":              {nil, "first 8 bytes"},
		"component, not module":   {[]byte{0, 'a', 's', 'm', 0x0d, 0, 1, 0}, "first 8 bytes"},
		"section id alone":        {join(header, []byte{7}), "1 bytes wanted, 0 left"},
		"section too long":        {join(header, []byte{7, 9, 0}), "9 bytes wanted, 1 left"},
		"length without end":      {join(header, []byte{7, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80}), "longer than 32 bits"},
		"length with 33 bits":     {join(header, []byte{7, 0xff, 0xff, 0xff, 0xff, 0x1f}), "longer than 32 bits"},
		"two export sections":     {join(export(vec()), sec(sectionExport, vec())), "a second section with id 7"},
		"more entries than bytes": {export([]byte{5}), "bytes wanted, 0 left"},
		"absurdly many entries":   {export([]byte{0xff, 0xff, 0xff, 0xff, 0x0f}), "at most 10000"},
		"bytes left over":         {export([]byte{0, 1}), "1 bytes are left over"},
		"unknown kind":            {export(vec(join(str("x"), []byte{5, 0}))), "unknown kind 5"},
		"name not UTF-8":          {export(vec(join([]byte{1, 0xff}, []byte{0, 0}))), "not UTF-8"},
		"unknown limits": {join(header, sec(sectionImport, vec(join(str("e"), str("m"), []byte{2, 8, 0})))),
			"unknown flags 0x8"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := decodeModule(tt.file); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("decode = %v, want an error with %q", err, tt.want)
			}
		})
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(assemble(goodImports(), goodExports()))
	f.Add(assemble(nil, append(goodExports(), funcExport("free", 2))))
	f.Add(join(header, sec(sectionImport, vec(join(str("e"), str("m"), []byte{2, 4, 0x80, 1})))))
	f.Add(join(header, []byte{7, 0xff, 0xff, 0xff, 0xff, 0x0f}))
	f.Fuzz(func(t *testing.T, file []byte) {
		m, err := decodeModule(file)
		if err != nil {
			return
		}
		m.checkModule()
		stripped := m.stripExports()
		again, err := decodeModule(stripped)
		if err != nil {
			t.Fatalf("a stripped module cannot be read: %v", err)
		}
		for _, e := range again.exports {
			if !keep[e.name] {
				t.Errorf("export %q survived", e.name)
			}
		}
		if !bytes.Equal(again.stripExports(), stripped) {
			t.Error("stripping twice changes the module")
		}
	})
}
