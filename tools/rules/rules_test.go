package rules_test

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// The rules of the tree, which CONTRIBUTING.md explains. They hold for every Go file of the module,
// whatever its build tags, except under testdata.

const (
	module          = "github.com/weir-proxy/weir/"
	maxFileLines    = 400
	maxFunctionSize = 60

	// decisionPath is read from top to bottom to learn how a request is decided.
	decisionPath    = "filter/internal/decide/limiter/decide.go"
	maxDecisionPath = 200
)

// An importRule keeps the packages that `of` names out of the places that `in` names, except for
// the places that `except` names. All are prefixes at whole path elements; places are relative to
// the module, and a place that ends in .go is a file.
type importRule struct {
	name       string
	of         []string
	in, except []string
	// tests reports whether the rule holds for test files and test-support packages too.
	tests bool
}

var importRules = []importRule{
	{name: "the filter and the control plane know each other only through shared",
		of: []string{module + "controlplane"}, in: []string{"filter"}, tests: true},
	{name: "the filter and the control plane know each other only through shared",
		of: []string{module + "filter"}, in: []string{"controlplane"}, tests: true},
	{name: "shared imports nothing but shared",
		of: []string{module + "filter", module + "controlplane", module + "envoytest", module + "tools",
			module + "test"},
		in: []string{"shared"}, tests: true},
	{name: "the proxy-wasm SDK stays at the filter's edge",
		of: []string{"github.com/tetratelabs/proxy-wasm-go-sdk"}, in: []string{""},
		except: []string{"filter/main.go", "filter/internal/envoy", "test/figures/bench/empty"}, tests: true},
	{name: "Redis is spoken only in redisstore",
		of: []string{"github.com/redis/go-redis"}, in: []string{""},
		except: []string{"controlplane/internal/store/redisstore"}},
	{name: "echo stays in api",
		of: []string{"github.com/labstack"}, in: []string{""}, except: []string{"controlplane/internal/serve/api"},
		tests: true},
	{name: "readers of the REST interface's description stay in api",
		of: []string{"github.com/getkin/kin-openapi", "github.com/oapi-codegen"}, in: []string{""},
		except: []string{"controlplane/internal/serve/api"}, tests: true},
	{name: "bbolt stays in localstore",
		of: []string{"go.etcd.io/bbolt"}, in: []string{""}, except: []string{"controlplane/internal/store/localstore"},
		tests: true},
	{name: "YAML stays in policydoc, and for other programs' files in importer",
		of: []string{"go.yaml.in/yaml"}, in: []string{"controlplane"},
		except: []string{"controlplane/internal/rules/policydoc", "controlplane/internal/offline/importer"}},
	{name: "the parser of nginx's configurations stays in its importer",
		of: []string{"github.com/nginxinc"}, in: []string{""},
		except: []string{"controlplane/internal/offline/importer/fromnginx"}, tests: true},
	{name: "Prometheus stays in metrics",
		of: []string{"github.com/prometheus"}, in: []string{"controlplane"},
		except: []string{"controlplane/internal/observe/metrics"}},
	{name: "OpenTelemetry's SDK stays in tracing",
		of: []string{"go.opentelemetry.io/otel/sdk", "go.opentelemetry.io/otel/exporters"}, in: []string{""},
		except: []string{"controlplane/internal/observe/tracing"}, tests: true},
	{name: "the command line's library stays in cli",
		of: []string{"github.com/alecthomas/kong"}, in: []string{"controlplane"},
		except: []string{"controlplane/internal/cli"}},
	{name: "wazero stays in envoytest",
		of: []string{"github.com/tetratelabs/wazero"}, in: []string{""}, except: []string{"envoytest"}, tests: true},
	{name: "the product runs other programs in its demo alone",
		of: []string{module + "tools"}, in: []string{"controlplane"}, except: []string{"controlplane/internal/demo"}},
	{name: "the client is for other people's programs and imports nothing of Weir",
		of: []string{module + "filter", module + "controlplane", module + "envoytest", module + "tools",
			module + "test", module + "shared"},
		in: []string{"client"}},
	{name: "gRPC stays in grpcpacer, so that the client's users do not import it",
		of: []string{"google.golang.org/grpc"}, in: []string{"client"}, except: []string{"client/grpcpacer"},
		tests: true},
	{name: "gRPC is served by grpcserver, and known only to the services on it",
		of: []string{"google.golang.org/grpc"}, in: []string{"controlplane", "shared", "filter"},
		except: []string{"controlplane/internal/serve/grpcserver", "controlplane/internal/serve/rls",
			"controlplane/internal/serve/rlqs", "controlplane/internal/app/calls_test.go",
			"controlplane/internal/app/quotas_test.go"}, tests: true},
	{name: "Envoy's messages stay in the services that speak them",
		of: []string{"github.com/envoyproxy/go-control-plane"}, in: []string{"controlplane", "shared", "filter"},
		except: []string{"controlplane/internal/serve/rls", "controlplane/internal/serve/rlqs",
			"controlplane/internal/app/calls_test.go",
			"controlplane/internal/app/quotas_test.go"}, tests: true},
	{name: "code that runs at the server does not import the client",
		of: []string{module + "client"}, in: []string{"shared", "filter", "controlplane"}, tests: true},
	{name: "code for the filter does no I/O, keeps no lock and stays small",
		of: []string{"net/http", "os", "context", "sync", "regexp", "fmt"}, in: []string{"shared", "filter"}},
}

