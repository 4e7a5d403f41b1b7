package cli_test

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/weir-proxy/weir/controlplane/internal/app"
	"github.com/weir-proxy/weir/controlplane/internal/auth"
	"github.com/weir-proxy/weir/controlplane/internal/cli"
	"github.com/weir-proxy/weir/controlplane/internal/settings"
)

const (
	adminToken  = "admin-token-of-the-tests"
	viewerToken = "viewer-token-of-the-tests"
	nodeToken   = "node-token-of-the-tests"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"weir": func() {
			os.Exit(cli.Main(os.Args[1:], cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}, "v0.0.0-test"))
		},
	})
}

// Each script talks to a control plane of its own.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: filepath.Join("testdata", "script"), RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			examples, err := filepath.Abs(filepath.Join("..", "..", "..", "examples"))
			if err != nil {
				return err
			}
			env.Setenv("WEIR_SERVER", "http://"+serve(t, env))
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

func serve(t *testing.T, env *testscript.Env) (address string) {
	t.Helper()
	token := func(name, secret string, role auth.Role) auth.Token {
		return auth.Token{Name: name, Role: role, Sum: sha256.Sum256([]byte(secret))}
	}
	a, err := app.New(settings.Settings{Listen: "127.0.0.1:0", DataDir: t.TempDir(), Tokens: auth.Tokens{
		token("admin", adminToken, auth.Admin), token("eyes", viewerToken, auth.Viewer), token("node", nodeToken, auth.Node),
	}}, "v0.0.0-test", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	env.Defer(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return a.Addr().String()
}
