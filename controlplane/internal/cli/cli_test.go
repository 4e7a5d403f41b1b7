package cli_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/weir-proxy/weir/controlplane/internal/access/auth"
	"github.com/weir-proxy/weir/controlplane/internal/app"
	"github.com/weir-proxy/weir/controlplane/internal/app/settings"
	"github.com/weir-proxy/weir/controlplane/internal/cli"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/wire"
)

const (
	adminToken  = "admin-token-of-the-tests"
	viewerToken = "viewer-token-of-the-tests"
	nodeToken   = "node-token-of-the-tests"
	// expiredToken is an expired token of a viewer.
	expiredToken = "expired-token-of-the-tests"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"weir": func() {
			os.Exit(cli.Main(os.Args[1:], cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr},
				cli.Build{Version: "v0.0.0-test", Files: os.DirFS(os.Getenv("TREE"))}))
		},
	})
}

// scripts is the folder with a file for each command, or group of commands: its work and its
// answers to mistakes.
const scripts = "testdata/script"

// Each script talks to a control plane of its own.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: scripts, RequireExplicitExec: true, UpdateScripts: os.Getenv("WEIR_UPDATE_GOLDEN") != "",
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){"polls": polls, "offends": offends,
			"remember": remember},
		Setup: func(env *testscript.Env) error {
			examples, err := filepath.Abs("../../../examples")
			if err != nil {
				return err
			}
			tree, err := filepath.Abs("../../..")
			if err != nil {
				return err
			}
			env.Setenv("TREE", tree)
			env.Setenv("WEIR_SERVER", "http://"+serve(t, env.Defer))
			env.Setenv("STRANGER", stranger(t))
			env.Setenv("WITHOUT_STORE", withoutStore(t))
			env.Setenv("ESCAPE", "\x1b]0;pwned\a\r\nbanned    no")
			env.Setenv("WEIR_TOKEN", adminToken)
			env.Setenv("HOME", env.WorkDir)
			env.Setenv("XDG_CONFIG_HOME", filepath.Join(env.WorkDir, "config"))
			env.Setenv("EXAMPLES", examples)
			env.Setenv("VIEWER", viewerToken)
			env.Setenv("NODE", nodeToken)
			return nil
		},
	})
}

// serve runs a control plane until the function given to atEnd is called.
func serve(t *testing.T, atEnd func(func())) (address string) {
	t.Helper()
	token := func(name, secret string, role auth.Role) auth.Token {
		return auth.Token{Name: name, Role: role, Sum: sha256.Sum256([]byte(secret))}
	}
	a, err := app.New(settings.Settings{Listen: "127.0.0.1:0", DataDir: t.TempDir(), Tokens: auth.Tokens{
		token("admin", adminToken, auth.Admin), token("eyes", viewerToken, auth.Viewer),
		token("node", nodeToken, auth.Node),
		{Name: "old", Role: auth.Viewer, Sum: sha256.Sum256([]byte(expiredToken)), Expires: time.Unix(1, 0)},
	}}, "v0.0.0-test", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx, context.Background()) }()
	atEnd(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return a.Addr().String()
}

// stranger is a server that is no control plane, and answers everything with JSON all the same.
func stranger(t *testing.T) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("page_size") && strings.Contains(r.URL.Path, "versions") {
			w.Header().Set("X-Request-Id", "12345678")
		}
		_, _ = io.WriteString(w, "{}")
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// withoutStore returns the address of a control plane whose store is away and whose clock is wrong.
// Its memory has two pages of versions.
func withoutStore(t *testing.T) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(api.RequestIDHeader, "12345678")
		w.Header().Set(api.HeldHeader, "this is what is held: Redis does not answer\u202e")
		w.Header().Set(api.ClockHeader, "the clock is an hour behind")
		switch {
		case r.Method == http.MethodPut:
			w.Header().Set("Content-Type", api.ProblemType)
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, `{"status": 503, "detail": "Redis does not answer; try again"}`)
		case r.URL.Path == "/v1/check":
			_, _ = io.WriteString(w, `{"valid": true, "summary": "a added", "diff": {"words": ["+ a: 1 per 1s; leased"]}}`)
		case r.URL.Path == "/v1/policyset":
			_, _ = io.WriteString(w, "version: weir/v1\n")
		case r.URL.Query().Has("page_token"):
			_, _ = io.WriteString(w, `{"versions":[],"next_page_token":""}`)
		default:
			_, _ = io.WriteString(w, `{"versions":[],"next_page_token":"2"}`)
		}
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// polls has nodes ask for their policy set as Envoys do, and then say that they have it.
func polls(ts *testscript.TestScript, _ bool, nodes []string) {
	for _, node := range nodes {
		version := poll(ts, "node="+node+"&boot=1")
		poll(ts, "node="+node+"&boot=1&after="+version+"&applied="+version)
	}
}