// A file is one Go file of the tree. Its path is relative to the root, with slashes.
type file struct {
	path, source string
	tree         *ast.File
	set          *token.FileSet
}

func (f file) isTest() bool { return strings.HasSuffix(f.path, "_test.go") }

// isSupport reports whether the file's package exists for tests: those are named so.
func (f file) isSupport() bool {
	return strings.HasSuffix(path.Base(path.Dir(f.path)), "test") || strings.HasPrefix(f.path, "test/")
}

func (f file) problem(at token.Pos, rule string) string {
	return fmt.Sprintf("%s:%d: %s", f.path, f.set.Position(at).Line, rule)
}

// goFiles returns all Go files of the module. They are parsed once for all tests, which only read
// them.
func goFiles(t *testing.T) []file {
	t.Helper()
	files, err := parseModule()
	if err != nil {
		t.Fatal(err)
	}
	return files
}

var parseModule = sync.OnceValues(func() (files []file, err error) {
	names, err := listFiles()
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		source, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			return nil, err
		}
		f, err := parseFile(name, string(source))
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	return files, nil
})

// listFiles asks the go command for the module's packages, so that another module or a testdata
// folder does not count. It asks as TinyGo builds: otherwise it leaves out packages that only
// TinyGo compiles, such as the packages that know Envoy.
func listFiles() ([]string, error) {
	command := exec.Command("go", "list", "-e", "-tags", "tinygo",
		"-json=Dir,GoFiles,CgoFiles,IgnoredGoFiles,TestGoFiles,XTestGoFiles", "./...")
	command.Dir = root
	output, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	top, err := filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	var files []string
	for d := json.NewDecoder(strings.NewReader(string(output))); d.More(); {
		var p struct {
			Dir                                                          string
			GoFiles, CgoFiles, IgnoredGoFiles, TestGoFiles, XTestGoFiles []string
		}
		if err := d.Decode(&p); err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		dir, err := filepath.Rel(top, p.Dir)
		if err != nil {
			return nil, err
		}
		for _, name := range slices.Concat(p.GoFiles, p.CgoFiles, p.IgnoredGoFiles, p.TestGoFiles, p.XTestGoFiles) {
			files = append(files, filepath.ToSlash(filepath.Join(dir, name)))
		}
	}
	return files, nil
}

