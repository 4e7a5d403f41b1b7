package settings_test

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/access/auth"
	"github.com/weir-proxy/weir/controlplane/internal/app/settings"
)

func write(t *testing.T, text string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func valid(t *testing.T) settings.Flags {
	return settings.Flags{Listen: "127.0.0.1:0", DataDir: t.TempDir(), AdminToken: "an-administrator-",
		NodeToken: "0123456789abcdef"}
}

func TestGiven(t *testing.T) {
	f := valid(t)
	f.AdminToken, f.AdminTokenFile = "", write(t, "  token-from-a-file\n")
	sum := sha256.Sum256([]byte("token of ci, quite long"))
	f.TokensFile = write(t, "# name role sum\n\nci editor "+hex.EncodeToString(sum[:])+" # deploys\n")
	f.RedisURL = "rediss://user:password@redis:6379/2"
	f.AdminToken = ""
	f.NodeToken = "token-of-the-nodes"
	s, err := f.Resolve()
	if err != nil {
		t.Fatal(err)
	}
	for secret, want := range map[string]auth.Token{
		"token-from-a-file":  {Name: "admin", Role: auth.Admin},
		"token-of-the-nodes": {Name: "node", Role: auth.Node},
	} {
		if got, ok := s.Tokens.Find(secret); !ok || got.Name != want.Name || got.Role != want.Role {
			t.Errorf("%s is %+v, %v", secret, got, ok)
		}
	}
	if len(s.Made) > 0 || s.RedisURL != f.RedisURL || s.TokensFile != f.TokensFile || s.Listen != f.Listen {
		t.Errorf("%+v", s)
	}
}

// Without tokens the control plane makes a token for each purpose, which only the owner can read.
// The next start uses the same tokens.
func TestGenerated(t *testing.T) {
	f := settings.Flags{Listen: ":0", DataDir: filepath.Join(t.TempDir(), "deep", "down")}
	s, err := f.Resolve()
	if err != nil || len(s.Made) != 2 || len(s.Tokens) != 2 {
		t.Fatalf("%+v, %v", s, err)
	}
	for i, made := range s.Made {
		path := made.Path
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%s is written before the data directory is held", path)
		}
		if err := made.Keep(); err != nil {
			t.Error(err)
		}
		if made.Keep() == nil {
			t.Errorf("%s is overwritten", path)
		}
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", path, info.Mode(), err)
		}
		b, err := os.ReadFile(path)
		if token, ok := s.Tokens.Find(strings.TrimSpace(string(b))); err != nil || !ok ||
			token.Name != []string{"admin", "node"}[i] {
			t.Errorf("%s holds the token of %+v, %v", path, token, err)
		}
	}
	again, err := f.Resolve()
	if err != nil || len(again.Made) != 0 || again.Tokens[0] != s.Tokens[0] || again.Tokens[1] != s.Tokens[1] {
		t.Errorf("%+v, %v", again, err)
	}
}

func TestDefaultDirectory(t *testing.T) {
	state := t.TempDir()
	t.Setenv("XDG_STATE_HOME", state)
	f := valid(t)
	f.DataDir = ""
	if s, err := f.Resolve(); err != nil || s.DataDir != filepath.Join(state, "weir") {
		t.Errorf("%+v, %v", s, err)
	}
	home := t.TempDir()
	t.Setenv("XDG_STATE_HOME", "")
	t.Setenv("HOME", home)
	if s, err := f.Resolve(); err != nil || s.DataDir != filepath.Join(home, ".local", "state", "weir") {
		t.Errorf("%+v, %v", s, err)
	}
}

// With everything elsewhere no directory is needed, or made.
func TestNoDirectory(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", "")
	t.Setenv("HOME", "")
	f := valid(t)
	f.DataDir, f.RedisURL = "", "redis://redis:6379"
	if s, err := f.Resolve(); err != nil || s.DataDir != "" {
		t.Errorf("%+v, %v", s, err)
	}
	f.AdminToken = ""
	if _, err := f.Resolve(); err == nil ||
		!strings.Contains(err.Error(), "--data-dir (WEIR_DATA_DIR): must be given") {
		t.Errorf("%v", err)
	}
}

