package app_test

import (
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/test/support/logtest"
	"github.com/weir-proxy/weir/test/support/redistest"
)

// refuse is a Redis that answers all that it is asked with an error; hangs up after it, as some do.
func refuse(t *testing.T, words string, hangsUp bool) (url string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	serve := func(conn net.Conn) {
		defer conn.Close()
		asked := make([]byte, 1<<16)
		for {
			n, err := conn.Read(asked)
			if err != nil {
				return
			}
			for range strings.Count("\r\n"+string(asked[:n]), "\r\n*") { // One answer for each command.
				if _, err := conn.Write([]byte("-" + words + "\r\n")); err != nil || hangsUp {
					return
				}
			}
		}
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go serve(conn)
		}
	}()
	return "redis://weir:secret@" + listener.Addr().String()
}

// Whatever a Redis sends in place of an answer, and whether it hangs up then or not, /readyz/store
// and the answers to people describe it in a sentence. The log has the words of Redis.
func TestTheStoresOwnWords(t *testing.T) {
	for _, c := range []struct {
		words, said string
		hangsUp     bool
	}{
		{"DENIED Redis is running in protected mode because no password is set.", "protected mode", true},
		{"ERR max number of clients reached", "maximum of clients", true},
		{"NOPERM this user has no permissions to run the 'eval' command", "does not permit its user a command", false},
		{"WRONGPASS invalid username-password pair or user is disabled.", "refuses the user or the password", false},
		{"NOAUTH Authentication required.", "asks for a password", false},
		{"LOADING Redis is loading the dataset in memory", "is loading its data", false},
		{"LOADING Redis is loading the dataset in memory", "is loading its data", true},
		{"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", "lost its primary", false},
		{"BUSY Redis is busy running a script.", "is busy with a script", false},
	} {
		t.Run(c.said, func(t *testing.T) {
			t.Parallel()
			tellsWords(t, refuse(t, c.words, c.hangsUp), c.words, c.said)
		})
	}
	server := redistest.Start(t)
	for _, c := range []struct{ rights, password, words, said string }{
		{"on >x resetchannels ~weir:* -@all", "x", "NOPERM", "does not permit its user a command"},
		{"on >x", "y", "WRONGPASS", "refuses the user or the password"},
	} {
		t.Run("a real one: "+c.words, func(t *testing.T) {
			if got := server.Do(strings.Fields("ACL SETUSER weir reset " + c.rights)...); got != "+OK" {
				t.Fatal(got)
			}
			tellsWords(t, "redis://weir:"+c.password+"@"+server.Addr(), c.words, c.said)
		})
	}
}

func tellsWords(t *testing.T, url, words, said string) {
	t.Helper()
	var log logtest.Buffer
	s := bare(t)
	s.DataDir, s.RedisURL = "", url
	p := startWith(t, s, slog.New(slog.NewTextHandler(&log, nil)))
	p.until("/readyz/store", http.StatusServiceUnavailable, said)
	for _, path := range []string{
		"/v1/policyset", "/v1/policies", "/v1/rollout", "/v1/consumers/someone", "/v1/consumers", "/v1/audit",
		"/v1/keys/a?partition=consumer:x", "/v1/penalties",
	} {
		a := p.do("GET", path, nil)
		if a.status != http.StatusServiceUnavailable || !strings.Contains(string(a.body), said) {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
	}
	word, _, _ := strings.Cut(words, "'")
	if !strings.Contains(log.String(), word) {
		t.Errorf("the log lacks %s: %s", word, log.String())
	}
}