func parse(t *testing.T, name, source string) file {
	t.Helper()
	f, err := parseFile(name, source)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func parseFile(name, source string) (file, error) {
	set := token.NewFileSet()
	tree, err := parser.ParseFile(set, name, source, parser.ParseComments|parser.SkipObjectResolution)
	return file{name, source, tree, set}, err
}

func TestTreeKeepsTheRules(t *testing.T) {
	files := goFiles(t)
	if len(files) < 20 {
		t.Fatalf("go list found only %d files", len(files))
	}
	for _, f := range files {
		for _, problem := range check(f) {
			t.Error(problem)
		}
	}
}

func TestLuaStaysInRedisstore(t *testing.T) {
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name = filepath.ToSlash(strings.TrimPrefix(name, root+"/"))
		if entry.IsDir() && slices.Contains([]string{".git", "build", ".run"}, name) {
			return fs.SkipDir
		}
		if strings.HasSuffix(name, ".lua") && !under(name, "controlplane/internal/store/redisstore") {
			t.Errorf("%s:1: Lua stays in redisstore", name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// check returns all that is wrong with a file, as file:line: rule.
func check(f file) []string {
	problems := slices.Concat(checkImports(f), checkConcurrency(f), checkClock(f))
	if !f.isTest() && !ast.IsGenerated(f.tree) {
		problems = slices.Concat(problems, checkSizes(f), checkDocumentation(f))
	}
	return problems
}

// under reports whether a name is, or is below, a place; "" is everything.
func under(name, place string) bool {
	return place == "" || name == place || strings.HasPrefix(name, place+"/")
}

func underAny(name string, places []string) bool {
	return slices.ContainsFunc(places, func(place string) bool { return under(name, place) })
}

func checkImports(f file) (problems []string) {
	for _, spec := range f.tree.Imports {
		imported, _ := strconv.Unquote(spec.Path.Value)
		for _, rule := range importRules {
			if !rule.tests && (f.isTest() || f.isSupport()) || !underAny(f.path, rule.in) ||
				underAny(f.path, rule.except) {
				continue
			}
			if underAny(imported, rule.of) {
				problems = append(problems, f.problem(spec.Pos(), rule.name+": must not import "+imported))
			}
		}
	}
	return problems
}

// clocks are the functions of package time that read a clock or wait for a clock.
var clocks = []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"}

// timekeepers are the places of the control plane that may read a clock; all other code there gets
// the time as an argument.
var timekeepers = []string{"controlplane/internal/app", "controlplane/internal/store/localstore",
	"controlplane/internal/cli/token.go", "controlplane/internal/cli/shown.go"}

func checkClock(f file) (problems []string) {
	if f.isTest() || f.isSupport() || !under(f.path, "controlplane") || underAny(f.path, timekeepers) {
		return nil
	}
	ast.Inspect(f.tree, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := s.X.(*ast.Ident); ok && x.Name == "time" &&
				slices.Contains([]string{"Now", "Since", "Until"}, s.Sel.Name) {
				problems = append(problems, f.problem(n.Pos(),
					"the control plane is told the time: no time."+s.Sel.Name))
			}
		}
		return true
	})
	return problems
}

func checkConcurrency(f file) (problems []string) {
	if f.isTest() || f.isSupport() || !underAny(f.path, []string{"shared", "filter"}) ||
		under(f.path, "filter/internal/envoy/host") {
		return nil
	}
	ast.Inspect(f.tree, func(n ast.Node) bool {
		what := ""
		switch n := n.(type) {
		case *ast.GoStmt:
			what = "a go statement"
		case *ast.ChanType, *ast.SendStmt, *ast.SelectStmt:
			what = "a channel"
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && slices.Contains(clocks, n.Sel.Name) {
				what = "time." + n.Sel.Name
			}
		}
		if what != "" {
			problems = append(problems, f.problem(n.Pos(),
				"code for the filter takes the time as an argument and runs in one thread: no "+what))
		}
		return true
	})
	return problems
}

func checkSizes(f file) (problems []string) {
	most := maxFileLines
	if f.path == decisionPath {
		most = maxDecisionPath
	}
	if lines := f.set.File(f.tree.Pos()).LineCount(); lines > most {
		problems = append(problems, fmt.Sprintf("%s:%d: a file has at most %d lines, this one has %d", f.path,
			most+1, most, lines))
	}
	ast.Inspect(f.tree, func(n ast.Node) bool {
		var body *ast.BlockStmt
		switch n := n.(type) {
		case *ast.FuncDecl:
			body = n.Body
		case *ast.FuncLit:
			body = n.Body
		}
		if body == nil {
			return true
		}
		if lines := f.set.Position(body.End()).Line - f.set.Position(n.Pos()).Line + 1; lines > maxFunctionSize {
			problems = append(problems, f.problem(n.Pos(),
				fmt.Sprintf("a function has at most %d lines, this one has %d", maxFunctionSize, lines)))
		}
		return true
	})
	return problems
}

// selfExplaining are methods of the standard interfaces, whose names explain them.
var selfExplaining = []string{"String", "Error", "Unwrap"}

func checkDocumentation(f file) (problems []string) {
	undocumented := func(name *ast.Ident) {
		problems = append(problems, f.problem(name.Pos(), "an exported name is documented: "+name.Name+" is not"))
	}
	for _, declaration := range f.tree.Decls {
		switch d := declaration.(type) {
		case *ast.FuncDecl:
			if !d.Name.IsExported() || d.Doc != nil ||
				d.Recv != nil && (!exportedReceiver(d) || slices.Contains(selfExplaining, d.Name.Name)) {
				continue
			}
			undocumented(d.Name)
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				for _, name := range undocumentedNames(d, spec) {
					undocumented(name)
				}
			}
		}
	}
	return problems
}

func exportedReceiver(d *ast.FuncDecl) bool {
	exported := false
	ast.Inspect(d.Recv.List[0].Type, func(n ast.Node) bool {
		name, ok := n.(*ast.Ident)
		exported = exported || ok && name.IsExported()
		return !ok
	})
	return exported
}

// undocumentedNames returns the exported names of a declaration. A comment on the group, or at the
// end of the line, counts.
func undocumentedNames(d *ast.GenDecl, spec ast.Spec) (names []*ast.Ident) {
	switch s := spec.(type) {
	case *ast.TypeSpec:
		if s.Name.IsExported() && d.Doc == nil && s.Doc == nil && s.Comment == nil {
			names = append(names, s.Name)
		}
	case *ast.ValueSpec:
		for _, name := range s.Names {
			if name.IsExported() && d.Doc == nil && s.Doc == nil && s.Comment == nil {
				names = append(names, name)
			}
		}
	}
	return names
}

// Each rule finds the mistake that it is there for, only where it holds, and says where.
func TestRulesFindWhatTheyForbid(t *testing.T) {
	long := strings.Repeat("\t_ = 1\n", 60)
	for _, c := range []struct{ path, source, want string }{
		{"filter/internal/decide/limiter/a.go", "import _ \"" + module + "controlplane/internal/fleet/push\"",
			"a.go:2: the filter and the control plane"},
		{"controlplane/controlplane.go", "import _ \"" + module + "filter/internal/envoy/host\"",
			"controlplane.go:2: the filter and the control plane"},
		{"shared/quota/a_test.go", "import _ \"" + module + "envoytest\"", "a_test.go:2: shared imports nothing"},
		{"filter/internal/remote/leasing/a.go", `import _ "github.com/tetratelabs/proxy-wasm-go-sdk/proxywasm"`, "a.go:2: the proxy-wasm SDK"},
		{"filter/main.go", `import _ "github.com/tetratelabs/proxy-wasm-go-sdk/proxywasm"`, ""},
		{"filter/internal/hosts/a.go", `import _ "github.com/tetratelabs/proxy-wasm-go-sdk/proxywasm"`, "a.go:2: the proxy-wasm SDK"},
		{"controlplane/internal/grant/leases/a.go", `import _ "github.com/redis/go-redis/v9"`, "a.go:2: Redis is spoken only"},
		{"test/support/redistest/a.go", `import _ "github.com/redis/go-redis/v9"`, ""},
		{"controlplane/internal/app/a_test.go", `import _ "github.com/labstack/echo/v4"`, "a_test.go:2: echo stays"},
		{"controlplane/internal/app/a.go", `import _ "go.etcd.io/bbolt"`, "a.go:2: bbolt stays"},
		{"filter/internal/envoy/host/a_test.go", `import _ "github.com/tetratelabs/wazero"`, "a_test.go:2: wazero stays"},
		{"controlplane/internal/app/a.go", "import _ \"" + module + "tools/stack\"", "a.go:2: the product runs other"},
		{"controlplane/internal/demo/a.go", "import _ \"" + module + "tools/stack\"", ""},
		{"client/a.go", "import _ \"" + module + "shared/quota\"", "a.go:2: the client is for other"},
		{"client/a_test.go", "import _ \"" + module + "shared/quota\"", ""},
		{"client/a.go", `import _ "google.golang.org/grpc"`, "a.go:2: gRPC stays in grpcpacer"},
		{"client/grpcpacer/a.go", `import _ "google.golang.org/grpc"`, ""},
		{"controlplane/internal/app/a.go", "import _ \"" + module + "client\"", "a.go:2: code that runs at the server"},
		{"shared/policy/a.go", `import _ "fmt"`, "a.go:2: code for the filter does no I/O"},
		{"shared/policy/a.go", `import _ "os"`, "a.go:2: code for the filter does no I/O"},
		{"shared/policy/a_test.go", `import _ "fmt"`, ""},
		{"shared/quota/quotatest/a.go", `import _ "os"`, ""},
		{"shared/lease/a.go", "func f() {\n\tgo f()\n}", "a.go:3: code for the filter takes the time"},
		{"shared/lease/a.go", "var c chan int", "a.go:2: code for the filter takes the time"},
		{"filter/internal/remote/leasing/a.go", "func f() { select {} }", "no a channel"},
		{"filter/internal/remote/leasing/a.go", "import \"time\"\nvar t = time.Now()",
			"a.go:3: code for the filter takes the time"},
		{"filter/internal/envoy/host/a.go", "import \"time\"\nvar t = time.Now()", ""},
		{"controlplane/internal/app/a.go", "func f() {\n\tgo f()\n}", ""},
		{"controlplane/internal/grant/leases/a.go", "import \"time\"\nvar t = time.Now()",
			"a.go:3: the control plane is told the time"},
		{"controlplane/internal/app/a.go", "import \"time\"\nvar t = time.Now()", ""},
		{"controlplane/internal/grant/leases/a.go", `import _ "go.yaml.in/yaml/v3"`, "a.go:2: YAML stays"},
		{"controlplane/internal/grant/leases/a.go", `import _ "github.com/prometheus/client_golang/prometheus"`, "a.go:2: Prometheus stays"},
		{"controlplane/internal/grant/leases/a.go", `import _ "github.com/alecthomas/kong"`, "a.go:2: the command line's"},
		{"tools/stack/a.go", "func f() {\n" + long + "}", "a.go:2: a function has at most 60 lines, this one has 62"},
		{"tools/stack/a.go", "var f = func() {\n" + long + "}", "a.go:2: a function has at most 60 lines"},
		{"tools/stack/a_test.go", "func f() {\n" + long + "}", ""},
		{"tools/stack/a.go", strings.Repeat("//\n", 399), "a.go:401: a file has at most 400 lines"},
		{"tools/stack/a.go", strings.Repeat("//\n", 398), ""},
		{decisionPath, strings.Repeat("//\n", 199), "decide.go:201: a file has at most 200 lines"},
		{decisionPath, strings.Repeat("//\n", 198), ""},
		{"tools/stack/a.go", "func F() {}", "a.go:2: an exported name is documented: F is not"},
		{"tools/stack/a.go", "// T is.\ntype T int\nfunc (*T) M() {}", "M is not"},
		{"tools/stack/a.go", "type t int\nfunc (t) M() {}\nfunc f() {}", ""},
		{"tools/stack/a.go", "// T is.\ntype T int\nfunc (T) String() string { return \"\" }", ""},
		{"tools/stack/a.go", "const A = 1", "A is not"},
		{"tools/stack/a.go", "// The two.\nconst (\n\tA = 1\n\tB = 2\n)", ""},
		{"tools/stack/a.go", "type T int", "T is not"},
	} {
		got := strings.Join(check(parse(t, c.path, "package p\n"+c.source+"\n")), "\n")
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%s with\n%s\nis said to be wrong with %q, want %q", c.path, c.source, got, c.want)
		}
	}
}

// A generated file may be of any length, and is as documented as its source.
func TestGeneratedFilesAreNotMeasured(t *testing.T) {
	source := "// Code generated by a test. DO NOT EDIT.\n\npackage p\n\nfunc F() {}\n" + strings.Repeat("//\n", 400)
	if problems := check(parse(t, "tools/stack/a.go", source)); len(problems) > 0 {
		t.Error(problems)
	}
}