// remember sets a variable to the first group of an expression in the last output.
func remember(ts *testscript.TestScript, _ bool, args []string) {
	found := regexp.MustCompile("(?m)" + args[1]).FindStringSubmatch(ts.ReadFile("stdout"))
	if len(found) != 2 {
		ts.Fatalf("%s is not in the output", args[1])
	}
	ts.Setenv(args[0], found[1])
}

// offends reports a penalty of an hour as Envoys do: policy and the 32 digits of the caller's hash,
// and shadow if it is.
func offends(ts *testscript.TestScript, _ bool, args []string) {
	key, err := keyhash.Parse(args[1])
	ts.Check(err)
	until := time.Now().Add(time.Hour).UnixMilli()
	body := wire.AppendReport(nil, &wire.Report{Node: []byte("edge-1"), Offences: &wire.Offences{Items: []wire.Offence{{
		Key: key, Policy: []byte(args[0]), Level: 2, Until: until, Forgotten: until + 3_600_000, Shadow: len(args) > 2,
	}}}})
	r, err := http.NewRequest(http.MethodPost, ts.Getenv("WEIR_SERVER")+"/node/v1/report", bytes.NewReader(body))
	ts.Check(err)
	r.Header.Set("Authorization", "Bearer "+nodeToken)
	r.Header.Set("Content-Type", wire.ContentType)
	answer, err := http.DefaultClient.Do(r)
	ts.Check(err)
	ts.Check(answer.Body.Close())
	if answer.StatusCode != http.StatusNoContent {
		ts.Fatalf("a report is answered with %s", answer.Status)
	}
	// Another report that changes nothing would not be listed, so wait for the list.
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		list, err := http.NewRequest(http.MethodGet, ts.Getenv("WEIR_SERVER")+"/v1/penalties?key="+args[1], nil)
		ts.Check(err)
		list.Header.Set("Authorization", "Bearer "+adminToken)
		answer, err := http.DefaultClient.Do(list)
		ts.Check(err)
		text, err := io.ReadAll(answer.Body)
		ts.Check(errors.Join(err, answer.Body.Close()))
		if bytes.Contains(text, []byte(`"in_force":true`)) {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("the penalty is not listed: %s", text)
		}
	}
}

func poll(ts *testscript.TestScript, query string) (version string) {
	r, err := http.NewRequest(http.MethodGet, ts.Getenv("WEIR_SERVER")+"/node/v1/snapshot?"+query, nil)
	ts.Check(err)
	r.Header.Set("Authorization", "Bearer "+nodeToken)
	answer, err := http.DefaultClient.Do(r)
	ts.Check(err)
	ts.Check(answer.Body.Close())
	if answer.StatusCode >= 300 {
		ts.Fatalf("a node that polls with %s is answered with %s", query, answer.Status)
	}
	return answer.Header.Get("Weir-Version")
}

// A new command needs a script, and an example in its help.
func TestEveryCommandHasAScriptAndAnExample(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(scripts, "*.txtar"))
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		text.Write(b)
	}
	commands := cli.Commands()
	if len(commands) < 10 {
		t.Fatalf("there are only %d commands", len(commands))
	}
	for _, c := range commands {
		if !regexp.MustCompile(`\bweir ` + c.Path + `\b`).MatchString(text.String()) {
			t.Errorf("no file of %s runs weir %s", scripts, c.Path)
		}
		group, _, _ := strings.Cut(c.Path, " ")
		if !strings.Contains(c.Detail, "  weir "+group) && !strings.Contains(c.Detail, "(weir "+group) {
			t.Errorf("the help of weir %s has no example: add one to examples.go", c.Path)
		}
	}
}