// A share is taken as weir apply takes it, with the sign and without.
func TestAShareOfTheNodes(t *testing.T) {
	for text, want := range map[string]int{
		"25": 25, "25%": 25, "1": 1, "99%": 99, "": 0,
		"0": -1, "100%": -1, "25%%": -1, "a quarter": -1, "%": -1,
	} {
		f := valid(t)
		f.PolicySet, f.PolicySetNodes = write(t, ""), text
		s, err := f.Resolve()
		switch {
		case want < 0 && (err == nil || !strings.Contains(err.Error(), "is not from 1% to 99%")):
			t.Errorf("%q: %v", text, err)
		case want >= 0 && (err != nil || s.PolicySetNodes != want):
			t.Errorf("%q: %d, %v", text, s.PolicySetNodes, err)
		}
	}
}

func TestProblems(t *testing.T) {
	for name, c := range map[string]struct {
		change func(f *settings.Flags)
		want   string
	}{
		"an address without port": {func(f *settings.Flags) { f.Listen = "localhost" }, `--listen (WEIR_LISTEN): "localhost" is not HOST:PORT`},
		"another database": {func(f *settings.Flags) { f.RedisURL = "mysql://x" },
			"--redis-url (WEIR_REDIS_URL): must be like redis://"},
		"a store that is waited for too long": {func(f *settings.Flags) { f.StorePatience = 2 * time.Second },
			"--store-patience (WEIR_STORE_PATIENCE): 2s is not from 0s to 1s"},
		"a drain that never ends": {func(f *settings.Flags) { f.Drain = time.Hour },
			"--drain (WEIR_DRAIN): 1h0m0s is not from 0s to 5m0s"},
		"no URL": {func(f *settings.Flags) { f.RedisURL = "redis://:p%zz@" },
			"--redis-url (WEIR_REDIS_URL): must be like redis://"},
		"a file in the way": {func(f *settings.Flags) { f.DataDir = write(t, "") },
			"--data-dir (WEIR_DATA_DIR): mkdir"},
		"a short token": {func(f *settings.Flags) { f.AdminToken = "short" },
			"WEIR_ADMIN_TOKEN: the token has 5 characters; at least 16 are needed"},
		"a token with a space": {func(f *settings.Flags) { f.NodeToken = "0123456789 abcdef" },
			"WEIR_NODE_TOKEN: the token holds a character that an HTTP header cannot carry"},
		"two tokens": {func(f *settings.Flags) { f.AdminTokenFile = "x" },
			"WEIR_ADMIN_TOKEN and --admin-token-file (WEIR_ADMIN_TOKEN_FILE) are both given"},
		"an empty token file": {func(f *settings.Flags) { f.NodeToken, f.NodeTokenFile = "", write(t, "\n") },
			"--node-token-file (WEIR_NODE_TOKEN_FILE): the token has 0 characters"},
		"a huge token file": {func(f *settings.Flags) {
			f.NodeToken, f.NodeTokenFile = "", write(t, strings.Repeat("x", 2<<20))
		}, "is larger than 1048576 bytes"},
		"a missing tokens file": {func(f *settings.Flags) { f.TokensFile = "missing" },
			"--tokens-file (WEIR_TOKENS_FILE): open missing"},
		"an empty tokens file": {func(f *settings.Flags) { f.TokensFile = write(t, "\n") },
			"the file is empty: to have no tokens in it, leave a comment"},
		"a line too short": {func(f *settings.Flags) { f.TokensFile = write(t, "a b") },
			"line 1: must be a name, a role, the SHA-256"},
		"a token in plain text": {func(f *settings.Flags) { f.TokensFile = write(t, "\na admin secret") },
			"line 2: the third field must be sha256: and 64 hexadecimal digits, never the token itself"},
		"a token twice": {func(f *settings.Flags) {
			f.TokensFile = write(t, strings.Repeat("a viewer "+strings.Repeat("0", 64)+"\n", 2))
		}, "line 2: this token is in the file already"},
	} {
		t.Run(name, func(t *testing.T) {
			f := valid(t)
			c.change(&f)
			if _, err := f.Resolve(); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %s", err, c.want)
			}
		})
	}
	f := settings.Flags{Listen: "x", RedisURL: "x", DataDir: write(t, ""), TokensFile: "missing", AdminToken: "x"}
	if _, err := f.Resolve(); err == nil || strings.Count(err.Error(), "\n") != 4 {
		t.Errorf("five problems are reported as %v", err)
	}
}
