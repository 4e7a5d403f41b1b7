package main

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

func environment(values ...string) func(string) string {
	return func(name string) string {
		for i := 0; i+1 < len(values); i += 2 {
			if values[i] == name {
				return values[i+1]
			}
		}
		return ""
	}
}

func TestSettingsHaveThePortsOfTheDocumentation(t *testing.T) {
	s, err := readSettings(environment())
	if err != nil {
		t.Fatal(err)
	}
	if s.envoy.port != 10000 || s.admin.port != 9901 || s.controlPlane.port != 8080 || s.keep || s.dir != ".run" {
		t.Errorf("%+v", s)
	}
}

func TestSettingsRefuseWhatMakesNoSense(t *testing.T) {
	for _, c := range [][2]string{{"WEIR_PORT_ENVOY", "http"}, {"WEIR_PORT_ADMIN", "0"},
		{"WEIR_PORT_CONTROL_PLANE", "65536"}, {"KEEP", "yes"}} {
		if _, err := readSettings(environment(c[0], c[1])); err == nil || !strings.Contains(err.Error(), c[0]) ||
			!strings.Contains(err.Error(), c[1]) {
			t.Errorf("%s=%s: %v", c[0], c[1], err)
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
	s := settings{envoy: portSetting{"WEIR_PORT_ENVOY", "Envoy", port}}
	err = s.portsAreFree()
	if err == nil {
		t.Fatal("the port counts as free")
	}
	for _, want := range []string{"port " + strconv.Itoa(port), "Envoy", "process " + strconv.Itoa(os.Getpid()),
		"WEIR_PORT_ENVOY="} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error lacks %q: %v", want, err)
		}
	}
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

// An argument starts nothing: it is answered, and the help names each variable.
func TestArgumentsStartNothing(t *testing.T) {
	var out, wrong bytes.Buffer
	if code, answered := answerArguments([]string{"--help"}, &out, &wrong); code != 0 || !answered || wrong.Len() > 0 {
		t.Errorf("--help: %d %v %q", code, answered, &wrong)
	}
	settings, err := os.ReadFile("settings.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range regexp.MustCompile(`WEIR_[A-Z_]+|"KEEP"`).FindAllString(string(settings), -1) {
		if !strings.Contains(out.String(), strings.Trim(name, `"`)) {
			t.Errorf("--help does not name %s", name)
		}
	}
	if code, answered := answerArguments([]string{"helpp"}, &out, &wrong); code != 2 || !answered ||
		!strings.Contains(wrong.String(), `"helpp"`) {
		t.Errorf("another argument: %d %v %q", code, answered, &wrong)
	}
	if _, answered := answerArguments(nil, &out, &wrong); answered {
		t.Error("without arguments nothing would start")
	}
}
