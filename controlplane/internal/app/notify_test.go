package app_test

import (
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/test/support/logtest"
)

// systemd receives a message when the control plane listens.
func TestSystemdLearnsThatWeirListens(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	p := startWith(t, bare(t), slog.New(slog.DiscardHandler))
	if err := socket.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	said := make([]byte, 100)
	n, err := socket.Read(said)
	if err != nil || string(said[:n]) != "READY=1" {
		t.Fatalf("systemd receives %q, %v", said[:n], err)
	}
	p.until("/healthz", http.StatusOK)
}

// A socket that is gone does not stop the control plane, and the log says so.
func TestSystemdMayBeGone(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "gone"))
	var log logtest.Buffer
	p := startWith(t, bare(t), slog.New(slog.NewJSONHandler(&log, nil)))
	p.until("/healthz", http.StatusOK)
	p.stop()
	if !strings.Contains(log.String(), "cannot tell systemd that weir listens") {
		t.Errorf("the log says\n%s", log.String())
	}
}
